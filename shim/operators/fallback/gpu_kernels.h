/* SPDX-License-Identifier: BSD-3-Clause */
// PyTorch's own kernels for GPUs, on the memory of openreg's devices.
//
// A driver may say that its memory is that of a type of PyTorch's own devices (openreg_driver.torch_device_type: "cuda",
// of HIP too, which PyTorch's build for ROCm calls so). Where this PyTorch has kernels for that type, the operators of the
// device run them: tensors are shown to them, without a copy, as tensors of that type (kernel_view.h), and they work on the
// calling thread's current openreg stream. No library of the vendor is linked: devices, streams and generators are reached
// through the interfaces that PyTorch's libraries for the GPU register.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <openreg/openreg.h>

#include "shim/base/export.h"

namespace c10::openreg {

// Whose kernels of PyTorch a call runs.
enum class Kernels : uint8_t { cpu, gpu };

// Whether this is a PyTorch with kernels for GPUs, on a machine where it finds one. Opens no driver.
bool torch_has_gpus();

// PyTorch's own device that is the openreg device, an index with has_gpu_kernels().
TORCH_OPENREG_API c10::Device gpu_of(DeviceIndex device);

// Finds out which of PyTorch's own devices the openreg device is: it queries PyTorch for the device of a block's address.
// False if it is none, or if this PyTorch has no kernels for GPUs. Throws c10::Error where the device fails.
bool find_gpu(DeviceIndex device, const openreg_device_properties& properties);

// Tells the generators where GPUs are. Once, at registration.
void register_gpu_lookup();

// The keys of the kernels for tensors with these keys of openreg's: dense, or one of kNonDense (non_dense.h).
c10::DispatchKeySet kernel_keys_of(Kernels kernels, c10::DispatchKeySet keys);

// Whether PyTorch has a kernel for GPUs for tensors with these keys of openreg's, or a general one that it builds on such.
TORCH_OPENREG_API bool has_gpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys);

// While it lives, PyTorch's own current device is the one that `device` is, and the stream that is current there is the
// calling thread's current stream of `device`; what the GPU's kernels allocate comes from the device's cache
// (gpu_allocations.h). Scopes of a thread end in reverse order.
class GpuScope {
 public:
  explicit GpuScope(DeviceIndex device);
  ~GpuScope();
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

  // The openreg device of the calling thread's innermost scope with that GPU and that stream of the vendor; -1: none.
  static DeviceIndex device_of(DeviceIndex gpu, const void* native_stream) noexcept;

 private:
  const c10::Device gpu_;
  const DeviceIndex device_;
  void* native_stream_ = nullptr;
  GpuScope* const outer_;
  c10::Device previous_device_;
  c10::Stream previous_stream_;
};

} // namespace c10::openreg
