/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_driver.c: the table of the CUDA and of the HIP driver, open and close. */
#define _GNU_SOURCE
#include "gpu.h"

#include <stdlib.h>

#include "gpu_signals.h"

/* Memory of the instance and of all that belongs to it. */
static openreg_instance
make_instance(const openreg_host *host, const openreg_option *options, uint32_t n, int32_t count)
{
    const size_t pairs = (size_t)count * (size_t)count;
    openreg_instance instance = calloc(1, sizeof *instance);
    openreg_gpu_device *const devices = calloc((size_t)count, sizeof *devices);
    atomic_uchar *const matrices = calloc(2 * pairs, sizeof *matrices);
    struct openreg_gpu_vmm *const vmm = openreg_gpu_vmm_create();
    struct openreg_gpu_comm *const comm = openreg_gpu_comm_create(options, n);
    if (instance == NULL || devices == NULL || matrices == NULL || vmm == NULL || comm == NULL) {
        openreg_gpu_comm_destroy(comm);
        free(instance);
        free(devices);
        free(matrices);
        free(vmm);
        return NULL;
    }
    instance->host = host;
    instance->device_count = count;
    instance->devices = devices;
    instance->peers = matrices;
    instance->touched = matrices + pairs;
    instance->vmm = vmm;
    instance->comm = comm;
    return instance;
}

static openreg_status
gpu_close(openreg_instance instance)
{
    openreg_gpu_vmm_destroy(instance);
    openreg_gpu_comm_destroy(instance->comm);
    free(instance->peers); /* `touched` too */
    free(instance->devices);
    free(instance);
    return OPENREG_OK;
}

static openreg_status
count_devices(const openreg_host *host, int32_t *out)
{
    int count = 0; /* some versions write nothing on failure */
    const openreg_gpu_code code = GPU_CALL(GetDeviceCount)(&count);
    if (code != GPU(Success))
        return openreg_gpu_fail_plain(host, code, GPU_NAME(GetDeviceCount));
    if (count <= 0)
        return openreg_fail(host, OPENREG_E_NO_DEVICE, 0, GPU_NAME(GetDeviceCount) " finds no devices");
    *out = count < OPENREG_GPU_MAX_DEVICES ? (int32_t)count : OPENREG_GPU_MAX_DEVICES;
    return OPENREG_OK;
}

static openreg_status
open_library(const openreg_host *host, int32_t *count)
{
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_library_open(host));
    OPENREG_GPU_RETURN_NOT_OK(count_devices(host, count));
    return openreg_gpu_context_open(host);
}

static openreg_status
gpu_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    int32_t count = 0;
    sigset_t signals;
    openreg_gpu_block_signals(&signals);
    const openreg_status status = open_library(host, &count);
    openreg_gpu_restore_signals(&signals);
    OPENREG_GPU_RETURN_NOT_OK(status);
    openreg_instance instance = make_instance(host, options, n, count);
    if (instance == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory for %d devices", count);
    *out = instance;
    return OPENREG_OK;
}

__attribute__((visibility("default"))) openreg_status openreg_driver_query_v1(const openreg_host *host,
                                                                              const openreg_driver **out);

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    static const openreg_driver table = {
        .struct_size = sizeof(openreg_driver),
        .abi_minor = OPENREG_ABI_MINOR,
        .name = GPU_DRIVER_NAME,
        .version = GPU_DRIVER_VERSION,
        .open = gpu_open,
        .close = gpu_close,
        .device_count = openreg_gpu_device_count,
        .mem_alloc = openreg_gpu_mem_alloc,
        .mem_free = openreg_gpu_mem_free,
        .copy = openreg_gpu_copy,
        .device_sync = openreg_gpu_device_sync,
        .device_info = openreg_gpu_device_info,
        .fill = openreg_gpu_fill,
        .stream_create = openreg_gpu_stream_create,
        .stream_destroy = openreg_gpu_stream_destroy,
        .stream_query = openreg_gpu_stream_query,
        .stream_sync = openreg_gpu_stream_sync,
        .stream_wait = openreg_gpu_stream_wait,
        .event_create = openreg_gpu_event_create,
        .event_destroy = openreg_gpu_event_destroy,
        .event_record = openreg_gpu_event_record,
        .event_query = openreg_gpu_event_query,
        .event_sync = openreg_gpu_event_sync,
        .device_active = openreg_gpu_device_active,
        .device_bind = openreg_gpu_device_bind,
        .host_alloc = openreg_gpu_host_alloc,
        .host_free = openreg_gpu_host_free,
        .mem_info = openreg_gpu_mem_info,
        .event_elapsed = openreg_gpu_event_elapsed,
        .stream_native = openreg_gpu_stream_native,
        .extension = openreg_gpu_extension,
        .describe = openreg_gpu_describe,
        .host_func = openreg_gpu_host_func,
    };
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
