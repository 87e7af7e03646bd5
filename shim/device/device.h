/* SPDX-License-Identifier: BSD-3-Clause */
// Device selection for C++: the runtime's current device in PyTorch's types.
//
// The current device belongs to the runtime and to the calling thread; nothing is cached here. A DeviceIndex is an
// int8: "openreg:200" reaches C++ as -56. So only -1 ever stands for "no index given"; every other negative index is
// out of range and raises.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <openreg/openreg.h>

#include <string>

#include "shim/base/export.h"
#include "shim/base/status.h"

namespace c10::openreg {

// openreg_set_device() with a DeviceIndex, for callers that handle a status themselves.
TORCH_OPENREG_API openreg_status SetDevice(DeviceIndex device) noexcept;

// Number of devices; 0 where no driver works. Opens no driver that can count without being opened.
TORCH_OPENREG_API DeviceIndex device_count() noexcept;

// The same, but 0 is an error that says why there is none.
TORCH_OPENREG_API DeviceIndex device_count_ensure_non_zero();

// What the runtime knows of a device. Opens the driver. Throws c10::Error for an index outside [0, device_count()).
TORCH_OPENREG_API openreg_device_properties properties_of(DeviceIndex device);

// The calling thread's current device, 0 in a new thread. Initialises nothing.
inline DeviceIndex current_device() noexcept {
  return static_cast<DeviceIndex>(openreg_current_device());
}

// Makes `device` current. Throws c10::Error for an index outside [0, device_count()), -1 too.
TORCH_OPENREG_API void set_device(DeviceIndex device);

// set_device() that returns the previous index. On an error the current device is as before. Inline: device guards are
// made of it.
inline DeviceIndex exchange_device(DeviceIndex device) {
  int32_t previous = -1;
  OPENREG_CHECK(openreg_exchange_device(device, &previous));
  return static_cast<DeviceIndex>(previous);
}

// -1: does nothing and returns -1. Else as exchange_device(), but never makes a device's context.
TORCH_OPENREG_API DeviceIndex maybe_exchange_device(DeviceIndex device);

// The calling thread's current stream of a device. Throws c10::Error for an index out of range.
inline Stream current_stream(DeviceIndex device) {
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_current_stream(device, &stream));
  return Stream(Stream::UNSAFE, Device(DeviceType::PrivateUse1, device), stream);
}

// `device`, or the current device for -1. Checks nothing.
inline DeviceIndex index_or_current(DeviceIndex device) noexcept {
  return device == -1 ? current_device() : device;
}

// Throws the runtime's error for an index outside [0, device_count()): for numbers that don't fit into its own type.
[[noreturn]] TORCH_OPENREG_API void throw_index_out_of_range(const std::string& index);

// `index` as a DeviceIndex. Throws c10::Error where it does not fit, with the text of an index out of range: it must
// not wrap around to a valid one.
TORCH_OPENREG_API DeviceIndex narrow_device_index(int64_t index);

} // namespace c10::openreg
