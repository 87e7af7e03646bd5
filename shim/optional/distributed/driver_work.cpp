// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/driver_work.h"
#include "shim/device/device.h"

#include <ATen/core/ivalue.h>
#include <openreg/flight_recorder.h>
#include <openreg/host_work.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <thread>
#include <utility>

#include "shim/base/status.h"
#include "shim/optional/distributed/collective_results.h"
#include "shim/optional/distributed/older_libstdcxx.h"
#include "shim/optional/distributed/queued_work.h"
#include "shim/optional/distributed/stream_event.h"
#include "shim/optional/distributed/work_over_host.h"

namespace c10::openreg {
namespace {

using c10::ivalue::Future;
using Clock = std::chrono::steady_clock;

std::exception_ptr error_of(const std::string& text) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, text));
}

} // namespace

class Progress {
 public:
  Progress(std::shared_ptr<Communicator> on, std::string text, Clock::time_point end)
      : communicator(std::move(on)),
        description(std::move(text)),
        deadline(end) {}

  const std::shared_ptr<Communicator> communicator;
  const std::string description;
  const Clock::time_point deadline;

  void record_end() {
    auto end = std::make_unique<StreamEvent>(communicator->device, communicator->stream);
    const std::lock_guard<std::mutex> guard(lock_);
    end_ = std::move(end);
  }

  // Done, or failed.
  bool is_over() {
    const std::lock_guard<std::mutex> guard(lock_);
    return look();
  }

  std::exception_ptr error() {
    const std::lock_guard<std::mutex> guard(lock_);
    look();
    return error_;
  }

  void forget() {
    const std::lock_guard<std::mutex> guard(lock_);
    is_over_ = true;
  }

  // Called before the communicator is aborted, so that waiting streams have the error before they go on. A call whose end
  // event is complete has succeeded.
  void fail(const std::string& reason, openreg_status code) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (look()) {
      return;
    }
    set_error(reason);
    for (const auto& [device, stream] : waiters_) {
      (void)openreg_stream_report_error(device, stream, code, text_of(error_).c_str());
    }
  }

  // A driver without stream_wait() has the host wait, for which fail() must not: the stream is a waiter before it waits.
  void make_wait(c10::DeviceIndex device, openreg_stream stream) {
    {
      std::unique_lock<std::mutex> guard(lock_);
      // A failure of the communicator is about to be this call's, too; until it is, nobody may hear of it by this one.
      while (!look() && communicator->failure() != nullptr) {
        guard.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        guard.lock();
      }
      if (error_ != nullptr) {
        std::rethrow_exception(error_);
      }
      const auto waiter = std::make_pair(device, stream);
      if (!is_over_ && std::find(waiters_.begin(), waiters_.end(), waiter) == waiters_.end()) {
        waiters_.push_back(waiter);
      }
    }
    end_->make_wait(device, stream); // recorded before anybody has the Work
  }

 private:
  void set_error(const std::string& reason) {
    error_ = error_of(reason + "\nIn " + description + ".");
    is_over_ = true;
  }

  // With the lock held. After an abort a stream passes everything.
  bool look() {
    if (is_over_ || end_ == nullptr) {
      return is_over_;
    }
    if (end_->query(&is_over_) != OPENREG_OK) { // the device has failed
      set_error(openreg_last_error()->message);
      openreg_clear_error();
    } else if (is_over_ && communicator->was_aborted()) {
      set_error(text_of(communicator->failure()));
    }
    return is_over_;
  }

  std::mutex lock_; // of what follows
  std::unique_ptr<StreamEvent> end_;
  bool is_over_ = false;
  std::exception_ptr error_;
  CurrentStreams::Streams waiters_;
};

namespace {

// A thread that looks after what is queued. It is never ended, and neither is what it uses.
class Watch {
 public:
  static Watch& get() {
    static Watch* const watch = new Watch();
    return *watch;
  }

  void add(std::shared_ptr<Progress> progress) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (!is_running_) {
      std::thread([this] { run(); }).detach();
      is_running_ = true;
    }
    pending_.push_back(std::move(progress));
    changed_.notify_one();
  }

  std::vector<std::shared_ptr<Progress>> pending() {
    const std::lock_guard<std::mutex> guard(lock_);
    return {pending_.begin(), pending_.end()};
  }

 private:
  static constexpr auto kPeriod = std::chrono::milliseconds(50);

  // True: there is nothing more to look after.
  static bool look_at(Progress& progress) {
    if (progress.is_over()) {
      return true;
    }
    auto [code, reason] = progress.communicator->background_error();
    if (code == OPENREG_OK && Clock::now() >= progress.deadline) {
      code = OPENREG_E_TIMEOUT;
      reason = "Timed out: a rank has not made the call, or is still busy";
    }
    if (code != OPENREG_OK) {
      openreg::fail(*progress.communicator, reason, progress.description, code);
    }
    if (const auto failure = progress.communicator->failure()) {
      progress.fail(code == OPENREG_OK ? text_of(failure) : reason, code == OPENREG_OK ? OPENREG_E_INTERNAL : code);
    }
    return progress.is_over();
  }

  void run() {
    for (;;) {
      {
        std::unique_lock<std::mutex> guard(lock_);
        changed_.wait(guard, [this] { return !pending_.empty(); });
      }
      std::this_thread::sleep_for(kPeriod);
      std::vector<std::shared_ptr<Progress>> over; // to end when the lock is free
      for (auto& progress : pending()) {
        bool is_over = true;
        try {
          is_over = look_at(*progress);
        } catch (const std::exception&) { // the drivers are gone
        }
        if (is_over) {
          over.push_back(std::move(progress));
        }
      }
      const std::lock_guard<std::mutex> guard(lock_);
      for (const auto& progress : over) {
        pending_.remove(progress);
      }
    }
  }

  std::mutex lock_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Progress>> pending_;
  bool is_running_ = false;
};

class DriverWork final : public c10d::Work {
 public:
  DriverWork(std::shared_ptr<Progress> progress, c10d::OpType operation, const std::vector<at::Tensor>& results)
      : Work(/*rank=*/-1, operation),
        progress_(std::move(progress)),
        future_(make_future(results)) {
    const CurrentStreams current({{progress_->communicator->device, progress_->communicator->stream}});
    future_->markCompleted(c10::IValue(results)); // its events are behind what is queued
  }

  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (timeout != kNoTimeout || host_is_to_wait()) {
      const auto end = Clock::now() + timeout;
      while (!progress_->is_over()) {
        if (timeout != kNoTimeout && Clock::now() >= end) {
          std::rethrow_exception(noticed_failure(
              error_of(
                  "Timed out waiting " + std::to_string(timeout.count()) + "ms\nIn " + progress_->description + "."),
              progress_->description));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      rethrow();
    }
    return true;
  }

  void synchronize() override {
    const auto device = progress_->communicator->device;
    progress_->make_wait(device, current_stream(device).id());
  }

  bool isCompleted() override {
    return progress_->is_over();
  }

  bool isSuccess() const override {
    return progress_->is_over() && progress_->error() == nullptr;
  }

  std::exception_ptr exception() const override {
    return progress_->error();
  }

  std::vector<at::Tensor> result() override {
    rethrow();
    return future_->value().toTensorVector();
  }

  c10::intrusive_ptr<Future> getFuture() override {
    return future_;
  }

  void abort() override {
    openreg::fail(*progress_->communicator, "Aborted", progress_->description);
  }

 private:
  void rethrow() const {
    if (const auto error = progress_->error()) {
      std::rethrow_exception(error);
    }
  }

  const std::shared_ptr<Progress> progress_;
  const c10::intrusive_ptr<Future> future_;
};

} // namespace

Communicator::Communicator(c10::DeviceIndex of, openreg_communicator handle) : device(of), handle_(handle) {
  OPENREG_CHECK(openreg_stream_from_pool(device, kHighestPriority, &stream));
}

void Communicator::follow_current_stream() {
  StreamEvent(device, current_stream(device).id()).make_wait(device, stream);
}

std::pair<openreg_status, std::string> Communicator::background_error() {
  const std::unique_lock<std::mutex> guard(ending_, std::try_to_lock);
  if (!guard.owns_lock() || is_destroyed_ || failure() != nullptr) {
    return {OPENREG_OK, ""};
  }
  const openreg_status code = openreg_communicator_get_error(handle_);
  if (code == OPENREG_OK) {
    return {OPENREG_OK, ""};
  }
  std::string text = openreg_last_error()->message;
  openreg_clear_error();
  return {code, std::move(text)};
}

std::exception_ptr Communicator::failure() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return failure_;
}

void Communicator::queue(const std::vector<openreg_collective>& group) {
  const std::lock_guard<std::mutex> guard(calling_);
  if (const auto error = failure()) {
    std::rethrow_exception(error);
  }
  OPENREG_CHECK(openreg_communicator_queue(handle_, stream, group.data(), group.size()));
}

bool Communicator::was_aborted() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return was_aborted_;
}

bool Communicator::begin_failure(std::exception_ptr error) {
  const std::lock_guard<std::mutex> guard(lock_);
  const bool is_first = failure_ == nullptr;
  if (is_first) {
    failure_ = std::move(error);
  }
  return is_first;
}

void Communicator::abort() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    was_aborted_ = true;
  }
  const std::lock_guard<std::mutex> guard(ending_);
  if (!is_destroyed_) {
    (void)openreg_communicator_abort(handle_);
  }
}

void Communicator::destroy() {
  if (failure() == nullptr) {
    (void)openreg_stream_synchronize(device, stream); // the thread that watches ends it where a peer doesn't come
  }
  if (const auto [code, error] = background_error(); code != OPENREG_OK) {
    fail(*this, error, "the end of a process group", code); // else it might wait for that peer
  }
  const std::lock_guard<std::mutex> calling(calling_);
  const std::lock_guard<std::mutex> ending(ending_);
  if (!is_destroyed_) {
    is_destroyed_ = true;
    begin_failure(error_of("The process group has been shut down"));
    (void)openreg_communicator_destroy(handle_);
  }
}

std::shared_ptr<Progress> watch(
    std::shared_ptr<Communicator> communicator, std::string description, std::chrono::milliseconds timeout) {
  auto progress = std::make_shared<Progress>(std::move(communicator), std::move(description), Clock::now() + timeout);
  Watch::get().add(progress);
  return progress;
}

c10::intrusive_ptr<c10d::Work> work_of(
    std::shared_ptr<Progress> progress, c10d::OpType operation, const std::vector<at::Tensor>& results) {
  progress->record_end();
  return c10::make_intrusive<DriverWork>(std::move(progress), operation, results);
}

void forget(Progress& progress) {
  progress.forget();
}

void fail(Communicator& communicator, const std::string& reason, const std::string& description, openreg_status code) {
  if (!communicator.begin_failure(error_of(reason + "\nIn " + description + "."))) {
    return;
  }
  for (const auto& progress : Watch::get().pending()) {
    if (progress->communicator.get() == &communicator) {
      progress->fail(reason, code);
    }
  }
  openreg_flight_recorder_alarm();
  communicator.abort();
}

} // namespace c10::openreg
