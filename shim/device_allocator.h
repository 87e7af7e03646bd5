// Device memory for tensors: PyTorch's DeviceAllocator on the runtime's caching allocator.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "shim/export.h"

namespace c10::openreg {

// A block belongs to the stream that was current, in the calling thread and on its device, when it was allocated.
// Statistics, peaks and limits are the runtime's. Private pools (graphs) don't exist.
// Threads: any. No function takes the GIL.
class TORCH_OPENREG_API DeviceAllocator final : public c10::DeviceAllocator {
 public:
  // `size` bytes on the current device. 0 gives a null pointer that still names the device. Throws
  // c10::OutOfMemoryError.
  DataPtr allocate(size_t size) override;

  // The same on any device (-1: the current one), without making it current.
  DataPtr allocate_on(DeviceIndex device, size_t size);

  // One constant function. Never throws; in a forked child it drops the block.
  DeleterFnPtr raw_deleter() const override;

  // Between two blocks of any devices; returns when the bytes are there.
  void copy_data(void* destination, const void* source, std::size_t size) const override;

  bool initialized() override;
  void emptyCache(MempoolId_t mempool_id = {0, 0}) override;

  // Keeps the block of `data` from being reused before the work queued on `stream` has ended. Memory that is not the
  // runtime's is ignored.
  void recordStream(const DataPtr& data, c10::Stream stream) override;

  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override; // free, total
};

// The allocator that is registered for PrivateUse1. Lives until the process ends.
TORCH_OPENREG_API DeviceAllocator& device_allocator();

} // namespace c10::openreg
