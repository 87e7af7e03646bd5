/* SPDX-License-Identifier: BSD-3-Clause */
// Differences between the PyTorch versions that this source builds against (cmake/OpenregTorch.cmake), in one place.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace c10::openreg::compat {

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
