// How the operators of a device run, and how often each way was taken.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

#include "shim/export.h"

namespace c10::openreg {

enum class OperatorWay : uint8_t {
  aliased, // PyTorch's CPU kernel works on the device's memory through the host's view of it
  staged,  // storages are copied to the host, the CPU kernel runs there, what it wrote is copied back
};

// Aliased where the driver's memory is visible to the host, unless OPENREG_OPERATORS=staged. Opens the driver. Throws
// c10::Error for an index out of range. Cached per device until forget_operator_ways().
TORCH_OPENREG_API OperatorWay operator_way(DeviceIndex device);
TORCH_OPENREG_API void forget_operator_ways() noexcept; // the device table has changed

struct StagedCount {
  uint64_t calls = 0;
  uint64_t bytes = 0; // copied, both directions
};
struct OperatorCounts {
  uint64_t aliased_calls = 0;
  uint64_t staged_calls = 0;
  uint64_t staged_bytes = 0;
  std::map<std::string, StagedCount> staged; // by operator name, "aten::mm"
};
void count_aliased_call() noexcept;
void count_staged_call(const std::string& name, uint64_t bytes);
TORCH_OPENREG_API OperatorCounts operator_counts();
TORCH_OPENREG_API void reset_operator_counts();

} // namespace c10::openreg
