/* SPDX-License-Identifier: BSD-3-Clause */
// Whose kernel runs an operator: the driver's own (native), else PyTorch's for GPUs, else PyTorch's for the CPU.
#pragma once

#include "shim/operators/fallback/gpu_kernels.h"
#include "shim/operators/native/native_kernels.h"

namespace c10::openreg {

struct KernelChoice {
  NativeKernel* native; // to be tried first; nullptr: there is none
  Kernels kernels;      // of PyTorch's, where there is no native one or it refuses
};

// For a call whose openreg tensors are on the device `tensors` (-1: there are none), with these keys of theirs, and whose
// results belong on the device `results`. Throws as has_native_kernels() and has_gpu_kernels().
inline KernelChoice choose_kernel(
    const c10::OperatorHandle& op,
    DeviceIndex tensors,
    c10::Device results,
    c10::DispatchKeySet keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {
  const DeviceIndex on = results.is_privateuseone() ? results.index() : DeviceIndex{-1};
  const bool on_gpu =
      on >= 0 && on < OPENREG_MAX_DEVICES && C10_UNLIKELY(has_gpu_kernels(on)) && has_gpu_kernel(op, keys);
  return {tensors >= 0 ? native_kernel_of(op, tensors) : nullptr, on_gpu ? Kernels::gpu : Kernels::cpu};
}

} // namespace c10::openreg
