// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/route.h"

#include <openreg/driver.h>
#include <openreg/registry.h>

#include <cstddef>

#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/operators/policy/operator_policy.h"

namespace c10::openreg {
namespace {

bool driver_has_fill(const char* driver) {
  constexpr size_t kFill =
      (offsetof(openreg_driver, fill) - offsetof(openreg_driver, open)) / sizeof(openreg_driver::open);
  openreg_driver_record record{};
  record.struct_size = sizeof record;
  OPENREG_CHECK(openreg_driver_find(driver, &record));
  return (record.slots >> kFill & 1) != 0;
}

} // namespace

uint8_t detail::look_at_device(DeviceIndex device) {
  const uint32_t generation = present_generation();
  const openreg_device_properties properties = properties_of(device);
  read_operator_variables();
  const bool forced = staging_is_forced();
  uint8_t bits = kDeviceIsKnown;
  if (forced || (properties.caps & OPENREG_CAP_HOST_VISIBLE) == 0) {
    bits |= kIsStaged | (driver_has_fill(properties.driver) ? kHasFill : 0);
  }
  if (!forced && find_gpu(device, properties)) {
    bits |= kIsGpu;
  }
  keep_bits(device, generation, bits);
  return bits;
}

} // namespace c10::openreg
