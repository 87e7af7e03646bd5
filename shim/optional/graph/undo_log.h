/* SPDX-License-Identifier: BSD-3-Clause */
// What a capture changes outside of the graph's own memory, so that it can be put back: a capture runs everything, and the
// program is to find that nothing has happened.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "shim/optional/graph/pool.h"

namespace c10::openreg {

// Of one capture. Any thread. Memory that the capture allocated (GraphPool::owns()) is not saved: its content is
// undefined before the first replay, as on CUDA.
class UndoLog {
 public:
  explicit UndoLog(const GraphPool& pool) : pool_(pool) {}

  // Before the first of the capture's work on a device, and before memory there is saved: what was queued before the capture may
  // still write it, or use the pool. The host waits.
  void settle(DeviceIndex device);

  // Before an operator of a stream of the device: what it may write, also in pinned memory. The copy is queued on the current
  // stream.
  void save_written(const at::Tensor& tensor, DeviceIndex device);
  // Of what it only reads, by its schema: saved where it is small, as schemas hide writes (batch norm's statistics).
  void save_read(const at::Tensor& tensor, DeviceIndex device);
  void save(const at::Generator& generator);

  // Whether the capture may have changed it.
  bool is_written(const c10::Storage& storage);
  // The program has written what the capture only reads: that stays.
  void forget(const c10::Storage& storage);

  // Puts all back and forgets it. Queued on the current streams, on which the host then waits.
  void restore();

 private:
  struct Saved {
    c10::Storage storage; // kept, so that its memory is nobody else's
    at::Tensor bytes;     // on a device
    int32_t home;         // the storage's device, or OPENREG_HOST
    bool is_written;
  };

  void save(const at::Tensor& tensor, DeviceIndex device, bool is_written);

  const GraphPool& pool_;
  std::mutex lock_; // of what follows
  std::unordered_map<const c10::StorageImpl*, Saved> memory_;
  std::vector<std::pair<at::Generator, at::Generator>> generators_; // and how it was
  std::vector<DeviceIndex> settled_;
};

} // namespace c10::openreg
