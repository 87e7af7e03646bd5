/* SPDX-License-Identifier: BSD-3-Clause */
// Operators in a thread that captures.
//
// The thread includes a dispatch key below autograd and above the backends, for which nobody has kernels, so each operator
// comes to the fallback that is registered here: no kernel of a backend knows of captures. Threads of autograd take the key
// over from the thread that calls backward(). An operator whose device's current stream is captured becomes a node:
// its results get memory of the graph's pool, of the shape that its kernel for the meta device finds, and nothing runs.
#pragma once

#include <c10/core/DispatchKey.h>

namespace c10::openreg {

// No kernel of PyTorch's is registered for it.
constexpr c10::DispatchKey kCapture = c10::DispatchKey::Fake;

// Registers the fallback. Once.
void register_recorder();

// The calling thread's operators come to the fallback from now on, or no longer. Counts.
void record_thread(bool on);

} // namespace c10::openreg
