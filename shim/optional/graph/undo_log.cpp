// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/undo_log.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/observe/races.h"
#include "shim/operators/policy/kernel_keys.h"
#include "shim/optional/graph/capture.h"
#include "shim/optional/graph/recorder.h"

namespace c10::openreg {
namespace {

constexpr size_t kSmall = size_t{64} << 10; // bytes; copying all that an inference reads would cost ten steps

// Queued on the device's current stream.
void copy_bytes(void* to, int32_t to_device, const void* from, int32_t from_device, size_t size, DeviceIndex device) {
  OPENREG_CHECK(openreg_memcpy_async(device, current_stream_of(device).stream, to, to_device, from, from_device, size));
}

} // namespace

// Nothing waits with the lock held: who waits may want the GIL, and who has that, the lock.
void UndoLog::settle(DeviceIndex device) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (std::find(settled_.begin(), settled_.end(), device) != settled_.end()) {
      return;
    }
  }
  {
    const WaitScope waiting;
    OPENREG_CHECK(openreg_device_synchronize(device));
  }
  const std::lock_guard<std::mutex> guard(lock_);
  settled_.push_back(device);
}

void UndoLog::save_written(const at::Tensor& tensor, DeviceIndex device) {
  save(tensor, device, true);
}

void UndoLog::save_read(const at::Tensor& tensor, DeviceIndex device) {
  if (tensor.defined() && tensor.has_storage() && tensor.storage().nbytes() <= kSmall) {
    save(tensor, device, false);
  }
}

void UndoLog::save(const at::Tensor& tensor, DeviceIndex device, bool is_written) {
  if (!tensor.defined() || !tensor.has_storage() || !(tensor.is_privateuseone() || tensor.is_pinned())) {
    return;
  }
  const c10::Storage& storage = tensor.storage();
  const void* const data = storage.data();
  if (data == nullptr || storage.nbytes() == 0 || pool_.owns(data)) {
    return;
  }
  const c10::Device there(c10::DeviceType::PrivateUse1, tensor.is_cpu() ? device : tensor.device().index());
  const int32_t home = tensor.is_cpu() ? OPENREG_HOST : there.index();
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto [entry, is_new] = memory_.try_emplace(storage.unsafeGetStorageImpl(), Saved{storage, {}, home, false});
    entry->second.is_written = entry->second.is_written || is_written;
    if (!is_new) {
      return;
    }
  }
  settle(there.index());
  const c10::impl::ExcludeDispatchKeyGuard without(kAboveKernels | c10::DispatchKeySet(kCapture));
  const c10::InferenceMode plain(false);
  const RaceMute mute(races_are_found());
  const at::Tensor bytes =
      at::empty({static_cast<int64_t>(storage.nbytes())}, at::TensorOptions(at::kByte).device(there));
  copy_bytes(bytes.mutable_data_ptr(), there.index(), data, home, storage.nbytes(), there.index());
  const std::lock_guard<std::mutex> guard(lock_);
  memory_[storage.unsafeGetStorageImpl()].bytes = bytes;
}

bool UndoLog::is_written(const c10::Storage& storage) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = memory_.find(storage.unsafeGetStorageImpl());
  return found != memory_.end() && found->second.is_written;
}

void UndoLog::forget(const c10::Storage& storage) {
  const std::lock_guard<std::mutex> guard(lock_);
  memory_.erase(storage.unsafeGetStorageImpl());
}

void UndoLog::save(const at::Generator& generator) {
  const std::lock_guard<std::mutex> guard(lock_);
  const bool is_known =
      std::any_of(generators_.begin(), generators_.end(), [&](const auto& saved) { return saved.first == generator; });
  if (!is_known) {
    generators_.emplace_back(generator, generator.clone());
  }
}

void UndoLog::restore() {
  decltype(memory_) memory;
  decltype(generators_) generators;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    memory.swap(memory_);
    generators.swap(generators_);
  }
  const c10::impl::ExcludeDispatchKeyGuard without(kAboveKernels | c10::DispatchKeySet(kCapture));
  const RaceMute mute(races_are_found());
  std::vector<DeviceIndex> devices;
  for (const auto& [impl, saved] : memory) {
    if (!saved.bytes.defined()) { // it could not be saved
      continue;
    }
    const size_t size = std::min(saved.storage.nbytes(), saved.bytes.nbytes());
    const DeviceIndex device = saved.bytes.device().index();
    if (saved.storage.data() != nullptr && size > 0) { // where the program resized it, what is left of it
      void* const data = const_cast<void*>(saved.storage.data());
      copy_bytes(data, saved.home, saved.bytes.const_data_ptr(), device, size, device);
      devices.push_back(device);
    }
  }
  for (auto& [generator, before] : generators) {
    generator.set_state(before.get_state());
  }
  const WaitScope waiting;
  for (const DeviceIndex device : devices) {
    OPENREG_CHECK(openreg_stream_synchronize(device, current_stream_of(device).stream));
  }
}

} // namespace c10::openreg
