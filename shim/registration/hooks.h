/* SPDX-License-Identifier: BSD-3-Clause */
// What PyTorch asks the backend outside operators: availability, devices, generators, pinned memory, addresses.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "shim/base/export.h"
#include "shim/device/device.h"
#include "shim/device/generator.h"

namespace c10::openreg {

// isBuilt(), isAvailable(), deviceCount() and isPinnedPtr() neither throw nor make a context.
struct TORCH_OPENREG_API OpenRegHooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(DeviceIndex device_index) const override; // false until the first allocation or stream
  void init() const override;

  DeviceIndex deviceCount() const override {
    return device_count();
  }
  void setCurrentDevice(DeviceIndex device) const override {
    set_device(device);
  }
  DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return exchange_device(device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return maybe_exchange_device(device);
  }

  // -1: of the current device.
  const at::Generator& getDefaultGenerator(DeviceIndex device_index) const override {
    return default_generator(device_index);
  }
  at::Generator getNewGenerator(DeviceIndex device_index = -1) const override {
    return make_generator(device_index);
  }

  bool isPinnedPtr(const void* data) const override;
  at::Allocator* getPinnedMemoryAllocator() const override;
  Device getDeviceFromPtr(void* data) const override; // addresses inside a block too

  // Moves the storage to `new_size` bytes on its own device and keeps what fits of its contents.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t new_size) const override;
};

} // namespace c10::openreg
