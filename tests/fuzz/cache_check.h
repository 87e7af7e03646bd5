/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_check.h: the caching allocator's own invariants. For fuzz programs, which hold the runtime's objects. */
#ifndef OPENREG_TESTS_FUZZ_CACHE_CHECK_H
#define OPENREG_TESTS_FUZZ_CACHE_CHECK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Walks the cache of a device with its lock held, and compares: every block is in exactly one place, blocks tile their
 * segments, sums are the statistics. Any thread, at any time while the device is there. 1: all is well; else 0 and what is
 * wrong in `text`. */
int openreg_cache_check(int32_t device, char* text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
