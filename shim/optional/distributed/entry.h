/* SPDX-License-Identifier: BSD-3-Clause */
// The entries of libtorch_openreg_distributed.so.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "shim/base/export.h"

// A kernel in front of those of c10d's operators, which look the group's backend up. Gives the group among the arguments its
// backend for openreg where they have tensors of openreg.
extern "C" TORCH_OPENREG_API void openreg_choose_backend(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The kernel of each operator of torch.nn.SyncBatchNorm.
extern "C" TORCH_OPENREG_API void openreg_sync_batch_norm(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
