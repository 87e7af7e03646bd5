/* SPDX-License-Identifier: BSD-3-Clause */
// Captures that are under way: which streams each covers, how events order its work, and whether it is still valid.
//
// A capture begins on one stream. A stream that waits for an event of a captured stream joins it, until the capture ends;
// by then the first stream must have waited for all that joined. Nothing of this calls a driver.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

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

namespace c10::openreg {

struct StreamKey {
  DeviceIndex device;
  openreg_stream stream;
  bool operator==(const StreamKey&) const = default;
};

// The nodes, in the order in which they were captured, and the pools whose memory they use: the capture's own is the first.
struct CapturedWork {
  std::vector<PlacedNode> nodes;
  std::vector<std::shared_ptr<GraphPool>> pools;
};

class Capture {
 public:
  // The first stream is the capture's number 0. The pool is used on each device when it is first needed there.
  Capture(at::GraphCaptureMode mode, StreamKey first, std::shared_ptr<GraphPool> pool);

  // What an operator is to be recorded by, and how it ended. record() throws where the capture has become invalid.
  void check_valid() const;
  void add(std::shared_ptr<const Node> node, StreamKey stream);
  // The pool of a graph whose nodes are part of this one, too.
  void keep(std::shared_ptr<GraphPool> pool);
  // Ends the capture with an error, whose text names `call` and the caller's line: the next call of it throws, too.
  [[noreturn]] void refuse(const std::string& call, const std::string& why);

  GraphPool& pool() const noexcept {
    return *pool_;
  }

 private:
  friend class Captures;

  struct Stream {
    StreamKey key;
    Clock clock;
  };

  Stream* find(StreamKey key);
  Stream& join(StreamKey key, const Clock& clock);

  const at::GraphCaptureMode mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  const std::shared_ptr<GraphPool> pool_;
  mutable std::mutex lock_; // guards what follows; below that of Captures
  std::vector<Stream> streams_;
  CapturedWork work_;
  std::string error_; // "": it is valid
};

// All captures of the process. Never destroyed.
class Captures final : public CaptureWatch {
 public:
  static Captures& instance();

  // Throws where the stream is the default one or part of a capture.
  std::shared_ptr<Capture> begin(at::GraphCaptureMode mode, StreamKey first, std::shared_ptr<GraphPool> pool);
  // The capture is over, also where it throws: it was invalid, a stream that
  // joined it was not waited for, or the calling thread or `current` are not those of begin().
  CapturedWork end(const std::shared_ptr<Capture>& capture, StreamKey current);
  // Without a result.
  void abandon(const std::shared_ptr<Capture>& capture) noexcept;

  // That the stream is part of; null: none.
  std::shared_ptr<Capture> of_stream(StreamKey key) const;
  bool are_none() const noexcept;

  bool is_capturing(DeviceIndex device, openreg_stream stream) const noexcept override;
  void check_device(DeviceIndex device, const char* call) override;
  void check_stream(DeviceIndex device, openreg_stream stream, const char* call) override;
  void check_event(openreg_event event, const char* call) override;
  void refuse(DeviceIndex device, openreg_stream stream, const char* call, const char* why) override;
  bool record(openreg_event event, DeviceIndex device, openreg_stream stream) override;
  bool wait(openreg_event event, DeviceIndex device, openreg_stream stream) override;
  bool add_call(DeviceIndex device, openreg_stream stream, CapturedCall call) override;
  void forget(openreg_event event) noexcept override;

 private:
  struct Mark {
    std::weak_ptr<Capture> capture;
    Clock clock;
  };

  bool remove(const std::shared_ptr<Capture>& capture) noexcept;

  mutable std::mutex lock_;
  std::vector<std::shared_ptr<Capture>> active_;
  std::unordered_map<openreg_event, Mark> events_; // that were last recorded by a capture
};

} // namespace c10::openreg
