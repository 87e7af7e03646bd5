/* SPDX-License-Identifier: BSD-3-Clause */
// The operator fallback for operators with a common C++ signature, without boxing.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>

namespace c10::openreg {

// A kernel for DispatchKey::PrivateUse1 that does what operator_fallback() does, in the operator's own C++ signature:
// arguments are neither copied onto a stack nor counted as one more reference to a tensor, which for a tensor that
// Python knows would take Python's lock. Nothing if the signature is none of those that typed_kernels.cpp lists.
std::optional<torch::CppFunction> typed_kernel(const c10::OperatorHandle& op);

} // namespace c10::openreg
