/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_census_nvidia.c: NVIDIA's devices (gpu_census.h), from the management library, NVML, or, where that is not
 * installed, from what the kernel's driver writes about itself. Neither starts CUDA.
 *
 * CUDA's own order is "fastest first" unless CUDA_DEVICE_ORDER=PCI_BUS_ID; the order here is always that of the bus.
 * The number is the same. CUDA shows a process one MIG instance, the first of those that it may use, and then no other
 * device; it does not show a device in MIG mode without instances. */
#define _GNU_SOURCE
#include "gpu_census.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_system.h"

/* ------------------------------------------------------------------------------------------------------------ NVML */

/* Of nvml.h, which the toolkit need not hold; the library's ABI is stable. */
typedef struct nvml_device *nvml_device;
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

#define NVML_DRIVER_NOT_LOADED 9
#define NVML_VERSION_MISMATCH 18
#define NVML_P2P_READ 0
#define NVML_MIG_ENABLED 1

typedef struct nvml_functions {
    int (*init)(void);
    int (*shutdown)(void);
    int (*get_count)(unsigned *count);
    int (*by_index)(unsigned index, nvml_device *device);
    int (*by_uuid)(const char *uuid, nvml_device *device);
    int (*get_name)(nvml_device device, char *name, unsigned length);
    int (*get_uuid)(nvml_device device, char *uuid, unsigned length);
    int (*get_memory)(nvml_device device, nvml_memory *memory);
    int (*get_capability)(nvml_device device, int *major, int *minor);
    int (*get_peer)(nvml_device device, nvml_device peer, int index, int *status);
    int (*get_mig_mode)(nvml_device device, unsigned *current,
                        unsigned *pending); /* NULL: older than MIG; those below */
    int (*get_mig_limit)(nvml_device device, unsigned *count);
    int (*mig_by_index)(nvml_device device, unsigned index, nvml_device *instance);
} nvml_functions;

static bool
find_functions(void *library, nvml_functions *out)
{
    if (!openreg_gpu_system_find(library, "nvmlDeviceGetMigMode", &out->get_mig_mode) ||
        !openreg_gpu_system_find(library, "nvmlDeviceGetMaxMigDeviceCount", &out->get_mig_limit) ||
        !openreg_gpu_system_find(library, "nvmlDeviceGetMigDeviceHandleByIndex", &out->mig_by_index))
        out->get_mig_mode = NULL;
    return openreg_gpu_system_find(library, "nvmlInit_v2", &out->init) &&
           openreg_gpu_system_find(library, "nvmlShutdown", &out->shutdown) &&
           openreg_gpu_system_find(library, "nvmlDeviceGetCount_v2", &out->get_count) &&
           openreg_gpu_system_find(library, "nvmlDeviceGetHandleByIndex_v2", &out->by_index) &&
           openreg_gpu_system_find(library, "nvmlDeviceGetHandleByUUID", &out->by_uuid) &&
           openreg_gpu_system_find(library, "nvmlDeviceGetName", &out->get_name) &&
           openreg_gpu_system_find(library, "nvmlDeviceGetUUID", &out->get_uuid) &&
           openreg_gpu_system_find(library, "nvmlDeviceGetMemoryInfo", &out->get_memory) &&
           openreg_gpu_system_find(library, "nvmlDeviceGetCudaComputeCapability", &out->get_capability) &&
           openreg_gpu_system_find(library, "nvmlDeviceGetP2PStatus", &out->get_peer);
}

static int
hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The 16 bytes of "GPU-xxxxxxxx-xxxx-...", or none. */
static void
read_uuid(const char *text, char out[16])
{
    char bytes[16];
    size_t nibbles = 0;
    for (const char *at = text + strcspn(text, "-"); *at != '\0'; ++at) {
        const int digit = hex_digit(*at);
        if (digit < 0)
            continue;
        if (nibbles == 2 * sizeof bytes)
            return;
        bytes[nibbles / 2] = (char)(nibbles % 2 == 0 ? digit << 4 : bytes[nibbles / 2] | digit);
        ++nibbles;
    }
    if (nibbles == 2 * sizeof bytes)
        memcpy(out, bytes, sizeof bytes);
}

/* What NVML does not tell stays unknown: a device counts all the same. */
static void
describe_by_nvml(const nvml_functions *nvml, nvml_device device, openreg_gpu_census_device *out)
{
    nvml_memory memory = {0, 0, 0};
    int major = 0;
    int minor = 0;
    (void)nvml->get_name(device, out->info.name, sizeof out->info.name);
    if (nvml->get_uuid(device, out->uuid, sizeof out->uuid) == 0)
        read_uuid(out->uuid, out->info.uuid);
    if (nvml->get_memory(device, &memory) == 0)
        out->info.total_bytes = memory.total;
    if (nvml->get_capability(device, &major, &minor) == 0) {
        out->info.capability_major = major;
        out->info.capability_minor = minor;
    }
}

/* Whether the device is in MIG mode, and its first instance. */
static void
describe_instance(const nvml_functions *nvml, nvml_device device, openreg_gpu_census_device *out)
{
    unsigned mode = 0;
    unsigned pending = 0;
    unsigned limit = 0;
    if (nvml->get_mig_mode == NULL || nvml->get_mig_mode(device, &mode, &pending) != 0 || mode != NVML_MIG_ENABLED)
        return;
    out->is_partitioned = true;
    if (nvml->get_mig_limit(device, &limit) != 0)
        return;
    for (unsigned i = 0; i < limit && !out->has_instance; ++i) {
        nvml_device instance;
        if (nvml->mig_by_index(device, i, &instance) != 0)
            continue;                               /* there is none at this place, or this process may not use it */
        openreg_gpu_census_device described = *out; /* what is not told of the instance is as with the device */
        describe_by_nvml(nvml, instance, &described);
        out->info = described.info;
        out->has_instance = true;
    }
}

/* Leaves out what CUDA does not show where devices are in MIG mode. */
static void
choose_instance(openreg_gpu_census *census)
{
    int32_t kept[OPENREG_GPU_CENSUS_MAX];
    int32_t count = 0;
    for (int32_t i = 0; i < census->count; ++i)
        if (!census->devices[i].is_partitioned)
            kept[count++] = i;
    for (int32_t i = census->count - 1; i >= 0; --i)
        if (census->devices[i].has_instance) {
            kept[0] = i;
            count = 1;
        }
    if (count < census->count)
        openreg_gpu_census_keep(census, kept, count);
}

/* A process that is given a MIG instance has that one device, whichever else the list names. */
static void
take_instance(const nvml_functions *nvml, const char *list, openreg_gpu_census *out)
{
    char uuid[sizeof out->devices[0].uuid];
    nvml_device device;
    const size_t length = strcspn(list, ",");
    if (length >= sizeof uuid)
        return;
    memcpy(uuid, list, length);
    uuid[length] = '\0';
    if (nvml->by_uuid(uuid, &device) != 0)
        return;
    describe_by_nvml(nvml, device, &out->devices[0]);
    out->count = 1;
}

static int
take_all(const nvml_functions *nvml, openreg_gpu_census *out)
{
    unsigned count = 0;
    nvml_device handles[OPENREG_GPU_CENSUS_MAX];
    const int code = nvml->get_count(&count);
    if (code != 0)
        return code;
    for (unsigned i = 0; i < count && out->count < OPENREG_GPU_CENSUS_MAX; ++i)
        if (nvml->by_index(i, &handles[out->count]) == 0) {
            describe_by_nvml(nvml, handles[out->count], &out->devices[out->count]);
            describe_instance(nvml, handles[out->count], &out->devices[out->count]);
            ++out->count;
        }
    for (int32_t i = 0; i < out->count; ++i)
        for (int32_t k = 0; k < out->count; ++k) {
            int status = -1;
            out->peers[i][k] = i != k && nvml->get_peer(handles[i], handles[k], NVML_P2P_READ, &status) == 0 &&
                               status == 0;
        }
    return 0;
}

static openreg_status
take_by_nvml(const openreg_host *host, void *library, const char *list, openreg_gpu_census *out)
{
    nvml_functions nvml;
    if (!find_functions(library, &nvml))
        return openreg_fail(host, OPENREG_E_INCOMPATIBLE, 0, "libnvidia-ml.so.1 is too old: it lacks functions");
    int code = nvml.init();
    if (code == 0) {
        if (list != NULL && strncmp(list, "MIG-", 4) == 0)
            take_instance(&nvml, list, out);
        else
            code = take_all(&nvml, out);
        (void)nvml.shutdown();
    }
    if (code == NVML_VERSION_MISMATCH)
        return openreg_fail(host, OPENREG_E_INCOMPATIBLE, code,
                            "nvmlInit: the NVIDIA driver's library and kernel module differ in version: restart the "
                            "machine");
    if (code == NVML_DRIVER_NOT_LOADED)
        return openreg_fail(host, OPENREG_E_NO_DEVICE, code, "nvmlInit: the NVIDIA driver is not loaded");
    if (code != 0)
        return openreg_fail(host, OPENREG_E_NO_DEVICE, code, "nvmlInit: NVML reports error %d", code);
    return OPENREG_OK;
}

/* ---------------------------------------------------------------------------------------------------------- kernel */

/* The value of a line "<key>: <value>" of a file of the kernel's driver. */
static void
read_line(const char *line, const char *key, char *out, size_t size)
{
    const size_t length = strlen(key);
    if (strncmp(line, key, length) != 0 || line[length] != ':')
        return;
    const char *value = line + length + 1;
    value += strspn(value, " \t");
    (void)snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
}

static void
describe_by_kernel(const char *directory, const char *name, openreg_gpu_census_device *out)
{
    char path[512];
    char line[256];
    const int length = snprintf(path, sizeof path, "%s/%s/information", directory, name);
    FILE *const file = length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        read_line(line, "Model", out->info.name, sizeof out->info.name);
        read_line(line, "GPU UUID", out->uuid, sizeof out->uuid);
    }
    (void)fclose(file);
    read_uuid(out->uuid, out->info.uuid);
}

static int
compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int
is_no_dot(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* False if the kernel's driver is not loaded, or not shown here. */
static bool
take_by_kernel(openreg_gpu_census *out)
{
    char directory[256];
    struct dirent **entries = NULL;
    if (!openreg_gpu_system_path("/proc/driver/nvidia/gpus", directory, sizeof directory))
        return false;
    const int count = scandir(directory, &entries, is_no_dot, compare_names); /* named by their place on the bus */
    for (int i = 0; i < count; ++i) {
        if (out->count < OPENREG_GPU_CENSUS_MAX)
            describe_by_kernel(directory, entries[i]->d_name, &out->devices[out->count++]);
        free(entries[i]);
    }
    free(entries);
    return count >= 0;
}

openreg_status
openreg_gpu_census_take(const openreg_host *host, openreg_gpu_census *out)
{
    char reason[160];
    const char *const list = openreg_gpu_system_vendor_variable("CUDA_VISIBLE_DEVICES");
    void *const library = openreg_gpu_system_open("libnvidia-ml.so.1", reason, sizeof reason);
    if (library != NULL) {
        const openreg_status status = take_by_nvml(host, library, list, out);
        if (status != OPENREG_OK)
            return status;
    }
    if (library == NULL && !take_by_kernel(out)) {
        /* Machines that have CUDA without either: WSL, and boards with the GPU on the processor's chip. */
        if (openreg_gpu_system_exists("/dev/dxg") || openreg_gpu_system_exists("/dev/nvhost-gpu") ||
            openreg_gpu_system_exists("/dev/nvgpu"))
            return openreg_fail(host, OPENREG_E_UNSUPPORTED, 0, "the devices can't be counted without opening them: %s",
                                reason);
        return openreg_fail(host, OPENREG_E_NO_DEVICE, 0, "no NVIDIA driver is installed: %s", reason);
    }
    const bool is_instance = list != NULL && strncmp(list, "MIG-", 4) == 0;
    if (is_instance && library == NULL)
        return openreg_fail(host, OPENREG_E_UNSUPPORTED, 0,
                            "CUDA_VISIBLE_DEVICES=%.64s: MIG instances can't be counted without opening them: %s", list,
                            reason);
    if (list != NULL && !is_instance)
        openreg_gpu_visible_apply(out, list, OPENREG_GPU_VISIBLE_CUDA);
    choose_instance(out);
    return OPENREG_OK;
}
