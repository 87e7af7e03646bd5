// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/staged_storage.h"

#include <openreg/openreg.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>

#include "shim/base/status.h"
#include "shim/operators/fallback/cpu_allocations.h"

namespace c10::openreg {
namespace {

// Of PyTorch's operators. Words in the name of those that reach beyond their tensors, into the storage; and those that write
// what their schema calls read: running statistics, a workspace.
constexpr std::array<std::string_view, 4> kReachBeyond = {"as_strided", "resize", "set_", "storage"};
constexpr std::array<std::string_view, 6> kWriteUndeclared = {
    "aten::native_batch_norm",
    "aten::_batch_norm_impl_index",
    "aten::batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::mkldnn_rnn_layer_backward"};

std::atomic<bool> is_watching{false};

struct Found {
  std::mutex lock;
  std::set<std::string> names;
};

Found& found() {
  static auto& only = *new Found;
  return only;
}

// FNV over 8-byte words in four lanes: only to notice that a kernel wrote what its schema doesn't declare as written.
uint64_t checksum_of(const void* data, size_t size) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t lanes[4] = {0xcbf29ce484222325, 0x84222325cbf29ce4, 0x9e3779b97f4a7c15, 0x7f4a7c159e3779b9};
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (; size >= 32; size -= 32, bytes += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes, sizeof words);
    for (int lane = 0; lane < 4; ++lane) {
      lanes[lane] = (lanes[lane] ^ words[lane]) * kPrime;
      lanes[lane] ^= lanes[lane] >> 29;
    }
  }
  for (; size > 0; --size, ++bytes) {
    lanes[0] = (lanes[0] ^ *bytes) * kPrime;
  }
  return ((lanes[0] * kPrime ^ lanes[1]) * kPrime ^ lanes[2]) * kPrime ^ lanes[3];
}

// Calls `use` for each part of `extent` that is in none of `known`, which are sorted and disjoint.
template <class Use>
void for_each_gap(const c10::SmallVectorImpl<Extent>& known, Extent extent, Use use) {
  size_t begin = extent.begin;
  for (const Extent& one : known) {
    if (one.end <= begin) {
      continue;
    }
    if (one.begin >= extent.end) {
      break;
    }
    if (one.begin > begin) {
      use(Extent{begin, one.begin});
    }
    begin = one.end;
  }
  if (begin < extent.end) {
    use(Extent{begin, extent.end});
  }
}

// Joins `extent` with those that it touches.
void add_extent(c10::SmallVectorImpl<Extent>& known, Extent extent) {
  if (extent.is_empty()) {
    return;
  }
  auto* first = std::find_if(known.begin(), known.end(), [&](const Extent& one) { return one.end >= extent.begin; });
  auto* last = first;
  for (; last != known.end() && last->begin <= extent.end; ++last) {
    extent.begin = std::min(extent.begin, last->begin);
    extent.end = std::max(extent.end, last->end);
  }
  if (first == last) {
    known.insert(first, extent);
  } else {
    *first = extent;
    known.erase(first + 1, last);
  }
}

} // namespace

Extent extent_of(const c10::TensorImpl& tensor) {
  if (tensor.numel() == 0) {
    return {};
  }
  int64_t last = tensor.storage_offset();
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    last += (sizes[i] - 1) * strides[i]; // never negative
  }
  const size_t item = tensor.itemsize();
  return {static_cast<size_t>(tensor.storage_offset()) * item, static_cast<size_t>(last + 1) * item};
}

bool covers_what_it_touches(const std::string& name) {
  constexpr std::string_view kNamespace = "aten::";
  if (name.compare(0, kNamespace.size(), kNamespace) != 0) {
    return false;
  }
  const auto is_in_name = [&](std::string_view word) { return name.find(word) != std::string::npos; };
  return std::none_of(kReachBeyond.begin(), kReachBeyond.end(), is_in_name) &&
      std::find(kWriteUndeclared.begin(), kWriteUndeclared.end(), name) == kWriteUndeclared.end();
}

void watch_undeclared_writes(bool on) {
  is_watching.store(on, std::memory_order_relaxed);
}

std::set<std::string> undeclared_writes() {
  const std::lock_guard<std::mutex> guard(found().lock);
  return found().names;
}

StagedStorage::StagedStorage(DeviceIndex device, void* data, size_t size, bool is_whole)
    : device_(device),
      data_(data),
      size_(size),
      is_whole_(is_whole),
      is_watched_(is_whole || is_watching.load(std::memory_order_relaxed)) {}

c10::DataPtr StagedStorage::take_memory() {
  const AllocateOnDevice on_host(kInStagingBuffers);
  c10::DataPtr memory = cpu_allocations()->allocate(size_);
  memory_ = static_cast<char*>(memory.get());
  return memory;
}

size_t StagedStorage::copy_in(Extent extent, void* memory) {
  const size_t size = extent.end - extent.begin;
  OPENREG_CHECK(openreg_memcpy(
      static_cast<char*>(memory) + extent.begin,
      OPENREG_HOST,
      static_cast<char*>(data_) + extent.begin,
      device_,
      size));
  return size;
}

size_t StagedStorage::bring(Extent extent) {
  if (is_whole_) {
    extent = {0, size_};
  }
  extent.end = std::min(extent.end, size_);
  size_t copied = 0;
  for_each_gap(there_, extent, [&](Extent gap) {
    copied += copy_in(gap, memory_);
    if (is_watched_) {
      pieces_.push_back({gap, checksum_of(memory_ + gap.begin, gap.end - gap.begin)});
    }
  });
  add_extent(there_, extent);
  return copied;
}

void StagedStorage::note_written(Extent extent) {
  if (is_whole_) {
    extent = {0, size_};
  }
  extent.end = std::min(extent.end, size_);
  add_extent(written_, extent);
}

// Of the pieces of which no byte is to be copied back anyway.
bool StagedStorage::has_undeclared_writes() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    const bool is_declared = std::any_of(written_.begin(), written_.end(), [&](const Extent& one) {
      return one.begin < piece.extent.end && piece.extent.begin < one.end;
    });
    return !is_declared &&
        checksum_of(memory_ + piece.extent.begin, piece.extent.end - piece.extent.begin) != piece.checksum;
  });
}

bool StagedStorage::has_writes(const std::string& name) {
  if (C10_UNLIKELY(is_watched_) && has_undeclared_writes()) {
    if (is_whole_) {
      note_written({0, size_});
    } else {
      const std::lock_guard<std::mutex> guard(found().lock);
      found().names.insert(name);
    }
  }
  return !written_.empty();
}

size_t StagedStorage::write_back(void* data) {
  size_t copied = 0;
  for (const Extent& one : written_) {
    const size_t size = one.end - one.begin;
    OPENREG_CHECK(
        openreg_memcpy(static_cast<char*>(data) + one.begin, device_, memory_ + one.begin, OPENREG_HOST, size));
    copied += size;
  }
  return copied;
}

size_t StagedStorage::complete(void* memory, size_t size) {
  for (const Extent& one : written_) { // by the kernel, where it had not been brought
    add_extent(there_, one);
  }
  size_t copied = 0;
  for_each_gap(there_, {0, std::min(size, size_)}, [&](Extent gap) { copied += copy_in(gap, memory); });
  return copied;
}

} // namespace c10::openreg
