/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_names.h: the vendor's names. One source is compiled for CUDA's runtime API and for HIP's, whose functions and
 * constants differ by their prefix; the few that do not are listed here. Internal to drivers/gpu.
 *
 *   OPENREG_GPU_HIP unset                    CUDA; the runtime is linked in, and opens libcuda.so.1 itself
 *   OPENREG_GPU_HIP, __HIP_PLATFORM_AMD__    HIP; libamdhip64 is opened by gpu_library_hip.c
 *   OPENREG_GPU_HIP, __HIP_PLATFORM_NVIDIA__ HIP's names over CUDA's runtime, for tests of the HIP calls on NVIDIA
 *
 * Streams are the legacy ones: CUDA_API_PER_THREAD_DEFAULT_STREAM must not be defined. */
#ifndef OPENREG_DRIVERS_GPU_NAMES_H
#define OPENREG_DRIVERS_GPU_NAMES_H

#include <stdint.h>

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(HIP_API_PER_THREAD_DEFAULT_STREAM)
#error "the default stream must be the legacy one, which PyTorch's kernels use"
#endif

#if defined(OPENREG_GPU_HIP)
#if defined(__HIP_PLATFORM_NVIDIA__)
#include "gpu_hip_nvidia.h"
#endif
#include <hip/hip_runtime_api.h>
#else
#include <cuda_runtime_api.h>
#endif

#if defined(OPENREG_GPU_HIP) && defined(__HIP_PLATFORM_AMD__)
#define OPENREG_GPU_CUDART 0
#else
#define OPENREG_GPU_CUDART 1 /* the functions behind the names are CUDA's */
#endif

#if OPENREG_GPU_CUDART
#define GPU_IPC_FLAG GPU(IpcMemLazyEnablePeerAccess)
#else
#define GPU_IPC_FLAG openreg_gpu_ipc_flag() /* it has changed between versions */
#endif

#define GPU_JOIN(prefix, name) GPU_JOIN_EXPANDED(prefix, name)
#define GPU_JOIN_EXPANDED(prefix, name) prefix##name
#define GPU_TEXT(name) GPU_TEXT_EXPANDED(name)
#define GPU_TEXT_EXPANDED(name) #name

/* GPU(Malloc): the vendor's name. GPU_NAME(Malloc): the same as text. GPU_CALL(Malloc): what to call. */
#if defined(OPENREG_GPU_HIP)
#define GPU(name) GPU_JOIN(hip, name)
#define GPU_NAME(name) "hip" GPU_TEXT(name)
#define GPU_DRIVER_NAME "hip"
#define GPU_VENDOR_TEXT "HIP"
#define GPU_VERSION_ADVICE ""
#define GPU_ALIGNMENT 128 /* no promise is written down; HIP over OpenCL gives no more */
#define GPU_DRIVER_VERSION GPU_TEXT(HIP_VERSION_MAJOR) "." GPU_TEXT(HIP_VERSION_MINOR) "." GPU_TEXT(HIP_VERSION_PATCH)
#else
#define GPU(name) GPU_JOIN(cuda, name)
#define GPU_NAME(name) "cuda" GPU_TEXT(name)
#define GPU_DRIVER_NAME "cuda"
#define GPU_VENDOR_TEXT "CUDA"
#define GPU_VERSION_ADVICE " This is the newest CUDA that the installed NVIDIA driver serves: install a newer driver."
#define GPU_ALIGNMENT 256 /* CUDA's programming guide promises it */
#define GPU_DRIVER_VERSION GPU_TEXT(CUDART_VERSION)
#endif

/* What has another name, or another place, in the other vendor's API. */
#if defined(OPENREG_GPU_HIP)
#define GPU_HOST_ALLOC HostMalloc
#define GPU_HOST_FREE HostFree
#define GPU_HOST_PORTABLE hipHostMallocPortable
#else
#define GPU_HOST_ALLOC HostAlloc
#define GPU_HOST_FREE FreeHost
#define GPU_HOST_PORTABLE cudaHostAllocPortable
#endif

#if defined(OPENREG_GPU_HIP)
typedef hipDeviceAttribute_t openreg_gpu_attribute;
#define GPU_ATTRIBUTE_MULTIPROCESSORS hipDeviceAttributeMultiprocessorCount
#define GPU_ATTRIBUTE_CAPABILITY_MAJOR hipDeviceAttributeComputeCapabilityMajor
#define GPU_ATTRIBUTE_CAPABILITY_MINOR hipDeviceAttributeComputeCapabilityMinor
#else
typedef enum cudaDeviceAttr openreg_gpu_attribute;
#define GPU_ATTRIBUTE_MULTIPROCESSORS cudaDevAttrMultiProcessorCount
#define GPU_ATTRIBUTE_CAPABILITY_MAJOR cudaDevAttrComputeCapabilityMajor
#define GPU_ATTRIBUTE_CAPABILITY_MINOR cudaDevAttrComputeCapabilityMinor
#define GPU_ATTRIBUTE_SHARES_PAGES cudaDevAttrPageableMemoryAccessUsesHostPageTables
#endif

#if defined(OPENREG_GPU_HIP)
typedef hipError_t openreg_gpu_code;
typedef hipMemcpyKind openreg_gpu_copy_kind;
#else
typedef cudaError_t openreg_gpu_code;
typedef enum cudaMemcpyKind openreg_gpu_copy_kind;
#endif
#if defined(OPENREG_GPU_HIP)
typedef hipStreamCaptureMode openreg_gpu_capture_mode;
typedef hipStreamCaptureStatus openreg_gpu_capture_status;
#else
typedef enum cudaStreamCaptureMode openreg_gpu_capture_mode;
typedef enum cudaStreamCaptureStatus openreg_gpu_capture_status;
#endif
#define GPU_ERROR_TOO_MANY_PEERS ((openreg_gpu_code)711) /* HIP has no such limit, and no name for it */

/* The functions that the driver calls, less those of gpu_properties_*.c: X(name). */
#define OPENREG_GPU_COMMON_FUNCTIONS(X)                                                                                \
    X(GetDeviceCount)                                                                                                  \
    X(GetDevice)                                                                                                       \
    X(SetDevice)                                                                                                       \
    X(DeviceGetAttribute)                                                                                              \
    X(DeviceGetStreamPriorityRange)                                                                                    \
    X(DeviceSynchronize)                                                                                               \
    X(DeviceCanAccessPeer)                                                                                             \
    X(DeviceEnablePeerAccess)                                                                                          \
    X(GetLastError)                                                                                                    \
    X(PeekAtLastError)                                                                                                 \
    X(GetErrorName)                                                                                                    \
    X(GetErrorString)                                                                                                  \
    X(DriverGetVersion)                                                                                                \
    X(RuntimeGetVersion)                                                                                               \
    X(MemGetInfo)                                                                                                      \
    X(Malloc)                                                                                                          \
    X(Free)                                                                                                            \
    X(GPU_HOST_ALLOC)                                                                                                  \
    X(GPU_HOST_FREE)                                                                                                   \
    X(MemsetAsync)                                                                                                     \
    X(MemcpyAsync)                                                                                                     \
    X(MemcpyPeerAsync)                                                                                                 \
    X(StreamCreateWithPriority)                                                                                        \
    X(StreamDestroy)                                                                                                   \
    X(StreamQuery)                                                                                                     \
    X(StreamSynchronize)                                                                                               \
    X(StreamWaitEvent)                                                                                                 \
    X(ThreadExchangeStreamCaptureMode)                                                                                 \
    X(EventCreateWithFlags)                                                                                            \
    X(EventDestroy)                                                                                                    \
    X(EventRecord)                                                                                                     \
    X(EventQuery)                                                                                                      \
    X(EventSynchronize)                                                                                                \
    X(EventElapsedTime)                                                                                                \
    X(IpcGetMemHandle)                                                                                                 \
    X(IpcOpenMemHandle)                                                                                                \
    X(IpcCloseMemHandle)

/* HIP has the first since 5.3, those of graphs since 5.2; CUDA always. Where GPU_HAS() says no, the runtime emulates what they are for. */
#define OPENREG_GPU_OPTIONAL_FUNCTIONS(X)                                                                              \
    X(LaunchHostFunc)                                                                                                  \
    X(StreamBeginCapture)                                                                                              \
    X(StreamEndCapture)                                                                                                \
    X(StreamIsCapturing)                                                                                               \
    X(GraphInstantiateWithFlags)                                                                                       \
    X(GraphLaunch)                                                                                                     \
    X(GraphDestroy)                                                                                                    \
    X(GraphExecDestroy)                                                                                                \
    X(GraphExecUpdate)

/* Memory that is mapped piece by piece (gpu_vmm.c): of CUDA the driver API's functions. A machine may lack them. */
#define OPENREG_GPU_VMM_FUNCTIONS(X)                                                                                   \
    X(MemGetAllocationGranularity)                                                                                     \
    X(MemAddressReserve)                                                                                               \
    X(MemAddressFree)                                                                                                  \
    X(MemCreate)                                                                                                       \
    X(MemRelease)                                                                                                      \
    X(MemMap)                                                                                                          \
    X(MemUnmap)                                                                                                        \
    X(MemSetAccess)

#if OPENREG_GPU_CUDART
#include <cuda.h>
typedef CUresult openreg_gpu_vmm_code; /* its numbers are the runtime's */
typedef CUdeviceptr openreg_gpu_address;
typedef CUmemGenericAllocationHandle openreg_gpu_memory_handle;
typedef CUmemAllocationProp openreg_gpu_memory_properties;
typedef CUmemAccessDesc openreg_gpu_memory_access;
typedef CUmemAllocationGranularity_flags openreg_gpu_granularity_kind;
#define GPU_VMM(name) GPU_JOIN(cu, name)
#define GPU_VMM_NAME(name) "cu" GPU_TEXT(name)
#define GPU_MEMORY_PINNED CU_MEM_ALLOCATION_TYPE_PINNED
#define GPU_MEMORY_OF_DEVICE CU_MEM_LOCATION_TYPE_DEVICE
#define GPU_MEMORY_READ_WRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define GPU_MEMORY_LEAST_GRANULARITY CU_MEM_ALLOC_GRANULARITY_MINIMUM
#else
typedef hipError_t openreg_gpu_vmm_code;
typedef void *openreg_gpu_address;
typedef hipMemGenericAllocationHandle_t openreg_gpu_memory_handle;
typedef hipMemAllocationProp openreg_gpu_memory_properties;
typedef hipMemAccessDesc openreg_gpu_memory_access;
typedef hipMemAllocationGranularity_flags openreg_gpu_granularity_kind;
#define GPU_VMM(name) GPU_JOIN(hip, name)
#define GPU_VMM_NAME(name) "hip" GPU_TEXT(name)
#define GPU_MEMORY_PINNED hipMemAllocationTypePinned
#define GPU_MEMORY_OF_DEVICE hipMemLocationTypeDevice
#define GPU_MEMORY_READ_WRITE hipMemAccessFlagsProtReadWrite
#define GPU_MEMORY_LEAST_GRANULARITY hipMemAllocationGranularityMinimum
#endif
#define GPU_ADDRESS(pointer) ((openreg_gpu_address)(uintptr_t)(pointer))

#if OPENREG_GPU_CUDART
#define GPU_CALL(name) GPU(name)
#define GPU_HAS(name) true
#else
/* HIP alone: the library has no static form, so its functions are looked up at run time. */
#define OPENREG_GPU_FUNCTIONS(X)                                                                                       \
    OPENREG_GPU_COMMON_FUNCTIONS(X)                                                                                    \
    X(DeviceGetName)                                                                                                   \
    X(DeviceTotalMem)                                                                                                  \
    X(DeviceGetUuid)                                                                                                   \
    X(DevicePrimaryCtxGetState)

#if !defined(__cplusplus) /* whose headers overload hipMalloc(); the tests read the names alone */
#define OPENREG_GPU_MEMBER(name) __typeof__(&GPU(name)) GPU_JOIN(call_, name);
typedef struct openreg_gpu_functions {
    OPENREG_GPU_FUNCTIONS(OPENREG_GPU_MEMBER)
    OPENREG_GPU_OPTIONAL_FUNCTIONS(OPENREG_GPU_MEMBER)
} openreg_gpu_functions;

/* Filled by openreg_gpu_library_open(), which open() calls before anything else. */
extern openreg_gpu_functions openreg_gpu_library;
/* hipIpcMemLazyEnablePeerAccess of the library that was opened. */
unsigned openreg_gpu_ipc_flag(void);
#endif
#define GPU_CALL(name) openreg_gpu_library.GPU_JOIN(call_, name)
#define GPU_HAS(name) (GPU_CALL(name) != NULL)
#endif

#endif
