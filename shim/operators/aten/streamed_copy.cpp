// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/aten/streamed_copy.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace c10::openreg {
namespace {

#if defined(__SSE2__)
constexpr size_t kLine = 64;
constexpr size_t kWorthwhile = size_t{16} << 20; // less may still be in the cache when it is used next
constexpr int kThreads = 2;                      // more of them are faster through the cache than one past it
#endif

} // namespace

bool is_faster_streamed([[maybe_unused]] size_t size) {
#if defined(__SSE2__)
  return size >= kWorthwhile && at::get_num_threads() <= kThreads;
#else
  return false;
#endif
}

void copy_streamed(void* destination, const void* source, size_t size) {
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
#if defined(__SSE2__)
  const size_t unaligned = std::min(size, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, unaligned);
  to += unaligned;
  from += unaligned;
  size -= unaligned;
  for (; size >= kLine; to += kLine, from += kLine, size -= kLine) {
    __m128i words[kLine / sizeof(__m128i)];
    std::memcpy(words, from, kLine);
    for (size_t i = 0; i < kLine / sizeof(__m128i); ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, words[i]);
    }
  }
  _mm_sfence(); // orders these stores before any that follow
#endif
  std::memcpy(to, from, size);
}

} // namespace c10::openreg
