/* SPDX-License-Identifier: BSD-3-Clause */
// The entry of libtorch_openreg_distributed.so: a kernel in front of those of c10d's operators, which look the group's
// backend up. Gives the group among the arguments its backend for openreg where they have tensors of openreg.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "shim/base/export.h"

extern "C" TORCH_OPENREG_API void openreg_choose_backend(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
