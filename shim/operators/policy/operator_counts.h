/* SPDX-License-Identifier: BSD-3-Clause */
// How often operators ran in each execution mode (execution_mode.h), over all devices and threads.
#pragma once

#include <openreg/faults.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "shim/observe/operator_watch.h"
#include "shim/observe/trace.h"
#include "shim/operators/policy/execution_mode.h"

namespace c10::openreg {

struct OperatorCount {
  uint64_t calls = 0;
  uint64_t refused = 0; // native: calls that ran in another mode
  uint64_t bytes = 0;   // staged: copied, both directions
  double seconds = 0;   // the host spent on them: staged, copies and kernel; native, until the kernel was queued
};
struct OperatorCounts {
  uint64_t aliased_calls = 0;
  // By mode and operator name, "aten::mm"; aliased ones only while operator_details() was on.
  std::array<std::map<std::string, OperatorCount>, kExecutionModes> by_operator;
};
TORCH_OPENREG_API OperatorCounts operator_counts();
TORCH_OPENREG_API void reset_operator_counts();

// Whether aliased calls are counted by operator too, which costs each of them a lock. Off at first.
TORCH_OPENREG_API bool operator_details() noexcept;
TORCH_OPENREG_API void set_operator_details(bool on) noexcept;

// Whether somebody wants to know of each call: a rule of the policy, operator_details(), a trace.
TORCH_OPENREG_API bool calls_are_watched() noexcept;

using OperatorClock = std::chrono::steady_clock;

// One operator's figures for one mode. Lives until the process ends. Threads: any.
struct OperatorCounter {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> refused{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> nanoseconds{0};

  TORCH_OPENREG_API void add_call(uint64_t copied, OperatorClock::duration time) noexcept;
};
TORCH_OPENREG_API OperatorCounter& operator_counter(ExecutionMode mode, const std::string& name);

// One call through a KernelView (kernel_view.h): asks the policy when the mode is known, and is counted at its end.
class OperatorCall {
 public:
  // Throws c10::Error where the policy forbids the mode. Once for each device of the call; the slowest mode counts.
  void take(ExecutionMode mode, const std::string& name, DeviceIndex device) {
    if (C10_UNLIKELY(mode == ExecutionMode::staged || operators_are_watched() || openreg_is_instrumented() != 0)) {
      watch(mode, name, device);
    }
  }
  // The device is idle now: what follows is the operator's own work.
  void begin_work() noexcept {
    if (C10_UNLIKELY(watched_)) {
      work_start_ = OperatorClock::now();
    }
  }
  // Traced calls that are known to be no more than a copy (of device indices or OPENREG_HOST) or a fill.
  bool is_traced() const noexcept {
    return watched_ && !is_traced_by_runtime_ && is_tracing();
  }
  void describe_copy(int32_t source, int32_t destination, uint64_t bytes) noexcept {
    description_ = {OPENREG_TRACE_COPY, source, destination, bytes};
  }
  void describe_fill(uint64_t bytes) noexcept {
    description_ = {OPENREG_TRACE_FILL, OPENREG_HOST, device_, bytes};
  }
  // What is traced of the call is a call of the runtime's that it makes.
  void leave_trace_to_runtime() noexcept {
    is_traced_by_runtime_ = true;
  }
  void end(const std::string& name, uint64_t copied) noexcept {
    if (C10_LIKELY(!watched_ && copied == 0)) {
      count_aliased_call();
    } else {
      count(name, copied);
    }
  }

 private:
  static void count_aliased_call() noexcept;
  void watch(ExecutionMode mode, const std::string& name, DeviceIndex device);
  void count(const std::string& name, uint64_t copied) noexcept;
  void trace(const std::string& name) const noexcept;
  void tell_instruments(const std::string& name) const noexcept;

  struct Description {
    int32_t kind = OPENREG_TRACE_KERNEL;
    int32_t source = OPENREG_HOST;
    int32_t destination = OPENREG_HOST;
    uint64_t bytes = 0;
  };

  OperatorClock::time_point start_;
  OperatorClock::time_point work_start_;
  Description description_;
  DeviceIndex device_ = -1;
  bool watched_ = false;
  bool staged_ = false;
  bool is_traced_by_runtime_ = false;
};

} // namespace c10::openreg
