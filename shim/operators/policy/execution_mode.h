/* SPDX-License-Identifier: BSD-3-Clause */
// The modes in which the operators of a device run. How often each was used: operator_counts.h.
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>
#include <openreg/embedding.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "shim/base/export.h"

namespace c10::openreg {

enum class ExecutionMode : uint8_t {
  native,  // a kernel of the driver's own (native_kernels.h); of single operators, never the mode of a device
  aliased, // PyTorch's CPU kernel works on the device's memory through the host's view of it
  staged,  // storages are copied to the host, the CPU kernel runs there, what it wrote is copied back
};
constexpr size_t kExecutionModes = 3;
constexpr std::array<const char*, kExecutionModes> kExecutionModeNames = {"native", "aliased", "staged"};

// OPENREG_OPERATORS=staged. Throws c10::Error for a value that is neither that nor "auto".
bool staging_is_forced();

// The generation of the device table that what follows asks; there is a table from here on. Throws c10::Error.
uint32_t present_generation();

// What is known of a device: a bit that says that it is known, and the answer, valid for one generation of the device
// table (openreg.h).
namespace detail {
constexpr uint8_t kModeIsKnown = 1;
constexpr uint8_t kIsStaged = 2;
constexpr uint8_t kKernelsAreKnown = 4; // native_kernels.h
constexpr uint8_t kHasKernels = 8;
constexpr uint8_t kGpuIsKnown = 16; // gpu_kernels.h
constexpr uint8_t kIsGpu = 32;
constexpr uint8_t kHasFill = 64;         // known with the mode
constexpr unsigned kGenerationShift = 8; // the generation lies above the bits
TORCH_OPENREG_API extern std::array<std::atomic<uint64_t>, OPENREG_MAX_DEVICES> device_states;

// The bits of the present device table; 0 where they are of an earlier one. For an index in range.
inline uint8_t device_bits(DeviceIndex device) noexcept {
  const uint64_t state = device_states[static_cast<size_t>(device)].load(std::memory_order_acquire);
  return C10_LIKELY(state >> kGenerationShift == openreg_generation_now()) ? static_cast<uint8_t>(state) : 0;
}

void keep_bits(DeviceIndex device, uint32_t generation, unsigned bits) noexcept;
TORCH_OPENREG_API ExecutionMode look_for_mode(DeviceIndex device);
} // namespace detail

// Which mode PyTorch's kernels for the CPU use on a device, where neither the driver (has_native_kernels()) nor PyTorch's
// build for GPUs (has_gpu_kernels()) has one. Aliased where the driver's memory is visible to the host, unless
// OPENREG_OPERATORS=staged. Opens the driver. Throws c10::Error for an index out of range and a bad value of a variable.
inline ExecutionMode execution_mode(DeviceIndex device) {
  using namespace detail;
  const uint8_t bits = device >= 0 && device < OPENREG_MAX_DEVICES ? device_bits(device) : 0;
  if (C10_UNLIKELY((bits & kModeIsKnown) == 0)) {
    return look_for_mode(device);
  }
  return (bits & kIsStaged) != 0 ? ExecutionMode::staged : ExecutionMode::aliased;
}

// Whether the mode of `device`, an index in range, is staged and its driver can set a range of bytes. Throws as
// execution_mode().
inline bool is_staged_with_fill(DeviceIndex device) {
  using namespace detail;
  constexpr uint8_t kBoth = kIsStaged | kHasFill;
  uint8_t bits = device_bits(device);
  if (C10_UNLIKELY((bits & kModeIsKnown) == 0)) {
    look_for_mode(device);
    bits = device_bits(device);
  }
  return (bits & kBoth) == kBoth;
}

} // namespace c10::openreg
