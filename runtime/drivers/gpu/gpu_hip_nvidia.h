/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_hip_nvidia.h: lets HIP's headers for NVIDIA, which were written for CUDA 12, compile with CUDA 13. That version
 * took away fields of cudaDeviceProp and an attribute, and changed the arguments of three functions, all of which HIP's
 * inline functions use. Included before them; without effect on CUDA 12. For tests, not for a driver that is installed.
 * Internal to drivers/gpu. */
#ifndef OPENREG_DRIVERS_GPU_HIP_NVIDIA_H
#define OPENREG_DRIVERS_GPU_HIP_NVIDIA_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <string.h>

#if CUDART_VERSION >= 13000

/* Fields that CUDA 13 still has: X(type, name, dimensions). */
#define OPENREG_CUDA12_FIELDS(X)                                                                                       \
    X(char, name, [256])                                                                                               \
    X(size_t, totalGlobalMem, )                                                                                        \
    X(size_t, sharedMemPerBlock, )                                                                                     \
    X(size_t, totalConstMem, )                                                                                         \
    X(size_t, memPitch, )                                                                                              \
    X(size_t, textureAlignment, )                                                                                      \
    X(size_t, texturePitchAlignment, )                                                                                 \
    X(size_t, sharedMemPerMultiprocessor, )                                                                            \
    X(int, regsPerBlock, )                                                                                             \
    X(int, warpSize, )                                                                                                 \
    X(int, maxThreadsPerBlock, )                                                                                       \
    X(int, maxThreadsDim, [3])                                                                                         \
    X(int, maxGridSize, [3])                                                                                           \
    X(int, memoryBusWidth, )                                                                                           \
    X(int, major, )                                                                                                    \
    X(int, minor, )                                                                                                    \
    X(int, multiProcessorCount, )                                                                                      \
    X(int, l2CacheSize, )                                                                                              \
    X(int, maxThreadsPerMultiProcessor, )                                                                              \
    X(int, concurrentKernels, )                                                                                        \
    X(int, pciDomainID, )                                                                                              \
    X(int, pciBusID, )                                                                                                 \
    X(int, pciDeviceID, )                                                                                              \
    X(int, isMultiGpuBoard, )                                                                                          \
    X(int, canMapHostMemory, )                                                                                         \
    X(int, integrated, )                                                                                               \
    X(int, cooperativeLaunch, )                                                                                        \
    X(int, maxTexture1D, )                                                                                             \
    X(int, maxTexture2D, [2])                                                                                          \
    X(int, maxTexture3D, [3])                                                                                          \
    X(int, ECCEnabled, )                                                                                               \
    X(int, tccDriver, )

#define OPENREG_CUDA12_MEMBER(type, name, dimensions) type name dimensions;
struct openreg_cuda12_device_prop {
    OPENREG_CUDA12_FIELDS(OPENREG_CUDA12_MEMBER)
    int clockRate, memoryClockRate, computeMode, kernelExecTimeoutEnabled, cooperativeMultiDeviceLaunch; /* 0 */
};

static inline cudaError_t
openreg_cuda12_get_device_properties(struct openreg_cuda12_device_prop *out, int device)
{
    struct cudaDeviceProp found;
    memset(out, 0, sizeof *out);
    const cudaError_t code = cudaGetDeviceProperties(&found, device);
    if (code != cudaSuccess)
        return code;
#define OPENREG_CUDA12_COPY(type, name, dimensions) memcpy(&out->name, &found.name, sizeof out->name);
    OPENREG_CUDA12_FIELDS(OPENREG_CUDA12_COPY)
    return cudaSuccess;
}

/* What nothing of ours calls is refused. */
static inline cudaError_t
openreg_cuda12_choose_device(int *device, const struct openreg_cuda12_device_prop *wanted)
{
    (void)device;
    (void)wanted;
    return cudaErrorNotSupported;
}

static inline cudaError_t
openreg_cuda12_reject(void)
{
    return cudaErrorNotSupported;
}

static inline CUresult
openreg_cuda12_reject_context(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define cudaDeviceProp openreg_cuda12_device_prop
#define cudaGetDeviceProperties openreg_cuda12_get_device_properties
#define cudaChooseDevice openreg_cuda12_choose_device
#define cudaMemAdvise(ptr, size, advice, device) ((void)(device), openreg_cuda12_reject())
#define cudaMemPrefetchAsync(ptr, size, device, stream) ((void)(device), openreg_cuda12_reject())
#define cudaDevAttrCooperativeMultiDeviceLaunch cudaDevAttrCooperativeLaunch
#undef cuCtxCreate
#define cuCtxCreate(context, flags, device) ((void)(device), openreg_cuda12_reject_context())

#endif

#endif
