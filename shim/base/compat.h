/* SPDX-License-Identifier: BSD-3-Clause */
// Differences between the PyTorch versions that this source builds against (2.11 to 2.15), in one place.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/headeronly/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11
#error "torch-openreg needs PyTorch 2.11 or newer."
#endif

// Virtual functions that some of these versions lack are written without `override`, between these two macros: the
// same line overrides where the base has the function and is an unused function elsewhere. Clang warns about the mix.
#if defined(__clang__)
#define OPENREG_VERSION_VARYING_BEGIN \
  _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Winconsistent-missing-override\"")
#define OPENREG_VERSION_VARYING_END _Pragma("clang diagnostic pop")
#else
#define OPENREG_VERSION_VARYING_BEGIN
#define OPENREG_VERSION_VARYING_END
#endif

namespace c10::openreg::compat {

// DeviceStats::num_oom_rejections, since 2.12: allocations that a policy refused. This backend has no such policy.
template <class Stats>
concept HasOomRejections = requires(Stats& stats) { stats.num_oom_rejections; };

template <class Stats>
void set_oom_rejections(Stats& stats, int64_t count) {
  if constexpr (HasOomRejections<Stats>) {
    stats.num_oom_rejections = count;
  }
}

// DeviceStats::reserved_bytes_by_private_pools, since 2.13: (id of the pool, statistics) for each.
template <class Stats>
concept HasPrivatePools = requires(Stats& stats) { stats.reserved_bytes_by_private_pools; };

template <class Stats, class Pools>
void set_private_pools(Stats& stats, const Pools& pools) {
  if constexpr (HasPrivatePools<Stats>) {
    for (const auto& [id, reserved] : pools) {
      stats.reserved_bytes_by_private_pools[id] = reserved;
    }
  }
}

// Tensors with named dimensions, until 2.12.
template <class Impl>
bool has_names(const Impl& tensor) {
  if constexpr (requires { tensor.has_named_tensor_meta(); }) {
    return tensor.has_named_tensor_meta();
  } else {
    return false;
  }
}

// TraceEntry::ANNOTATE, since 2.14: a text that was given to memory in use. The history keeps such events with every
// version; the number is that of the versions that have the name.
constexpr auto kAnnotate = static_cast<CachingDeviceAllocator::TraceEntry::Action>(9);

template <class Entry>
concept HasAnnotate = requires { Entry::ANNOTATE; };

template <class Entry>
constexpr bool annotate_is_the_same() {
  if constexpr (HasAnnotate<Entry>) {
    return Entry::ANNOTATE == kAnnotate;
  } else {
    return Entry::OOM + 1 == kAnnotate;
  }
}
static_assert(annotate_is_the_same<CachingDeviceAllocator::TraceEntry>());

} // namespace c10::openreg::compat
