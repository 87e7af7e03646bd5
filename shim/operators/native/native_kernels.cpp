// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/native/native_kernels.h"

#include <unordered_set>

#include "shim/base/parts.h"
#include "shim/base/status.h"

namespace c10::openreg {
namespace {

std::unordered_set<c10::OperatorName>& operators_of_fallback() {
  static auto* names = new std::unordered_set<c10::OperatorName>; // leaked: used until the process ends
  return *names;
}

} // namespace

bool look_for_kernels(DeviceIndex device) {
  const uint32_t generation = present_generation();
  const openreg_kernels* table = nullptr;
  OPENREG_CHECK(openreg_device_get_kernels(device, &table));
  const bool found = table != nullptr && table->count > 0 && !staging_is_forced();
  if (found) {
    native_kernels().read(device, generation, *table);
  }
  detail::keep_bits(device, generation, detail::kKernelsAreKnown | (found ? detail::kHasKernels : 0));
  return found;
}

const NativeKernelFunctions& native_kernels() {
  static const NativeKernelFunctions loaded = [] {
    NativeKernelFunctions functions{};
    void* const entry = find_in_part("kernels", "openreg_native_kernels");
    reinterpret_cast<decltype(&openreg_native_kernels)>(entry)(&functions);
    return functions;
  }();
  return loaded;
}

void note_operator_of_fallback(const c10::OperatorName& name) {
  operators_of_fallback().insert(name);
}

bool is_operator_of_fallback(const c10::OperatorName& name) {
  return operators_of_fallback().count(name) != 0;
}

} // namespace c10::openreg
