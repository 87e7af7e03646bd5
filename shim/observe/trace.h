/* SPDX-License-Identifier: BSD-3-Clause */
// What devices did, and when: the calls of the runtime (openreg/trace.h), and the operators that the host ran in the
// devices' memory. For profilers.
#pragma once

#include <c10/core/Device.h>
#include <openreg/trace.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "shim/base/export.h"

namespace c10::openreg {

// One range. `record.tag` has no meaning here, and `record.name` is null: `name` is what it said. The call of an operator
// that the host ran is null.
struct TraceEvent {
  openreg_trace_record record;
  std::string name;    // KERNEL: "aten::mm [native]", "aten::add [aliased]"; else empty
  int32_t thread;      // the system's number of the thread that made the call
  uint64_t operation;  // innermost id of trace_operations() in that thread, 0 outside
  uint64_t nested;     // the first id inside it, as of a kernel that has called its operator once more; 0: none so far
  uint64_t annotation; // innermost id of trace_annotations(), the same way
};

// Begins a trace. Throws c10::Error while another one is on.
TORCH_OPENREG_API void start_trace();

// Waits for the work traced so far, ends the trace and returns its events, in order of device_begin. Throws c10::Error
// if there is none.
TORCH_OPENREG_API std::vector<TraceEvent> stop_trace();

// Ids that a thread's calls belong to, as nested ranges. Without a trace they cost nothing and are forgotten.
class TORCH_OPENREG_API TraceIds {
 public:
  void push(uint64_t id);
  void pop() noexcept;

  struct Id {
    uint64_t id = 0;
    uint64_t nested = 0; // the first id that was pushed while this one was the innermost
  };
  Id innermost() const noexcept; // zeros: none

 private:
  unsigned trace_ = 0;
  std::vector<Id> ids_;
};
TORCH_OPENREG_API TraceIds& trace_operations() noexcept;
TORCH_OPENREG_API TraceIds& trace_annotations() noexcept;

namespace detail {
extern std::atomic<unsigned> trace_number; // 0: none is on
}
inline bool is_tracing() noexcept {
  return detail::trace_number.load(std::memory_order_relaxed) != 0;
}

// Adds an operator, a copy or a fill that this thread has run on memory of `device`, on the device's current stream.
// `record` has kind, source, destination, bytes, host_begin and device_begin. Loses it where memory is short.
void trace_host_work(openreg_trace_record record, DeviceIndex device, const std::string& name) noexcept;

} // namespace c10::openreg
