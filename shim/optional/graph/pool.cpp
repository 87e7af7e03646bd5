// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/pool.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "shim/base/status.h"

namespace c10::openreg {
namespace {

// Pools of programs have ids {0, number}.
MempoolId_t new_id() {
  static std::atomic<CaptureId_t> number{0};
  return {++number, 0};
}

// Devices whose pool the thread is in, by this file.
thread_local std::vector<std::pair<DeviceIndex, MempoolId_t>> entered;

std::mutex& shared_lock() {
  static auto& lock = *new std::mutex;
  return lock;
}

std::shared_ptr<std::unordered_set<const void*>> shared_blocks(MempoolId_t id) {
  static auto& known = *new std::map<MempoolId_t, std::weak_ptr<std::unordered_set<const void*>>>;
  const std::lock_guard<std::mutex> guard(shared_lock());
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto blocks = known[id].lock();
  if (blocks == nullptr) {
    blocks = std::make_shared<std::unordered_set<const void*>>();
    known[id] = blocks;
  }
  return blocks;
}

} // namespace

GraphPool::GraphPool(MempoolId_t id) : id_(id == MempoolId_t(0, 0) ? new_id() : id), shared_(shared_blocks(id_)) {}

GraphPool::~GraphPool() {
  for (const DeviceIndex device : devices_) {
    // Fails if the driver has been closed since, which ended the pool, too.
    (void)openreg_memory_pool_release(device, {id_.first, id_.second});
  }
}

void GraphPool::retain(DeviceIndex device) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
    devices_.reserve(devices_.size() + 1);
    OPENREG_CHECK(openreg_memory_pool_retain(device, {id_.first, id_.second}, OPENREG_MEMORY_POOL_REPLAYED));
    devices_.push_back(device);
  }
}

void GraphPool::note_block(const void* block) {
  const std::scoped_lock guard(lock_, shared_lock());
  blocks_.insert(block);
  shared_->insert(block);
}

bool GraphPool::owns(const void* block) const {
  const std::lock_guard<std::mutex> guard(lock_);
  return blocks_.count(block) != 0;
}

bool GraphPool::has(const void* block) const {
  const std::lock_guard<std::mutex> guard(shared_lock());
  return shared_->count(block) != 0;
}

PoolScope::PoolScope(GraphPool& pool, DeviceIndex device) : id_{pool.id_.first, pool.id_.second}, device_(device) {
  const std::pair entry(device, pool.id_);
  if (std::find(entered.begin(), entered.end(), entry) != entered.end()) {
    return;
  }
  pool.retain(device);
  entered.push_back(entry);
  const openreg_status status = openreg_memory_pool_enter(device, id_);
  if (status != OPENREG_OK) {
    entered.pop_back();
    throw_status(status);
  }
  entered_ = true;
}

PoolScope::~PoolScope() {
  if (entered_) {
    entered.pop_back();
    (void)openreg_memory_pool_leave(device_, id_); // it was entered: nothing can fail
  }
}

} // namespace c10::openreg
