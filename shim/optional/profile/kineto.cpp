// SPDX-License-Identifier: BSD-3-Clause
// openreg in PyTorch's profiler: a source of rows for Kineto, which writes them into the Chrome trace and the tables.
// PyTorch's wheels hold Kineto's headers; a torch that is built without Kineto doesn't.
//
// The version's header is for ccache, which knows the headers that a file read and not those that it asked for: without
// it the object of a torch that lacks the sources is taken for one that has them.
#include <torch/headeronly/version.h>

#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>) && __has_include(<libkineto.h>)
#define USE_KINETO
#define FMT_HEADER_ONLY

#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <atomic>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/observe/trace.h"
#include "shim/optional/profile/entry.h"

namespace c10::openreg {
namespace {

using libkineto::ActivityLogger;
using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

// The types of activities that an openreg process can record; ProfilerActivity.PrivateUse1 requests them.
const std::set<ActivityType>& offered() {
  static const auto* types = new std::set<ActivityType>{
      ActivityType::GPU_MEMCPY,
      ActivityType::GPU_MEMSET,
      ActivityType::CONCURRENT_KERNEL,
      ActivityType::GPU_USER_ANNOTATION,
      ActivityType::PRIVATEUSE1_RUNTIME};
  return *types;
}

// Kineto's times are those of the system's clock.
int64_t unix_minus_monotonic() {
  const auto before = static_cast<int64_t>(openreg_trace_clock());
  const auto unix_now = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto after = static_cast<int64_t>(openreg_trace_clock());
  return unix_now - (before + (after - before) / 2);
}

// PyTorch joins device work to host events by this number, so none may be one of another session or of PyTorch's operators,
// which count from 1. Kineto keeps 32 bits of it, of which some of its tables show a sign.
int32_t next_correlation() {
  constexpr uint32_t kFirst = uint32_t{1} << 30;
  static std::atomic<uint32_t> count{0};
  return static_cast<int32_t>(kFirst + count.fetch_add(1, std::memory_order_relaxed) % kFirst);
}

// The lane of a stream among its device's: 0 for the default stream.
int32_t lane_of(openreg_stream stream) {
  return static_cast<int32_t>(stream & 0xffff);
}

const char* direction(const openreg_trace_record& record) {
  if (record.source == OPENREG_HOST) {
    return record.destination == OPENREG_HOST ? "Memcpy HtoH" : "Memcpy HtoD";
  }
  return record.destination == OPENREG_HOST ? "Memcpy DtoH"
      : record.source == record.destination ? "Memcpy DtoD"
                                            : "Memcpy PtoP";
}

const char* source_of_times(int32_t timing) {
  return timing == OPENREG_TIMING_MEASURED ? "measured by the driver"
      : timing == OPENREG_TIMING_BY_HOST   ? "the host did the work"
                                           : "of the call: the driver can't time";
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> wanted) : wanted_(std::move(wanted)) {}

  void start() override {
    try {
      start_trace();
      status_ = libkineto::TraceStatus::RECORDING;
    } catch (const std::exception& error) {
      fail(error);
    }
  }

  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) {
      return;
    }
    try {
      events_ = stop_trace();
      clock_offset_ = unix_minus_monotonic();
      status_ = libkineto::TraceStatus::PROCESSING;
    } catch (const std::exception& error) {
      fail(error);
    }
  }

  std::vector<std::string> errors() override {
    return errors_;
  }

  void processTrace(ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(
      ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start, int64_t end) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start, end, device_name());
    buffer_->gpuOpCount = 0;
    for (const TraceEvent& event : events_) {
      correlation_ = next_correlation();
      add_call(event, linked);
      add_work(event, linked);
    }
    add_annotations(linked);
    for (const auto& activity : buffer_->activities) {
      logger.handleGenericActivity(*activity);
    }
    name_lanes(logger, start);
    events_.clear();
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return nullptr; // there may be several: processTrace() reports them
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    return {};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override {
    trace_operations().push(id);
  }
  void popCorrelationId() override {
    trace_operations().pop();
  }
  void pushUserCorrelationId(uint64_t id) override {
    trace_annotations().push(id);
  }
  void popUserCorrelationId() override {
    trace_annotations().pop();
  }

 private:
  using Linked = libkineto::getLinkedActivityCallback;
  using Lane = std::pair<int32_t, openreg_stream>;

  void fail(const std::exception& error) {
    const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
    status_ = libkineto::TraceStatus::ERROR;
    errors_.emplace_back(of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
    TORCH_WARN("The profile has no rows of ", device_name(), " devices: ", errors_.back());
  }

  int64_t unix_time(uint64_t monotonic) const {
    return static_cast<int64_t>(monotonic) + clock_offset_;
  }

  GenericTraceActivity* add(ActivityType type, const std::string& name, uint64_t begin, uint64_t end) {
    if (wanted_.count(type) == 0) {
      return nullptr;
    }
    buffer_->emplace_activity(buffer_->span, type, name);
    auto& activity = *buffer_->activities.back();
    activity.startTime = unix_time(begin);
    activity.endTime = unix_time(end);
    return &activity;
  }

  // The operator that a range belongs to. Where its kernel has called the same operator once more, that one: PyTorch's
  // tables make one row of the two, with the inner one's device time alone.
  static const libkineto::ITraceActivity* operation(const TraceEvent& event, const Linked& linked) {
    const auto* outer = event.operation != 0 ? linked(static_cast<int32_t>(event.operation)) : nullptr;
    const auto* inner = outer != nullptr && event.nested != 0 ? linked(static_cast<int32_t>(event.nested)) : nullptr;
    return inner != nullptr && inner->name() == outer->name() ? inner : outer;
  }

  // The host's side: the function of the C API.
  void add_call(const TraceEvent& event, const Linked& linked) {
    const auto& record = event.record;
    auto* activity = record.call != nullptr
        ? add(ActivityType::PRIVATEUSE1_RUNTIME, record.call, record.host_begin, record.host_end)
        : nullptr;
    if (activity != nullptr) {
      activity->id = correlation_;
      activity->device = libkineto::processId();
      activity->resource = event.thread;
      activity->threadId = event.thread;
      activity->linked = operation(event, linked);
      activity->addMetadata("correlation", correlation_);
      link(*activity, record.timing != OPENREG_TIMING_NONE, /*start=*/true);
    }
  }

  // The device's side.
  void add_work(const TraceEvent& event, const Linked& linked) {
    const auto& record = event.record;
    if (record.timing == OPENREG_TIMING_NONE || record.device == OPENREG_HOST) {
      return;
    }
    const bool is_copy = record.kind == OPENREG_TRACE_COPY;
    const bool is_fill = record.kind == OPENREG_TRACE_FILL;
    auto* activity =
        add(is_copy       ? ActivityType::GPU_MEMCPY
                : is_fill ? ActivityType::GPU_MEMSET
                          : ActivityType::CONCURRENT_KERNEL,
            is_copy       ? direction(record)
                : is_fill ? "Memset (Device)"
                          : event.name,
            record.device_begin,
            record.device_end);
    if (activity == nullptr) {
      return;
    }
    activity->id = correlation_;
    activity->device = record.device;
    activity->resource = lane_of(record.stream);
    activity->threadId = event.thread;
    activity->linked = operation(event, linked);
    link(*activity, record.call != nullptr, /*start=*/false);
    activity->addMetadata("device", record.device);
    activity->addMetadata("stream", lane_of(record.stream));
    activity->addMetadata("correlation", correlation_);
    activity->addMetadataQuoted("times", source_of_times(record.timing));
    if (is_copy || is_fill) {
      activity->addMetadata("bytes", record.bytes);
    }
    if (record.device_end > record.device_begin && record.bytes > 0) { // bytes a nanosecond are gigabytes a second
      activity->addMetadata(
          "memory bandwidth (GB/s)",
          static_cast<double>(record.bytes) / static_cast<double>(record.device_end - record.device_begin));
    }
    note_lane({record.device, record.stream});
    if (event.annotation != 0) {
      auto& range =
          annotations_
              .try_emplace({event.annotation, {record.device, record.stream}}, record.device_begin, record.device_end)
              .first->second;
      range.first = std::min(range.first, record.device_begin);
      range.second = std::max(range.second, record.device_end);
    }
  }

  static void link(GenericTraceActivity& activity, bool has_other_end, bool start) {
    if (has_other_end) {
      activity.flow.id = static_cast<uint32_t>(activity.id);
      activity.flow.type = libkineto::kLinkAsyncCpuGpu;
      activity.flow.start = start ? 1 : 0;
    }
  }

  // record_function() ranges over the lanes on which their work ran, from its first begin to its last end.
  void add_annotations(const Linked& linked) {
    for (const auto& [key, range] : annotations_) {
      const auto* annotation = linked(static_cast<int32_t>(key.first));
      auto* activity = annotation != nullptr
          ? add(ActivityType::GPU_USER_ANNOTATION, annotation->name(), range.first, range.second)
          : nullptr;
      if (activity != nullptr) {
        activity->id = static_cast<int32_t>(key.first);
        activity->device = key.second.first;
        activity->resource = lane_of(key.second.second);
      }
    }
    annotations_.clear();
  }

  void note_lane(Lane lane) {
    lanes_.insert(lane);
  }

  void name_lanes(ActivityLogger& logger, int64_t time) {
    int32_t named = -1;
    for (const auto& [device, stream] : lanes_) {
      if (device != named) {
        openreg_device_properties properties{};
        properties.struct_size = sizeof properties;
        const bool known = openreg_device_get_properties(device, &properties) == OPENREG_OK;
        logger.handleDeviceInfo(
            {device,
             device + libkineto::kExceedMaxPid,
             device_name() + ":" + std::to_string(device),
             known ? properties.name : ""},
            time);
        named = device;
      }
      const int32_t lane = lane_of(stream);
      logger.handleResourceInfo(
          {lane, lane, device, lane == 0 ? "stream 0 (default)" : "stream " + std::to_string(lane)}, time);
    }
    lanes_.clear();
  }

  const std::set<ActivityType> wanted_;
  std::vector<TraceEvent> events_;
  std::vector<std::string> errors_;
  int64_t clock_offset_ = 0;
  int32_t correlation_ = 0;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::set<Lane> lanes_;
  std::map<std::pair<uint64_t, Lane>, std::pair<uint64_t, uint64_t>> annotations_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const auto* name = new std::string(device_name());
    return *name;
  }

  const std::set<ActivityType>& availableActivities() const override {
    return offered();
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config& /*config*/) override {
    std::set<ActivityType> wanted;
    std::set_intersection(
        types.begin(), types.end(), offered().begin(), offered().end(), std::inserter(wanted, wanted.begin()));
    return wanted.empty() ? nullptr : std::make_unique<Session>(std::move(wanted));
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t /*ts_ms*/,
      int64_t /*duration_ms*/,
      const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }
};

} // namespace

} // namespace c10::openreg

void openreg_make_profiler(std::unique_ptr<libkineto::IActivityProfiler>* made) {
  *made = std::make_unique<c10::openreg::Profiler>();
}

#endif
