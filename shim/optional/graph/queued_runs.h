/* SPDX-License-Identifier: BSD-3-Clause */
// Runs of nodes that only queue work: kernels and copies of the driver's own. Each is issued once more to a stream that is
// captured, by the driver (openreg/graph.h) or, where it has no graphs, by the runtime, and replayed by one launch.
#pragma once

#include <openreg/graphs.h>

#include <memory>
#include <vector>

#include "shim/optional/graph/node.h"

namespace c10::openreg {

struct QueuedRun {
  struct Destroy {
    void operator()(openreg_graph_exec_s* made) const noexcept {
      (void)openreg_graph_exec_destroy(made); // on a lost device, too
    }
  };

  size_t first, last; // nodes, without the last
  std::unique_ptr<openreg_graph_exec_s, Destroy> exec;
};

// The runs of two nodes and more, in order, but for those that can't be captured on their device's current stream, as a default
// one. Nothing runs.
std::vector<QueuedRun> find_queued_runs(const std::vector<PlacedNode>& nodes);

// On the current stream of the run's device.
void launch(const QueuedRun& run, DeviceIndex device);

} // namespace c10::openreg
