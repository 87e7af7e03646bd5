/* SPDX-License-Identifier: BSD-3-Clause */
// What a capture does with an operator, by its schema and kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace c10::openreg {

enum class Treatment : uint8_t {
  now,        // it touches no data: views, memory without a content, questions about sizes
  parts,      // it is made of other operators, which come to the capture themselves
  node,       // it runs when the graph is replayed
  refused,    // its results' sizes, or values on the host, depend on data, or the host waits
  collective, // of torch.distributed
};

struct Plan {
  Treatment treatment;
  std::optional<c10::OperatorHandle> out; // the overload that writes its results into tensors that it is given
  torch::jit::Stack more;                 // what that one takes between the arguments and those tensors
};

// Of an operator with a schema; kept for the process. Any thread.
const Plan& plan_of(const c10::OperatorHandle& op);

} // namespace c10::openreg
