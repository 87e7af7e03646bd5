/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/host_memory.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

#define LINE_SIZE ((size_t)64)
#define STREAMED_SIZE ((size_t)16 << 20) /* less may still be in the cache when it is used next */

static void
copy_streamed(char *to, const char *from, size_t size)
{
    const size_t unaligned = (LINE_SIZE - (uintptr_t)to % LINE_SIZE) % LINE_SIZE;
    memcpy(to, from, unaligned);
    to += unaligned;
    from += unaligned;
    size -= unaligned;
    for (; size >= LINE_SIZE; to += LINE_SIZE, from += LINE_SIZE, size -= LINE_SIZE) {
        __m128i words[LINE_SIZE / sizeof(__m128i)];
        memcpy(words, from, LINE_SIZE);
        for (size_t i = 0; i < LINE_SIZE / sizeof(__m128i); ++i)
            _mm_stream_si128((__m128i *)(void *)to + i, words[i]);
    }
    _mm_sfence(); /* orders these stores before any that follow */
    memcpy(to, from, size);
}
#endif

void
openreg_copy_on_host(void *destination, const void *source, size_t size)
{
#if defined(__SSE2__)
    if (size >= STREAMED_SIZE) {
        copy_streamed(destination, source, size);
        return;
    }
#endif
    memcpy(destination, source, size);
}
