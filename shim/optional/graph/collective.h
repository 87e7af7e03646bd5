/* SPDX-License-Identifier: BSD-3-Clause */
// Collectives in graphs: each replay makes the call again, and its stream waits for the result.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "shim/optional/graph/capture.h"

namespace c10::openreg {

// Records a call of an operator of c10d, whose arguments end the stack. Replaces them by its results: the output tensors
// that it was given, and a Work that orders streams of the capture and raises where a program queries whether it is done.
void record_collective(const c10::OperatorHandle& op, Capture& capture, StreamKey stream, torch::jit::Stack& stack);

} // namespace c10::openreg
