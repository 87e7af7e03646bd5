// SPDX-License-Identifier: BSD-3-Clause
#include "shim/registration/hooks.h"

#include <ATen/core/CachingHostAllocator.h>

#include <algorithm>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/memory/device_allocator.h"
#include "shim/memory/host_allocator.h"
#include "shim/memory/storage.h"
#include "shim/operators/fallback/gpu_allocations.h"

namespace c10::openreg {

namespace {

// The kind of an unknown address is OPENREG_POINTER_UNKNOWN; never throws.
openreg_pointer_info query(const void* data) noexcept {
  openreg_pointer_info info{};
  info.struct_size = sizeof info;
  if (openreg_pointer_get_info(data, &info) != OPENREG_OK) {
    info.kind = OPENREG_POINTER_UNKNOWN;
  }
  return info;
}

} // namespace

bool OpenRegHooks::hasPrimaryContext(DeviceIndex device_index) const {
  const DeviceIndex index = index_or_current(device_index);
  if (openreg_is_initialized() == 0 && index >= 0 && index < device_count()) {
    return false; // openreg_device_active() would open the driver
  }
  int32_t active = 0;
  OPENREG_CHECK(openreg_device_active(index, &active));
  return active != 0;
}

void OpenRegHooks::init() const {
  OPENREG_CHECK(openreg_init());
  prepare_gpu_allocations();
}

bool OpenRegHooks::isPinnedPtr(const void* data) const {
  return query(data).kind == OPENREG_POINTER_PINNED;
}

at::Allocator* OpenRegHooks::getPinnedMemoryAllocator() const {
  return &host_allocator();
}

Device OpenRegHooks::getDeviceFromPtr(void* data) const {
  const openreg_pointer_info info = query(data);
  TORCH_CHECK(
      info.kind == OPENREG_POINTER_DEVICE,
      "The pointer ",
      data,
      " is not memory of ",
      a_device_name(),
      " device",
      info.kind == OPENREG_POINTER_PINNED      ? ": it is pinned host memory."
          : info.kind == OPENREG_POINTER_ALIAS ? ": it is a host view of device memory."
                                               : ".");
  return Device(DeviceType::PrivateUse1, static_cast<DeviceIndex>(info.device));
}

void OpenRegHooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t new_size) const {
  StorageImpl& impl = *storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl.device().is_privateuseone(), "Expected a PrivateUse1 device, but got ", impl.device());
  auto* const watch = capture_watch();
  if (watch == nullptr || !watch->resize(impl, new_size)) {
    resize_storage(impl, new_size);
  }
}

} // namespace c10::openreg
