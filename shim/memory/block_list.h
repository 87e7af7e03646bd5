/* SPDX-License-Identifier: BSD-3-Clause */
// Records the blocks that a thread allocates, and serves them to it again: an operator in a replay of a graph gets the
// memory that it got in the capture.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <optional>
#include <vector>

#include "shim/base/export.h"

namespace c10::openreg {

struct ListedBlock {
  DeviceIndex device;
  size_t size; // as requested
  void* address;
};

using BlockList = std::vector<ListedBlock>;

// While it lives, its thread's allocations are appended to a list (note), or are served from one, in order (serve). The first
// request that doesn't match the list, and all later ones, are allocated as usual. The owner of the list owns its blocks.
class TORCH_OPENREG_API BlockListScope {
 public:
  static BlockListScope note(BlockList& list) {
    return {&list, nullptr};
  }
  static BlockListScope serve(const BlockList& list) {
    return {nullptr, &list};
  }
  ~BlockListScope();
  BlockListScope(const BlockListScope&) = delete;
  BlockListScope& operator=(const BlockListScope&) = delete;

  // The calling thread's; null: none. For the allocator.
  static BlockListScope* current() noexcept {
    return C10_LIKELY(live_.load(std::memory_order_relaxed) == 0) ? nullptr : of_thread();
  }
  // The next block of the list, if it is of that size; with a deleter that does nothing.
  std::optional<c10::DataPtr> next(DeviceIndex device, size_t size);
  void allocated(DeviceIndex device, size_t size, void* block);
  // Whether a thread has allocated what the list didn't have, or not all that it has.
  bool differs() const noexcept {
    return served_ != nullptr && (is_over_ || given_ != served_->size());
  }
  // Whether it is a block of the list that next() has given.
  bool has_given(const void* block) const noexcept;

 private:
  BlockListScope(BlockList* noted, const BlockList* served);
  static BlockListScope* of_thread() noexcept;

  static inline std::atomic<uint32_t> live_{0}; // of all threads: no thread-local is read while there are none

  BlockList* const noted_;
  const BlockList* const served_;
  size_t given_ = 0;
  bool is_over_ = false; // a request didn't match the list
  BlockListScope* const outer_;
};

} // namespace c10::openreg
