// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/policy/execution_mode.h"

#include <openreg/driver.h>

#include <cstdlib>
#include <cstring>

#include "shim/operators/fallback/gpu_kernels.h"
#include "shim/operators/native/native_kernels.h"
#include "shim/operators/policy/operator_policy.h"
#include "shim/status.h"

namespace c10::openreg {
namespace {

bool staging_is_forced() {
  const char* value = std::getenv("OPENREG_OPERATORS");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "auto") == 0) {
    return false;
  }
  TORCH_CHECK(std::strcmp(value, "staged") == 0, "OPENREG_OPERATORS must be 'auto' or 'staged', but is '", value, "'.");
  return true;
}

openreg_device_properties properties_of(DeviceIndex device) {
  openreg_device_properties properties{};
  properties.struct_size = sizeof properties;
  OPENREG_CHECK(openreg_get_device_properties(device, &properties));
  return properties;
}

} // namespace

namespace detail {

std::array<std::atomic<uint8_t>, OPENREG_MAX_DEVICES> device_states;

bool look_for_kernels(DeviceIndex device) {
  const bool found = read_native_kernels(device, properties_of(device));
  device_states[device].fetch_or(kKernelsAreKnown | (found ? kHasKernels : 0), std::memory_order_release);
  return found;
}

bool look_for_gpu(DeviceIndex device) {
  const openreg_device_properties properties = properties_of(device);
  read_operator_variables();
  const bool found = !staging_is_forced() && find_gpu(device, properties);
  device_states[device].fetch_or(kGpuIsKnown | (found ? kIsGpu : 0), std::memory_order_release);
  return found;
}

} // namespace detail

ExecutionMode execution_mode(DeviceIndex device) {
  using namespace detail;
  if (device >= 0 && device < OPENREG_MAX_DEVICES) {
    const uint8_t state = device_states[device].load(std::memory_order_relaxed);
    if (C10_LIKELY((state & kWayIsKnown) != 0)) {
      return (state & kIsStaged) != 0 ? ExecutionMode::staged : ExecutionMode::aliased;
    }
  }
  const openreg_device_properties properties = properties_of(device);
  read_operator_variables();
  const bool visible = (properties.caps & OPENREG_CAP_HOST_VISIBLE) != 0;
  const auto way = visible && !staging_is_forced() ? ExecutionMode::aliased : ExecutionMode::staged;
  device_states[device].fetch_or(
      kWayIsKnown | (way == ExecutionMode::staged ? kIsStaged : 0), std::memory_order_relaxed);
  return way;
}

void forget_execution_modes() noexcept {
  for (auto& state : detail::device_states) {
    state.store(0, std::memory_order_relaxed);
  }
  forget_native_kernels();
}

} // namespace c10::openreg
