/* SPDX-License-Identifier: BSD-3-Clause */
// Operators in a thread that captures.
//
// The thread includes a dispatch key below autograd and above the backends that has no kernels, so each operator reaches the
// fallback that is registered here: no kernel of a backend knows of captures. Threads of autograd inherit the key from the
// thread that calls backward(). An operator whose device's current stream is captured runs, in memory of the graph's pool,
// and becomes a node that repeats what was observed: it writes the same memory, and its results have the same addresses.
// What it changes outside of the pool is saved first (undo_log.h).
#pragma once

#include <c10/core/DispatchKeySet.h>

#include "shim/operators/policy/kernel_keys.h"

namespace c10::openreg {

// No kernel of PyTorch's is registered for it.
constexpr c10::DispatchKey kCapture = c10::DispatchKey::Fake;

// What a node is called without.
inline const c10::DispatchKeySet kAboveNodes =
    kAboveKernels | c10::DispatchKeySet({c10::DispatchKey::Python, kCapture});

// Registers the fallback. Once.
void register_recorder();

// The calling thread's operators come to the fallback from now on, or no longer. Counts.
void record_thread(bool on);
// Whether they do: not where the thread has left a mode, as inference_mode(), in which its capture began.
bool thread_is_recorded();

} // namespace c10::openreg
