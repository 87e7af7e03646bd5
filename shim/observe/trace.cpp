// SPDX-License-Identifier: BSD-3-Clause
#include "shim/observe/trace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/observe/operator_watch.h"

namespace c10::openreg {
namespace {

// Where a call of the runtime was made; the runtime keeps its position as the record's tag.
struct Origin {
  int32_t thread;
  TraceIds::Id operation;
  uint64_t annotation;
};

struct Book {
  std::mutex control; // held over start and stop
  std::mutex lock;    // guards the two below
  std::vector<Origin> origins;
  std::vector<TraceEvent> events;
};

Book& book() {
  static auto* the_book = new Book; // leaked: threads may trace until the process ends
  return *the_book;
}

int32_t this_thread() {
  static thread_local const auto id = static_cast<int32_t>(syscall(SYS_gettid));
  return id;
}

Origin here() {
  return {this_thread(), trace_operations().innermost(), trace_annotations().innermost().id};
}

constexpr uint64_t kNoOrigin = ~uint64_t{0};

uint64_t note_origin(void* /*ctx*/) {
  try {
    const Origin origin = here();
    const std::lock_guard<std::mutex> guard(book().lock);
    book().origins.push_back(origin);
    return book().origins.size() - 1;
  } catch (...) { // out of memory: the call comes from nowhere
    return kNoOrigin;
  }
}

void add(const openreg_trace_record& record, std::string name, const Origin& origin) {
  const auto& [thread, operation, annotation] = origin;
  book().events.push_back({record, std::move(name), thread, operation.id, operation.nested, annotation});
  book().events.back().record.name = nullptr;
}

void keep(void* /*ctx*/, const openreg_trace_record* record) {
  try {
    std::string name = record->name;
    if (record->kind == OPENREG_TRACE_KERNEL) {
      name += " [native]";
    }
    const std::lock_guard<std::mutex> guard(book().lock);
    const auto& origins = book().origins;
    add(*record, std::move(name), record->tag < origins.size() ? origins[record->tag] : Origin{});
  } catch (...) {
    // Out of memory: a profile may miss a row.
  }
}

} // namespace

std::atomic<unsigned> detail::trace_number{0};

void TraceIds::push(uint64_t id) {
  const unsigned trace = detail::trace_number.load(std::memory_order_relaxed);
  if (trace_ != trace) { // what an earlier trace left
    ids_.clear();
    trace_ = trace;
  }
  if (trace == 0) {
    return;
  }
  if (!ids_.empty() && ids_.back().nested == 0) {
    ids_.back().nested = id;
  }
  ids_.push_back({id});
}

void TraceIds::pop() noexcept {
  if (!ids_.empty()) {
    ids_.pop_back();
  }
}

TraceIds::Id TraceIds::innermost() const noexcept {
  return ids_.empty() || trace_ != detail::trace_number.load(std::memory_order_relaxed) ? Id{} : ids_.back();
}

TraceIds& trace_operations() noexcept {
  static thread_local TraceIds ids;
  return ids;
}

TraceIds& trace_annotations() noexcept {
  static thread_local TraceIds ids;
  return ids;
}

void start_trace() {
  static unsigned last = 0;
  const std::lock_guard<std::mutex> control(book().control);
  TORCH_CHECK(!is_tracing(), device_name(), " is being profiled already; end that profile first.");
  {
    const std::lock_guard<std::mutex> guard(book().lock);
    book().origins.clear();
    book().events.clear();
  }
  openreg_tracer tracer{};
  tracer.struct_size = sizeof tracer;
  tracer.begin = note_origin;
  tracer.record = keep;
  OPENREG_CHECK(openreg_trace_start(&tracer));
  detail::trace_number.store(++last, std::memory_order_relaxed);
  watch_operators(OperatorWatch::trace, true);
}

std::vector<TraceEvent> stop_trace() {
  const std::lock_guard<std::mutex> control(book().control);
  TORCH_CHECK(is_tracing(), device_name(), " is not being profiled.");
  detail::trace_number.store(0, std::memory_order_relaxed);
  watch_operators(OperatorWatch::trace, false);
  OPENREG_CHECK(openreg_trace_stop());
  std::vector<TraceEvent> events;
  {
    const std::lock_guard<std::mutex> guard(book().lock);
    events.swap(book().events);
  }
  const auto begin = [](const TraceEvent& event) {
    return std::max(event.record.device_begin, event.record.host_begin); // a wait has no device_begin
  };
  std::stable_sort(
      events.begin(), events.end(), [&](const TraceEvent& a, const TraceEvent& b) { return begin(a) < begin(b); });
  return events;
}

void trace_host_work(openreg_trace_record record, DeviceIndex device, const std::string& name) noexcept {
  try {
    record.struct_size = sizeof record;
    record.timing = OPENREG_TIMING_BY_HOST;
    record.device = device;
    (void)openreg_current_stream(device, &record.stream);
    record.host_end = record.device_end = openreg_trace_clock();
    std::string row = record.kind == OPENREG_TRACE_KERNEL ? name + " [aliased]" : std::string();
    const Origin origin = here();
    const std::lock_guard<std::mutex> guard(book().lock);
    if (is_tracing()) {
      add(record, std::move(row), origin);
    }
  } catch (...) {
    // Out of memory: a profile may miss a row.
  }
}

} // namespace c10::openreg
