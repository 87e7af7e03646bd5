// SPDX-License-Identifier: BSD-3-Clause
#include "shim/queued_work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/host_work.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <utility>

#include "shim/operators/fallback/kernel_view.h"
#include "shim/races.h"
#include "shim/status.h"

namespace c10::openreg {
namespace {

using c10::ivalue::Future;
using Streams = CurrentStreams::Streams;

// The end of the host's part: what the host function waits for.
class HostEnd {
 public:
  // An error reaches those who wait before they go on.
  void set(std::exception_ptr error, const std::string& context) {
    const std::lock_guard<std::mutex> guard(lock_);
    error_ = with_context(error, context);
    if (error_ != nullptr) {
      const std::string text = text_with_context(error, context);
      for (const auto& [device, stream] : waiters_) {
        (void)openreg_stream_report_error(device, stream, OPENREG_E_INTERNAL, text.c_str());
      }
    }
    has_come_ = true;
    changed_.notify_all();
  }

  void set() {
    const std::lock_guard<std::mutex> guard(lock_);
    has_come_ = true;
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [this] { return has_come_; });
  }

  // Calls `wait` for a stream that waits from now on. Throws the error, if there is one.
  template <class Wait>
  void add_waiter(c10::DeviceIndex device, openreg_stream stream, const Wait& wait) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
    wait();
    const auto waiter = std::make_pair(device, stream);
    if (!has_come_ && std::find(waiters_.begin(), waiters_.end(), waiter) == waiters_.end()) {
      waiters_.push_back(waiter);
    }
  }

  bool has_come() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return has_come_;
  }

  std::exception_ptr error() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return error_;
  }

 private:
  mutable std::mutex lock_;
  std::condition_variable changed_;
  bool has_come_ = false;
  std::exception_ptr error_;
  Streams waiters_;
};

// The host function of a stream. If the device is lost it never runs, and the reference stays.
void wait_for_host_end(void* argument) {
  const std::unique_ptr<std::shared_ptr<HostEnd>> end(static_cast<std::shared_ptr<HostEnd>*>(argument));
  (*end)->wait();
}

class Event {
 public:
  Event(c10::DeviceIndex device, openreg_stream stream) {
    OPENREG_CHECK(openreg_event_create(device, 0, &event_));
    const openreg_status status = openreg_event_record(event_, stream);
    if (status != OPENREG_OK) {
      (void)openreg_event_destroy(event_);
      OPENREG_CHECK(status);
    }
  }
  ~Event() {
    if (event_ != nullptr) {
      (void)openreg_event_destroy(event_);
    }
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event& operator=(Event&&) = delete;

  void make_wait(c10::DeviceIndex device, openreg_stream stream) const {
    OPENREG_CHECK(openreg_stream_wait_event(device, stream, event_));
  }

  bool has_passed() const {
    int32_t done = 0;
    OPENREG_CHECK(openreg_event_query(event_, &done));
    return done != 0;
  }

 private:
  openreg_event event_ = nullptr;
};

// Queued: the stream's work waits for the end of the host's part, and brings the results.
void queue(const Streams& streams, const StagedOutputs& outputs, const std::shared_ptr<HostEnd>& end) {
  for (const auto& [device, stream] : streams) {
    auto argument = std::make_unique<std::shared_ptr<HostEnd>>(end);
    OPENREG_CHECK(openreg_launch_host_func(device, stream, &wait_for_host_end, argument.get()));
    (void)argument.release(); // the function's
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  const CurrentStreams current(streams);
  for (const auto& output : outputs) {
    if (output.is_copy) {
      output.tensor.copy_(output.host, /*non_blocking=*/true);
      for (const auto& [device, stream] : streams) {
        if (device == output.tensor.device().index()) {
          output.tensor.record_stream(c10::Stream(c10::Stream::UNSAFE, output.tensor.device(), stream));
        }
      }
    }
  }
}

// After the host's part, in the thread of its backend, or at once.
void complete(Future& future, const Streams& streams, const StagedOutputs& outputs, const HostEnd& end) noexcept {
  if (const auto error = end.error()) {
    future.setErrorIfNeeded(error);
    return;
  }
  try { // the future's events must be behind the collective
    const CurrentStreams current(streams);
    if (races_are_found()) {
      for (const auto& [device, stream] : streams) {
        note_race_collective_wait(device);
      }
    }
    future.markCompleted(c10::IValue(tensors_of(outputs)));
  } catch (...) {
    future.setErrorIfNeeded(std::current_exception());
  }
}

bool host_is_to_wait() {
  const char* value = openreg_variable("OPENREG_BLOCKING_WAIT");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "0") == 0) {
    return false;
  }
  TORCH_CHECK(std::strcmp(value, "1") == 0, "OPENREG_BLOCKING_WAIT must be '0' or '1', but is '", value, "'.");
  return true;
}

class QueuedWork final : public c10d::Work {
 public:
  QueuedWork(
      c10::intrusive_ptr<c10d::Work> host_work,
      const c10::intrusive_ptr<Future>& host_future,
      StagedOutputs outputs,
      std::string description,
      Streams streams)
      : Work(/*rank=*/-1, host_work->retrieveOpType()),
        host_work_(std::move(host_work)),
        description_(std::move(description)),
        streams_(std::move(streams)),
        end_(std::make_shared<HostEnd>()),
        future_(make_future(outputs)) {
    // First, so that what is queued ends whatever happens here.
    host_future->addCallback([end = end_, description = description_](Future& host) {
      if (host.hasError()) {
        end->set(host.exception_ptr(), description);
      } else {
        end->set();
      }
    });
    {
      const RaceMute mute(races_are_found()); // noted when the tensors were shown
      queue(streams_, outputs, end_);
      for (const auto& [device, stream] : streams_) {
        events_.emplace_back(device, stream);
      }
    }
    host_future->addCallback(
        [end = end_, future = future_, streams = streams_, results = std::move(outputs)](Future& /*host*/) mutable {
          for (auto& output : results) {
            output.host.reset();
          }
          complete(*future, streams, results, *end);
        });
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if ((timeout != kNoTimeout || host_is_to_wait()) && !wait_for_host(timeout)) {
      return false; // aborted
    }
    synchronize();
    return true;
  }

  void synchronize() override {
    {
      const RaceMute mute(races_are_found());
      for (size_t i = 0; i < streams_.size(); i++) {
        const auto device = streams_[i].first;
        openreg_stream current = OPENREG_STREAM_DEFAULT;
        OPENREG_CHECK(openreg_current_stream(device, &current));
        end_->add_waiter(device, current, [&] { events_[i].make_wait(device, current); });
      }
    }
    if (races_are_found()) {
      for (const auto& [device, stream] : streams_) {
        note_race_collective_wait(device);
      }
    }
  }

  bool isCompleted() override {
    if (!end_->has_come()) {
      return false;
    }
    if (end_->error() == nullptr) {
      const RaceMute mute(races_are_found());
      if (!std::all_of(events_.begin(), events_.end(), [](const Event& event) { return event.has_passed(); })) {
        return false;
      }
    }
    if (races_are_found()) {
      for (const auto& [device, stream] : streams_) {
        note_race_collective_done(device);
      }
    }
    return true;
  }

  bool isSuccess() const override {
    return end_->error() == nullptr;
  }

  std::exception_ptr exception() const override {
    return end_->error();
  }

  std::vector<at::Tensor> result() override {
    TORCH_CHECK(
        isCompleted(), "Work needs to be completed before calling result(). Should call wait() before result().");
    if (const auto error = end_->error()) {
      std::rethrow_exception(error);
    }
    future_->wait(); // is done right after
    return future_->value().toTensorVector();
  }

  c10::intrusive_ptr<Future> getFuture() override {
    return future_;
  }

  int sourceRank() const override {
    return host_work_->sourceRank();
  }

  uint64_t getSequencenumber() const override {
    return host_work_->getSequencenumber();
  }

  void abort() override {
    host_work_->abort();
  }

 private:
  bool wait_for_host(std::chrono::milliseconds timeout) {
    std::exception_ptr error;
    try {
      return host_work_->wait(timeout);
    } catch (...) {
      error = std::current_exception();
    }
    std::rethrow_exception(with_context(error, description_));
  }

  const c10::intrusive_ptr<c10d::Work> host_work_;
  const std::string description_;
  const Streams streams_;
  const std::shared_ptr<HostEnd> end_;
  const c10::intrusive_ptr<Future> future_; // of the tensors that the caller knows
  std::vector<Event> events_;               // of streams_
};

bool is_queued(c10::DeviceIndex device) {
  int32_t queued = 0;
  OPENREG_CHECK(openreg_host_func_is_queued(device, &queued));
  return queued != 0;
}

// One copy of the driver, which needs no host.
bool is_plain_copy(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

} // namespace

openreg_stream CommunicationStreams::of(c10::DeviceIndex device) {
  constexpr int32_t kHighest = INT32_MIN; // the runtime clamps it
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found =
      std::find_if(streams_.begin(), streams_.end(), [device](const auto& known) { return known.first == device; });
  if (found != streams_.end()) {
    int32_t priority = 0;
    if (openreg_stream_priority(device, found->second, &priority) == OPENREG_OK) {
      return found->second;
    }
    openreg_clear_error(); // other drivers have been chosen since
    streams_.erase(found);
  }
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_stream_from_pool(device, kHighest, &stream));
  streams_.emplace_back(device, stream);
  return stream;
}

c10::intrusive_ptr<c10d::Work> queue_work(
    const c10::intrusive_ptr<c10d::Work>& host_work,
    const StagedOutputs& outputs,
    const std::string& description,
    const std::vector<c10::DeviceIndex>& devices,
    CommunicationStreams& streams) {
  const auto host_future = future_of(*host_work);
  const bool are_plain = std::all_of(outputs.begin(), outputs.end(), [](const StagedOutput& output) {
    return !output.is_copy || is_plain_copy(output.tensor);
  });
  if (host_future == nullptr || !are_plain || !std::all_of(devices.begin(), devices.end(), is_queued)) {
    return nullptr;
  }
  Streams own;
  for (const auto device : devices) {
    own.emplace_back(device, streams.of(device));
  }
  return c10::make_intrusive<QueuedWork>(host_work, host_future, outputs, description, std::move(own));
}

} // namespace c10::openreg
