// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/policy/execution_mode.h"

#include <openreg/driver.h>
#include <openreg/registry.h>

#include <cstddef>
#include <cstring>

#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/operators/policy/operator_policy.h"

namespace c10::openreg {
namespace detail {

std::array<std::atomic<uint64_t>, OPENREG_MAX_DEVICES> device_states;

} // namespace detail

bool staging_is_forced() {
  const char* value = openreg_variable("OPENREG_OPERATORS");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "auto") == 0) {
    return false;
  }
  TORCH_CHECK(std::strcmp(value, "staged") == 0, "OPENREG_OPERATORS must be 'auto' or 'staged', but is '", value, "'.");
  return true;
}

uint32_t present_generation() {
  OPENREG_CHECK(openreg_init());
  return openreg_generation_now();
}

namespace {

bool driver_has_fill(const char* driver) {
  constexpr size_t kFill =
      (offsetof(openreg_driver, fill) - offsetof(openreg_driver, open)) / sizeof(openreg_driver::open);
  openreg_driver_record record{};
  record.struct_size = sizeof record;
  OPENREG_CHECK(openreg_find_driver(driver, &record));
  return (record.slots >> kFill & 1) != 0;
}

} // namespace

namespace detail {

void keep_bits(DeviceIndex device, uint32_t generation, unsigned bits) noexcept {
  auto& state = device_states[static_cast<size_t>(device)];
  const uint64_t now = uint64_t{generation} << kGenerationShift;
  uint64_t before = state.load(std::memory_order_relaxed);
  uint64_t after = 0;
  do {
    after = (before >> kGenerationShift == generation ? before : now) | bits;
  } while (!state.compare_exchange_weak(before, after, std::memory_order_release, std::memory_order_relaxed));
}

ExecutionMode look_for_mode(DeviceIndex device) {
  const uint32_t generation = present_generation();
  const openreg_device_properties properties = properties_of(device);
  read_operator_variables();
  const bool visible = (properties.caps & OPENREG_CAP_HOST_VISIBLE) != 0;
  const auto mode = visible && !staging_is_forced() ? ExecutionMode::aliased : ExecutionMode::staged;
  const bool staged = mode == ExecutionMode::staged;
  const bool has_fill = staged && driver_has_fill(properties.driver);
  keep_bits(device, generation, kModeIsKnown | (staged ? kIsStaged : 0) | (has_fill ? kHasFill : 0));
  return mode;
}

} // namespace detail

} // namespace c10::openreg
