/* SPDX-License-Identifier: BSD-3-Clause */
// torch.distributed for openreg tensors: a c10d backend that hands them to a backend for host memory.
//
// A process group reaches it in two ways. The backend "openreg_gloo" (_distributed.py) makes it with a gloo of its own,
// for CPU tensors too. And a group that has gloo for CPU tensors but nothing for openreg, as of
// init_process_group("gloo"), gets it over that gloo at its first collective of openreg tensors.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shim/export.h"

namespace c10::openreg {

// Returns if OPENREG_ENABLE_GLOO_COLLECTIVES is 1. Throws c10::Error that names it if it is 0, empty or not set, and
// for any other value. Read at every call.
TORCH_OPENREG_API void require_gloo_collectives();

// `host` for tensors of openreg, staged as StagedTensors says; other tensors reach it as they are. What `host` does not
// support is its own error. Collectives of both go through `host` in the order of the calls.
TORCH_OPENREG_API c10::intrusive_ptr<c10d::Backend> staged_backend(c10::intrusive_ptr<c10d::Backend> host);

} // namespace c10::openreg
