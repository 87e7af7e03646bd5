/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_system.c: stands in for gpu_system.c: the libraries are the fakes, and files are looked for below a directory of
 * the test's. */
#define _GNU_SOURCE
#include "gpu_system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_gpu.h"
#include "gpu_nccl.h"

typedef struct entry {
    const char *name;
    void (*function)(void);
} entry;

typedef struct library {
    const char *soname;
    const entry *entries;
    size_t count;
} library;

static bool
is_variable(const char *name, const char *value)
{
    const char *const is = getenv(name);
    return is != NULL && strcmp(is, value) == 0;
}

/* ------------------------------------------------------------------------------------------------------------ NVML */

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

static int
nvml_init(void)
{
    return (int)fake_begin("nvmlInit");
}

static int
nvml_shutdown(void)
{
    return (int)fake_begin("nvmlShutdown");
}

static int
nvml_get_count(unsigned *count)
{
    const int code = (int)fake_begin("nvmlDeviceGetCount");
    if (code == 0)
        *count = (unsigned)fake_settings_get()->devices;
    return code;
}

static int
nvml_by_index(unsigned index, void **device)
{
    *device = &fake_devices[index];
    return (int)fake_begin("nvmlDeviceGetHandleByIndex");
}

/* One instance, of the last device. */
static int
nvml_by_uuid(const char *uuid, void **device)
{
    *device = &fake_devices[fake_settings_get()->devices - 1];
    return strcmp(uuid, "MIG-fake") == 0 ? 0 : 6;
}

#define FAKE_MAX_INSTANCES 4
static char fake_instances[FAKE_MAX_DEVICES][FAKE_MAX_INSTANCES]; /* their addresses are handles */

static bool
is_instance(const void *device)
{
    const char *const handle = device;
    return handle >= &fake_instances[0][0] && handle < &fake_instances[0][0] + sizeof fake_instances;
}

static int
index_of(const void *device)
{
    if (is_instance(device))
        return (int)(((const char *)device - &fake_instances[0][0]) / FAKE_MAX_INSTANCES);
    return (int)((const fake_device *)device - fake_devices);
}

/* -1: not in MIG mode. */
static int
count_instances(const void *device)
{
    const char *const text = getenv("FAKE_GPU_MIG");
    const size_t index = (size_t)index_of(device);
    return text == NULL || index >= strlen(text) || text[index] == '-' ? -1 : text[index] - '0';
}

static int
nvml_get_mig_mode(void *device, unsigned *current, unsigned *pending)
{
    *current = *pending = count_instances(device) >= 0;
    return 0;
}

static int
nvml_get_mig_limit(void *device, unsigned *count)
{
    (void)device;
    *count = FAKE_MAX_INSTANCES;
    return 0;
}

/* The first place is empty: instances come and go. */
static int
nvml_mig_by_index(void *device, unsigned index, void **instance)
{
    if (index == 0 || (int)index > count_instances(device))
        return 6;
    *instance = &fake_instances[index_of(device)][index];
    return 0;
}

static int
nvml_get_name(void *device, char *name, unsigned length)
{
    if (is_instance(device))
        (void)snprintf(name, length, "Fake GPU %d MIG %d", index_of(device),
                       (int)(((const char *)device - &fake_instances[0][0]) % FAKE_MAX_INSTANCES));
    else
        (void)snprintf(name, length, "Fake GPU %d", index_of(device));
    return 0;
}

static int
nvml_get_uuid(void *device, char *uuid, unsigned length)
{
    const int byte = (is_instance(device) ? 0x80 : 0x10) + index_of(device);
    const unsigned pair = (unsigned)(byte << 8 | byte);
    (void)snprintf(uuid, length, "%s-%04x%04x-%04x-%04x-%04x-%04x%04x%04x", is_instance(device) ? "MIG" : "GPU", pair,
                   pair, pair, pair, pair, pair, pair, pair);
    return 0;
}

static int
nvml_get_memory(void *device, nvml_memory *memory)
{
    *memory = (nvml_memory){.total = fake_settings_get()->memory / (is_instance(device) ? 4 : 1)};
    return 0;
}

static int
nvml_get_capability(void *device, int *major, int *minor)
{
    *major = 9;
    *minor = index_of(device);
    return 0;
}

static int
nvml_get_peer(void *device, void *peer, int index, int *status)
{
    (void)index;
    *status = fake_settings_get()->peers[index_of(device)][index_of(peer)] ? 0 : 1;
    return 0;
}

static const entry nvml_entries[] = {
    {"nvmlInit_v2", (void (*)(void))nvml_init},
    {"nvmlShutdown", (void (*)(void))nvml_shutdown},
    {"nvmlDeviceGetCount_v2", (void (*)(void))nvml_get_count},
    {"nvmlDeviceGetHandleByIndex_v2", (void (*)(void))nvml_by_index},
    {"nvmlDeviceGetHandleByUUID", (void (*)(void))nvml_by_uuid},
    {"nvmlDeviceGetName", (void (*)(void))nvml_get_name},
    {"nvmlDeviceGetUUID", (void (*)(void))nvml_get_uuid},
    {"nvmlDeviceGetMemoryInfo", (void (*)(void))nvml_get_memory},
    {"nvmlDeviceGetCudaComputeCapability", (void (*)(void))nvml_get_capability},
    {"nvmlDeviceGetP2PStatus", (void (*)(void))nvml_get_peer},
    {"nvmlDeviceGetMigMode", (void (*)(void))nvml_get_mig_mode},
    {"nvmlDeviceGetMaxMigDeviceCount", (void (*)(void))nvml_get_mig_limit},
    {"nvmlDeviceGetMigDeviceHandleByIndex", (void (*)(void))nvml_mig_by_index},
};
static const library nvml = {"libnvidia-ml.so.1", nvml_entries, sizeof nvml_entries / sizeof nvml_entries[0]};

/* ----------------------------------------------------------------------------------------------------- libamdhip64 */

#if !OPENREG_GPU_CUDART
static const entry hip_entries[] = {
#define HIP_ENTRY(name) {GPU_NAME(name), (void (*)(void))GPU(name)},
    OPENREG_GPU_FUNCTIONS(HIP_ENTRY) OPENREG_GPU_OPTIONAL_FUNCTIONS(HIP_ENTRY)
#undef HIP_ENTRY
#define HIP_ENTRY(name) {GPU_VMM_NAME(name), (void (*)(void))GPU_VMM(name)},
        OPENREG_GPU_VMM_FUNCTIONS(HIP_ENTRY) HIP_ENTRY(MemGetAddressRange)
#undef HIP_ENTRY
};
static const library hip = {"libamdhip64.so", hip_entries, sizeof hip_entries / sizeof hip_entries[0]};
#endif

static const library nccl = {GPU_NCCL_LIBRARY, NULL, 0}; /* fake_nccl.c knows its functions */

/* --------------------------------------------------------------------------------------------------- gpu_system.h */

void *
openreg_gpu_system_open(const char *soname, char *reason, size_t size)
{
    (void)snprintf(reason, size, "%s: not installed, says the fake", soname);
    if (strcmp(soname, nvml.soname) == 0 && !is_variable("FAKE_GPU_NVML", "0"))
        return (void *)(uintptr_t)&nvml;
    if ((strcmp(soname, nccl.soname) == 0 && !is_variable("FAKE_GPU_NCCL", "0")) || strcmp(soname, "/opt/nccl.so") == 0)
        return (void *)(uintptr_t)&nccl;
#if !OPENREG_GPU_CUDART
    const char *const installed = getenv("FAKE_GPU_LIBRARY");
    if (installed != NULL ? strcmp(soname, installed) == 0 : strncmp(soname, hip.soname, strlen(hip.soname)) == 0)
        return (void *)(uintptr_t)&hip;
#endif
    return NULL;
}

void *
openreg_gpu_system_opened(const char *soname)
{
    char reason[64];
    return is_variable("FAKE_GPU_OPENED", soname) ? openreg_gpu_system_open(soname, reason, sizeof reason) : NULL;
}

bool
openreg_gpu_system_find(void *opened, const char *name, void *out)
{
    const library *const from = opened;
    if (is_variable("FAKE_GPU_MISSING", name) || (from == &nvml && is_variable("FAKE_GPU_NVML", "old")))
        return false;
    void (*const of_nccl)(void) = from == &nccl ? fake_nccl_entry(name) : NULL;
    if (of_nccl != NULL) {
        memcpy(out, &of_nccl, sizeof of_nccl);
        return true;
    }
    for (size_t i = 0; i < from->count; ++i)
        if (strcmp(from->entries[i].name, name) == 0) {
            memcpy(out, &from->entries[i].function, sizeof from->entries[i].function);
            return true;
        }
    return false;
}

bool
openreg_gpu_system_path(const char *path, char *out, size_t size)
{
    const char *const root = getenv("FAKE_GPU_ROOT");
    const int length = snprintf(out, size, "%s%s", root != NULL ? root : "/nowhere", path);
    return length >= 0 && (size_t)length < size;
}

/* Without a directory of the test's: as on a machine with an AMD GPU. */
bool
openreg_gpu_system_exists(const char *path)
{
    char real[512];
    if (getenv("FAKE_GPU_ROOT") == NULL)
        return strcmp(path, "/dev/kfd") == 0;
    return openreg_gpu_system_path(path, real, sizeof real) && access(real, F_OK) == 0;
}

const char *
openreg_gpu_system_vendor_variable(const char *name)
{
    return getenv(name);
}
