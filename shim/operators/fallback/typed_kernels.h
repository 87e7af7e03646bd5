/* SPDX-License-Identifier: BSD-3-Clause */
// The operator fallback for operators with a common C++ signature, without boxing.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <type_traits>

namespace c10::openreg {

// A kernel for DispatchKey::PrivateUse1 that does what operator_fallback() does, in the operator's own C++ signature:
// arguments are neither copied onto a stack nor counted as one more reference to a tensor, which for a tensor that
// Python knows would take Python's lock. Nothing if the signature is none of those that typed_kernels.cpp lists.
std::optional<torch::CppFunction> typed_kernel(const c10::OperatorHandle& op);

// What that kernel does, for one written by hand that can do no better for a call. For operators that write `self`, with
// no further argument, a number or a tensor, and for operators on a list of tensors, as cat and stack.
template <class Result, class... Args>
Result run_typed_kernel(const c10::TypedOperatorHandle<Result(Args...)>& op, std::type_identity_t<Args>... arguments);

} // namespace c10::openreg
