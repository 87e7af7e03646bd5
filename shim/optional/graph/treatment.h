/* SPDX-License-Identifier: BSD-3-Clause */
// What a capture does with an operator, by its schema, tags and kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace c10::openreg {

enum class Treatment : uint8_t {
  now,        // it changes a tensor's shape alone, or returns a value to the host: no node
  memory,     // it allocates memory: a node only where PyTorch fills new memory (deterministic mode)
  parts,      // it is made of other operators, which the capture gets one by one
  node,       // it runs, and again in each replay, unless it gives views alone
  refused,    // its results' sizes, or values on the host, depend on data, or the host waits
  collective, // of torch.distributed
};

// Of an operator with a schema; kept for the process. Any thread.
Treatment treatment_of(const c10::OperatorHandle& op);

} // namespace c10::openreg
