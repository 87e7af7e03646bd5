/* SPDX-License-Identifier: BSD-3-Clause */
// The modes in which the operators of a device run. How often each was used: operator_counts.h.
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>
#include <openreg/openreg.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "shim/export.h"

namespace c10::openreg {

enum class ExecutionMode : uint8_t {
  native,  // a kernel of the driver's own (native_kernels.h); of single operators, never the mode of a device
  aliased, // PyTorch's CPU kernel works on the device's memory through the host's view of it
  staged,  // storages are copied to the host, the CPU kernel runs there, what it wrote is copied back
};
constexpr size_t kExecutionModes = 3;
constexpr std::array<const char*, kExecutionModes> kExecutionModeNames = {"native", "aliased", "staged"};

// Which mode PyTorch's kernels for the CPU use on a device, where neither the driver (has_native_kernels()) nor PyTorch's
// build for GPUs (has_gpu_kernels()) has one. Aliased where the driver's memory is visible to the host, unless
// OPENREG_OPERATORS=staged. Opens the driver. Throws c10::Error for an index out of range and a bad value of a variable.
// Cached per device until forget_execution_modes().
TORCH_OPENREG_API ExecutionMode execution_mode(DeviceIndex device);

// The device table has changed: what is known of its devices holds no longer.
TORCH_OPENREG_API void forget_execution_modes() noexcept;

// OPENREG_OPERATORS=staged. Throws c10::Error for a value that is neither that nor "auto".
bool staging_is_forced();

// What has been found out of a device's kernels: a bit that says that it is known, and the answer. 0 at first.
namespace detail {
constexpr uint8_t kModeIsKnown = 1;
constexpr uint8_t kIsStaged = 2;
constexpr uint8_t kKernelsAreKnown = 4; // native_kernels.h
constexpr uint8_t kHasKernels = 8;
constexpr uint8_t kGpuIsKnown = 16; // gpu_kernels.h
constexpr uint8_t kIsGpu = 32;
extern std::array<std::atomic<uint8_t>, OPENREG_MAX_DEVICES> device_states;

inline uint8_t device_state(DeviceIndex device) noexcept { // of an index in range
  return device_states[static_cast<size_t>(device)].load(std::memory_order_acquire);
}
inline void add_device_state(DeviceIndex device, uint8_t bits) noexcept {
  device_states[static_cast<size_t>(device)].fetch_or(bits, std::memory_order_release);
}
} // namespace detail

} // namespace c10::openreg
