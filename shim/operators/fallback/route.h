/* SPDX-License-Identifier: BSD-3-Clause */
// Who runs an operator: the device's driver, by a kernel of its own (native), else PyTorch's kernel for GPUs, where the
// device is one, else PyTorch's kernel for the CPU, on the device's memory (aliased) or on copies (staged).
#pragma once

#include <ATen/core/Tensor.h>

#include "shim/base/export.h"
#include "shim/operators/fallback/gpu_kernels.h"
#include "shim/operators/native/native_kernels.h"
#include "shim/operators/policy/execution_mode.h"

namespace c10::openreg {

namespace detail {
// Finds out the device's mode, and which of PyTorch's own devices it is. Opens the driver. Throws c10::Error for an index out
// of range, for a bad value of a variable, and where the device fails.
TORCH_OPENREG_API uint8_t look_at_device(DeviceIndex device);

inline uint8_t known_bits(DeviceIndex device) {
  const uint8_t bits = device >= 0 && device < OPENREG_MAX_DEVICES ? device_bits(device) : 0;
  return C10_UNLIKELY((bits & kDeviceIsKnown) == 0) ? look_at_device(device) : bits;
}
} // namespace detail

// What follows throws as look_at_device().

// Which mode PyTorch's kernels for the CPU use on a device: aliased where the driver's memory is visible to the host, unless
// OPENREG_OPERATORS=staged.
inline ExecutionMode execution_mode(DeviceIndex device) {
  return (detail::known_bits(device) & detail::kIsStaged) != 0 ? ExecutionMode::staged : ExecutionMode::aliased;
}

// Whether that is staged and the driver can set a range of bytes.
inline bool is_staged_with_fill(DeviceIndex device) {
  return (detail::known_bits(device) & detail::kHasFill) != 0;
}

// Whether the operators of `device` run PyTorch's kernels for GPUs where there are some. They count as aliased.
inline bool has_gpu_kernels(DeviceIndex device) {
  return (detail::known_bits(device) & detail::kIsGpu) != 0;
}

// A dense or strided openreg tensor of such a device.
inline bool is_on_gpu(const at::Tensor& tensor) {
  return tensor.is_privateuseone() && has_gpu_kernels(tensor.device().index());
}

// Whether the driver of `device`, an index in range, has kernels of its own. Throws as look_for_kernels().
inline bool has_native_kernels(DeviceIndex device) {
  const uint8_t bits = detail::device_bits(device);
  return C10_UNLIKELY((bits & detail::kKernelsAreKnown) == 0) ? look_for_kernels(device)
                                                              : (bits & detail::kHasKernels) != 0;
}

// Its kernel for the operator; nullptr if there is none. Lives until the process ends.
inline NativeKernel* native_kernel_of(const c10::OperatorHandle& op, DeviceIndex device) {
  return C10_UNLIKELY(has_native_kernels(device)) ? native_kernels().look_up(op, device) : nullptr;
}

struct Route {
  NativeKernel* native; // to be tried first; nullptr: there is none
  Kernels kernels; // of PyTorch's, where there is no native one or it refuses; those of the CPU in the execution_mode()
};

// For a call whose openreg tensors are on the device `tensors` (-1: there are none), with these keys of theirs, and whose
// results belong on the device `results`. Throws as has_native_kernels(), too.
inline Route route(
    const c10::OperatorHandle& op,
    DeviceIndex tensors,
    c10::Device results,
    c10::DispatchKeySet keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {
  const DeviceIndex on = results.is_privateuseone() ? results.index() : DeviceIndex{-1};
  const bool on_gpu =
      on >= 0 && on < OPENREG_MAX_DEVICES && C10_UNLIKELY(has_gpu_kernels(on)) && has_gpu_kernel(op, keys);
  return {tensors >= 0 ? native_kernel_of(op, tensors) : nullptr, on_gpu ? Kernels::gpu : Kernels::cpu};
}

// Whether PyTorch's kernel for the CPU runs a call on dense tensors of `device`.
inline bool is_run_by_cpu(const c10::OperatorHandle& op, DeviceIndex device) {
  const auto [native, kernels] = route(op, device, c10::Device(c10::DeviceType::PrivateUse1, device));
  return native == nullptr && kernels == Kernels::cpu;
}

} // namespace c10::openreg
