/* SPDX-License-Identifier: BSD-3-Clause */
// What the caching allocator has done, and which code asked for it: the events behind torch.openreg.memory._snapshot().
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <openreg/allocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shim/base/export.h"

namespace c10::openreg {

using Context = std::shared_ptr<GatheredContext>; // a stack; null: none was taken

struct HistorySettings {
  bool enabled = false;
  CachingDeviceAllocator::CreateContextFn gather = nullptr; // takes a stack; may take the GIL; any thread
  CachingDeviceAllocator::RecordContext when = CachingDeviceAllocator::RecordContext::NEVER;
  size_t max_entries = 0;         // of a device; then the oldest go
  std::array<bool, 10> skipped{}; // by TraceEntry::Action: these are not kept
};

// Starts or ends recording. Enabling keeps the events there are, unless `clear`.
TORCH_OPENREG_API void record_memory_history(const HistorySettings& settings, bool clear);

// Events of a device, the oldest first. Their time is in approximate clock units.
TORCH_OPENREG_API std::vector<CachingDeviceAllocator::TraceEntry> memory_history(DeviceIndex device);

// Appends an event that the allocator knows nothing of, TraceEntry::SNAPSHOT, if recording.
TORCH_OPENREG_API void note_snapshot(DeviceIndex device, size_t active_bytes);

// Appends an event, TraceEntry::ANNOTATE, with a text for memory in use that starts at `address`, if recording: its own text
// in the place of the thread's, and the caller's stack (a HistoryScope) where stacks of allocations are taken.
TORCH_OPENREG_API void annotate_memory(DeviceIndex device, uint64_t address, std::string text);

// The stack of the allocation of a live block, or of a segment, that starts at `address`; null if there is none.
TORCH_OPENREG_API Context context_of_block(DeviceIndex device, uint64_t address);
TORCH_OPENREG_API Context context_of_segment(DeviceIndex device, uint64_t address);

// Text that later events of this thread carry.
TORCH_OPENREG_API void set_memory_metadata(std::string text);
TORCH_OPENREG_API const std::string& memory_metadata();

// (device, bytes asked for, bytes that the process may use there, bytes free), after a request has failed and before
// OutOfMemoryError. No lock is held. It stays for the life of the process.
using OutOfMemoryObserver = std::function<void(int64_t device, int64_t asked, int64_t allowed, int64_t free)>;
TORCH_OPENREG_API void attach_out_of_memory_observer(OutOfMemoryObserver observer);
void observe_out_of_memory(DeviceIndex device, size_t asked); // for the allocator; throws what observers throw

extern std::atomic<int> history_level; // a RecordContext; NEVER also while nothing is recorded

// While it lives, events that this thread causes have the stack of where it was made, if stacks are taken at `level`.
class HistoryScope {
 public:
  explicit HistoryScope(CachingDeviceAllocator::RecordContext level) {
    if (C10_UNLIKELY(history_level.load(std::memory_order_relaxed) >= static_cast<int>(level))) {
      begin();
    }
  }
  ~HistoryScope() {
    if (C10_UNLIKELY(begun_)) {
      end();
    }
  }
  HistoryScope(const HistoryScope&) = delete;
  HistoryScope& operator=(const HistoryScope&) = delete;

 private:
  void begin() noexcept;
  void end() noexcept;

  bool begun_ = false;
  Context context_;
  const Context* before_ = nullptr;
};

} // namespace c10::openreg
