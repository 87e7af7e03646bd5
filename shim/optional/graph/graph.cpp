// SPDX-License-Identifier: BSD-3-Clause
// What torch.accelerator.Graph holds: a graph that is captured from operators, and replayed by calling them again.
#include "shim/optional/graph/entry.h"

#ifdef OPENREG_HAS_GRAPHS
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <utility>

#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/observe/races.h"
#include "shim/operators/policy/kernel_keys.h"
#include "shim/operators/policy/operator_counts.h"
#include "shim/optional/graph/branch_races.h"
#include "shim/optional/graph/capture.h"
#include "shim/optional/graph/queued_runs.h"
#include "shim/optional/graph/recorder.h"

namespace c10::openreg {
namespace {

StreamKey stream_of_caller() {
  return current_stream_of(current_device());
}

// " (captured at file:line in function)"; "" where the place is not known.
std::string in_brackets(const char* what, const std::string& place) {
  return place.empty() ? "" : " (" + (*what != 0 ? what + place : place.substr(1)) + ")";
}

// Threads: as one of PyTorch's graphs, it is used by one at a time.
class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(bool keep_graph) : keeps_(keep_graph) {}

  ~Graph() override {
    try {
      reset();
    } catch (const std::exception& error) {
      TORCH_WARN("A graph could not be released: ", error.what());
    }
  }

  void capture_begin(MempoolId_t pool, at::GraphCaptureMode mode) override {
    TORCH_CHECK(capture_ == nullptr, "This graph is being captured already.");
    TORCH_CHECK(!is_captured_, "This graph holds a capture already; call reset() for another one.");
    OPENREG_CHECK(openreg_init());
    auto memory = std::make_shared<GraphPool>(pool);
    const StreamKey stream = stream_of_caller();
    {
      const PoolScope scope(*memory, stream.device);
    } // so that others who share it keep it from now on
    capture_ = Captures::instance().begin(mode, stream, std::move(memory));
    thread_ = std::this_thread::get_id();
    record_thread(true);
  }

  void capture_end() override {
    TORCH_CHECK(capture_ != nullptr, "capture_end() was called without capture_begin().");
    const auto capture = std::exchange(capture_, nullptr);
    const bool in_modes = thread_ != std::this_thread::get_id() || thread_is_recorded();
    if (thread_ == std::this_thread::get_id()) {
      record_thread(false);
    }
    CapturedWork work;
    std::exception_ptr error;
    try {
      work = Captures::instance().end(capture, stream_of_caller());
      TORCH_CHECK(
          in_modes,
          "The capture of a graph has failed: inference_mode() was entered before it began, and left before it ended.");
    } catch (...) {
      error = std::current_exception();
    }
    capture->finish();
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
    if (work.nodes.empty()) {
      TORCH_WARN("The graph is empty: its capture has recorded nothing. Was the work on another device or stream?");
    }
    work_ = std::move(work);
    runs_ = find_queued_runs(work_.nodes);
    generation_ = openreg_generation();
    is_captured_ = true;
    if (races_are_found()) {
      follow_moves(true);
    }
    if (const std::string race = find_branch_race(work_.nodes); !race.empty()) {
      TORCH_WARN("A captured graph has a race: ", race, ". Have one of the streams wait for the other.");
    }
  }

  void instantiate() override {
    TORCH_CHECK(is_captured_, "instantiate() was called without a capture that has ended.");
    TORCH_CHECK(keeps_, "instantiate() is for a graph with keep_graph=True; capture_end() has done it for this one.");
    // Nothing else is to be done: nodes are what replay() calls.
  }

  void replay() override {
    TORCH_CHECK(is_captured_, "replay() was called without a capture that has ended.");
    const StreamKey stream = stream_of_caller();
    if (const auto around = Captures::instance().of_stream(stream)) {
      include_in(*around, stream);
      return;
    }
    check_memory();
    const c10::impl::ExcludeDispatchKeyGuard kernels_alone(kAboveNodes);
    if (std::find(replayed_on_.begin(), replayed_on_.end(), stream) == replayed_on_.end()) {
      replayed_on_.push_back(stream);
    }
    RunScope scope;
    torch::jit::Stack stack;
    DeviceIndex device = stream.device;
    c10::OptionalDeviceGuard elsewhere;
    auto run = is_watched() ? runs_.end() : runs_.begin(); // who watches operators sees each
    for (size_t i = 0; i < work_.nodes.size();) {
      const Node& node = *work_.nodes[i].node;
      if (C10_UNLIKELY(node.device() != device)) {
        device = node.device();
        elsewhere.reset_device(c10::Device(c10::DeviceType::PrivateUse1, device));
      }
      if (run != runs_.end() && run->first == i) {
        launch(*run, device);
        i = run->last;
        ++run;
      } else {
        node.run(stack, scope);
        ++i;
      }
    }
  }

  void reset() override {
    if (capture_ != nullptr) {
      const auto capture = std::exchange(capture_, nullptr);
      Captures::instance().abandon(capture);
      if (thread_ == std::this_thread::get_id()) {
        record_thread(false);
      }
      capture->finish();
    }
    const auto streams = std::exchange(replayed_on_, {});
    if (openreg_in_bad_fork() == 0 && openreg_generation() == generation_) {
      const WaitScope waiting; // its memory goes below
      for (const StreamKey& stream : streams) {
        (void)openreg_stream_synchronize(stream.device, stream.stream);
      }
    }
    runs_.clear();
    follow_moves(false);
    work_ = {};
    is_captured_ = false;
  }

  MempoolId_t pool() const override {
    TORCH_CHECK(is_captured_, "pool() was called without a capture that has ended.");
    return work_.pools.front()->id();
  }

  void enable_debug_mode() override {
    is_debugged_ = true;
  }

  void debug_dump(const std::string& path) override {
    if (!is_debugged_ && !keeps_) {
      TORCH_WARN("debug_dump() wrote nothing: enable_debug_mode() was not called.");
      return;
    }
    TORCH_CHECK(is_captured_, "debug_dump() was called without a capture that has ended.");
    std::ofstream out(path);
    out << "digraph openreg {\n";
    std::vector<std::vector<size_t>> streams; // their nodes, in order
    for (size_t i = 0; i < work_.nodes.size(); ++i) {
      const PlacedNode& placed = work_.nodes[i];
      out << "  n" << i << " [label=\"" << i << " " << placed.node->name() << "\\nstream " << placed.stream << "\"];\n";
      streams.resize(std::max<size_t>(streams.size(), placed.stream + size_t{1}));
      write_edges(out, i, streams);
      streams[placed.stream].push_back(i);
    }
    out << "}\n";
    out.close();
    TORCH_CHECK(out.good(), "debug_dump() can't write ", path);
  }

 private:
  static bool is_watched() {
    return calls_are_watched() || openreg_is_instrumented() != 0 || races_are_found();
  }

  // What nodes use of the program's memory is where it was.
  void check_memory() const {
    TORCH_CHECK(
        openreg_generation() == generation_,
        "replay() of a graph that was captured before the drivers were chosen again: its memory is gone.");
    for (const auto& [impl, memory] : work_.external) {
      TORCH_CHECK(
          memory.storage.data() == memory.address && memory.storage.nbytes() >= memory.size,
          "replay(): memory that ",
          memory.operator_name,
          " uses",
          in_brackets("captured", memory.place),
          " has been freed or moved",
          in_brackets("", Captures::instance().place_of_move(impl)),
          " since the capture.");
    }
  }

  void follow_moves(bool on) const {
    for (const auto& [impl, memory] : work_.external) {
      Captures::instance().follow_moves(impl, on);
    }
  }

  // A replay while a stream is captured is a part of that, in the order of this graph.
  void include_in(Capture& around, StreamKey stream) const {
    around.check_valid();
    check_memory();
    for (const PlacedNode& placed : work_.nodes) {
      around.run(placed.node, stream);
    }
    for (const auto& pool : work_.pools) {
      around.keep(pool);
    }
  }

  // From the last node before it of each stream.
  void write_edges(std::ostream& out, size_t i, const std::vector<std::vector<size_t>>& streams) const {
    const Clock& before = work_.nodes[i].before;
    for (size_t stream = 0; stream < std::min<size_t>(before.size(), streams.size()); ++stream) {
      // A stream that joined counts one more than it has nodes.
      const size_t count = before[stream] - (stream > 0 && before[stream] > 0 ? 1 : 0);
      if (count > 0) {
        out << "  n" << streams[stream][count - 1] << " -> n" << i << ";\n";
      }
    }
  }

  const bool keeps_;
  bool is_debugged_ = false;
  bool is_captured_ = false;
  uint32_t generation_ = 0; // of the device table
  std::vector<StreamKey> replayed_on_;
  std::thread::id thread_;
  std::shared_ptr<Capture> capture_; // under way
  CapturedWork work_;
  std::vector<QueuedRun> runs_; // of its nodes
};

} // namespace
} // namespace c10::openreg

void openreg_make_graph(std::unique_ptr<at::GraphImplInterface>* made, bool keep_graph) {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::openreg::register_recorder();
    c10::openreg::tell_of_first_graph();
  });
  *made = std::make_unique<c10::openreg::Graph>(keep_graph);
}
#endif
