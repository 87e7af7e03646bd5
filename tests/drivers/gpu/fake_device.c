/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_device.c: the fake vendor's devices and contexts (fake_gpu.h), and the part of CUDA's driver API
 * that the driver uses. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

fake_device fake_devices[FAKE_MAX_DEVICES];

static _Thread_local int own_device;
static _Thread_local int contexts[16]; /* CUDA's stack of contexts, by device */
static _Thread_local int context_depth;

bool
fake_is_device(int dev)
{
    return dev >= 0 && dev < fake_settings_get()->devices;
}

/* ThreadSanitizer waits a second at the end of a process that has threads. */
#if OPENREG_GPU_CUDART && !defined(__SANITIZE_THREAD__)
#define HAS_THREADS
static void *
handle_events(void *unused)
{
    for (;;)
        (void)pause();
    return unused;
}
#endif

void
fake_activate(int dev)
{
    const int had = atomic_exchange(&fake_devices[dev].has_context, 1);
#if defined(                                                                                                           \
    HAS_THREADS) /* CUDA has a thread for each context, which blocks what the thread blocks that makes the context */
    pthread_t thread;
    if (!had && pthread_create(&thread, NULL, handle_events, NULL) == 0)
        (void)pthread_detach(thread);
#else
    (void)had;
#endif
}

int
fake_current_device(void)
{
    return context_depth > 0 ? contexts[context_depth - 1] : own_device;
}

/* What both kinds of call begin with. */
static fake_code
begin_on_device(const char *name, int *dev)
{
    const int code = (int)fake_begin(name);
    *dev = fake_current_device();
    if (!fake_is_device(*dev))
        return GPU(ErrorNoDevice);
    if (fake_is_sticky(code))
        atomic_store(&fake_devices[*dev].sticky, code);
    const int sticky = atomic_load(&fake_devices[*dev].sticky);
    return (fake_code)(sticky != 0 ? sticky : code);
}

fake_code
fake_begin_work(const char *name, int *dev)
{
    const fake_code code = begin_on_device(name, dev);
    if (!fake_is_device(*dev))
        return code;
    fake_activate(*dev);
#if OPENREG_GPU_CUDART
    if (context_depth == 0)
        contexts[context_depth++] = *dev; /* as CUDA's runtime binds the device's context to the thread */
#endif
    return code;
}

fake_code
fake_begin_wait(const char *name, int *dev)
{
#if OPENREG_GPU_CUDART
    return fake_begin_work(name, dev);
#else
    return begin_on_device(name, dev);
#endif
}

int
fake_has_current_context(void)
{
    return context_depth > 0;
}

void
fake_devices_reset(void)
{
    for (int dev = 0; dev < FAKE_MAX_DEVICES; ++dev) {
        atomic_store(&fake_devices[dev].has_context, 0);
        atomic_store(&fake_devices[dev].sticky, 0);
        for (int peer = 0; peer < FAKE_MAX_DEVICES; ++peer)
            atomic_store(&fake_devices[dev].access[peer], false);
    }
    own_device = 0;
    context_depth = 0;
}

/* ------------------------------------------------------------------------------------------ the vendor's functions */

fake_code
GPU(GetDeviceCount)(int *count)
{
    const fake_code code = fake_begin("GetDeviceCount");
    if (code != GPU(Success))
        return fake_end(code); /* *count is left as it is */
    *count = fake_settings_get()->devices;
    return fake_end(*count > 0 ? GPU(Success) : GPU(ErrorNoDevice));
}

fake_code
GPU(GetDevice)(int *dev)
{
    const fake_code code = fake_begin("GetDevice");
    if (code == GPU(Success))
        *dev = fake_current_device();
    return fake_end(code);
}

fake_code
GPU(SetDevice)(int dev)
{
    fake_code code = fake_begin("SetDevice");
    if (code == GPU(Success) && !fake_is_device(dev))
        code = GPU(ErrorInvalidDevice);
    if (code != GPU(Success))
        return fake_end(code);
    own_device = dev;
#if OPENREG_GPU_CUDART
    fake_activate(dev); /* as since CUDA 12 */
    if (context_depth == 0)
        context_depth = 1;
    contexts[context_depth - 1] = dev;
    code = (fake_code)atomic_load(&fake_devices[dev].sticky);
#endif
    return fake_end(code);
}

fake_code
GPU(DeviceSynchronize)(void)
{
    int dev;
    fake_code code = fake_begin_wait("DeviceSynchronize", &dev);
    if (code == GPU(Success))
        code = fake_graph_host_waits(NULL, dev);
    if (code == GPU(Success)) {
        fake_device_await(dev);
        code = (fake_code)atomic_load(&fake_devices[dev].sticky);
    }
    return fake_end(code);
}

fake_code
GPU(DeviceGetStreamPriorityRange)(int *least, int *greatest)
{
    int dev;
#if OPENREG_GPU_CUDART
    const fake_code code = fake_begin_work("DeviceGetStreamPriorityRange", &dev);
    (void)dev;
    const int low = 0;
    const int high = -5;
#else
    const fake_code code = fake_begin("DeviceGetStreamPriorityRange");
    (void)dev;
    const int low = 1;
    const int high = -1;
#endif
    if (code == GPU(Success)) {
        *least = low;
        *greatest = high;
    }
    return fake_end(code);
}

fake_code
GPU(DeviceGetAttribute)(int *value, openreg_gpu_attribute attribute, int dev)
{
    fake_code code = fake_begin("DeviceGetAttribute");
    if (code == GPU(Success) && !fake_is_device(dev))
        code = GPU(ErrorInvalidDevice);
    if (code != GPU(Success))
        return fake_end(code);
    if (attribute == GPU_ATTRIBUTE_MULTIPROCESSORS)
        *value = 132;
    else if (attribute == GPU_ATTRIBUTE_CAPABILITY_MAJOR)
        *value = 9;
    else if (attribute == GPU_ATTRIBUTE_CAPABILITY_MINOR)
        *value = dev;
#if defined(GPU_ATTRIBUTE_SHARES_PAGES)
    else if (attribute == GPU_ATTRIBUTE_SHARES_PAGES)
        *value = dev % 2; /* devices differ */
#endif
    else
        code = GPU(ErrorInvalidValue);
    return fake_end(code);
}

fake_code
GPU(DeviceCanAccessPeer)(int *can, int dev, int peer)
{
    fake_code code = fake_begin("DeviceCanAccessPeer");
    if (code == GPU(Success) && (!fake_is_device(dev) || !fake_is_device(peer)))
        code = GPU(ErrorInvalidDevice);
    if (code == GPU(Success))
        *can = fake_settings_get()->peers[dev][peer];
    return fake_end(code);
}

fake_code
GPU(DeviceEnablePeerAccess)(int peer, unsigned flags)
{
    int dev;
    fake_code code = fake_begin_work("DeviceEnablePeerAccess", &dev);
    (void)flags;
    if (code != GPU(Success))
        return fake_end(code);
    if (!fake_is_device(peer) || !fake_settings_get()->peers[dev][peer])
        return fake_end(GPU(ErrorPeerAccessUnsupported));
    if (atomic_exchange(&fake_devices[dev].access[peer], true))
        code = GPU(ErrorPeerAccessAlreadyEnabled);
    fake_activate(peer);
    return fake_end(code);
}

#if OPENREG_GPU_CUDART

fake_code
cudaGetDeviceProperties(struct cudaDeviceProp *properties, int dev)
{
    fake_code code = fake_begin("GetDeviceProperties");
    if (code == cudaSuccess && !fake_is_device(dev))
        code = cudaErrorInvalidDevice;
    if (code != cudaSuccess)
        return fake_end(code);
    memset(properties, 0, sizeof *properties);
    (void)snprintf(properties->name, sizeof properties->name, "Fake GPU %d", dev);
    properties->totalGlobalMem = fake_settings_get()->memory;
    memset(&properties->uuid, 0x10 + dev, sizeof properties->uuid);
    return fake_end(cudaSuccess);
}

#else

fake_code
hipDeviceGetName(char *name, int size, hipDevice_t dev)
{
    const fake_code code = fake_begin("DeviceGetName");
    if (code == hipSuccess)
        (void)snprintf(name, (size_t)size, "Fake GPU %d", dev);
    return fake_end(code);
}

fake_code
hipDeviceTotalMem(size_t *bytes, hipDevice_t dev)
{
    const fake_code code = fake_begin("DeviceTotalMem");
    (void)dev;
    if (code == hipSuccess)
        *bytes = fake_settings_get()->memory;
    return fake_end(code);
}

fake_code
hipDeviceGetUuid(hipUUID *uuid, hipDevice_t dev)
{
    const fake_code code = fake_begin("DeviceGetUuid");
    if (code == hipSuccess)
        memset(uuid, 0x10 + dev, sizeof *uuid);
    return fake_end(code);
}

fake_code
hipDevicePrimaryCtxGetState(hipDevice_t dev, unsigned *flags, int *active)
{
    const fake_code code = fake_begin("DevicePrimaryCtxGetState");
    if (code == hipSuccess) {
        *flags = 0;
        *active = atomic_load(&fake_devices[dev].has_context);
    }
    return fake_end(code);
}

#endif

/* -------------------------------------------------------------------------------------- CUDA's driver API, in part */

#if OPENREG_GPU_CUDART
#include <cuda.h>

static CUresult
driver_device_get(CUdevice *device, int ordinal)
{
    const fake_code code = fake_begin("cuDeviceGet");
    if (code == cudaSuccess)
        *device = ordinal;
    return (CUresult)code;
}

static CUresult
driver_retain(CUcontext *context, CUdevice device)
{
    const fake_code code = fake_begin("cuDevicePrimaryCtxRetain");
    if (code == cudaSuccess) {
        fake_activate(device);
        *context = (CUcontext)(void *)&fake_devices[device];
    }
    return (CUresult)code;
}

static CUresult
driver_get_state(CUdevice device, unsigned *flags, int *active)
{
    const fake_code code = fake_begin("cuDevicePrimaryCtxGetState");
    if (code == cudaSuccess) {
        *flags = 0;
        *active = atomic_load(&fake_devices[device].has_context);
    }
    return (CUresult)code;
}

static CUresult
driver_get_current(CUcontext *context)
{
    const fake_code code = fake_begin("cuCtxGetCurrent");
    if (code == cudaSuccess)
        *context = context_depth > 0 ? (CUcontext)(void *)&fake_devices[contexts[context_depth - 1]] : NULL;
    return (CUresult)code;
}

static CUresult
driver_get_current_device(CUdevice *device)
{
    const fake_code code = fake_begin("cuCtxGetDevice");
    if (code == cudaSuccess)
        *device = fake_current_device();
    return (CUresult)code;
}

static CUresult
driver_push(CUcontext context)
{
    const fake_code code = fake_begin("cuCtxPushCurrent");
    if (code == cudaSuccess)
        contexts[context_depth++] = (int)((fake_device *)(void *)context - fake_devices);
    return (CUresult)code;
}

static CUresult
driver_pop(CUcontext *context)
{
    const fake_code code = fake_begin("cuCtxPopCurrent");
    if (code != cudaSuccess || context_depth == 0)
        return code != cudaSuccess ? (CUresult)code : CUDA_ERROR_INVALID_CONTEXT;
    *context = (CUcontext)(void *)&fake_devices[contexts[--context_depth]];
    return CUDA_SUCCESS;
}

static const struct {
    const char *name;
    void (*function)(void);
} entry_points[] = {
    {"cuDeviceGet", (void (*)(void))driver_device_get},
    {"cuDevicePrimaryCtxRetain", (void (*)(void))driver_retain},
    {"cuDevicePrimaryCtxGetState", (void (*)(void))driver_get_state},
    {"cuCtxGetCurrent", (void (*)(void))driver_get_current},
    {"cuCtxGetDevice", (void (*)(void))driver_get_current_device},
    {"cuCtxPushCurrent", (void (*)(void))driver_push},
    {"cuCtxPopCurrent", (void (*)(void))driver_pop},
};

static fake_code
find_entry_point(const char *symbol, void **out, enum cudaDriverEntryPointQueryResult *found)
{
    const fake_code code = fake_begin("GetDriverEntryPoint");
    const char *const missing = getenv("FAKE_GPU_MISSING");
    if (code != cudaSuccess)
        return fake_end(code);
    *found = cudaDriverEntryPointSymbolNotFound;
    void (*const mapping)(void) = fake_vmm_entry(symbol);
    if (mapping != NULL && (missing == NULL || strcmp(missing, symbol) != 0)) {
        memcpy(out, &mapping, sizeof *out);
        *found = cudaDriverEntryPointSuccess;
    }
    for (size_t i = 0; i < sizeof entry_points / sizeof entry_points[0]; ++i)
        if (strcmp(entry_points[i].name, symbol) == 0 && (missing == NULL || strcmp(missing, symbol) != 0)) {
            memcpy(out, &entry_points[i].function, sizeof *out);
            *found = cudaDriverEntryPointSuccess;
        }
    return fake_end(cudaSuccess);
}

#if CUDART_VERSION >= 12050
fake_code
cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long flags,
                                 enum cudaDriverEntryPointQueryResult *found)
{
    (void)version;
    (void)flags;
    return find_entry_point(symbol, out, found);
}
#else
fake_code
cudaGetDriverEntryPoint(const char *symbol, void **out, unsigned long long flags,
                        enum cudaDriverEntryPointQueryResult *found)
{
    (void)flags;
    return find_entry_point(symbol, out, found);
}
#endif

#endif
