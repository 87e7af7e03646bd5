/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_libcuda.c: stands in for libcuda.so.1 where a compiler's runtime loads kernels and launches them: Triton's, which is
 * linked with the library. The kernel itself is the business of a function that the test gives; memory is that of the fake
 * of CUDA's runtime, whose library FAKE_TORCH_CUDA_DRIVER names and which is in the process already. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/drivers/gpu/fake_gpu_hooks.h"

/* One launch: the kernel's handle, the grid, the stream's handle, the addresses of the arguments. 1: it has been done. */
typedef int (*fake_cuda_launch_fn)(CUfunction function, const unsigned* grid, void* stream, void** arguments);

void fake_cuda_on_launch(fake_cuda_launch_fn launch);

struct CUfunc_st {
  CUmodule module;
};

static _Atomic(fake_cuda_launch_fn) on_launch;
static _Thread_local CUcontext current_context;
static int only_context;

static const fake_gpu_hooks* hooks(void) {
  static _Atomic(const fake_gpu_hooks*) found;
  const fake_gpu_hooks* table = atomic_load(&found);
  const char* const path = getenv("FAKE_TORCH_CUDA_DRIVER");
  if (table == NULL && path != NULL) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void* const symbol = library == NULL ? NULL : dlsym(library, FAKE_GPU_HOOKS_NAME);
    fake_gpu_hooks_fn get;
    memcpy(&get, &symbol, sizeof get);
    if (get != NULL) {
      table = get();
      atomic_store(&found, table);
    }
  }
  return table;
}

/* For the test, by ctypes. */
void fake_cuda_on_launch(fake_cuda_launch_fn launch) { atomic_store(&on_launch, launch); }

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : "an error of the fake libcuda";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

/* Those of an H100, as far as they are asked for. */
CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = 232448;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = 233472;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
      *value = 65536;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      *value = 32;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  (void)device;
  *context = (CUcontext)(void*)&only_context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  *context = current_context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  current_context = context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetLimit(size_t* value, CUlimit limit) {
  (void)limit;
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  (void)limit;
  (void)value;
  return CUDA_SUCCESS;
}

/* A cubin is an ELF file. */
CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  if (memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
  *module = (CUmodule)(void*)&only_context;
  return CUDA_SUCCESS;
}

/* Lives as long as the process. */
CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  struct CUfunc_st* const made = malloc(sizeof *made);
  if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  (void)name;
  made->module = module;
  *function = made;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  (void)function;
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function;
  (void)attribute;
  (void)value;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  (void)function;
  (void)config;
  return CUDA_SUCCESS;
}

/* Of device memory alone; of other addresses it is an error, as where no unified addressing knows them. */
CUresult CUDAAPI cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  /* An integer by the library's own interface. */
  const void* const address = (const void*)(uintptr_t)pointer;  // NOLINT(performance-no-int-to-ptr)
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER || hooks() == NULL || hooks()->device_of(address) < 0)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(value, &pointer, sizeof pointer);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  const fake_cuda_launch_fn launch = atomic_load(&on_launch);
  const unsigned grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
  (void)extra;
  if (launch == NULL || launch(function, grid, (void*)config->hStream, arguments) != 1) return CUDA_ERROR_LAUNCH_FAILED;
  return CUDA_SUCCESS;
}
