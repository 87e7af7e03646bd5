// SPDX-License-Identifier: BSD-3-Clause
#include "shim/memory/device_allocator.h"

#include <openreg/allocator.h>

#include <iterator>

#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/memory/allocator_settings.h"
#include "shim/memory/block_list.h"
#include "shim/memory/staging_buffers.h"
#include "shim/observe/memory_history.h"

namespace c10::openreg {

namespace {

Device device_of(DeviceIndex index) {
  return Device(DeviceType::PrivateUse1, index);
}

openreg_memory_stats memory_stats(DeviceIndex device) {
  openreg_memory_stats stats{};
  stats.struct_size = sizeof stats;
  OPENREG_CHECK(openreg_memory_get_stats(index_or_current(device), &stats));
  return stats;
}

openreg_pointer_info pointer_info(const void* pointer) {
  openreg_pointer_info info{};
  info.struct_size = sizeof info;
  OPENREG_CHECK(openreg_pointer_get_info(pointer, &info));
  return info;
}

// `size` is negative for a free.
void report_to_profiler(void* block, int64_t size, DeviceIndex device) {
  const openreg_memory_stats stats = memory_stats(device);
  c10::reportMemoryUsageToProfiler(
      block,
      size,
      static_cast<size_t>(stats.allocated_bytes[0].current),
      static_cast<size_t>(stats.reserved_bytes[0].current),
      device_of(device));
}

void free_block(void* block) noexcept {
  const HistoryScope scope(CachingDeviceAllocator::RecordContext::ALL);
  const openreg_status status = openreg_free(block);
  // A forked child holds tensors of its parent: their memory is the parent's, there is nothing to free.
  if (C10_UNLIKELY(status != OPENREG_OK && status != OPENREG_E_FORKED)) {
    warn_of_failure("A block of device memory could not be freed: ", openreg_last_error()->message);
  }
}

void free_and_report(void* block) noexcept {
  openreg_pointer_info info{};
  info.struct_size = sizeof info;
  const bool known = openreg_pointer_get_info(block, &info) == OPENREG_OK && info.kind == OPENREG_POINTER_DEVICE;
  free_block(block);
  try {
    if (known) {
      report_to_profiler(block, -static_cast<int64_t>(info.size), static_cast<DeviceIndex>(info.device));
    }
  } catch (...) { // a profile may miss a row, a destructor may not throw
  }
}

void delete_block(void* block) noexcept {
  const auto* const listed = BlockListScope::current();
  if (block == nullptr || C10_UNLIKELY(listed != nullptr && listed->has_given(block))) {
    return;
  }
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    free_and_report(block);
  } else {
    free_block(block);
  }
}

CachingAllocator::Stat convert(const openreg_stat& from) {
  CachingAllocator::Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

CachingAllocator::StatArray convert(const openreg_stat (&from)[3]) {
  CachingAllocator::StatArray to; // both: all, small pool, large pool
  static_assert(std::tuple_size_v<CachingAllocator::StatArray> == std::size(openreg_memory_stats{}.allocation));
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = convert(from[i]);
  }
  return to;
}

} // namespace

DataPtr DeviceAllocator::allocate(size_t size) {
  return allocate_on(current_device(), size);
}

DataPtr DeviceAllocator::allocate_on(DeviceIndex device, size_t size) {
  const DeviceIndex index = index_or_current(device);
  const openreg_stream stream = current_stream(index).id(); // checks the index for a size of 0 too
  auto* const listed = BlockListScope::current();
  if (C10_UNLIKELY(listed != nullptr && size > 0)) {
    if (auto given = listed->next(index, size)) {
      return std::move(*given);
    }
  }
  void* block = allocate_block(index, size, stream);
  DataPtr data(block, block, &delete_block, device_of(index));
  if (C10_UNLIKELY(listed != nullptr)) {
    listed->allocated(index, size, block);
  }
  if (C10_UNLIKELY(block != nullptr && c10::memoryProfilingEnabled())) {
    report_to_profiler(block, static_cast<int64_t>(size), index);
  }
  return data;
}

void* DeviceAllocator::allocate_block(DeviceIndex device, size_t size, openreg_stream stream) {
  ensure_allocator_settings();
  const HistoryScope scope(CachingDeviceAllocator::RecordContext::STATE);
  void* block = nullptr;
  const openreg_status status = openreg_malloc(device, stream, size, &block);
  if (C10_UNLIKELY(status != OPENREG_OK)) {
    // No device has this much memory: programs that fall back to a smaller size expect the error of a full device.
    constexpr size_t kLargest = size_t{1} << 47;
    try {
      TORCH_CHECK_WITH(OutOfMemoryError, size <= kLargest, openreg_last_error()->message);
      throw_status(status);
    } catch (const OutOfMemoryError&) { // what follows calls the runtime: the text has been read
      if (c10::memoryProfilingEnabled()) {
        const openreg_memory_stats stats = memory_stats(device);
        c10::reportOutOfMemoryToProfiler(
            static_cast<int64_t>(size),
            static_cast<size_t>(stats.allocated_bytes[0].current),
            static_cast<size_t>(stats.reserved_bytes[0].current),
            device_of(device));
      }
      observe_out_of_memory(device, size);
      throw;
    }
  }
  return block;
}

DeleterFnPtr DeviceAllocator::raw_deleter() const {
  return &delete_block;
}

void DeviceAllocator::copy_data(void* destination, const void* source, std::size_t size) const {
  if (size == 0) {
    return;
  }
  OPENREG_CHECK(
      openreg_memcpy(destination, pointer_info(destination).device, source, pointer_info(source).device, size));
}

bool DeviceAllocator::initialized() {
  return openreg_is_initialized() != 0;
}

void DeviceAllocator::emptyCache(MempoolId_t mempool_id) {
  if (mempool_id == MempoolId_t(0, 0)) {
    release_staging_buffers();
    OPENREG_CHECK(openreg_memory_empty_cache(-1));
    return;
  }
  for (DeviceIndex device = 0; initialized() && device < device_count(); ++device) {
    OPENREG_CHECK(openreg_memory_pool_trim(device, {mempool_id.first, mempool_id.second}));
  }
}

void DeviceAllocator::recordStream(const DataPtr& data, c10::Stream stream) {
  if (data.get() == nullptr) {
    return;
  }
  TORCH_CHECK(
      stream.device_type() == DeviceType::PrivateUse1,
      "Expected a stream of a PrivateUse1 device, but got one of ",
      stream.device());
  // By address and not by deleter: a DataPtr may wrap a block in a context of its own.
  const openreg_pointer_info info = pointer_info(data.get());
  if (info.kind != OPENREG_POINTER_DEVICE || info.live == 0) {
    return;
  }
  OPENREG_CHECK(openreg_memory_record_stream(info.base, stream.device_index(), stream.id()));
}

CachingDeviceAllocator::DeviceStats DeviceAllocator::getDeviceStats(DeviceIndex device) {
  const openreg_memory_stats from = memory_stats(device);
  CachingDeviceAllocator::DeviceStats to;
  to.allocation = convert(from.allocation);
  to.segment = convert(from.segment);
  to.active = convert(from.active);
  to.inactive_split = convert(from.inactive_split);
  to.allocated_bytes = convert(from.allocated_bytes);
  to.reserved_bytes = convert(from.reserved_bytes);
  to.active_bytes = convert(from.active_bytes);
  to.inactive_split_bytes = convert(from.inactive_split_bytes);
  to.requested_bytes = convert(from.requested_bytes);
  to.num_alloc_retries = from.num_alloc_retries;
  to.num_ooms = from.num_ooms;
  to.oversize_allocations = convert(from.oversize_allocations);
  to.oversize_segments = convert(from.oversize_segments);
  to.num_sync_all_streams = from.num_sync_all_streams;
  to.num_device_alloc = from.num_device_alloc;
  to.num_device_free = from.num_device_free;
  to.max_split_size = from.max_split_size;
  for (const auto& [id, reserved] : private_pools(index_or_current(device))) {
    to.reserved_bytes_by_private_pools[id] = reserved;
  }
  return to;
}

void DeviceAllocator::resetAccumulatedStats(DeviceIndex device) {
  OPENREG_CHECK(openreg_memory_reset_accumulated_stats(index_or_current(device)));
}

void DeviceAllocator::resetPeakStats(DeviceIndex device) {
  OPENREG_CHECK(openreg_memory_reset_peak_stats(index_or_current(device)));
}

std::pair<size_t, size_t> DeviceAllocator::getMemoryInfo(DeviceIndex device) {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  OPENREG_CHECK(openreg_memory_get_info(index_or_current(device), &free_bytes, &total_bytes));
  return {free_bytes, total_bytes};
}

std::vector<std::pair<MempoolId_t, CachingAllocator::StatArray>> private_pools(DeviceIndex device) {
  std::vector<std::pair<MempoolId_t, CachingAllocator::StatArray>> pools;
  const auto collect = [](void* context, const openreg_memory_pool_info* pool) -> int {
    try {
      if (pool->uses > 0) {
        static_cast<decltype(pools)*>(context)->emplace_back(
            MempoolId_t(pool->id.first, pool->id.second), convert(pool->reserved));
      }
      return 0;
    } catch (...) {
      return 1; // out of host memory: ends the walk
    }
  };
  OPENREG_CHECK(openreg_memory_visit_pools(device, collect, &pools));
  return pools;
}

DeviceAllocator& device_allocator() {
  // Never destroyed: tensors may outlive every static object.
  static auto& allocator = *new DeviceAllocator;
  return allocator;
}

} // namespace c10::openreg
