// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/capture.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "shim/optional/graph/kept_tensors.h"

namespace c10::openreg {
namespace {

// So much of each stream as either says.
void merge(Clock& into, const Clock& from) {
  into.resize(std::max(into.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) {
    into[i] = std::max(into[i], from[i]);
  }
}

constexpr const char* kUncaptured =
    "the event was recorded before the capture began, or on a stream that is not part of it";

} // namespace

Capture::Capture(at::GraphCaptureMode mode, StreamKey first, std::shared_ptr<GraphPool> pool)
    : mode_(mode),
      pool_(std::move(pool)) {
  streams_.push_back({first, {0}});
  work_.pools.push_back(pool_);
}

Capture::Stream* Capture::find(StreamKey key) {
  const auto found =
      std::find_if(streams_.begin(), streams_.end(), [&](const Stream& stream) { return stream.key == key; });
  return found == streams_.end() ? nullptr : &*found;
}

// To have joined is work of the stream, so that the first stream must wait for it also where nothing follows.
Capture::Stream& Capture::join(StreamKey key, const Clock& clock) {
  Stream& stream = streams_.emplace_back(Stream{key, clock});
  stream.clock.resize(streams_.size());
  stream.clock.back() = 1;
  return stream;
}

void Capture::check_valid() const {
  const std::lock_guard<std::mutex> guard(lock_);
  TORCH_CHECK(error_.empty(), "The capture of a graph is invalid: ", error_);
}

void Capture::add(std::shared_ptr<const Node> node, StreamKey stream) {
  const std::lock_guard<std::mutex> guard(lock_);
  Stream* const at = find(stream);
  TORCH_INTERNAL_ASSERT(at != nullptr);
  const auto number = static_cast<uint32_t>(at - streams_.data());
  work_.nodes.push_back({std::move(node), number, at->clock});
  at->clock[number] += 1;
}

void Capture::keep(std::shared_ptr<GraphPool> pool) {
  const std::lock_guard<std::mutex> guard(lock_);
  work_.pools.push_back(std::move(pool));
}

void Capture::refuse(const std::string& call, const std::string& why) {
  const std::string text = call + " can't be captured" + place_of_caller() + ": " + why;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (error_.empty()) {
      error_ = text;
    }
  }
  TORCH_CHECK(false, text, ". The capture of the graph is now invalid.");
}

Captures& Captures::instance() {
  static auto& captures = *new Captures;
  return captures;
}

std::shared_ptr<Capture> Captures::begin(at::GraphCaptureMode mode, StreamKey first, std::shared_ptr<GraphPool> pool) {
  TORCH_CHECK(
      first.stream != OPENREG_STREAM_DEFAULT,
      "A graph must be captured on a stream other than the default one, for which other streams would wait.");
  auto capture = std::make_shared<Capture>(mode, first, std::move(pool));
  const std::lock_guard<std::mutex> guard(lock_);
  for (const auto& other : active_) {
    const std::lock_guard<std::mutex> other_guard(other->lock_);
    if (other->find(first) != nullptr) {
      other->error_ = "a second capture was begun on its stream" + place_of_caller();
      TORCH_CHECK(false, "The current stream is being captured already; that capture is now invalid.");
    }
  }
  active_.push_back(capture);
  capture_watch_pointer.store(this, std::memory_order_release);
  return capture;
}

bool Captures::remove(const std::shared_ptr<Capture>& capture) noexcept {
  const auto found = std::find(active_.begin(), active_.end(), capture);
  if (found == active_.end()) {
    return false;
  }
  active_.erase(found);
  return true;
}

CapturedWork Captures::end(const std::shared_ptr<Capture>& capture, StreamKey current) {
  const std::lock_guard<std::mutex> guard(lock_);
  remove(capture);
  const std::lock_guard<std::mutex> capture_guard(capture->lock_);
  CapturedWork work = std::move(capture->work_);
  TORCH_CHECK(capture->error_.empty(), "The capture of a graph has failed: ", capture->error_, ".");
  TORCH_CHECK(
      std::this_thread::get_id() == capture->thread_, "The capture of a graph must end in the thread that began it.");
  TORCH_CHECK(
      current == capture->streams_[0].key, "The capture of a graph must end on the stream on which it was begun.");
  const Clock& seen = capture->streams_[0].clock;
  for (size_t i = 1; i < capture->streams_.size(); ++i) {
    TORCH_CHECK(
        i < seen.size() && seen[i] >= capture->streams_[i].clock[i],
        "The capture of a graph has failed: its first stream has not waited for the work of stream ",
        capture->streams_[i].key.stream,
        " of device ",
        static_cast<int>(capture->streams_[i].key.device),
        ", which joined the capture.");
  }
  return work;
}

void Captures::abandon(const std::shared_ptr<Capture>& capture) noexcept {
  const std::lock_guard<std::mutex> guard(lock_);
  remove(capture);
}

std::shared_ptr<Capture> Captures::of_stream(StreamKey key) const {
  const std::lock_guard<std::mutex> guard(lock_);
  for (const auto& capture : active_) {
    const std::lock_guard<std::mutex> capture_guard(capture->lock_);
    if (capture->find(key) != nullptr) {
      return capture;
    }
  }
  return nullptr;
}

bool Captures::are_none() const noexcept {
  const std::lock_guard<std::mutex> guard(lock_);
  return active_.empty();
}

bool Captures::is_capturing(DeviceIndex device, openreg_stream stream) const noexcept {
  return of_stream({device, stream}) != nullptr;
}

void Captures::check_device(DeviceIndex device, const char* call) {
  std::shared_ptr<Capture> found;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    for (const auto& capture : active_) {
      const bool own = capture->thread_ == std::this_thread::get_id();
      const std::lock_guard<std::mutex> capture_guard(capture->lock_);
      const bool covers =
          std::any_of(capture->streams_.begin(), capture->streams_.end(), [device](const Capture::Stream& stream) {
            return stream.key.device == device;
          });
      if (covers && (own || capture->mode_ == at::GraphCaptureMode::Global)) {
        found = capture;
      }
    }
  }
  if (found != nullptr) {
    found->refuse(call, "its work doesn't run before the graph is replayed");
  }
}

void Captures::check_stream(DeviceIndex device, openreg_stream stream, const char* call) {
  refuse(device, stream, call, "its work doesn't run before the graph is replayed");
}

void Captures::refuse(DeviceIndex device, openreg_stream stream, const char* call, const char* why) {
  if (const auto capture = of_stream({device, stream})) {
    capture->refuse(call, why);
  }
}

void Captures::check_event(openreg_event event, const char* call) {
  std::shared_ptr<Capture> capture;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = events_.find(event);
    if (found == events_.end()) {
      return;
    }
    capture = found->second.capture.lock();
  }
  TORCH_CHECK(capture != nullptr, call, ": the event was recorded in the capture of a graph, and is part of that.");
  capture->refuse(call, "the event was recorded in the capture");
}

bool Captures::record(openreg_event event, DeviceIndex device, openreg_stream stream) {
  const auto capture = of_stream({device, stream});
  const std::lock_guard<std::mutex> guard(lock_);
  if (capture == nullptr) {
    events_.erase(event);
    return false;
  }
  const std::lock_guard<std::mutex> capture_guard(capture->lock_);
  Capture::Stream& at = *capture->find({device, stream});
  events_[event] = {capture, at.clock};
  return true;
}

bool Captures::wait(openreg_event event, DeviceIndex device, openreg_stream stream) {
  const StreamKey key{device, stream};
  const auto waiting = of_stream(key);
  std::shared_ptr<Capture> recorded;
  Clock clock;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = events_.find(event);
    if (found != events_.end()) {
      recorded = found->second.capture.lock();
      TORCH_CHECK(
          recorded != nullptr || waiting != nullptr,
          "A stream can't wait for an event that was recorded in the capture of a graph, which has ended.");
      clock = found->second.clock;
    }
  }
  if (recorded == nullptr && waiting == nullptr) {
    return false;
  }
  if (recorded == nullptr) {
    waiting->refuse("waiting for the event", kUncaptured);
  }
  if (waiting != nullptr && waiting != recorded) {
    waiting->refuse("waiting for the event", "it was recorded in another capture");
  }
  const std::lock_guard<std::mutex> capture_guard(recorded->lock_);
  Capture::Stream* at = recorded->find(key);
  merge((at != nullptr ? *at : recorded->join(key, clock)).clock, clock);
  return true;
}

bool Captures::add_call(DeviceIndex device, openreg_stream stream, CapturedCall call) {
  const auto capture = of_stream({device, stream});
  if (capture == nullptr) {
    return false;
  }
  capture->check_valid();
  KeptTensors tensors(capture->pool());
  std::vector<at::Tensor> kept;
  for (const at::Tensor& tensor : call.tensors) {
    kept.push_back(tensors.keep(tensor));
  }
  capture->add(std::make_shared<CallNode>(std::move(call.name), call.bind(kept), kept, device), {device, stream});
  return true;
}

void Captures::forget(openreg_event event) noexcept {
  const std::lock_guard<std::mutex> guard(lock_);
  events_.erase(event);
}

} // namespace c10::openreg
