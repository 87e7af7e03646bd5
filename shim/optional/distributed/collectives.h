/* SPDX-License-Identifier: BSD-3-Clause */
// torch.distributed for openreg tensors: which process groups get a StagedBackend.
//
// The backend "openreg_gloo" (_integration/distributed.py) is one around a gloo of its own, for CPU tensors too. A group that has
// gloo for the CPU gets one over another gloo when it is made, so that collectives of both kinds of tensors don't meet:
// threads may call them in orders that differ between ranks. A group that was made without torch.distributed's functions
// gets one over the gloo it has, at its first collective of openreg tensors.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <optional>

#include "shim/base/export.h"
#include "shim/optional/distributed/host_backend.h"

namespace c10::openreg {

// Gives a group whose backend for openreg is plain gloo, or that has none and gloo for the CPU, a StagedBackend over
// `own`, or over that gloo if there is no `own`. Any other group is left as it is; so is one that was served before. Any thread.
//
// A group has place for one backend that is not PyTorch's own. In a group with gloo for openreg and another's backend
// for the CPU that one is taken for openreg, too.
TORCH_OPENREG_API void serve_process_group(
    c10d::ProcessGroup& group, const std::optional<HostBackend>& own = std::nullopt);

} // namespace c10::openreg
