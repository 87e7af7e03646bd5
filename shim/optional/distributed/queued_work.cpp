// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/queued_work.h"
#include "shim/device/device.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/host_work.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <thread>
#include <utility>

#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/observe/races.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/optional/distributed/older_libstdcxx.h"
#include "shim/optional/distributed/stream_event.h"
#include "shim/optional/distributed/switch_variable.h"
#include "shim/optional/distributed/work_over_host.h"

namespace c10::openreg {
namespace {

using c10::ivalue::Future;
using Streams = CurrentStreams::Streams;

// The end of the host's part: what the host function waits for.
class HostEnd {
 public:
  // `error` is null where it went well. An error reaches those who wait before they go on.
  void set(const std::exception_ptr& error) {
    const std::string text = error == nullptr ? "" : text_of(error);
    const std::lock_guard<std::mutex> guard(lock_);
    error_ = error;
    if (error_ != nullptr) {
      for (const auto& [device, stream] : waiters_) {
        (void)openreg_stream_report_error(device, stream, OPENREG_E_INTERNAL, text.c_str());
      }
    }
    has_come_ = true;
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [this] { return has_come_; });
  }

  // Whether it has come before the time was over.
  bool wait_for(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> guard(lock_);
    return changed_.wait_for(guard, timeout, [this] { return has_come_; });
  }

  // A stream waits from now on: an error reaches it. Throws the error, if there is one.
  void add_waiter(c10::DeviceIndex device, openreg_stream stream) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
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

// The host function of a stream.
void wait_for_host_end(void* argument) {
  const std::unique_ptr<std::shared_ptr<HostEnd>> end(static_cast<std::shared_ptr<HostEnd>*>(argument));
  (*end)->wait();
}

// What a thread does for a Work that its wait() ends. Not a stream's host function: it lets go of the host's Work, which may
// take the GIL, and who holds that may be waiting for the stream.
struct HostPart {
  const ResultsInFlight flight{};
  const std::shared_ptr<HostEnd> end;
  const c10::intrusive_ptr<c10d::Work> host_work;
  const std::string description;

  void finish(std::chrono::milliseconds timeout = kNoTimeout) const noexcept {
    std::exception_ptr error;
    try {
      if (!wait_for_host_work(*host_work, description, timeout)) {
        error = std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__}, "Aborted\nIn " + description + "."));
      }
    } catch (...) {
      error = std::current_exception();
    }
    end->set(error);
  }
};

// Queued: a stream's work calls the function with a T of its own. If the device is lost that never happens.
template <class T>
void launch(c10::DeviceIndex device, openreg_stream stream, void (*function)(void*), std::unique_ptr<T> argument) {
  OPENREG_CHECK(openreg_stream_launch_host_func(device, stream, function, argument.get()));
  (void)argument.release(); // the function's
}

// Queued: copies of what the host has then.
void bring_back(const Streams& streams, const StagedOutputs& outputs) {
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

// What completes the future after the host's part, in the thread of its backend, or at once.
struct Completion {
  const ResultsInFlight flight{};
  const std::shared_ptr<HostEnd> end;
  const c10::intrusive_ptr<Future> future;
  const Streams streams;
  const std::vector<at::Tensor> results;

  void run() const noexcept {
    if (const auto error = end->error()) {
      future->setErrorIfNeeded(error);
      return;
    }
    try { // the future's events must be behind the collective
      const CurrentStreams current(streams);
      if (races_are_found()) {
        for (const auto& [device, stream] : streams) {
          note_race_collective_wait(device);
        }
      }
      future->markCompleted(c10::IValue(results));
    } catch (...) {
      future->setErrorIfNeeded(std::current_exception());
    }
  }
};

} // namespace

bool host_is_to_wait() {
  return switch_variable("OPENREG_BLOCKING_WAIT", false);
}

namespace {

// What is on streams: the end of the host's part, copies of results, and an event on each.
class StreamWork : public WorkOverHost {
 public:
  void synchronize() override {
    begin();
    {
      const RaceMute mute(races_are_found());
      for (size_t i = 0; i < streams_.size(); i++) {
        const auto device = streams_[i].first;
        const openreg_stream current = current_stream(device).id();
        end_->add_waiter(device, current);
        if (!events_.empty()) {
          events_[i].make_wait(device, current); // without a lock: on some drivers the host waits
        }
      }
    }
    if (races_are_found()) {
      for (const auto& [device, stream] : streams_) {
        note_race_collective_wait(device);
      }
    }
    is_waited_for_ = true;
  }

  bool isCompleted() override {
    if (!end_->has_come()) {
      return false;
    }
    if (end_->error() == nullptr && has_events()) {
      const RaceMute mute(races_are_found());
      for (const auto& event : events_) {
        bool has_passed = false;
        OPENREG_CHECK(event.query(&has_passed));
        if (!has_passed) {
          return false;
        }
      }
    }
    if (races_are_found()) {
      for (const auto& [device, stream] : streams_) {
        note_race_collective_done(device);
      }
    }
    return true;
  }

  std::exception_ptr exception() const override {
    return end_->error();
  }

  // As with NCCL's, in order with the stream that waits.
  std::vector<at::Tensor> result() override {
    TORCH_CHECK(
        is_waited_for_ || isCompleted(),
        "Work needs to be completed before calling result(). Should call wait() before result().");
    if (const auto error = end_->error()) {
      std::rethrow_exception(error);
    }
    return results_;
  }

 protected:
  StreamWork(
      const c10::intrusive_ptr<c10d::Work>& host_work,
      c10d::OpType operation,
      const StagedOutputs& outputs,
      const std::string& description)
      : WorkOverHost(host_work, operation, description),
        end_(std::make_shared<HostEnd>()),
        results_(tensors_of(outputs)) {}

  // Queues on streams_ what isn't yet, for who waits from now on.
  virtual void begin() = 0;

  bool has_events() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return !events_.empty();
  }

  // What has been queued on streams_ is followed by this. Once, with the lock.
  void follow(const StagedOutputs& outputs) {
    bring_back(streams_, outputs);
    for (const auto& [device, stream] : streams_) {
      events_.emplace_back(device, stream);
    }
  }

  const std::shared_ptr<HostEnd> end_;
  const std::vector<at::Tensor> results_; // the tensors that the caller knows
  mutable std::mutex lock_;               // of what follows, until begin() has returned
  Streams streams_;
  std::vector<StreamEvent> events_; // of streams_; none: nothing is queued
  std::atomic<bool> is_waited_for_{false};
};

class QueuedWork final : public StreamWork {
 public:
  QueuedWork(
      const c10::intrusive_ptr<c10d::Work>& host_work,
      const c10::intrusive_ptr<Future>& host_future,
      c10d::OpType operation,
      const StagedOutputs& outputs,
      const std::string& description,
      Streams streams,
      bool is_queued_at_once)
      : StreamWork(host_work, operation, outputs, description),
        host_future_(host_future) {
    streams_ = std::move(streams);
    // First, so that what is queued ends whatever happens here.
    host_future->addCallback([flight = std::make_shared<ResultsInFlight>(), end = end_, description](Future& host) {
      end->set(host.hasError() ? noticed_failure(host.exception_ptr(), description) : nullptr);
    });
    if (is_queued_at_once) {
      queue(outputs);
    }
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout != kNoTimeout || host_is_to_wait()) {
      if (!wait_for_host_work(host_work(), description(), timeout)) {
        return false; // aborted
      }
    }
    synchronize();
    return true;
  }

  c10::intrusive_ptr<Future> getFuture() override {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      if (future_ == nullptr) {
        future_ = make_future(results_);
        std::shared_ptr<Completion> completion(
            new Completion{.end = end_, .future = future_, .streams = streams_, .results = results_});
        host_future_->addCallback([completion = std::move(completion)](Future& /*host*/) { completion->run(); });
      }
    }
    if (is_waited_for_) { // DDP, for one, calls value() then, as with NCCL, whose futures are done from the start
      const WaitScope waiting;
      future_->wait();
    }
    return future_;
  }

 private:
  void queue(const StagedOutputs& outputs) {
    const RaceMute mute(races_are_found()); // noted when the tensors were shown
    for (const auto& [device, stream] : streams_) {
      launch(device, stream, &wait_for_host_end, std::make_unique<std::shared_ptr<HostEnd>>(end_));
    }
    follow(outputs);
    is_queued_ = true;
  }

  // Most small collectives end within a moment, and then no stream needs a thread that waits for them, which would cost
  // about a third of what they take.
  void begin() override {
    constexpr std::chrono::milliseconds kMoment(1);
    const WaitScope waiting;
    const std::lock_guard<std::mutex> guard(lock_);
    if (!is_queued_ && !end_->wait_for(kMoment)) {
      queue({}); // there are no copies
    }
  }

  const c10::intrusive_ptr<Future> host_future_;
  c10::intrusive_ptr<Future> future_; // of results_, once somebody has asked
  bool is_queued_ = false;
};

// A message. Gloo's Work of it ends in its wait(), which the first stream that waits calls, in its order. Nothing is queued
// before: it would hold back what comes behind, which the peer may want before it answers.
class MessageWork final : public StreamWork {
 public:
  MessageWork(
      c10::intrusive_ptr<c10d::Work> host_work,
      c10d::OpType operation,
      StagedOutputs outputs,
      const std::string& description,
      c10::DeviceIndex device,
      HostQueue host_queue)
      : StreamWork(host_work, operation, outputs, description),
        unfinished_(std::move(host_work)),
        outputs_(std::move(outputs)),
        device_(device),
        host_queue_(std::move(host_queue)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout != kNoTimeout || host_is_to_wait()) {
      if (auto host_work = take()) {
        HostPart{.end = end_, .host_work = std::move(host_work), .description = description()}.finish(timeout);
      } else {
        wait_for_end(timeout);
      }
    }
    synchronize();
    return true;
  }

  bool isCompleted() override {
    return has_events() && StreamWork::isCompleted();
  }

  int sourceRank() const override {
    if (is_taken_) {
      end_->wait();
    }
    return WorkOverHost::sourceRank();
  }

 private:
  // What the argument of end_message() is.
  struct Ending {
    std::shared_ptr<HostPart> part;
    HostQueue host_queue;
  };

  static void end_message(void* argument) {
    const std::unique_ptr<Ending> ending(static_cast<Ending*>(argument));
    ending->part->finish();
    try {
      ending->host_queue.push([part = std::move(ending->part)] {}); // dropped there: see HostPart
    } catch (...) {                                                 // no thread can be made
    }
  }

  // Where another thread waits for the host's part, this one may not.
  void wait_for_end(std::chrono::milliseconds timeout) const {
    if (timeout == kNoTimeout) {
      end_->wait();
    } else if (!end_->wait_for(timeout)) {
      const auto text = "Timed out waiting " + std::to_string(timeout.count()) + "ms";
      const auto error = std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__}, text));
      std::rethrow_exception(noticed_failure(error, description()));
    }
  }

  // For who calls wait() of the host's Work; null if another one has it.
  c10::intrusive_ptr<c10d::Work> take() {
    const std::lock_guard<std::mutex> guard(lock_);
    is_taken_ = true;
    return std::exchange(unfinished_, {});
  }

  void begin() override {
    const std::lock_guard<std::mutex> guard(lock_);
    if (!events_.empty()) {
      return;
    }
    const RaceMute mute(races_are_found()); // noted when the tensors were shown
    const openreg_stream current = current_stream(device_).id();
    if (unfinished_ != nullptr) {
      is_taken_ = true;
      std::shared_ptr<HostPart> part(
          new HostPart{.end = end_, .host_work = std::exchange(unfinished_, {}), .description = description()});
      launch(device_, current, &end_message, std::make_unique<Ending>(Ending{std::move(part), host_queue_}));
    } else if (const auto error = end_->error()) {
      std::rethrow_exception(error);
    }
    streams_ = {{device_, current}};
    follow(std::exchange(outputs_, {}));
  }

  c10::intrusive_ptr<c10d::Work> unfinished_; // with the lock, as outputs_
  StagedOutputs outputs_;
  std::atomic<bool> is_taken_{false};
  const c10::DeviceIndex device_;
  const HostQueue host_queue_;
};

bool is_queued(c10::DeviceIndex device) {
  int32_t queued = 0;
  OPENREG_CHECK(openreg_host_func_is_queued(device, &queued));
  return queued != 0;
}

bool is_message(c10d::OpType operation) {
  return operation == c10d::OpType::SEND || operation == c10d::OpType::RECV;
}

// One copy of the driver, which needs no host.
bool is_plain_copy(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.is_non_overlapping_and_dense() && !tensor.is_conj() &&
      !tensor.is_neg();
}

} // namespace

void HostQueue::push(std::function<void()> function) const {
  const std::lock_guard<std::mutex> guard(state_->lock);
  state_->waiting.push_back(std::move(function));
  if (state_->has_thread) {
    state_->changed.notify_one();
    return;
  }
  try {
    std::thread([state = state_] {                      // detached: it holds what it needs
      constexpr std::chrono::milliseconds kLinger(200); // the next one is often near, and a thread is dear
      const auto is_due = [&] { return !state->waiting.empty() || state->is_over; };
      std::unique_lock<std::mutex> own(state->lock);
      while (state->changed.wait_for(own, kLinger, is_due) && !state->waiting.empty()) {
        auto next = std::move(state->waiting.front());
        state->waiting.pop_front();
        own.unlock();
        next();
        next = nullptr;
        own.lock();
      }
      state->has_thread = false;
    })
        .detach();
  } catch (...) {
    state_->waiting.pop_back();
    throw;
  }
  state_->has_thread = true;
}

void HostQueue::finish() const {
  const std::lock_guard<std::mutex> guard(state_->lock);
  state_->is_over = true;
  state_->changed.notify_one();
}

CommunicationStreams::~CommunicationStreams() {
  host_queue_.finish();
}

openreg_stream CommunicationStreams::of(c10::DeviceIndex device) {
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
  OPENREG_CHECK(openreg_stream_from_pool(device, kHighestPriority, &stream));
  streams_.emplace_back(device, stream);
  return stream;
}

c10::intrusive_ptr<c10d::Work> queue_work(
    const c10::intrusive_ptr<c10d::Work>& host_work,
    c10d::OpType operation,
    const StagedOutputs& outputs,
    const std::string& description,
    const std::vector<c10::DeviceIndex>& devices,
    CommunicationStreams& streams,
    bool is_async) {
  const auto host_future = future_of(*host_work);
  const bool are_plain = std::all_of(outputs.begin(), outputs.end(), [](const StagedOutput& output) {
    return !output.is_copy || is_plain_copy(output.tensor);
  });
  const bool can_end = host_future != nullptr || is_message(operation);
  if (!can_end || operation == c10d::OpType::RECVANYSOURCE || !are_plain ||
      !std::all_of(devices.begin(), devices.end(), is_queued)) {
    return nullptr;
  }
  if (host_future == nullptr) {
    return c10::make_intrusive<MessageWork>(
        host_work, operation, outputs, description, devices.front(), streams.host_queue());
  }
  Streams own;
  for (const auto device : devices) {
    own.emplace_back(device, streams.of(device));
  }
  const bool has_copies =
      std::any_of(outputs.begin(), outputs.end(), [](const auto& output) { return output.is_copy; });
  return c10::make_intrusive<QueuedWork>(
      host_work, host_future, operation, outputs, description, std::move(own), is_async || has_copies);
}

} // namespace c10::openreg
