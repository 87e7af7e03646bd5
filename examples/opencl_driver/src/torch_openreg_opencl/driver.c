/* SPDX-License-Identifier: BSD-3-Clause */
/* driver.c: the devices of an OpenCL platform for torch-openreg. The contract of each function is the comment of
 * openreg/driver.h.
 *
 * Memory is shared virtual memory (OpenCL 2.0): what clSVMAlloc() returns is an address that the runtime can add offsets to,
 * that kernels take as it is, and that nothing else in the process has. A buffer has none of these: a driver over
 * clCreateBuffer() reserves addresses with mmap() and looks up the buffer in each call. Memory is coarse-grained, which the
 * host may touch only while it is mapped: so there is no host_alias, and operators without a kernel work on copies. */
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

#define ALIGNMENT 128 /* of clSVMAlloc(): that of OpenCL's largest type */

/* -------------------------------------------------------------------------------------------------------------- errors */

static const char *
error_name(cl_int error)
{
#define NAME(code)                                                                                                     \
    case code:                                                                                                         \
        return #code
    switch (error) {
        NAME(CL_DEVICE_NOT_FOUND);
        NAME(CL_DEVICE_NOT_AVAILABLE);
        NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE);
        NAME(CL_OUT_OF_RESOURCES);
        NAME(CL_OUT_OF_HOST_MEMORY);
        NAME(CL_BUILD_PROGRAM_FAILURE);
        NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
        NAME(CL_INVALID_VALUE);
        NAME(CL_INVALID_ARG_SIZE);
        NAME(CL_INVALID_KERNEL_ARGS);
        NAME(CL_INVALID_WORK_GROUP_SIZE);
        NAME(CL_INVALID_BUFFER_SIZE);
    default:
        return "error";
    }
#undef NAME
}

static openreg_status
status_of(cl_int error)
{
    switch (error) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY:
        return OPENREG_E_NOMEM;
    case CL_DEVICE_NOT_AVAILABLE:
        return OPENREG_E_DEVICE_LOST;
    default:
        return OPENREG_E_INTERNAL;
    }
}

openreg_status
opencl_fail(openreg_instance cl, const char *function, cl_int error)
{
    return openreg_fail(cl->host, status_of(error), error, "%s(): %s (%d)", function, error_name(error), error);
}

/* -------------------------------------------------------------------------------------------------------------- memory */

/* Memory that is not there is not refused by every platform: some have it taken from the host when it is touched. So what a
 * device has is counted here. */
static bool
take_bytes(device *d, uint64_t size)
{
    (void)pthread_mutex_lock(&d->lock);
    const bool fits = size <= d->total_bytes - d->used_bytes;
    if (fits)
        d->used_bytes += size;
    (void)pthread_mutex_unlock(&d->lock);
    return fits;
}

static void
give_bytes(device *d, uint64_t size)
{
    (void)pthread_mutex_lock(&d->lock);
    d->used_bytes -= size;
    (void)pthread_mutex_unlock(&d->lock);
}

openreg_status
opencl_mem_alloc(openreg_instance cl, int32_t dev, const openreg_alloc_info *info, void **out)
{
    device *const d = &cl->devices[dev];
    cl_int error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    const openreg_status fits = openreg_alloc_check(cl->host, info, ALIGNMENT);
    if (fits != OPENREG_OK)
        return fits;
    if (!take_bytes(d, info->size))
        return openreg_fail(cl->host, OPENREG_E_NOMEM, 0, "device %d has no room for %llu bytes", dev,
                            (unsigned long long)info->size);
    block *const made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->size = info->size;
        made->address = clSVMAlloc(cl->context, CL_MEM_READ_WRITE, info->size, ALIGNMENT);
        if (made->address != NULL)
            made->buffer = clCreateBuffer(cl->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, info->size,
                                          made->address, &error);
    }
    if (error != CL_SUCCESS) {
        if (made != NULL && made->address != NULL)
            clSVMFree(cl->context, made->address);
        free(made);
        give_bytes(d, info->size);
        return opencl_fail(cl, "clSVMAlloc", error);
    }
    (void)pthread_mutex_lock(&cl->blocks_lock);
    made->next = cl->blocks;
    cl->blocks = made;
    (void)pthread_mutex_unlock(&cl->blocks_lock);
    *out = made->address;
    return OPENREG_OK;
}

openreg_status
opencl_mem_free(openreg_instance cl, int32_t dev, void *ptr)
{
    /* Streams of other devices may be reading it, in a copy. */
    for (int32_t i = 0; i < cl->count; ++i) {
        const openreg_status status = opencl_device_sync(cl, i);
        if (status != OPENREG_OK && status != OPENREG_E_DEVICE_LOST)
            return status;
    }
    (void)pthread_mutex_lock(&cl->blocks_lock);
    block **link = &cl->blocks;
    while (*link != NULL && (*link)->address != ptr)
        link = &(*link)->next;
    block *const found = *link;
    if (found != NULL)
        *link = found->next;
    (void)pthread_mutex_unlock(&cl->blocks_lock);
    if (found == NULL)
        return openreg_fail(cl->host, OPENREG_E_INVALID, 0, "%p is no memory of device %d", ptr, dev);
    (void)clReleaseMemObject(found->buffer);
    clSVMFree(cl->context, found->address);
    give_bytes(&cl->devices[dev], found->size);
    free(found);
    return OPENREG_OK;
}

cl_mem
opencl_buffer(openreg_instance cl, const void *address, size_t *offset)
{
    cl_mem buffer = NULL;
    (void)pthread_mutex_lock(&cl->blocks_lock);
    for (const block *b = cl->blocks; b != NULL && buffer == NULL; b = b->next) {
        if ((const char *)address < b->address || (const char *)address >= b->address + b->size)
            continue;
        buffer = b->buffer;
        *offset = (size_t)((const char *)address - b->address);
    }
    (void)pthread_mutex_unlock(&cl->blocks_lock);
    return buffer;
}

static openreg_status
driver_copy(openreg_instance cl, int32_t stream_dev, openreg_driver_stream handle, void *dst, int32_t dst_dev,
            const void *src, int32_t src_dev, uint64_t size)
{
    (void)dst_dev; /* all addresses belong to one context */
    (void)src_dev;
    stream *const s = opencl_stream(cl, stream_dev, handle);
    cl_event event = NULL;
    if (size == 0)
        return OPENREG_OK;
    (void)pthread_mutex_lock(&s->lock);
    const cl_int error = TRIED(clEnqueueSVMMemcpy(s->queue, CL_FALSE, dst, src, size, 0, NULL, &event));
    return opencl_end_queueing(cl, s, "clEnqueueSVMMemcpy", error, event);
}

static openreg_status
driver_fill(openreg_instance cl, int32_t dev, openreg_driver_stream handle, void *dst, uint8_t value, uint64_t size)
{
    stream *const s = opencl_stream(cl, dev, handle);
    cl_event event = NULL;
    if (size == 0)
        return OPENREG_OK;
    (void)pthread_mutex_lock(&s->lock);
    const cl_int error = TRIED(clEnqueueSVMMemFill(s->queue, dst, &value, 1, size, 0, NULL, &event));
    return opencl_end_queueing(cl, s, "clEnqueueSVMMemFill", error, event);
}

static openreg_status
driver_mem_info(openreg_instance cl, int32_t dev, uint64_t *free_bytes, uint64_t *total)
{
    device *const d = &cl->devices[dev];
    (void)pthread_mutex_lock(&d->lock);
    *free_bytes = d->total_bytes - d->used_bytes;
    *total = d->total_bytes;
    (void)pthread_mutex_unlock(&d->lock);
    return OPENREG_OK;
}

static openreg_status
driver_host_alloc(openreg_instance cl, int32_t dev, const openreg_alloc_info *info, void **out)
{
    (void)dev;
    const openreg_status fits = openreg_alloc_check(cl->host, info, ALIGNMENT);
    if (fits != OPENREG_OK)
        return fits;
    const cl_svm_mem_flags flags = CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER;
    void *const memory = cl->has_fine_grain
                             ? clSVMAlloc(cl->context, flags, info->size, ALIGNMENT)
                             : aligned_alloc(ALIGNMENT, (info->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (memory == NULL)
        return openreg_fail(cl->host, OPENREG_E_NOMEM, 0, "no pinned memory of %llu bytes",
                            (unsigned long long)info->size);
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
driver_host_free(openreg_instance cl, int32_t dev, void *ptr)
{
    (void)dev;
    if (cl->has_fine_grain)
        clSVMFree(cl->context, ptr);
    else
        free(ptr);
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------------------- devices */

typedef struct settings {
    long devices;         /* at most this number */
    long memory;          /* MiB of a device; 0: what it has */
    const char *platform; /* part of its name, or NULL */
} settings;

static openreg_status
read_settings(const openreg_host *host, const openreg_option *options, uint32_t n, settings *out)
{
    *out = (settings){MAX_DEVICES, 0, NULL};
    for (size_t i = 0; i < n; ++i) {
        char *end;
        if (strcmp(options[i].key, "platform") == 0)
            out->platform = options[i].value;
        long *const number = strcmp(options[i].key, "devices") == 0  ? &out->devices
                             : strcmp(options[i].key, "memory") == 0 ? &out->memory
                                                                     : NULL;
        if (number == NULL)
            continue;
        *number = strtol(options[i].value, &end, 10);
        if (*options[i].value == '\0' || *end != '\0' || *number < 0 || *number > 1 << 24)
            return openreg_fail(host, OPENREG_E_INVALID, 0, "%s must be a number from 0, but is \"%s\"", options[i].key,
                                options[i].value);
    }
    return OPENREG_OK;
}

/* What devices of a platform have: shared virtual memory. */
static cl_device_svm_capabilities
capabilities(cl_device_id id)
{
    cl_device_svm_capabilities found = 0;
    (void)clGetDeviceInfo(id, CL_DEVICE_SVM_CAPABILITIES, sizeof found, &found, NULL);
    return found;
}

/* The devices of the first platform that has fit ones. */
static cl_int
find_devices(openreg_instance cl, const settings *wanted)
{
    cl_platform_id platforms[16];
    cl_uint count = 0;
    if (clGetPlatformIDs(16, platforms, &count) != CL_SUCCESS) /* none is installed */
        return CL_SUCCESS;
    for (cl_uint p = 0; p < count && p < 16 && cl->count == 0; ++p) {
        char name[256] = "";
        cl_device_id ids[MAX_DEVICES];
        cl_uint found = 0;
        (void)clGetPlatformInfo(platforms[p], CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
        if (wanted->platform != NULL && strstr(name, wanted->platform) == NULL)
            continue;
        const cl_int error = clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MAX_DEVICES, ids, &found);
        if (error != CL_SUCCESS && error != CL_DEVICE_NOT_FOUND)
            return error;
        for (cl_uint i = 0; i < found && i < MAX_DEVICES && cl->count < wanted->devices; ++i)
            if ((capabilities(ids[i]) & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0)
                cl->devices[cl->count++].id = ids[i];
    }
    return CL_SUCCESS;
}

static cl_int
start_device(openreg_instance cl, int32_t dev, const settings *wanted)
{
    device *const d = &cl->devices[dev];
    cl_ulong bytes = 0;
    (void)clGetDeviceInfo(d->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    d->total_bytes = wanted->memory > 0 ? (uint64_t)wanted->memory << 20 : bytes;
    cl->has_fine_grain &= (capabilities(d->id) & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0;
    const cl_int error = opencl_make_queue(cl, dev, &d->standard);
    if (error == CL_SUCCESS)
        (void)pthread_mutex_init(&d->lock, NULL);
    return error;
}

static void
end(openreg_instance cl, int32_t devices)
{
    for (int32_t i = 0; i < devices; ++i) {
        opencl_kernels_close(cl->devices[i].kernels);
        (void)opencl_device_sync(cl, i);
        opencl_release_streams(&cl->devices[i]);
        opencl_release_queue(&cl->devices[i].standard);
        (void)pthread_mutex_destroy(&cl->devices[i].lock);
    }
    opencl_host_calls_end(&cl->host_calls);
    if (cl->context != NULL)
        (void)clReleaseContext(cl->context);
    (void)pthread_mutex_destroy(&cl->blocks_lock);
    free(cl);
}

static openreg_status
start(openreg_instance cl, const settings *wanted, int32_t *started)
{
    cl_device_id ids[MAX_DEVICES];
    cl_int error = find_devices(cl, wanted);
    if (error != CL_SUCCESS)
        return opencl_fail(cl, "clGetDeviceIDs", error);
    if (cl->count == 0 && wanted->devices > 0)
        return openreg_fail(cl->host, OPENREG_E_NO_DEVICE, 0,
                            "no OpenCL platform has a device with shared virtual memory");
    if (cl->count == 0)
        return OPENREG_OK;
    for (int32_t i = 0; i < cl->count; ++i)
        ids[i] = cl->devices[i].id;
    cl->context = clCreateContext(NULL, (cl_uint)cl->count, ids, NULL, NULL, &error);
    if (error != CL_SUCCESS)
        return opencl_fail(cl, "clCreateContext", error);
    for (; *started < cl->count; ++*started) {
        error = start_device(cl, *started, wanted);
        if (error != CL_SUCCESS)
            return opencl_fail(cl, "clCreateCommandQueueWithProperties", error);
    }
    return OPENREG_OK;
}

static openreg_status
driver_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    settings wanted;
    int32_t started = 0;
    openreg_status status = read_settings(host, options, n, &wanted);
    if (status != OPENREG_OK)
        return status;
    openreg_instance const cl = calloc(1, sizeof *cl);
    if (cl == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory");
    cl->host = host;
    cl->has_fine_grain = true;
    (void)pthread_mutex_init(&cl->blocks_lock, NULL);
    opencl_host_calls_start(&cl->host_calls);
    signal_state signals;
    opencl_enter_platform(&signals);
    status = start(cl, &wanted, &started);
    opencl_leave_platform(&signals);
    if (status == OPENREG_OK)
        *out = cl;
    else
        end(cl, started);
    return status;
}

static openreg_status
driver_close(openreg_instance cl)
{
    end(cl, cl->count);
    return OPENREG_OK;
}

static openreg_status
driver_device_count(openreg_instance cl, int32_t *out)
{
    *out = cl->count;
    return OPENREG_OK;
}

static openreg_status
driver_device_info(openreg_instance cl, int32_t dev, openreg_device_info *inout)
{
    device *const d = &cl->devices[dev];
    openreg_device_info info = {.struct_size = inout->struct_size};
    cl_uint units = 0;
    (void)clGetDeviceInfo(d->id, CL_DEVICE_NAME, sizeof info.name - 1, info.name, NULL);
    (void)clGetDeviceInfo(d->id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    info.total_bytes = d->total_bytes;
    info.min_alignment = ALIGNMENT;
    info.multi_processor_count = (int32_t)units;
    memcpy(inout, &info, inout->struct_size < sizeof info ? inout->struct_size : sizeof info);
    return OPENREG_OK;
}

uint32_t opencl_to_fail;

static openreg_status
fail_vendor_call(openreg_instance cl, uint32_t nth, uint32_t *left)
{
    (void)cl;
    *left = openreg_probe_fail(&opencl_to_fail, nth);
    return OPENREG_OK;
}

static const void *
driver_extension(openreg_instance cl, const char *name, uint32_t version)
{
    static const openreg_probe probe = {
        .struct_size = sizeof probe, .version = OPENREG_PROBE_VERSION, .fail_vendor_call = fail_vendor_call};
    (void)cl;
    if (strcmp(name, OPENREG_PROBE_NAME) == 0 && version <= OPENREG_PROBE_VERSION)
        return &probe;
    return strcmp(name, OPENREG_KERNELS_NAME) == 0 && version <= OPENREG_KERNELS_VERSION ? opencl_kernels() : NULL;
}

/* No describe(): listing the devices makes the platform start threads. */
static const openreg_driver table = {
    .struct_size = sizeof(openreg_driver),
    .abi_minor = OPENREG_ABI_MINOR,
    .name = "opencl",
    .version = "1.0",
    .open = driver_open,
    .close = driver_close,
    .device_count = driver_device_count,
    .mem_alloc = opencl_mem_alloc,
    .mem_free = opencl_mem_free,
    .copy = driver_copy,
    .device_sync = opencl_device_sync,
    .device_info = driver_device_info,
    .fill = driver_fill,
    .stream_create = opencl_stream_create,
    .stream_destroy = opencl_stream_destroy,
    .stream_query = opencl_stream_query,
    .stream_sync = opencl_stream_sync,
    .stream_wait = opencl_stream_wait,
    .event_create = opencl_event_create,
    .event_destroy = opencl_event_destroy,
    .event_record = opencl_event_record,
    .event_query = opencl_event_query,
    .event_sync = opencl_event_sync,
    .event_elapsed = opencl_event_elapsed,
    .host_alloc = driver_host_alloc,
    .host_free = driver_host_free,
    .mem_info = driver_mem_info,
    .stream_native = opencl_stream_native,
    .extension = driver_extension,
    .host_func = opencl_host_func,
};

__attribute__((visibility("default"))) openreg_status openreg_driver_query_v1(const openreg_host *host,
                                                                              const openreg_driver **out);

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
