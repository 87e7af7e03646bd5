/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_state.c: the fake vendor's configuration, errors and versions (fake_gpu.h), and the tests' hooks. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_gpu_hooks.h"

#define MAX_FAILURES 16
#define MAX_NAMES 96

typedef struct failure {
    char name[40];
    int nth, code;
} failure;

typedef struct counter {
    char name[40];
    int calls;
} counter;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the five below */
static bool is_configured;
static fake_settings settings;
static failure failures[MAX_FAILURES];
static counter counters[MAX_NAMES];
static atomic_int delay;

static _Thread_local fake_code last_error;

/* --------------------------------------------------------------------------------------------------- configuration */

static long long
number_of(const char *name, long long otherwise)
{
    const char *const value = getenv(name);
    return value != NULL && value[0] != '\0' ? strtoll(value, NULL, 10) : otherwise;
}

static void
read_peers(void)
{
    const char *const value = getenv("FAKE_GPU_PEERS");
    const bool all = value == NULL || strcmp(value, "all") == 0;
    for (int a = 0; a < FAKE_MAX_DEVICES; ++a)
        for (int b = 0; b < FAKE_MAX_DEVICES; ++b)
            settings.peers[a][b] = all && a != b;
    if (all || strcmp(value, "none") == 0)
        return;
    for (const char *pair = value; pair[0] >= '0' && pair[1] >= '0'; pair += 3) {
        settings.peers[pair[0] - '0'][pair[1] - '0'] = true;
        if (pair[2] == '\0')
            break;
    }
}

static void
read_failures(const char *list)
{
    memset(failures, 0, sizeof failures);
    for (int i = 0; list != NULL && *list != '\0' && i < MAX_FAILURES; ++i) {
        (void)sscanf(list, "%39[^:]:%d:%d", failures[i].name, &failures[i].nth, &failures[i].code);
        list += strcspn(list, ",");
        list += *list == ',';
    }
}

/* Under the lock. */
static void
configure(void)
{
#if defined(OPENREG_GPU_HIP)
    const int version = HIP_VERSION;
#else
    const int version = CUDART_VERSION;
#endif
    if (is_configured)
        return;
    is_configured = true;
    settings.devices = (int)number_of("FAKE_GPU_DEVICES", 2);
    settings.memory = (size_t)number_of("FAKE_GPU_MEMORY", 256 << 20);
    settings.granularity = (size_t)number_of("FAKE_GPU_GRANULARITY", 2 << 20);
    settings.early_properties = number_of("FAKE_GPU_EARLY_PROPERTIES", 0) != 0;
    settings.driver_version = (int)number_of("FAKE_GPU_DRIVER_VERSION", version);
    settings.runtime_version = (int)number_of("FAKE_GPU_RUNTIME_VERSION", version);
    settings.staging = number_of("FAKE_GPU_STAGING", 1) != 0;
    atomic_store(&delay, (int)number_of("FAKE_GPU_DELAY_US", 0));
    read_peers();
    read_failures(getenv("FAKE_GPU_FAIL"));
}

const fake_settings *
fake_settings_get(void)
{
    (void)pthread_mutex_lock(&lock);
    configure();
    (void)pthread_mutex_unlock(&lock);
    return &settings;
}

int
fake_delay(void)
{
    return atomic_load(&delay);
}

uint64_t
fake_microseconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* ---------------------------------------------------------------------------------------------------------- errors */

/* Counts the call; the code that it must fail with, or 0. */
static int
count_call(const char *name)
{
    int code = 0;
    (void)pthread_mutex_lock(&lock);
    configure();
    int at = 0;
    while (at < MAX_NAMES - 1 && counters[at].name[0] != '\0' && strcmp(counters[at].name, name) != 0)
        ++at;
    if (counters[at].name[0] == '\0')
        (void)snprintf(counters[at].name, sizeof counters[at].name, "%s", name);
    const int calls = ++counters[at].calls;
    for (int i = 0; i < MAX_FAILURES; ++i)
        if (strcmp(failures[i].name, name) == 0 && (failures[i].nth == 0 || failures[i].nth == calls))
            code = failures[i].code;
    (void)pthread_mutex_unlock(&lock);
    return code;
}

bool
fake_is_sticky(int code)
{
    return code == 214 || code == 220 || code == 226 || code == 700 || code == 702 || code == 709 || code == 710 ||
           (code >= 714 && code <= 719) || code == 721 || code == 806 || code == 810;
}

int
fake_task_failure(void)
{
    return count_call("Task");
}

/* What ends a capture of a graph, of which there is one while the hook says so, unless the thread's mode is relaxed. */
static const char *const unsafe_in_captures[] = {
    "Malloc",         "Free",      "HostAlloc",  "FreeHost", "EventQuery", "StreamQuery", "MemAddressReserve",
    "MemAddressFree", "MemCreate", "MemRelease", "MemMap",   "MemUnmap",   "MemSetAccess"};
static atomic_bool is_capturing, capture_has_ended;
static _Thread_local openreg_gpu_capture_mode capture_mode; /* 0: global */

static bool
ends_capture(const char *name)
{
    if (capture_mode == GPU(StreamCaptureModeRelaxed))
        return false;
    for (size_t i = 0; i < sizeof unsafe_in_captures / sizeof unsafe_in_captures[0]; ++i)
        if (strcmp(name, unsafe_in_captures[i]) == 0)
            return fake_graph_forbids() || atomic_load(&is_capturing);
    return false;
}

fake_code
GPU(ThreadExchangeStreamCaptureMode)(openreg_gpu_capture_mode *mode)
{
    const openreg_gpu_capture_mode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return GPU(Success);
}

fake_code
fake_begin(const char *name)
{
    const int code = count_call(name);
    if (ends_capture(name)) {
        atomic_store(&capture_has_ended, true);
        return GPU(ErrorStreamCaptureUnsupported);
    }
    if (!fake_is_in_host_func())
        return (fake_code)code;
    (void)atomic_fetch_add(&fake_violations, 1);
    return (fake_code)800; /* CUDA: not permitted */
}

fake_code
fake_end(fake_code code)
{
    const char *const forgets = getenv("FAKE_GPU_FORGETS");
    if (code != GPU(Success) || (forgets != NULL && forgets[0] == '1'))
        last_error = code;
    return code;
}

fake_code
GPU(GetLastError)(void)
{
    const fake_code code = last_error;
    if (!fake_is_sticky((int)code))
        last_error = GPU(Success);
    return code;
}

fake_code
GPU(PeekAtLastError)(void)
{
    return last_error;
}

const char *
GPU(GetErrorName)(fake_code code)
{
    switch ((int)code) {
    case 2:
        return GPU_NAME(ErrorMemoryAllocation);
    case 700:
        return GPU_NAME(ErrorIllegalAddress);
    case 9999:
        return NULL; /* for a driver that must not trust it */
    default:
        return GPU_NAME(ErrorOfFake);
    }
}

const char *
GPU(GetErrorString)(fake_code code)
{
    if (number_of("FAKE_GPU_PLAIN_TEXTS", 0) != 0)
        return GPU(GetErrorName)(code);
    switch ((int)code) {
    case 2:
        return "out of memory";
    case 700:
        return "an illegal memory access was encountered";
    case 9999:
        return NULL;
    default:
        return "text of the fake";
    }
}

/* -------------------------------------------------------------------------------------------------------- versions */

fake_code
GPU(DriverGetVersion)(int *version)
{
    const fake_code code = fake_begin("DriverGetVersion");
    if (code == GPU(Success))
        *version = fake_settings_get()->driver_version;
    return fake_end(code);
}

fake_code
GPU(RuntimeGetVersion)(int *version)
{
    const fake_code code = fake_begin("RuntimeGetVersion");
    if (code == GPU(Success))
        *version = fake_settings_get()->runtime_version;
    return fake_end(code);
}

/* ----------------------------------------------------------------------------------------------------------- hooks */

static void
reset(void)
{
    fake_graphs_reset();
    fake_streams_reset();
    fake_events_reset();
    fake_memory_reset();
    fake_vmm_reset();
    (void)pthread_mutex_lock(&lock);
    is_configured = false;
    memset(counters, 0, sizeof counters);
    configure();
    (void)pthread_mutex_unlock(&lock);
    fake_devices_reset();
    last_error = GPU(Success);
    atomic_store(&fake_violations, 0);
}

static uint32_t
active_mask(void)
{
    uint32_t mask = 0;
    for (int dev = 0; dev < FAKE_MAX_DEVICES; ++dev)
        mask |= (uint32_t)(atomic_load(&fake_devices[dev].has_context) != 0) << dev;
    return mask;
}

static void
set_device(int dev)
{
    (void)GPU(SetDevice)(dev);
}

static int
peek_error(void)
{
    return (int)last_error;
}

static void
leave_error(int code)
{
    last_error = (fake_code)code;
}

static int
take_error(void)
{
    return (int)GPU(GetLastError)();
}

static void
set_delay(int microseconds)
{
    (void)fake_settings_get();
    atomic_store(&delay, microseconds);
}

static void
set_failures(const char *list)
{
    (void)pthread_mutex_lock(&lock);
    configure();
    memset(counters, 0, sizeof counters);
    read_failures(list);
    (void)pthread_mutex_unlock(&lock);
}

static int
count_calls(const char *name)
{
    int calls = 0;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_NAMES; ++i)
        if (strcmp(counters[i].name, name) == 0)
            calls = counters[i].calls;
    (void)pthread_mutex_unlock(&lock);
    return calls;
}

static int
count_live(const char *kind)
{
    if (strcmp(kind, "stream") == 0)
        return atomic_load(&fake_live_streams);
    if (strcmp(kind, "event") == 0)
        return atomic_load(&fake_live_events);
    if (strcmp(kind, "communicator") == 0)
        return atomic_load(&fake_live_communicators);
    const int mapped = fake_vmm_live(kind);
    return mapped >= 0 ? mapped : fake_live_blocks(kind);
}

static int
count_violations(void)
{
    return atomic_load(&fake_violations);
}

static void *
alias_of(const void *ptr)
{
    fake_block *const block = fake_block_use(ptr, 1);
    void *const alias = block == NULL ? NULL : fake_block_alias(block, ptr);
    if (block != NULL)
        fake_block_release(block);
    return alias;
}

static int
device_of(const void *ptr)
{
    fake_block *const block = fake_block_use(ptr, 1);
    const int device = block == NULL ? -1 : block->device;
    if (block != NULL)
        fake_block_release(block);
    return device;
}

static void
begin_capture(void)
{
    atomic_store(&capture_has_ended, false);
    atomic_store(&is_capturing, true);
}

static int
end_capture(void)
{
    atomic_store(&is_capturing, false);
    return !atomic_load(&capture_has_ended) && capture_mode == GPU(StreamCaptureModeGlobal);
}

__attribute__((visibility("default"))) const fake_gpu_hooks *fake_gpu_test_hooks(void);

const fake_gpu_hooks *
fake_gpu_test_hooks(void)
{
    static const fake_gpu_hooks hooks = {
        .reset = reset,
        .contexts = active_mask,
        .current_device = fake_current_device,
        .has_current_context = fake_has_current_context,
        .set_device = set_device,
        .peek_error = peek_error,
        .leave_error = leave_error,
        .take_error = take_error,
        .set_delay = set_delay,
        .hold = fake_stream_hold,
        .set_failures = set_failures,
        .calls = count_calls,
        .live = count_live,
        .violations = count_violations,
        .alias = alias_of,
        .device_of = device_of,
        .begin_capture = begin_capture,
        .end_capture = end_capture,
    };
    return &hooks;
}
