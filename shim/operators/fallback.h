// The operator fallback: every ATen or custom operator with a CPU kernel runs on openreg tensors, without a list.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace c10::openreg {

// Boxed kernel for DispatchKey::PrivateUse1 and the keys of its sparse, quantized and nested tensors. Checks devices,
// shows the tensors to the CPU kernel for such tensors through a HostView (aliased or staged, ways.h), replaces device
// arguments and generators, and adopts the results.
// Throws c10::NotImplementedError where there is no CPU kernel either.
void operator_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

} // namespace c10::openreg
