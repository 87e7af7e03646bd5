/* SPDX-License-Identifier: BSD-3-Clause */
// ReduceOp.PREMUL_SUM, which NCCL alone has: the sum of tensors that are multiplied first.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace c10::openreg {

// Of a call of an operator of c10d with that reduction: multiplies the floating-point tensors that this rank gives, in place
// where they are its results too, and makes the reduction a sum. Other calls stay as they are.
void premultiply(const c10::OperatorHandle& op, torch::jit::Stack& stack);

} // namespace c10::openreg
