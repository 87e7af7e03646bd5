// SPDX-License-Identifier: BSD-3-Clause
#include "shim/memory/allocator_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <openreg/allocator.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "shim/base/compat.h"
#include "shim/base/device_name.h"
#include "shim/base/status.h"

namespace c10::openreg {

namespace {

using CachingAllocator::AcceleratorAllocatorConfig;

constexpr char fraction_key[] = "per_process_memory_fraction";
constexpr char backend_key[] = "backend";

double fraction_of(const std::string& text) {
  size_t read = 0;
  double fraction = -1;
  try {
    fraction = std::stod(text, &read);
  } catch (const std::exception&) { // the check below says it
  }
  TORCH_CHECK_VALUE(
      read == text.size() && fraction >= 0 && fraction <= 1,
      fraction_key,
      " is invalid, set it in [0.0, 1.0], but got '",
      shown(text),
      "'");
  return fraction;
}

// The keys that PyTorch leaves to the backend.
void take_own_keys(const std::string& text, openreg_allocator_settings& settings) {
  const CachingAllocator::ConfigTokenizer tokens(text);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == ",") {
      continue;
    }
    const std::string& key = tokens[i];
    i = tokens.skipKey(i);
    if (key == fraction_key) {
      settings.memory_fraction = fraction_of(tokens[i]);
    } else if (key == backend_key) {
      TORCH_CHECK_VALUE(
          tokens[i] == "native",
          "The ",
          device_name(),
          " allocator has one backend, 'native', but got '",
          shown(tokens[i]),
          "'");
    }
  }
}

void apply(const std::string& text) {
  openreg_allocator_settings settings{};
  settings.struct_size = sizeof settings;
  OPENREG_CHECK(openreg_allocator_get_settings(&settings));
  settings.expandable_segments = AcceleratorAllocatorConfig::use_expandable_segments() ? 1 : 0;
  settings.max_split_size = AcceleratorAllocatorConfig::max_split_size();
  settings.max_non_split_rounding = AcceleratorAllocatorConfig::max_non_split_rounding_size();
  settings.large_segment_size = AcceleratorAllocatorConfig::large_segment_size();
  settings.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  const auto& divisions = AcceleratorAllocatorConfig::roundup_power2_divisions();
  static_assert(std::size(openreg_allocator_settings{}.roundup_divisions) == OPENREG_ROUNDUP_INTERVALS);
  for (size_t i = 0; i < std::min<size_t>(divisions.size(), OPENREG_ROUNDUP_INTERVALS); ++i) {
    settings.roundup_divisions[i] = static_cast<uint32_t>(divisions[i]);
  }
  take_own_keys(text, settings);
  OPENREG_CHECK(openreg_allocator_set_settings(&settings));
}

} // namespace

void register_allocator_settings() {
  auto& keys = AcceleratorAllocatorConfig::getMutableKeys();
  keys.insert({fraction_key, backend_key}); // where CUDA is built in, it has added them too
  auto& hook = AcceleratorAllocatorConfig::getConfigParserHook();
  hook = [before = std::move(hook)](const std::string& text) {
    if (before) {
      before(text);
    }
    apply(text);
  };
}

void ensure_allocator_settings() {
  static const bool done =
      (AcceleratorAllocatorConfig::instance(), apply(CachingAllocator::getAllocatorSettings()), true);
  (void)done;
}

} // namespace c10::openreg
