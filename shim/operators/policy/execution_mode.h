/* SPDX-License-Identifier: BSD-3-Clause */
// How the operators of a device run. How often each way was taken: operator_counts.h.
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
  native,  // a kernel of the driver's own (native_kernels.h); of single operators, never the way of a device
  aliased, // PyTorch's CPU kernel works on the device's memory through the host's view of it
  staged,  // storages are copied to the host, the CPU kernel runs there, what it wrote is copied back
};
constexpr size_t kExecutionModes = 3;
constexpr std::array<const char*, kExecutionModes> kOperatorWayNames = {"native", "aliased", "staged"};

// How PyTorch's kernels for the CPU run on a device, where its operators have no other (has_native_kernels(),
// has_gpu_kernels()). Aliased where the driver's memory is visible to the host, unless OPENREG_OPERATORS=staged. Opens the
// driver. Throws c10::Error for an index out of range and a bad value of a variable. Cached per device until
// forget_execution_modes().
TORCH_OPENREG_API ExecutionMode execution_mode(DeviceIndex device);
TORCH_OPENREG_API void forget_execution_modes() noexcept; // the device table has changed

namespace detail {
constexpr uint8_t kWayIsKnown = 1;
constexpr uint8_t kIsStaged = 2;
constexpr uint8_t kKernelsAreKnown = 4;
constexpr uint8_t kHasKernels = 8;
constexpr uint8_t kGpuIsKnown = 16;
constexpr uint8_t kIsGpu = 32;
extern std::array<std::atomic<uint8_t>, OPENREG_MAX_DEVICES> device_states;
bool look_for_kernels(DeviceIndex device);
bool look_for_gpu(DeviceIndex device);
} // namespace detail

// Whether the driver of `device`, an index in range, has kernels of its own. Throws c10::Error for a malformed table.
inline bool has_native_kernels(DeviceIndex device) {
  using namespace detail;
  const uint8_t state = device_states[device].load(std::memory_order_acquire);
  if (C10_LIKELY((state & (kKernelsAreKnown | kHasKernels)) == kKernelsAreKnown)) {
    return false;
  }
  return (state & kHasKernels) != 0 || look_for_kernels(device);
}

// Whether the operators of `device`, an index in range, run PyTorch's kernels for GPUs where there are some
// (gpu_kernels.h): never with OPENREG_OPERATORS=staged. Counted as aliased. Throws c10::Error as execution_mode().
inline bool has_gpu_kernels(DeviceIndex device) {
  using namespace detail;
  const uint8_t state = device_states[device].load(std::memory_order_acquire);
  if (C10_LIKELY((state & (kGpuIsKnown | kIsGpu)) == kGpuIsKnown)) {
    return false;
  }
  return (state & kIsGpu) != 0 || look_for_gpu(device);
}

} // namespace c10::openreg
