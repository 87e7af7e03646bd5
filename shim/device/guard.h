/* SPDX-License-Identifier: BSD-3-Clause */
// The device guard: how PyTorch switches devices and streams, and records and waits for events.
#pragma once

#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "shim/base/export.h"
#include "shim/device/device.h"

namespace c10::openreg {

// One registered object serves c10::DeviceGuard, c10::StreamGuard, torch.accelerator, torch.Stream and torch.Event.
//
//   Devices  An index of -1 means the current device where a function reads one (streams, synchronizeDevice), and is an
//            error where it sets one.
//   Streams  A StreamId is an openreg_stream: 0 is the default stream. No function changes the current device.
//   Events   A void* is an openreg_event, created by the first record().
struct TORCH_OPENREG_API OpenRegGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  static constexpr DeviceType static_type = DeviceType::PrivateUse1;

  OpenRegGuardImpl() = default;
  explicit OpenRegGuardImpl(DeviceType type); // throws unless it is PrivateUse1

  DeviceType type() const override {
    return static_type;
  }

  Device exchangeDevice(Device device) const override;
  Device getDevice() const override;
  void setDevice(Device device) const override;
  void uncheckedSetDevice(Device device) const noexcept override;
  DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }
  DeviceCapability getDeviceCapability(Device device) const override;
  void synchronizeDevice(DeviceIndex device_index) const override;

  Stream getStream(Device device) const override;
  Stream getDefaultStream(Device device) const override;
  Stream getStreamFromGlobalPool(Device device, bool isHighPriority = false) const override;
  Stream getNewStream(Device device, int priority = 0) const override;
  Stream exchangeStream(Stream stream) const override;
  void* getStreamNativeHandle(Stream stream) const override;
  bool queryStream(const Stream& stream) const override;
  void synchronizeStream(const Stream& stream) const override;

  void record(void** event, const Stream& stream, DeviceIndex device_index, EventFlag flag) const override;
  void block(void* event, const Stream& stream) const override;
  bool queryEvent(void* event) const override;
  void synchronizeEvent(void* event) const override;
  void destroyEvent(void* event, DeviceIndex device_index) const noexcept override;
  double elapsedTime(void* start, void* end, DeviceIndex device_index) const override;

  void recordDataPtrOnStream(const DataPtr& data, const Stream& stream) const override;

  bool isStreamCapturing(const Stream& stream) const override;
};

} // namespace c10::openreg
