// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/queued_runs.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "shim/base/status.h"
#include "shim/observe/races.h"
#include "shim/operators/fallback/gpu_allocations.h"
#include "shim/optional/graph/capture.h"
#include "shim/optional/graph/recorder.h"

namespace c10::openreg {
namespace {

// Issues the nodes to a captured stream, on which nothing runs. Throws where one of them needs more than the stream.
void issue(const std::vector<PlacedNode>& nodes, const QueuedRun& run) {
  RunScope scope;
  torch::jit::Stack stack;
  for (size_t i = run.first; i < run.last; ++i) {
    nodes[i].node->run(stack, scope);
  }
  TORCH_CHECK(!scope.has_other_memory(), "a node of a graph did not get the memory of its capture again");
}

void capture(const std::vector<PlacedNode>& nodes, QueuedRun& run) {
  const auto [device, stream] = current_stream_of(nodes[run.first].node->device());
  const c10::DeviceGuard current(c10::Device(c10::DeviceType::PrivateUse1, device));
  OPENREG_CHECK(openreg_graph_begin(device, stream, OPENREG_CAPTURE_RELAXED));
  std::exception_ptr error;
  try {
    issue(nodes, run);
  } catch (...) {
    error = std::current_exception();
  }
  openreg_graph graph = nullptr;
  const openreg_status ended = openreg_graph_end(device, stream, &graph);
  if (error != nullptr) {
    (void)openreg_graph_destroy(graph);
    std::rethrow_exception(error);
  }
  OPENREG_CHECK(ended);
  openreg_graph_exec exec = nullptr;
  const openreg_status made = openreg_graph_instantiate(graph, &exec);
  (void)openreg_graph_destroy(graph);
  OPENREG_CHECK(made);
  run.exec.reset(exec);
}

} // namespace

std::vector<QueuedRun> find_queued_runs(const std::vector<PlacedNode>& nodes) {
  std::vector<QueuedRun> runs;
  if (gpu_allocator_in_place() == GpuAllocator::torch) {
    return runs; // kernels' temporaries would not be the graph's
  }
  const c10::impl::ExcludeDispatchKeyGuard kernels_alone(kAboveNodes);
  const RaceMute mute(races_are_found());
  for (size_t i = 0; i < nodes.size();) {
    QueuedRun run{i, i, nullptr};
    const DeviceIndex device = nodes[i].node->device();
    while (run.last < nodes.size() && nodes[run.last].node->only_queues() && nodes[run.last].node->device() == device) {
      ++run.last;
    }
    i = std::max(run.last, i + 1);
    if (run.last - run.first < 2) {
      continue;
    }
    try {
      capture(nodes, run);
      runs.push_back(std::move(run));
    } catch (const c10::Error&) {
      // The driver refuses it: each replay calls these nodes.
    }
  }
  return runs;
}

void launch(const QueuedRun& run, DeviceIndex device) {
  OPENREG_CHECK(openreg_graph_launch(run.exec.get(), current_stream_of(device).stream));
}

} // namespace c10::openreg
