/* SPDX-License-Identifier: BSD-3-Clause */
// Positions of pointers in a list, for lists too long for a linear search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace c10::openreg {

class PointerIndex {
 public:
  static constexpr size_t kNone = ~size_t{0};

  size_t size() const {
    return size_;
  }

  // `pointer`, not null and not yet known, is at position size().
  void append(const void* pointer) {
    if (2 * (size_ + 1) > slots_.size()) {
      grow();
    }
    slots_[slot_of(pointer)] = {pointer, size_++};
  }

  // The position, or kNone.
  size_t find(const void* pointer) const {
    if (slots_.empty()) {
      return kNone;
    }
    const Slot& slot = slots_[slot_of(pointer)];
    return slot.pointer == nullptr ? kNone : slot.position;
  }

 private:
  struct Slot {
    const void* pointer = nullptr;
    size_t position = 0;
  };

  // Where the pointer is, or the free slot where it belongs.
  size_t slot_of(const void* pointer) const {
    const size_t mask = slots_.size() - 1;
    size_t i = (reinterpret_cast<uintptr_t>(pointer) * uint64_t{0x9e3779b97f4a7c15} >> 32) & mask; // Fibonacci hashing
    while (slots_[i].pointer != nullptr && slots_[i].pointer != pointer) {
      i = (i + 1) & mask;
    }
    return i;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 256 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.pointer != nullptr) {
        slots_[slot_of(slot.pointer)] = slot;
      }
    }
  }

  std::vector<Slot> slots_; // a power of two of them, half of them free
  size_t size_ = 0;
};

} // namespace c10::openreg
