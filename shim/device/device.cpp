// SPDX-License-Identifier: BSD-3-Clause
#include "shim/device/device.h"

#include <limits>

#include "shim/base/device_name.h"

namespace c10::openreg {

// LITERALINCLUDE START: OPENREG SetDevice FUNCTION
openreg_status SetDevice(DeviceIndex device) noexcept {
  // All or nothing, and no driver call where `device` is current already: the runtime sees to both.
  return openreg_set_device(device);
}
// LITERALINCLUDE END: OPENREG SetDevice FUNCTION

DeviceIndex device_count() noexcept {
  return static_cast<DeviceIndex>(openreg_device_count()); // at most OPENREG_MAX_DEVICES
}

DeviceIndex device_count_ensure_non_zero() {
  const DeviceIndex count = device_count();
  if (count == 0) {
    OPENREG_CHECK(openreg_init()); // throws the reason
  }
  TORCH_CHECK(device_count() > 0, "No ", device_name(), " device is available.");
  return device_count();
}

// LITERALINCLUDE START: OPENREG set_device FUNCTION
void set_device(DeviceIndex device) {
  // The index is checked by the runtime, against the device table: "The device index is out of range. ..."
  OPENREG_CHECK(SetDevice(device));
}
// LITERALINCLUDE END: OPENREG set_device FUNCTION

DeviceIndex maybe_exchange_device(DeviceIndex device) {
  int32_t previous = -1;
  OPENREG_CHECK(openreg_maybe_exchange_device(device, &previous));
  return static_cast<DeviceIndex>(previous);
}

void throw_index_out_of_range(const std::string& index) {
  TORCH_CHECK(
      false, "The device index is out of range. It must be in [0, ", openreg_device_count(), "), but got ", index, ".");
}

DeviceIndex narrow_device_index(int64_t index) {
  using Limits = std::numeric_limits<DeviceIndex>;
  if (index < Limits::min() || index > Limits::max()) {
    throw_index_out_of_range(std::to_string(index));
  }
  return static_cast<DeviceIndex>(index);
}

openreg_device_properties properties_of(DeviceIndex device) {
  openreg_device_properties properties{};
  properties.struct_size = sizeof properties;
  OPENREG_CHECK(openreg_device_get_properties(device, &properties));
  return properties;
}

} // namespace c10::openreg
