// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/policy/execution_mode.h"

#include <openreg/driver.h>

#include <cstdlib>
#include <cstring>

#include "shim/device.h"
#include "shim/operators/policy/operator_policy.h"

namespace c10::openreg {
namespace detail {

std::array<std::atomic<uint8_t>, OPENREG_MAX_DEVICES> device_states;

} // namespace detail

bool staging_is_forced() {
  const char* value = std::getenv("OPENREG_OPERATORS");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "auto") == 0) {
    return false;
  }
  TORCH_CHECK(std::strcmp(value, "staged") == 0, "OPENREG_OPERATORS must be 'auto' or 'staged', but is '", value, "'.");
  return true;
}

ExecutionMode execution_mode(DeviceIndex device) {
  using namespace detail;
  if (device >= 0 && device < OPENREG_MAX_DEVICES) {
    const uint8_t state = device_states[device].load(std::memory_order_relaxed);
    if (C10_LIKELY((state & kModeIsKnown) != 0)) {
      return (state & kIsStaged) != 0 ? ExecutionMode::staged : ExecutionMode::aliased;
    }
  }
  const openreg_device_properties properties = properties_of(device);
  read_operator_variables();
  const bool visible = (properties.caps & OPENREG_CAP_HOST_VISIBLE) != 0;
  const auto mode = visible && !staging_is_forced() ? ExecutionMode::aliased : ExecutionMode::staged;
  add_device_state(device, kModeIsKnown | (mode == ExecutionMode::staged ? kIsStaged : 0));
  return mode;
}

void forget_execution_modes() noexcept {
  for (auto& state : detail::device_states) {
    state.store(0, std::memory_order_relaxed);
  }
}

} // namespace c10::openreg
