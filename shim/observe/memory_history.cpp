// SPDX-License-Identifier: BSD-3-Clause
#include "shim/observe/memory_history.h"

#include <openreg/observer.h>

#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "shim/base/compat.h"
#include "shim/base/status.h"

namespace c10::openreg {

namespace {

using CachingDeviceAllocator::RecordContext;
using CachingDeviceAllocator::TraceEntry;

struct DeviceHistory {
  std::deque<TraceEntry> events;
  std::unordered_map<uint64_t, Context> blocks, segments; // by address
};

struct History {
  std::mutex mutex; // inside the allocator's lock; guards the rest
  HistorySettings settings;
  std::array<DeviceHistory, OPENREG_MAX_DEVICES> devices;
  std::vector<OutOfMemoryObserver> observers;
};

History& history() {
  // Never destroyed: tensors that are freed at exit are events too.
  static auto& instance = *new History;
  return instance;
}

thread_local const Context* current_context = nullptr;
thread_local std::string metadata;

Context callers_stack() {
  return current_context == nullptr ? nullptr : *current_context;
}

// PyTorch's numbers, but for the last: there PyTorch has a SNAPSHOT in between.
static_assert(
    OPENREG_MEMORY_EVENT_ALLOC == TraceEntry::ALLOC && OPENREG_MEMORY_EVENT_SEGMENT_FREE == TraceEntry::SEGMENT_FREE);
static_assert(OPENREG_MEMORY_EVENT_FREE_COMPLETED == TraceEntry::FREE_COMPLETED);
static_assert(OPENREG_MEMORY_EVENT_SEGMENT_UNMAP == TraceEntry::SEGMENT_UNMAP);
TraceEntry::Action action_of(int32_t action) {
  return action < OPENREG_MEMORY_EVENT_OOM ? static_cast<TraceEntry::Action>(action) : TraceEntry::OOM;
}

// A handle of the runtime's, in a field that PyTorch made for CUDA's.
void* as_pointer(openreg_stream stream) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(stream));
}

// Adds an event, if recording, with the text and, where stacks of allocations are taken, the stack. The mutex is held.
void keep(TraceEntry entry, std::string text, Context context) {
  const HistorySettings& settings = history().settings;
  if (!settings.enabled || settings.max_entries == 0 || settings.skipped[entry.action_]) {
    return;
  }
  auto& events = history().devices.at(entry.device_).events;
  while (events.size() >= settings.max_entries) {
    events.pop_front();
  }
  entry.user_metadata_ = std::move(text);
  if (settings.when >= RecordContext::ALLOC) {
    entry.context_ = std::move(context);
  }
  events.push_back(std::move(entry));
}

// The stack that belongs to an event; keeps those of live blocks and segments. The mutex is held.
Context context_for(DeviceHistory& its, const openreg_memory_event& event) {
  Context context = callers_stack();
  switch (event.action) {
    case OPENREG_MEMORY_EVENT_ALLOC:
      if (context != nullptr) {
        its.blocks[event.address] = context;
      }
      break;
    case OPENREG_MEMORY_EVENT_FREE_REQUESTED:
    case OPENREG_MEMORY_EVENT_FREE_COMPLETED: {
      const auto block = its.blocks.find(event.address);
      if (block == its.blocks.end()) {
        break;
      }
      if (context == nullptr) {
        context = block->second; // better than nothing: who allocated it
      }
      if (event.action == OPENREG_MEMORY_EVENT_FREE_COMPLETED) {
        its.blocks.erase(block);
      }
      break;
    }
    case OPENREG_MEMORY_EVENT_SEGMENT_ALLOC:
      if (context != nullptr) {
        its.segments[event.address] = context;
      }
      break;
    case OPENREG_MEMORY_EVENT_SEGMENT_FREE:
      its.segments.erase(event.address);
      break;
    default:
      break;
  }
  return context;
}

Context find_context(const std::unordered_map<uint64_t, Context>& contexts, uint64_t address) {
  const auto found = contexts.find(address);
  return found == contexts.end() ? nullptr : found->second;
}

// Called under the allocator's lock. Stacks that go here are released without the GIL: PyTorch keeps their frames until
// it has it.
void on_event(void* /*ctx*/, const openreg_memory_event* event) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(history().mutex);
    const auto device = static_cast<DeviceIndex>(event->device);
    Context context = context_for(history().devices.at(event->device), *event);
    void* const stream = as_pointer(event->stream);
    const MempoolId_t pool(event->pool.first, event->pool.second);
    const auto now = c10::getApproximateTime();
    keep(
        {action_of(event->action), device, event->address, event->size, stream, pool, now},
        metadata,
        std::move(context));
  } catch (...) { // no memory for it: a history may miss an event
  }
}

} // namespace

std::atomic<int> history_level{static_cast<int>(RecordContext::NEVER)};

void record_memory_history(const HistorySettings& settings, bool clear) {
  History& all = history();
  std::array<DeviceHistory, OPENREG_MAX_DEVICES> forgotten; // goes when the mutex is free again
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.settings = settings;
    for (size_t i = 0; i < forgotten.size(); ++i) {
      if (clear || !settings.enabled) {
        std::swap(forgotten[i].events, all.devices[i].events);
      }
      if (settings.when == RecordContext::NEVER || !settings.enabled) {
        std::swap(forgotten[i].blocks, all.devices[i].blocks);
        std::swap(forgotten[i].segments, all.devices[i].segments);
      }
    }
  }
  const bool takes = settings.enabled && settings.gather != nullptr && settings.when != RecordContext::NEVER;
  history_level.store(takes ? static_cast<int>(settings.when) : 0, std::memory_order_relaxed);
  static const openreg_observer observer = [] {
    openreg_observer made{};
    made.struct_size = sizeof made;
    made.memory = on_event;
    return made;
  }();
  OPENREG_CHECK(openreg_observe(&observer, settings.enabled ? OPENREG_OBSERVE_MEMORY : 0));
}

std::vector<TraceEntry> memory_history(DeviceIndex device) {
  History& all = history();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto& events = all.devices.at(device).events;
  return {events.begin(), events.end()};
}

void note_snapshot(DeviceIndex device, size_t active_bytes) {
  const std::lock_guard<std::mutex> lock(history().mutex);
  const auto now = c10::getApproximateTime();
  keep({TraceEntry::SNAPSHOT, device, 0, active_bytes, nullptr, {0, 0}, now}, metadata, nullptr);
}

void annotate_memory(DeviceIndex device, uint64_t address, std::string text) {
  const HistoryScope stack(RecordContext::STATE);
  const std::lock_guard<std::mutex> lock(history().mutex);
  const auto now = c10::getApproximateTime();
  keep({compat::kAnnotate, device, address, 0, nullptr, {0, 0}, now}, std::move(text), callers_stack());
}

Context context_of_block(DeviceIndex device, uint64_t address) {
  const std::lock_guard<std::mutex> lock(history().mutex);
  return find_context(history().devices.at(device).blocks, address);
}

Context context_of_segment(DeviceIndex device, uint64_t address) {
  const std::lock_guard<std::mutex> lock(history().mutex);
  return find_context(history().devices.at(device).segments, address);
}

void set_memory_metadata(std::string text) {
  metadata = std::move(text);
}

const std::string& memory_metadata() {
  return metadata;
}

void attach_out_of_memory_observer(OutOfMemoryObserver observer) {
  const std::lock_guard<std::mutex> lock(history().mutex);
  history().observers.push_back(std::move(observer));
}

void observe_out_of_memory(DeviceIndex device, size_t asked) {
  std::vector<OutOfMemoryObserver> observers;
  {
    const std::lock_guard<std::mutex> lock(history().mutex);
    observers = history().observers;
  }
  if (observers.empty()) {
    return;
  }
  double fraction = 1;
  uint64_t unused = 0;
  uint64_t total = 0;
  OPENREG_CHECK(openreg_memory_get_info(device, &unused, &total));
  OPENREG_CHECK(openreg_memory_get_fraction(device, &fraction));
  for (const auto& observer : observers) {
    observer(
        device,
        static_cast<int64_t>(asked),
        static_cast<int64_t>(fraction * static_cast<double>(total)),
        static_cast<int64_t>(unused));
  }
}

void HistoryScope::begin() noexcept {
  try {
    CachingDeviceAllocator::CreateContextFn gather = nullptr;
    {
      const std::lock_guard<std::mutex> lock(history().mutex);
      gather = history().settings.gather;
    }
    if (gather == nullptr) {
      return;
    }
    context_ = gather();
    before_ = std::exchange(current_context, &context_);
    begun_ = true;
  } catch (...) { // an event without a stack
  }
}

void HistoryScope::end() noexcept {
  current_context = before_;
}

} // namespace c10::openreg
