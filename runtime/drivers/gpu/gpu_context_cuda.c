/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_context_cuda.c: the calling thread's device, by CUDA's contexts (gpu.h).
 *
 * cudaSetDevice() would be the plain way to change a thread's device and to go back, and it would be wrong: since CUDA
 * 12 it makes a context, and cudaGetDevice() says 0 in a thread that never chose a device, so that going "back" would
 * make a context of some 500 MB on device 0 for nothing. So the device's primary context is pushed on the thread's
 * stack of contexts and popped again; CUDA's runtime takes the top of that stack for the thread's device. A thread that
 * had no context has none afterwards, and one on which cudaSetDevice() was called has that device's.
 *
 * The primary context is the one that CUDA's runtime uses too, in this library and in PyTorch's. It is retained at the
 * first use of a device and kept to the end of the process, as cudaSetDevice() does: the runtime holds state in it that
 * must not lose its context. */
#define _GNU_SOURCE
#include "gpu.h"

#include <cuda.h>
#include <string.h>

#include "gpu_signals.h"

/* X(member, symbol): the driver API's functions, of the version that OLDEST names. */
#define OLDEST 12000
#define CONTEXT_FUNCTIONS(X)                                                                                           \
    X(get_device, cuDeviceGet)                                                                                         \
    X(retain, cuDevicePrimaryCtxRetain)                                                                                \
    X(get_state, cuDevicePrimaryCtxGetState)                                                                           \
    X(get_current, cuCtxGetCurrent)                                                                                    \
    X(get_current_device, cuCtxGetDevice)                                                                              \
    X(push, cuCtxPushCurrent)                                                                                          \
    X(pop, cuCtxPopCurrent)

#define CONTEXT_MEMBER(member, symbol) __typeof__(&symbol) member;
static struct {
    CONTEXT_FUNCTIONS(CONTEXT_MEMBER)
} driver;

/* This toolkit may have no libcuda.so to link, and the machine none to load. */
static cudaError_t
find(const char *symbol, void **out)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t code = cudaGetDriverEntryPointByVersion(symbol, out, OLDEST, cudaEnableDefault, &found);
#else
    const cudaError_t code = cudaGetDriverEntryPoint(symbol, out, cudaEnableDefault, &found);
#endif
    if (code != cudaSuccess)
        return code;
    return found == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorSymbolNotFound;
}

openreg_status
openreg_gpu_context_open(const openreg_host *host)
{
    static const struct {
        const char *symbol;
        void *target;
    } wanted[] = {
#define WANTED(member, symbol) {#symbol, &driver.member},
        CONTEXT_FUNCTIONS(WANTED)
#undef WANTED
    };
    if (driver.pop != NULL)
        return OPENREG_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; ++i) {
        void *symbol = NULL;
        const cudaError_t code = find(wanted[i].symbol, &symbol);
        if (code != cudaSuccess)
            return openreg_gpu_fail_plain(host, (openreg_gpu_code)code, wanted[i].symbol);
        memcpy(wanted[i].target, &symbol, sizeof symbol);
    }
    return OPENREG_OK;
}

bool
openreg_gpu_find_optional(const openreg_gpu_scope *scope, const char *name, void *out)
{
    void *symbol = NULL;
    const cudaError_t code = find(name, &symbol);
    if (code != cudaSuccess) {
        openreg_gpu_forget(scope, (openreg_gpu_code)code);
        return false;
    }
    memcpy(out, &symbol, sizeof symbol);
    return true;
}

/* The driver API's numbers are the runtime's. */
#define CONTEXT_TRY(scope, member, symbol, ...)                                                                        \
    openreg_gpu_check((scope), (openreg_gpu_code)driver.member(__VA_ARGS__), symbol)

/* The device's primary context, which is made here if it is not there. */
static openreg_status
retain(const openreg_gpu_scope *scope, CUcontext *out)
{
    openreg_gpu_device *const device = &scope->instance->devices[scope->device];
    uintptr_t context = atomic_load_explicit(&device->context, memory_order_acquire);
    if (context == 0) {
        CUdevice handle;
        CUcontext made = NULL;
        OPENREG_GPU_RETURN_NOT_OK(CONTEXT_TRY(scope, get_device, "cuDeviceGet", &handle, scope->device));
        sigset_t signals;
        openreg_gpu_block_signals(&signals);
        const openreg_status status = CONTEXT_TRY(scope, retain, "cuDevicePrimaryCtxRetain", &made, handle);
        openreg_gpu_restore_signals(&signals);
        OPENREG_GPU_RETURN_NOT_OK(status);
        context = (uintptr_t)made; /* of two threads here, both have the same one */
        atomic_store_explicit(&device->context, context, memory_order_release);
    }
    *out = (CUcontext)context;
    return OPENREG_OK;
}

openreg_status
openreg_gpu_enter(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev)
{
    *scope = (openreg_gpu_scope){.instance = instance, .device = dev};
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_reject_lost(instance, dev));
    scope->pending = GPU_CALL(PeekAtLastError)();
    CUcontext wanted = NULL;
    CUcontext current = NULL;
    OPENREG_GPU_RETURN_NOT_OK(retain(scope, &wanted));
    OPENREG_GPU_RETURN_NOT_OK(CONTEXT_TRY(scope, get_current, "cuCtxGetCurrent", &current));
    if (current == wanted)
        return OPENREG_OK;
    OPENREG_GPU_RETURN_NOT_OK(CONTEXT_TRY(scope, push, "cuCtxPushCurrent", wanted));
    scope->switched = true;
    return OPENREG_OK;
}

openreg_status
openreg_gpu_look(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev)
{
    *scope = (openreg_gpu_scope){.instance = instance, .device = dev, .pending = GPU_CALL(PeekAtLastError)()};
    return OPENREG_OK; /* CUDA's questions name the device */
}

void
openreg_gpu_leave(const openreg_gpu_scope *scope)
{
    if (!scope->switched)
        return;
    CUcontext own;
    const CUresult code = driver.pop(&own);
    if (code != CUDA_SUCCESS) {
        const openreg_host *const host = scope->instance->host;
        char text[128];
        (void)snprintf(text, sizeof text, "cuCtxPopCurrent: error %d: this thread stays on device %d", (int)code,
                       scope->device);
        host->log(host->ctx, OPENREG_LOG_ERROR, text);
    }
}

openreg_status
openreg_gpu_query_context(const openreg_gpu_scope *scope, int *active)
{
    CUdevice handle;
    unsigned flags = 0;
    OPENREG_GPU_RETURN_NOT_OK(CONTEXT_TRY(scope, get_device, "cuDeviceGet", &handle, scope->device));
    return CONTEXT_TRY(scope, get_state, "cuDevicePrimaryCtxGetState", handle, &flags, active);
}

openreg_status
openreg_gpu_enter_to_wait(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev, bool *is_idle)
{
    bool active = false;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_reject_lost(instance, dev));
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_is_active(instance, dev, &active));
    *is_idle = !active;
    return active ? openreg_gpu_enter(scope, instance, dev) : OPENREG_OK;
}

/* A live device with a context: this thread's if it has one; -1 if there is none. */
static int32_t
find_active(openreg_instance instance)
{
    CUcontext current = NULL;
    CUdevice own = -1;
    if (driver.get_current(&current) == CUDA_SUCCESS && current != NULL &&
        driver.get_current_device(&own) == CUDA_SUCCESS && own >= 0 && own < instance->device_count &&
        !openreg_gpu_is_lost(instance, own))
        return own;
    for (int32_t dev = 0; dev < instance->device_count; ++dev) {
        CUdevice handle;
        unsigned flags;
        int active = 0;
        if (!openreg_gpu_is_lost(instance, dev) && driver.get_device(&handle, dev) == CUDA_SUCCESS &&
            driver.get_state(handle, &flags, &active) == CUDA_SUCCESS && active != 0)
            return dev;
    }
    return -1;
}

openreg_status
openreg_gpu_enter_any(openreg_gpu_scope *scope, openreg_instance instance)
{
    int32_t dev = find_active(instance);
    if (dev < 0) {
        dev = 0;
        while (dev + 1 < instance->device_count && openreg_gpu_is_lost(instance, dev))
            ++dev;
    }
    return openreg_gpu_enter(scope, instance, dev);
}
