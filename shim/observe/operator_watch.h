/* SPDX-License-Identifier: BSD-3-Clause */
// Who wants to know of each aliased operator call, which otherwise is only counted.
#pragma once

#include <atomic>
#include <cstdint>

namespace c10::openreg {

enum class OperatorWatch : uint8_t {
  rules = 1,   // of the policy
  details = 2, // operator_details()
  trace = 4,
};

// Inside the shim alone: another library would have a copy of its own.
inline std::atomic<uint8_t> operator_watches{0};

inline void watch_operators(OperatorWatch by, bool on) noexcept {
  const auto bit = static_cast<uint8_t>(by);
  if (on) {
    operator_watches.fetch_or(bit, std::memory_order_relaxed);
  } else {
    operator_watches.fetch_and(static_cast<uint8_t>(~bit), std::memory_order_relaxed);
  }
}

inline bool operators_are_watched() noexcept {
  return operator_watches.load(std::memory_order_relaxed) != 0;
}

} // namespace c10::openreg
