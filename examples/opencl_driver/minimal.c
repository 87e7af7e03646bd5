/* SPDX-License-Identifier: BSD-3-Clause */
/* minimal.c: the devices of OpenCL in the seven functions that a driver must have. Not a part of the package: it shows how
 * much a first driver of a foreign API is. It keeps every rule of openreg/driver.h; what it lacks the runtime emulates. */
#define CL_TARGET_OPENCL_VERSION 200
#include <CL/cl.h>
#include <openreg/driver.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define MOST_DEVICES 8
#define SIGNALS 32

struct openreg_instance_s {
    const openreg_host *host;
    cl_context context;
    cl_uint count;
    cl_device_id ids[MOST_DEVICES];
    cl_command_queue queues[MOST_DEVICES];
};

static openreg_status
fail(openreg_instance cl, const char *function, cl_int error)
{
    const openreg_status status = error == CL_OUT_OF_HOST_MEMORY || error == CL_MEM_OBJECT_ALLOCATION_FAILURE
                                      ? OPENREG_E_NOMEM
                                      : OPENREG_E_INTERNAL;
    return openreg_fail(cl->host, status, error, "%s(): error (%d)", function, error);
}

static openreg_status
minimal_close(openreg_instance cl)
{
    for (cl_uint i = 0; i < cl->count && cl->queues[i] != NULL; ++i)
        (void)clReleaseCommandQueue(cl->queues[i]);
    if (cl->context != NULL)
        (void)clReleaseContext(cl->context);
    free(cl);
    return OPENREG_OK;
}

static cl_int
start(openreg_instance cl)
{
    cl_platform_id platform;
    cl_int error = clGetPlatformIDs(1, &platform, NULL);
    if (error == CL_SUCCESS)
        error = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, MOST_DEVICES, cl->ids, &cl->count);
    cl->count = cl->count < MOST_DEVICES ? cl->count : MOST_DEVICES;
    if (error == CL_SUCCESS)
        cl->context = clCreateContext(NULL, cl->count, cl->ids, NULL, NULL, &error);
    for (cl_uint i = 0; i < cl->count && error == CL_SUCCESS; ++i)
        cl->queues[i] = clCreateCommandQueueWithProperties(cl->context, cl->ids[i], NULL, &error);
    return error;
}

/* Threads of a driver block all signals, and it installs no handlers: PoCL does, as compilers do. */
static openreg_status
minimal_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    struct sigaction handlers[SIGNALS];
    sigset_t all, before;
    (void)options;
    (void)n;
    openreg_instance const cl = calloc(1, sizeof *cl);
    if (cl == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory");
    cl->host = host;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int s = 1; s < SIGNALS; ++s)
        (void)sigaction(s, NULL, &handlers[s]);
    const cl_int error = start(cl);
    for (int s = 1; s < SIGNALS; ++s)
        (void)sigaction(s, &handlers[s], NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == CL_SUCCESS) {
        *out = cl;
        return OPENREG_OK;
    }
    const openreg_status status = fail(cl, "clCreateContext", error);
    (void)minimal_close(cl);
    return status;
}

static openreg_status
minimal_device_count(openreg_instance cl, int32_t *out)
{
    *out = (int32_t)cl->count;
    return OPENREG_OK;
}

/* Shared virtual memory: addresses that nothing else in the process has, and to which offsets can be added. */
static openreg_status
minimal_mem_alloc(openreg_instance cl, int32_t dev, const openreg_alloc_info *info, void **out)
{
    (void)dev;
    const openreg_status fits = openreg_alloc_check(cl->host, info, 16);
    if (fits != OPENREG_OK)
        return fits;
    void *const memory = clSVMAlloc(cl->context, CL_MEM_READ_WRITE, info->size, 0);
    if (memory == NULL)
        return fail(cl, "clSVMAlloc", CL_MEM_OBJECT_ALLOCATION_FAILURE);
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
minimal_mem_free(openreg_instance cl, int32_t dev, void *ptr)
{
    (void)dev;
    clSVMFree(cl->context, ptr); /* nothing is queued: copies wait */
    return OPENREG_OK;
}

static openreg_status
minimal_copy(openreg_instance cl, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
             const void *src, int32_t src_dev, uint64_t size)
{
    (void)dst_dev;
    (void)src_dev;
    (void)stream;
    if (size == 0)
        return OPENREG_OK;
    const cl_int error = clEnqueueSVMMemcpy(cl->queues[stream_dev], CL_TRUE, dst, src, size, 0, NULL, NULL);
    return error == CL_SUCCESS ? OPENREG_OK : fail(cl, "clEnqueueSVMMemcpy", error);
}

static openreg_status
minimal_device_sync(openreg_instance cl, int32_t dev)
{
    const cl_int error = clFinish(cl->queues[dev]);
    return error == CL_SUCCESS ? OPENREG_OK : fail(cl, "clFinish", error);
}

static const openreg_driver table = {
    .struct_size = sizeof(openreg_driver),
    .abi_minor = OPENREG_ABI_MINOR,
    .name = "minimal",
    .open = minimal_open,
    .close = minimal_close,
    .device_count = minimal_device_count,
    .mem_alloc = minimal_mem_alloc,
    .mem_free = minimal_mem_free,
    .copy = minimal_copy,
    .device_sync = minimal_device_sync,
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
