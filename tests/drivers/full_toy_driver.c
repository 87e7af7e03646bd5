/* SPDX-License-Identifier: BSD-3-Clause */
/* full_toy_driver.c: a driver with every slot, for tests (full_toy_driver.h). It counts calls, fails on request, and can
 * hold queued work back, so that tests see what is pending. Bytes move at once; only the books and the host functions are
 * asynchronous.
 *
 * Options: devices; fail=<slot>:<n>, which makes the n-th call of that slot since open() fail; until=<file>, which open()
 * waits for, and fails without. */
#define _GNU_SOURCE
#include "full_toy_driver.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../runtime/src/driver/driver_slots.h"

#define SLOT_NUMBER(name, group) slot_##name,
enum { OPENREG_SLOT_MAP(SLOT_NUMBER) slot_count };

#define MAX_DEVICES 200
#define MAX_STREAMS 4096
#define TOY_MEMORY (UINT64_C(1) << 30) /* bytes of a device */

/* A timeline: `queued` tasks were given to it, the first `completed` have ended. Kept until close(), because events
 * refer to it. */
struct openreg_driver_stream_s {
    int32_t device;
    int32_t priority;
    uint64_t queued, completed;
    int is_live;
};

struct openreg_driver_event_s {
    openreg_driver_stream timeline; /* of the latest record, or NULL */
    uint64_t position;
    int64_t nanoseconds; /* when it was recorded: work takes no time here */
    int32_t device;
    uint32_t flags;
};

struct openreg_instance_s {
    int32_t devices;
    struct openreg_driver_stream_s defaults[MAX_DEVICES];
    struct openreg_driver_stream_s streams[MAX_STREAMS];
    int stream_count;
    int has_context[MAX_DEVICES];
    uint64_t used[MAX_DEVICES]; /* bytes */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below and all timelines */
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;

/* With OPENREG_CAP_FORK_SAFE a child may use what it has inherited. */
static void
lock_for_fork(void)
{
    (void)pthread_mutex_lock(&lock);
}

static void
unlock_after_fork(void)
{
    (void)pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    (void)pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
}
static int held;
static int calls[slot_count];
static int fail_slot = -1, fail_in, fail_flags;
static openreg_status fail_code;
static int32_t devices_found = 2;
static int live_instances, live_memory, live_streams, live_events, live_host;
static char seen_options[1024]; /* "key=value\n" */
static void (*open_callback)(void);
static int queries;
static int32_t allocated_on; /* ordinal of the last mem_alloc() */

typedef struct host_call {
    void (*function)(void *argument);
    void *argument;
} host_call;
static host_call pending_calls[64]; /* host functions that are held */
static size_t pending_count;

static const openreg_host *the_host;
static _Thread_local int32_t bound_device;

static int
slot_of(const char *name)
{
    for (int i = 0; i < slot_count; ++i)
        if (strcmp(openreg_slots[i].name, name) == 0)
            return i;
    return -1;
}

/* Counts the call; OPENREG_OK, or the failure that a test has asked for. */
static openreg_status
enter(int slot)
{
    (void)pthread_mutex_lock(&lock);
    ++calls[slot];
    openreg_status code = OPENREG_OK;
    unsigned flags = 0;
    if (slot == fail_slot && (--fail_in == 0 || (fail_in < 0 && ((unsigned)fail_flags & FULL_TOY_FOREVER) != 0))) {
        code = fail_code;
        flags = (unsigned)fail_flags;
    }
    (void)pthread_mutex_unlock(&lock);
    if (code != OPENREG_OK && (flags & FULL_TOY_SILENT) == 0)
        (void)openreg_fail(the_host, code, 42, "%s was told to fail", openreg_slots[slot].name);
    return code;
}

#define ENTER(name)                                                                                                    \
    do {                                                                                                               \
        const openreg_status enter_status = enter(slot_##name);                                                        \
        if (enter_status != OPENREG_OK)                                                                                \
            return enter_status;                                                                                       \
    } while (0)

/* What could not be given back, because a test made that fail: still ours until it is given back or forgotten. */
static void *kept[256];

static void
keep(void *memory, int is_kept)
{
    (void)pthread_mutex_lock(&lock);
    size_t at = 0;
    const size_t room = sizeof kept / sizeof kept[0];
    while (at < room && kept[at] != memory)
        ++at;
    if (is_kept && at == room) /* a free place */
        for (at = 0; at < room && kept[at] != NULL; ++at) {
        }
    if (at < room)
        kept[at] = is_kept ? memory : NULL;
    (void)pthread_mutex_unlock(&lock);
}

/* As ENTER, in a slot that gives `memory` back. */
#define ENTER_TO_FREE(name, memory)                                                                                    \
    do {                                                                                                               \
        const openreg_status enter_status = enter(slot_##name);                                                        \
        keep(memory, enter_status != OPENREG_OK);                                                                      \
        if (enter_status != OPENREG_OK)                                                                                \
            return enter_status;                                                                                       \
    } while (0)

/* What the counter is then. */
static int
add(int *counter, int change)
{
    (void)pthread_mutex_lock(&lock);
    const int value = *counter += change;
    (void)pthread_mutex_unlock(&lock);
    return value;
}

/* ------------------------------------------------------------------------------------------------------- timelines */

static openreg_driver_stream
timeline_of(openreg_instance toy, int32_t dev, openreg_driver_stream stream)
{
    return stream != NULL ? stream : &toy->defaults[dev];
}

static int64_t
now_in_nanoseconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t
queue(openreg_driver_stream timeline)
{
    (void)pthread_mutex_lock(&lock);
    const uint64_t position = ++timeline->queued;
    if (!held)
        timeline->completed = position;
    (void)pthread_mutex_unlock(&lock);
    return position;
}

static int
has_passed(openreg_driver_stream timeline, uint64_t position)
{
    (void)pthread_mutex_lock(&lock);
    if (!held)
        timeline->completed = timeline->queued;
    const int passed = timeline->completed >= position;
    (void)pthread_mutex_unlock(&lock);
    return passed;
}

static void
wait_until_passed(openreg_driver_stream timeline, uint64_t position)
{
    (void)pthread_mutex_lock(&lock);
    while (held && timeline->completed < position)
        (void)pthread_cond_wait(&released, &lock);
    if (!held)
        timeline->completed = timeline->queued;
    (void)pthread_mutex_unlock(&lock);
}

static uint64_t
end_of(openreg_driver_stream timeline)
{
    (void)pthread_mutex_lock(&lock);
    const uint64_t end = timeline->queued;
    (void)pthread_mutex_unlock(&lock);
    return end;
}

/* ------------------------------------------------------------------------------------------------------------ slots */

static openreg_status
read_options(const openreg_host *host, const openreg_option *options, uint32_t n, int32_t *devices)
{
    (void)pthread_mutex_lock(&lock);
    *devices = devices_found;
    seen_options[0] = '\0';
    for (size_t i = 0; i < n; ++i) {
        char line[256];
        (void)snprintf(line, sizeof line, "%s=%s\n", options[i].key, options[i].value);
        (void)strncat(seen_options, line, sizeof seen_options - strlen(seen_options) - 1);
        if (strcmp(options[i].key, "devices") == 0) {
            char *end;
            const long number = strtol(options[i].value, &end, 10);
            const bool is_number = end != options[i].value && *end == '\0' && number >= 0 && number <= INT32_MAX;
            *devices = is_number ? (int32_t)number : -1;
        }
        char slot[64];
        int nth;
        if (strcmp(options[i].key, "fail") == 0 && sscanf(options[i].value, "%63[a-z_]:%d", slot, &nth) == 2) {
            fail_slot = slot_of(slot);
            fail_in = nth;
            fail_code = OPENREG_E_INTERNAL;
            fail_flags = 0;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    if (*devices < 0 || *devices > MAX_DEVICES)
        return openreg_fail(host, OPENREG_E_INVALID, 0, "devices must be a number from 0 to %d", MAX_DEVICES);
    return OPENREG_OK;
}

/* Whether the file that is to come has come, if there is to be one. */
static int
file_has_come(const openreg_option *options, uint32_t n)
{
    int has_come = 1;
    for (size_t i = 0; i < n; ++i) {
        if (strcmp(options[i].key, "until") != 0)
            continue;
        has_come = access(options[i].value, F_OK) == 0;
        for (int looks = 0; looks < 20000 && !has_come; ++looks) {
            (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
            has_come = access(options[i].value, F_OK) == 0;
        }
    }
    return has_come;
}

static openreg_status
toy_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    the_host = host;
    int32_t devices;
    const openreg_status status = read_options(host, options, n, &devices);
    if (status != OPENREG_OK)
        return status;
    ENTER(open);
    (void)pthread_mutex_lock(&lock);
    void (*const callback)(void) = open_callback;
    (void)pthread_mutex_unlock(&lock);
    if (callback != NULL)
        callback();
    if (!file_has_come(options, n))
        return openreg_fail(host, OPENREG_E_TIMEOUT, 0, "the file of the option 'until' has not come");
    openreg_instance const toy = calloc(1, sizeof *toy);
    if (toy == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory");
    toy->devices = devices;
    (void)add(&live_instances, 1);
    *out = toy;
    return OPENREG_OK;
}

static openreg_status
toy_close(openreg_instance toy)
{
    ENTER_TO_FREE(close, toy);
    (void)add(&live_instances, -1);
    free(toy);
    return OPENREG_OK;
}

static openreg_status
toy_device_count(openreg_instance toy, int32_t *out)
{
    ENTER(device_count);
    *out = toy->devices;
    return OPENREG_OK;
}

static openreg_status
toy_mem_alloc(openreg_instance toy, int32_t dev, const openreg_alloc_info *info, void **out)
{
    ENTER(mem_alloc);
    void *memory = NULL;
    (void)pthread_mutex_lock(&lock);
    const uint64_t used = toy->used[dev];
    (void)pthread_mutex_unlock(&lock);
    const openreg_status fits = openreg_alloc_check(the_host, info, 512);
    if (fits != OPENREG_OK)
        return fits;
    if (info->size > TOY_MEMORY - (used < TOY_MEMORY ? used : TOY_MEMORY) ||
        posix_memalign(&memory, 512, info->size) != 0)
        return openreg_fail(the_host, OPENREG_E_NOMEM, 2, "device %d is full", dev);
    (void)add(&toy->has_context[dev], 1);
    (void)add(&live_memory, 1);
    (void)pthread_mutex_lock(&lock);
    toy->used[dev] += malloc_usable_size(memory);
    allocated_on = dev;
    (void)pthread_mutex_unlock(&lock);
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
toy_mem_free(openreg_instance toy, int32_t dev, void *ptr)
{
    ENTER_TO_FREE(mem_free, ptr);
    (void)pthread_mutex_lock(&lock);
    --live_memory;
    toy->used[dev] -= malloc_usable_size(ptr);
    (void)pthread_mutex_unlock(&lock);
    free(ptr);
    return OPENREG_OK;
}

static openreg_status
toy_copy(openreg_instance toy, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
         const void *src, int32_t src_dev, uint64_t size)
{
    (void)dst_dev;
    (void)src_dev;
    ENTER(copy);
    memcpy(dst, src, size);
    (void)queue(timeline_of(toy, stream_dev, stream));
    return OPENREG_OK;
}

static openreg_status
toy_device_sync(openreg_instance toy, int32_t dev)
{
    ENTER(device_sync);
    wait_until_passed(&toy->defaults[dev], end_of(&toy->defaults[dev]));
    const int count = add(&toy->stream_count, 0);
    for (int i = 0; i < count; ++i)
        if (toy->streams[i].device == dev)
            wait_until_passed(&toy->streams[i], end_of(&toy->streams[i]));
    return OPENREG_OK;
}

static openreg_status
toy_device_info(openreg_instance toy, int32_t dev, openreg_device_info *inout)
{
    (void)toy;
    ENTER(device_info);
    inout->total_bytes = TOY_MEMORY;
    inout->min_alignment = 512;
    inout->caps = OPENREG_CAP_HOST_VISIBLE;
    inout->priority_low = 0;
    inout->priority_high = -2;
    inout->multi_processor_count = 4;
    inout->capability_major = 1;
    inout->capability_minor = 2;
    (void)snprintf(inout->name, sizeof inout->name, "Full toy %d", dev);
    memset(inout->uuid, dev + 1, sizeof inout->uuid);
    return OPENREG_OK;
}

static openreg_status
toy_fill(openreg_instance toy, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value, uint64_t size)
{
    ENTER(fill);
    memset(dst, value, size);
    (void)queue(timeline_of(toy, dev, stream));
    return OPENREG_OK;
}

static openreg_status
toy_stream_create(openreg_instance toy, int32_t dev, uint32_t flags, int32_t priority, openreg_driver_stream *out)
{
    (void)flags;
    ENTER(stream_create);
    (void)pthread_mutex_lock(&lock);
    /* One that was destroyed is used again: its positions only grow, so events of its first life stay complete. */
    int at = 0;
    while (at < toy->stream_count && (toy->streams[at].is_live || toy->streams[at].device != dev))
        ++at;
    openreg_driver_stream const stream = at < MAX_STREAMS ? &toy->streams[at] : NULL;
    if (stream != NULL) {
        stream->device = dev;
        stream->priority = priority;
        stream->is_live = 1;
        if (at == toy->stream_count)
            ++toy->stream_count;
        ++live_streams;
        ++toy->has_context[dev];
    }
    (void)pthread_mutex_unlock(&lock);
    if (stream == NULL)
        return openreg_fail(the_host, OPENREG_E_NOMEM, 0, "no more streams");
    *out = stream;
    return OPENREG_OK;
}

static openreg_status
toy_stream_destroy(openreg_instance toy, int32_t dev, openreg_driver_stream stream)
{
    (void)toy;
    (void)dev;
    ENTER(stream_destroy);
    (void)pthread_mutex_lock(&lock);
    if (stream != NULL) {
        stream->is_live = 0;
        --live_streams;
    }
    (void)pthread_mutex_unlock(&lock);
    return OPENREG_OK;
}

static openreg_status
toy_stream_query(openreg_instance toy, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    ENTER(stream_query);
    openreg_driver_stream const timeline = timeline_of(toy, dev, stream);
    *done = has_passed(timeline, end_of(timeline));
    return OPENREG_OK;
}

static openreg_status
toy_stream_sync(openreg_instance toy, int32_t dev, openreg_driver_stream stream)
{
    ENTER(stream_sync);
    openreg_driver_stream const timeline = timeline_of(toy, dev, stream);
    wait_until_passed(timeline, end_of(timeline));
    return OPENREG_OK;
}

static openreg_status
toy_stream_wait(openreg_instance toy, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    (void)event;
    ENTER(stream_wait);
    (void)queue(timeline_of(toy, dev, stream));
    return OPENREG_OK;
}

static openreg_status
toy_event_create(openreg_instance toy, int32_t dev, uint32_t flags, openreg_driver_event *out)
{
    (void)toy;
    ENTER(event_create);
    openreg_driver_event const event = calloc(1, sizeof *event);
    if (event == NULL)
        return openreg_fail(the_host, OPENREG_E_NOMEM, 0, "no host memory");
    event->flags = flags;
    event->device = dev;
    (void)add(&live_events, 1);
    *out = event;
    return OPENREG_OK;
}

static openreg_status
toy_event_destroy(openreg_instance toy, int32_t dev, openreg_driver_event event)
{
    (void)toy;
    (void)dev;
    ENTER_TO_FREE(event_destroy, event);
    if (event != NULL)
        (void)add(&live_events, -1);
    free(event);
    return OPENREG_OK;
}

static openreg_status
toy_event_record(openreg_instance toy, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    ENTER(event_record);
    openreg_driver_stream const timeline = timeline_of(toy, dev, stream);
    const uint64_t position = queue(timeline);
    (void)pthread_mutex_lock(&lock);
    event->timeline = timeline;
    event->position = position;
    event->nanoseconds = now_in_nanoseconds();
    (void)pthread_mutex_unlock(&lock);
    return OPENREG_OK;
}

static void
read_event(openreg_driver_event event, openreg_driver_stream *timeline, uint64_t *position)
{
    (void)pthread_mutex_lock(&lock);
    *timeline = event->timeline;
    *position = event->position;
    (void)pthread_mutex_unlock(&lock);
}

static openreg_status
toy_event_query(openreg_instance toy, int32_t dev, openreg_driver_event event, int32_t *done)
{
    (void)toy;
    (void)dev;
    ENTER(event_query);
    openreg_driver_stream timeline;
    uint64_t position;
    read_event(event, &timeline, &position);
    *done = timeline == NULL || has_passed(timeline, position);
    return OPENREG_OK;
}

static openreg_status
toy_event_sync(openreg_instance toy, int32_t dev, openreg_driver_event event)
{
    (void)toy;
    (void)dev;
    ENTER(event_sync);
    openreg_driver_stream timeline;
    uint64_t position;
    read_event(event, &timeline, &position);
    if (timeline != NULL)
        wait_until_passed(timeline, position);
    return OPENREG_OK;
}

static openreg_status
toy_device_active(openreg_instance toy, int32_t dev, int32_t *out)
{
    ENTER(device_active);
    *out = add(&toy->has_context[dev], 0) != 0;
    return OPENREG_OK;
}

static openreg_status
toy_device_bind(openreg_instance toy, int32_t dev)
{
    (void)toy;
    ENTER(device_bind);
    bound_device = dev;
    return OPENREG_OK;
}

static openreg_status
toy_host_alloc(openreg_instance toy, int32_t dev, const openreg_alloc_info *info, void **out)
{
    (void)toy;
    (void)dev;
    ENTER(host_alloc);
    const openreg_status fits = openreg_alloc_check(the_host, info, 4096);
    if (fits != OPENREG_OK)
        return fits;
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, info->size) != 0)
        return openreg_fail(the_host, OPENREG_E_NOMEM, 0, "no pinned memory");
    (void)add(&live_host, 1);
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
toy_host_free(openreg_instance toy, int32_t dev, void *ptr)
{
    (void)dev;
    (void)toy;
    ENTER_TO_FREE(host_free, ptr);
    (void)add(&live_host, -1);
    free(ptr);
    return OPENREG_OK;
}

static openreg_status
toy_mem_info(openreg_instance toy, int32_t dev, uint64_t *free_bytes, uint64_t *total)
{
    ENTER(mem_info);
    (void)pthread_mutex_lock(&lock);
    *free_bytes = TOY_MEMORY - (toy->used[dev] < TOY_MEMORY ? toy->used[dev] : TOY_MEMORY);
    (void)pthread_mutex_unlock(&lock);
    *total = TOY_MEMORY;
    return OPENREG_OK;
}

static openreg_status
toy_event_elapsed(openreg_instance toy, int32_t dev, openreg_driver_event start, openreg_driver_event end,
                  int64_t *nanoseconds)
{
    (void)toy;
    ENTER(event_elapsed);
    openreg_driver_stream timelines[2];
    uint64_t positions[2];
    read_event(start, &timelines[0], &positions[0]);
    read_event(end, &timelines[1], &positions[1]);
    if ((start->flags & end->flags & OPENREG_EVENT_TIMING) == 0 || start->device != dev || end->device != dev)
        return openreg_fail(the_host, OPENREG_E_INVALID, 0, "two timed events of the device are needed");
    for (int i = 0; i < 2; ++i)
        if (timelines[i] == NULL || !has_passed(timelines[i], positions[i]))
            return openreg_fail(the_host, OPENREG_E_INVALID, 0, "an event is not recorded, or not complete");
    (void)pthread_mutex_lock(&lock);
    *nanoseconds = end->nanoseconds - start->nanoseconds;
    (void)pthread_mutex_unlock(&lock);
    return OPENREG_OK;
}

static openreg_status
toy_host_alias(openreg_instance toy, int32_t dev, void *ptr, void **out)
{
    (void)toy;
    (void)dev;
    ENTER(host_alias);
    *out = ptr;
    return OPENREG_OK;
}

static openreg_status
toy_stream_native(openreg_instance toy, int32_t dev, openreg_driver_stream stream, void **out)
{
    ENTER(stream_native);
    *out = timeline_of(toy, dev, stream);
    return OPENREG_OK;
}

static const void *
toy_extension(openreg_instance toy, const char *name, uint32_t version)
{
    (void)toy;
    (void)name;
    (void)version;
    (void)enter(slot_extension);
    return NULL;
}

/* As many devices as open() finds; each copies to the next one only. "big" has twice as many. */
static openreg_status
toy_describe(const openreg_host *host, const openreg_option *options, uint32_t n, const char *topology,
             int32_t capacity, openreg_device_info *const *infos, uint8_t *peers, int32_t *count)
{
    the_host = host;
    int32_t devices;
    const openreg_status status = read_options(host, options, n, &devices);
    if (status != OPENREG_OK)
        return status;
    ENTER(describe);
    if (strcmp(topology, "big") == 0)
        devices *= 2;
    else if (topology[0] != '\0')
        return openreg_fail(host, OPENREG_E_INVALID, 0, "no topology \"%s\"", topology);
    for (int32_t i = 0; i < devices && i < capacity; ++i) {
        (void)snprintf(infos[i]->name, sizeof infos[i]->name, "Full toy %d", i);
        infos[i]->total_bytes = TOY_MEMORY;
        for (int32_t k = 0; peers != NULL && k < devices && k < capacity; ++k)
            peers[(int64_t)i * capacity + k] = k == i + 1;
    }
    *count = devices;
    return OPENREG_OK;
}

static void *
run_host_func(void *argument)
{
    const host_call *const wanted = argument;
    wanted->function(wanted->argument);
    return NULL;
}

/* On another thread than the caller's. */
static void
run_and_wait(const host_call *wanted)
{
    pthread_t thread;
    host_call copy = *wanted;
    if (pthread_create(&thread, NULL, run_host_func, &copy) == 0)
        (void)pthread_join(thread, NULL);
}

static openreg_status
toy_host_func(openreg_instance toy, int32_t dev, openreg_driver_stream stream, void (*function)(void *argument),
              void *argument)
{
    ENTER(host_func);
    const host_call wanted = {function, argument};
    const size_t room = sizeof pending_calls / sizeof pending_calls[0];
    (void)pthread_mutex_lock(&lock);
    const int is_pending = held != 0;
    if (is_pending && pending_count < room)
        pending_calls[pending_count++] = wanted;
    (void)pthread_mutex_unlock(&lock);
    if (!is_pending)
        run_and_wait(&wanted);
    (void)queue(timeline_of(toy, dev, stream));
    return OPENREG_OK;
}

/* Runs the host functions that were held, in the order of their calls. */
static void
run_pending(void)
{
    for (size_t i = 0;; ++i) {
        (void)pthread_mutex_lock(&lock);
        const int is_there = i < pending_count;
        const host_call wanted = is_there ? pending_calls[i] : (host_call){NULL, NULL};
        if (!is_there)
            pending_count = 0;
        (void)pthread_mutex_unlock(&lock);
        if (!is_there)
            return;
        run_and_wait(&wanted);
    }
}

#define SLOT_MEMBER(slot, group) .slot = toy_##slot,
static const openreg_driver full_toy_table = {.struct_size = sizeof(openreg_driver),
                                              .abi_minor = OPENREG_ABI_MINOR,
                                              .name = "full_toy",
                                              .version = "2.0",
                                              OPENREG_SLOT_MAP(SLOT_MEMBER)};

/* ------------------------------------------------------------------------------------------------------- test hooks */

static void
hook_reset(void)
{
    run_pending();
    (void)pthread_mutex_lock(&lock);
    memset(calls, 0, sizeof calls);
    queries = 0;
    allocated_on = -1;
    fail_slot = -1;
    devices_found = 2;
    held = 0;
    open_callback = NULL;
    (void)pthread_cond_broadcast(&released);
    (void)pthread_mutex_unlock(&lock);
}

static int
hook_calls(const char *slot)
{
    return add(&calls[slot_of(slot)], 0);
}

static void
hook_set_devices(int32_t count)
{
    (void)pthread_mutex_lock(&lock);
    devices_found = count;
    (void)pthread_mutex_unlock(&lock);
}

static void
hook_fail(const char *slot, int nth, openreg_status code, unsigned flags)
{
    (void)pthread_mutex_lock(&lock);
    fail_slot = slot_of(slot);
    fail_in = nth;
    fail_code = code;
    fail_flags = (int)flags;
    (void)pthread_mutex_unlock(&lock);
}

static void
hook_hold(int hold)
{
    if (!hold)
        run_pending();
    (void)pthread_mutex_lock(&lock);
    held = hold;
    (void)pthread_cond_broadcast(&released);
    (void)pthread_mutex_unlock(&lock);
}

static void
hook_forget(void)
{
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; ++i) {
        free(kept[i]);
        kept[i] = NULL;
    }
    live_instances = live_memory = live_streams = live_events = live_host = 0;
    (void)pthread_mutex_unlock(&lock);
}

static int
hook_live(const char *what)
{
    static const struct {
        const char *name;
        const int *counter;
    } counters[] = {{"instance", &live_instances},
                    {"memory", &live_memory},
                    {"stream", &live_streams},
                    {"event", &live_events},
                    {"host", &live_host}};
    int value = -1;
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; ++i)
        if (strcmp(counters[i].name, what) == 0)
            value = *counters[i].counter;
    (void)pthread_mutex_unlock(&lock);
    return value;
}

static int32_t
hook_bound(void)
{
    return bound_device;
}

static void
hook_on_open(void (*callback)(void))
{
    (void)pthread_mutex_lock(&lock);
    open_callback = callback;
    (void)pthread_mutex_unlock(&lock);
}

static int
hook_option(const char *key, char *value, size_t size)
{
    int found = 0;
    (void)pthread_mutex_lock(&lock);
    const size_t length = strlen(key);
    for (const char *line = seen_options; *line != '\0'; line = strchr(line, '\n') + 1)
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            (void)snprintf(value, size, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
            found = 1;
        }
    (void)pthread_mutex_unlock(&lock);
    return found;
}

static int
hook_queries(void)
{
    return add(&queries, 0);
}

static int32_t
hook_allocated_on(void)
{
    return add(&allocated_on, 0);
}

static const openreg_driver *
hook_table(void)
{
    return &full_toy_table;
}

__attribute__((visibility("default"))) const full_toy_hooks *
full_toy_test_hooks(void)
{
    static const full_toy_hooks hooks = {
        .reset = hook_reset,
        .calls = hook_calls,
        .set_devices = hook_set_devices,
        .fail = hook_fail,
        .hold = hook_hold,
        .forget = hook_forget,
        .live = hook_live,
        .bound = hook_bound,
        .on_open = hook_on_open,
        .option = hook_option,
        .table = hook_table,
        .queries = hook_queries,
        .allocated_on = hook_allocated_on,
    };
    return &hooks;
}

__attribute__((visibility("default"))) openreg_status openreg_driver_query_v1(const openreg_host *host,
                                                                              const openreg_driver **out);

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    the_host = host;
    (void)add(&queries, 1);
    *out = &full_toy_table;
    return OPENREG_OK;
}
