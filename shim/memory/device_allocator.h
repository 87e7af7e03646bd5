/* SPDX-License-Identifier: BSD-3-Clause */
// Device memory for tensors: PyTorch's DeviceAllocator on the runtime's caching allocator.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <openreg/openreg.h>

#include <utility>
#include <vector>

#include "shim/base/export.h"

namespace c10::openreg {

// A block belongs to the stream that was current, in the calling thread and on its device, when it was allocated.
// Statistics, peaks, limits, settings and private pools are the runtime's (openreg/allocator.h).
// Threads: any. No function takes the GIL.
class TORCH_OPENREG_API DeviceAllocator final : public c10::DeviceAllocator {
 public:
  // `size` bytes on the current device. 0 gives a null pointer that still names the device. Throws
  // c10::OutOfMemoryError.
  DataPtr allocate(size_t size) override;

  // The same on any device (-1: the current one), without making it current.
  DataPtr allocate_on(DeviceIndex device, size_t size);

  // A block for `stream` of a device, to be freed by raw_deleter(); null for a size of 0.
  void* allocate_block(DeviceIndex device, size_t size, openreg_stream stream);

  // One constant function. Never throws; in a forked child it drops the block.
  DeleterFnPtr raw_deleter() const override;

  // Between two blocks of any devices; returns when the copy is complete.
  void copy_data(void* destination, const void* source, std::size_t size) const override;

  bool initialized() override;
  // Of every device. {0, 0}: what belongs to no private pool.
  void emptyCache(MempoolId_t mempool_id = {0, 0}) override;

  // Keeps the block of `data` from being reused before the work queued on `stream` has ended. Memory that is not the
  // runtime's is ignored.
  void recordStream(const DataPtr& data, c10::Stream stream) override;

  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override; // free, total
};

// The private pools of a device that is in use, with the bytes reserved for each.
TORCH_OPENREG_API std::vector<std::pair<MempoolId_t, CachingAllocator::StatArray>> private_pools(DeviceIndex device);

// The allocator that is registered for PrivateUse1. Lives until the process ends.
TORCH_OPENREG_API DeviceAllocator& device_allocator();

} // namespace c10::openreg
