/* SPDX-License-Identifier: BSD-3-Clause */
// The private pool of a graph's memory: an id that graphs may share, retained on each device where one of them uses it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <openreg/allocator.h>

#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace c10::openreg {

class GraphPool {
 public:
  // {0, 0}: a new id.
  explicit GraphPool(MempoolId_t id);
  ~GraphPool(); // releases it: memory that no other graph shares returns to the device
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;

  MempoolId_t id() const noexcept {
    return id_;
  }

  // Records a block that the captured program may free while the graph still writes it, in each replay.
  void note_block(const void* block);
  // Whether it is one of this graph's.
  bool owns(const void* block) const;
  // Or of a graph that shares the pool.
  bool has(const void* block) const;

 private:
  friend class PoolScope;
  using Blocks = std::unordered_set<const void*>;
  void retain(DeviceIndex device);

  const MempoolId_t id_;
  mutable std::mutex lock_;
  std::vector<DeviceIndex> devices_;
  Blocks blocks_;
  const std::shared_ptr<Blocks> shared_; // of all graphs with this id; guarded by a lock of its own
};

// While it lives, the thread's new memory on the device is the pool's. Scopes nest.
class PoolScope {
 public:
  PoolScope(GraphPool& pool, DeviceIndex device);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  const openreg_memory_pool_id id_;
  const DeviceIndex device_;
  bool entered_ = false;
};

} // namespace c10::openreg
