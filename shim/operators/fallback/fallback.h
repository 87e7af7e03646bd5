/* SPDX-License-Identifier: BSD-3-Clause */
// The operator fallback: every ATen or custom operator with a CPU kernel runs on openreg tensors, without a list.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <type_traits>
#include <utility>

#include "shim/base/export.h"

namespace c10::openreg {

// Boxed kernel for DispatchKey::PrivateUse1 and the keys of its sparse, quantized and nested tensors. Checks devices,
// shows the tensors to the kernel for such tensors of the CPU or of the GPU through a KernelView (aliased or staged, execution_mode.h),
// replaces device arguments and generators, and adopts the results.
// Throws c10::NotImplementedError where there is no CPU kernel either.
TORCH_OPENREG_API void operator_fallback(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Whether an operator of a library's that has neither a kernel for this device nor one for the CPU runs the one that it has
// for CUDA: for programs that take this device for CUDA's. From any thread.
TORCH_OPENREG_API void let_cuda_kernels_run(bool on);

// Registers the fallback for openreg's tensors of every kind.
void register_fallbacks();

// register_aten.cpp: registers kernels for operators that would not get to the fallback, or not fast, and have no other.
void register_remaining_operators();

// The fallback for an operator that has a kernel of another kind for openreg's dense tensors.
template <class Result, class... Args>
Result call_fallback(const c10::TypedOperatorHandle<Result(Args...)>& op, std::type_identity_t<Args>... arguments) {
  static const auto fallback = c10::KernelFunction::makeFromBoxedFunction<&operator_fallback>();
  return fallback.template call<Result, Args...>(
      op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), std::forward<Args>(arguments)...);
}

} // namespace c10::openreg
