/* SPDX-License-Identifier: BSD-3-Clause */
// Captures that are under way: which streams each covers, how events order its work, and whether it is still valid.
//
// Captured operators also run, in the order of the program, and are undone at the end: what kernels return and write is
// observed, never predicted. A capture begins on one stream. A stream that waits for an event of a captured stream joins it,
// until the capture ends; by then the first stream must have waited for all that joined.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <openreg/graphs.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "shim/device/capture_watch.h"
#include "shim/optional/graph/entry.h"
#include "shim/optional/graph/node.h"
#include "shim/optional/graph/pool.h"
#include "shim/optional/graph/undo_log.h"

namespace c10::openreg {

struct StreamKey {
  DeviceIndex device;
  openreg_stream stream;
  bool operator==(const StreamKey&) const = default;
};

// The calling thread's.
StreamKey current_stream_of(DeviceIndex device);

// While it lives, its thread's calls of the runtime are a capture's own; those of others on captured streams are refused.
class OwnCalls {
 public:
  OwnCalls() {
    openreg_graph_pass(1);
  }
  ~OwnCalls() {
    openreg_graph_pass(-1);
  }
  OwnCalls(const OwnCalls&) = delete;
  OwnCalls& operator=(const OwnCalls&) = delete;
};

// Memory of the program's own that a node uses: a replay must find it where it was.
struct ExternalMemory {
  c10::Storage storage;
  const void* address;
  size_t size;
  std::string operator_name; // that used it first
  std::string place;         // of the program, while races are looked for
};

// The nodes, in the order in which they were captured, and the pools whose memory they use: the capture's own is the first.
struct CapturedWork {
  std::vector<PlacedNode> nodes;
  std::unordered_map<const c10::StorageImpl*, ExternalMemory> external;
  std::vector<std::shared_ptr<GraphPool>> pools;
};

class Capture {
 public:
  // The first stream is the capture's number 0. The pool is used on each device when it is first needed there.
  Capture(at::GraphCaptureMode mode, StreamKey first, std::shared_ptr<GraphPool> pool);

  // Throws where the capture has become invalid.
  void check_valid() const;
  // Before an operator runs on a stream of the capture: behind all that the capture has run. Within OwnCalls.
  void follow(StreamKey stream);
  // Saves what the node may write, runs it where it can be run here, and adds it.
  void run(std::shared_ptr<const Node> node, StreamKey stream);
  // Of what ran already.
  void add(std::shared_ptr<const Node> node, StreamKey stream);
  // Undoes what the capture has changed outside of the graph. Without a lock of Captures held.
  void finish();
  // The pool of a graph whose nodes are part of this one, too.
  void keep(std::shared_ptr<GraphPool> pool);
  // A state of a generator that the capture has got or set: nodes of their own. Where a state is set, it is one of those.
  void add_state(const at::Generator& generator, const at::Tensor& state, StreamKey stream);
  void restore_state(const at::Generator& generator, const at::Tensor& state, StreamKey stream);
  // Memory of the graph that a storage had before: a replay copies its content, too.
  void add_move(const c10::Storage& to, const void* from, size_t size, const std::string& call, StreamKey stream);
  // The first reason stays.
  void invalidate(const std::string& why);
  // Ends the capture with an error, whose text names `call` and the caller's line: the next call of it throws, too.
  [[noreturn]] void refuse(const std::string& call, const std::string& why);

  GraphPool& pool() const noexcept {
    return *pool_;
  }
  UndoLog& undo() noexcept {
    return undo_;
  }

 private:
  friend class Captures;

  struct Stream {
    StreamKey key;
    Clock clock;
  };

  // Of what ran already, and uses no tensors.
  void add_call(std::string name, std::function<void()> call, StreamKey stream);
  Stream* find(StreamKey key);
  Stream& join(StreamKey key, const Clock& clock);

  const at::GraphCaptureMode mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  const std::shared_ptr<GraphPool> pool_;
  UndoLog undo_;
  mutable std::mutex lock_; // guards what follows; below that of Captures
  std::vector<Stream> streams_;
  StreamKey last_; // that has run something
  CapturedWork work_;
  std::vector<std::pair<at::Tensor, std::shared_ptr<at::Tensor>>>
      states_;        // as the capture got it, and as a replay does
  std::string error_; // "": it is valid
};

// All captures of the process. Never destroyed.
class Captures final : public CaptureWatch {
 public:
  static Captures& instance();

  // Throws where the stream is the default one or part of a capture.
  std::shared_ptr<Capture> begin(at::GraphCaptureMode mode, StreamKey first, std::shared_ptr<GraphPool> pool);
  // The capture is over, also where it throws, and finish() is due: it was invalid, a stream that
  // joined it was not waited for, or the calling thread or `current` are not those of begin().
  CapturedWork end(const std::shared_ptr<Capture>& capture, StreamKey current);
  // Without a result.
  void abandon(const std::shared_ptr<Capture>& capture) noexcept;

  // That the stream is part of; null: none.
  std::shared_ptr<Capture> of_stream(StreamKey key) const;
  // That has allocated the memory, or may have changed it; null: none. `is_written`: by others, now.
  std::shared_ptr<Capture> of_memory(const c10::Storage& storage, bool is_written) const;
  bool are_none() const noexcept;

  // Where the program moves or frees the memory of a storage that is followed, is kept; "": it hasn't. Storages of graphs.
  void follow_moves(const c10::StorageImpl* storage, bool on);
  std::string place_of_move(const c10::StorageImpl* storage) const;

  bool is_capturing(DeviceIndex device, openreg_stream stream) const noexcept override;
  void check_device(DeviceIndex device, const char* call) override;
  void check_stream(DeviceIndex device, openreg_stream stream, const char* call) override;
  void check_event(openreg_event event, const char* call) override;
  void refuse(DeviceIndex device, openreg_stream stream, const char* call, const char* why) override;
  bool record(openreg_event event, DeviceIndex device, openreg_stream stream) override;
  bool wait(openreg_event event, DeviceIndex device, openreg_stream stream) override;
  bool add_call(DeviceIndex device, openreg_stream stream, CapturedCall call) override;
  void forget(openreg_event event) noexcept override;
  bool resize(c10::StorageImpl& storage, size_t size) override;
  void moves(const c10::StorageImpl& storage) override;
  void got_state(c10::GeneratorImpl& generator, const c10::TensorImpl& state) override;
  void set_state(c10::GeneratorImpl& generator, const c10::TensorImpl& state) override;

 private:
  struct Mark {
    std::weak_ptr<Capture> capture;
    Clock clock;
  };

  void remove(const std::shared_ptr<Capture>& capture) noexcept;

  mutable std::mutex lock_;
  std::vector<std::shared_ptr<Capture>> active_;
  std::unordered_map<openreg_event, Mark> events_; // that were last recorded by a capture
  std::unordered_map<const c10::StorageImpl*, std::string> moves_;
};

} // namespace c10::openreg
