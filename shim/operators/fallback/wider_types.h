/* SPDX-License-Identifier: BSD-3-Clause */
// Operators in types of elements that PyTorch's kernels for CUDA take and those for the CPU refuse: they are computed in a
// wider type, and the results are converted back. Half precision in float32, small unsigned integers in int64 (whose
// arithmetic, cut to their size, is theirs); of operators on other integers those that count (histc).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace c10::openreg {

// Whether a CPU kernel that has thrown `refusal` could run the call in a wider type.
bool fits_wider_type(const c10::OperatorHandle& op, const c10::NotImplementedError& refusal);

// Where the wider call is dispatched: below autograd, for the fallback, or from the top, so that it can be differentiated.
enum class WiderCall : uint8_t { below_autograd, from_the_top };

// Calls `op` with the dense tensors among the arguments on the stack in wider types, and leaves results in the types that
// the operator has for its original arguments, as PyTorch's shape function says.
void call_in_wider_type(const c10::OperatorHandle& op, torch::jit::Stack* stack, WiderCall call);

} // namespace c10::openreg
