// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/policy/execution_mode.h"

#include <cstring>

#include "shim/base/status.h"

namespace c10::openreg {

std::array<std::atomic<uint64_t>, OPENREG_MAX_DEVICES> detail::device_states;

bool staging_is_forced() {
  const char* value = openreg_variable("OPENREG_OPERATORS");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "auto") == 0) {
    return false;
  }
  TORCH_CHECK(
      std::strcmp(value, "staged") == 0, "OPENREG_OPERATORS must be 'auto' or 'staged', but is '", shown(value), "'.");
  return true;
}

uint32_t present_generation() {
  OPENREG_CHECK(openreg_init());
  return openreg_generation_now();
}

void detail::keep_bits(DeviceIndex device, uint32_t generation, unsigned bits) noexcept {
  auto& state = device_states[static_cast<size_t>(device)];
  const uint64_t now = uint64_t{generation} << kGenerationShift;
  uint64_t before = state.load(std::memory_order_relaxed);
  uint64_t after = 0;
  do {
    after = (before >> kGenerationShift == generation ? before : now) | bits;
  } while (!state.compare_exchange_weak(before, after, std::memory_order_release, std::memory_order_relaxed));
}

} // namespace c10::openreg
