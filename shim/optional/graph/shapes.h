/* SPDX-License-Identifier: BSD-3-Clause */
// What an operator's kernel for the meta device finds of a call. Many of those are Python, and cost more than the call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/DimVector.h>

#include <memory>
#include <vector>

namespace c10::openreg {

struct Shapes {
  bool are_known = true;               // false: there is no kernel for the meta device
  torch::jit::Stack results;           // on the meta device, for reading alone
  std::vector<c10::DimVector> written; // sizes of the tensors that the call writes, in the order of its arguments
};

// Of PyTorch's own operators remembered for the process, by all that its kernels for the meta device look at. Any thread.
// `runs_on_cpu`: as for meta_kernel_of().
std::shared_ptr<const Shapes> shapes_of(
    const c10::OperatorHandle& op, bool runs_on_cpu, c10::ArrayRef<c10::IValue> arguments);

} // namespace c10::openreg
