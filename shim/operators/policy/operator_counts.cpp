// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/policy/operator_counts.h"

#include <mutex>

#include "shim/operators/policy/operator_policy.h"

namespace c10::openreg {
namespace {

// Counts of one thread land on one of a few cache lines: operators of several threads don't share one.
struct alignas(64) Counter {
  std::atomic<uint64_t> value{0};
};
std::array<Counter, 16> aliased_calls;

size_t this_threads_counter() {
  static std::atomic<size_t> threads{0};
  static thread_local const size_t mine = threads.fetch_add(1, std::memory_order_relaxed) % aliased_calls.size();
  return mine;
}

struct Book {
  std::mutex lock; // guards the maps; the counters in them are atomic, and stay where they are
  std::array<std::map<std::string, OperatorCounter>, kExecutionModes> by_operator;
};

Book& book() {
  static auto* counters = new Book; // leaked: used until the process ends
  return *counters;
}

OperatorCount count_of(const OperatorCounter& counter) {
  OperatorCount count;
  count.calls = counter.calls.load(std::memory_order_relaxed);
  count.refused = counter.refused.load(std::memory_order_relaxed);
  count.bytes = counter.bytes.load(std::memory_order_relaxed);
  count.seconds = static_cast<double>(counter.nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
  return count;
}

void reset(OperatorCounter& counter) {
  for (auto* value : {&counter.calls, &counter.refused, &counter.bytes, &counter.nanoseconds}) {
    value->store(0, std::memory_order_relaxed);
  }
}

std::atomic<bool> details{false};

} // namespace

OperatorCounter& operator_counter(ExecutionMode mode, const std::string& name) {
  const std::lock_guard<std::mutex> guard(book().lock);
  return book().by_operator[static_cast<size_t>(mode)][name];
}

void OperatorCounter::add_call(uint64_t copied, OperatorClock::duration time) noexcept {
  using std::chrono::duration_cast;
  calls.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(copied, std::memory_order_relaxed);
  nanoseconds.fetch_add(
      static_cast<uint64_t>(duration_cast<std::chrono::nanoseconds>(time).count()), std::memory_order_relaxed);
}

void OperatorCall::count_aliased_call() noexcept {
  aliased_calls[this_threads_counter()].value.fetch_add(1, std::memory_order_relaxed);
}

void OperatorCall::watch(ExecutionMode mode, const std::string& name, DeviceIndex device) {
  ask_operator_policy(mode, name, device);
  if (!watched_) {
    start_ = OperatorClock::now();
    device_ = device;
  }
  watched_ = true;
  staged_ |= mode == ExecutionMode::staged;
}

void OperatorCall::count(const std::string& name, uint64_t copied) noexcept {
  const bool staged = staged_ || copied > 0;
  if (watched_ && openreg_is_instrumented() != 0) {
    tell_instruments(name);
  }
  if (!staged) {
    count_aliased_call();
    if (is_traced()) {
      trace(name);
    }
    if (!operator_details()) {
      return;
    }
  }
  try {
    operator_counter(staged ? ExecutionMode::staged : ExecutionMode::aliased, name)
        .add_call(copied, watched_ ? OperatorClock::now() - start_ : OperatorClock::duration::zero());
  } catch (...) {
    // Out of host memory for a counter: the call itself has its result.
  }
}

void OperatorCall::tell_instruments(const std::string& name) const noexcept {
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  (void)openreg_current_stream(device_, &stream);
  openreg_operator_ended(device_, stream, name.c_str());
}

void OperatorCall::trace(const std::string& name) const noexcept {
  // The clock is that of openreg_trace_clock().
  const auto nanoseconds = [](OperatorClock::time_point at) {
    return static_cast<uint64_t>(std::chrono::nanoseconds(at.time_since_epoch()).count());
  };
  openreg_trace_record record{};
  record.kind = description_.kind;
  record.source = description_.source;
  record.destination = description_.destination;
  record.bytes = description_.bytes;
  record.host_begin = nanoseconds(start_);
  record.device_begin = nanoseconds(work_start_);
  trace_host_work(record, device_, name);
}

OperatorCounts operator_counts() {
  OperatorCounts result;
  for (const auto& counter : aliased_calls) {
    result.aliased_calls += counter.value.load(std::memory_order_relaxed);
  }
  const std::lock_guard<std::mutex> guard(book().lock);
  for (size_t mode = 0; mode < kExecutionModes; ++mode) {
    for (const auto& [name, counter] : book().by_operator[mode]) {
      const OperatorCount count = count_of(counter);
      if (count.calls > 0 || count.refused > 0) {
        result.by_operator[mode].emplace(name, count);
      }
    }
  }
  return result;
}

void reset_operator_counts() {
  for (auto& counter : aliased_calls) {
    counter.value.store(0, std::memory_order_relaxed);
  }
  const std::lock_guard<std::mutex> guard(book().lock);
  for (auto& counters : book().by_operator) {
    for (auto& [name, counter] : counters) {
      reset(counter);
    }
  }
}

bool calls_are_watched() noexcept {
  return operators_are_watched();
}

bool operator_details() noexcept {
  return details.load(std::memory_order_relaxed);
}

void set_operator_details(bool on) noexcept {
  details.store(on, std::memory_order_relaxed);
  watch_operators(OperatorWatch::details, on);
}

} // namespace c10::openreg
