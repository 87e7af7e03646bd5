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

// What is known of a device (fallback/route.h): bits that say what is known, and the answers, valid for one generation of the
// device table (openreg.h).
namespace detail {
constexpr uint8_t kDeviceIsKnown = 1; // the next three
constexpr uint8_t kIsStaged = 2;
constexpr uint8_t kHasFill = 4; // and is staged
constexpr uint8_t kIsGpu = 8;
constexpr uint8_t kKernelsAreKnown = 16; // the next one
constexpr uint8_t kHasKernels = 32;
constexpr unsigned kGenerationShift = 8; // the generation lies above the bits
TORCH_OPENREG_API extern std::array<std::atomic<uint64_t>, OPENREG_MAX_DEVICES> device_states;

// The bits for the present device table; 0 if those that are kept belong to an earlier one. `device` is in range.
inline uint8_t device_bits(DeviceIndex device) noexcept {
  const uint64_t state = device_states[static_cast<size_t>(device)].load(std::memory_order_acquire);
  return C10_LIKELY(state >> kGenerationShift == openreg_generation_now()) ? static_cast<uint8_t>(state) : 0;
}

void keep_bits(DeviceIndex device, uint32_t generation, unsigned bits) noexcept;
} // namespace detail

} // namespace c10::openreg
