/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_settings.h: sizes, settings and features of the caching allocator, the same for all devices. Internal to cache*.c. */
#ifndef OPENREG_SRC_CACHE_SETTINGS_H
#define OPENREG_SRC_CACHE_SETTINGS_H

#include <stdatomic.h>
#include <stdbool.h>

#include <openreg/allocator.h>

#include "driver/device_table.h"
#include "memory/cache.h"
#include "watch/observers.h"

#define OPENREG_MIB (UINT64_C(1) << 20)
#define OPENREG_BLOCK_UNIT UINT64_C(512)
#define OPENREG_SMALL_BLOCK_MAX OPENREG_MIB
#define OPENREG_SMALL_SEGMENT (2 * OPENREG_MIB)
#define OPENREG_LARGE_SEGMENT (20 * OPENREG_MIB)
#define OPENREG_LARGE_SEGMENT_BELOW (10 * OPENREG_MIB) /* bigger blocks get a segment of their own size */
#define OPENREG_SEGMENT_UNIT (2 * OPENREG_MIB)

/* Special handling that requests and frees need: observed events, in the low byte, and features. No bit is set in an
 * ordinary process, so the fast paths test one word. */
#define OPENREG_FEATURE_TRACE OPENREG_OBSERVE_MEMORY
#define OPENREG_FEATURE_ROUNDING 256u    /* roundup_divisions */
#define OPENREG_FEATURE_SPLIT_LIMIT 512u /* max_split_size */
#define OPENREG_FEATURE_ROUTES 1024u     /* a thread is in a private pool */
#define OPENREG_FEATURE_RETURNS 2048u    /* segments of a released pool wait for their blocks */
#define OPENREG_FEATURE_UNCACHED 4096u   /* openreg_allocator_set_caching(0) */
#define OPENREG_FEATURE_POISON 8192u     /* a driver overwrites freed memory (openreg/schedule.h) */
#define OPENREG_FEATURES_FIRST 8         /* their bits */
#define OPENREG_FEATURES 6
static_assert(OPENREG_OBSERVE_ALL < 1u << OPENREG_FEATURES_FIRST, "events and features share a word");
#define OPENREG_FEATURES_OF_REQUESTS (OPENREG_FEATURE_ROUNDING | OPENREG_FEATURE_ROUTES | OPENREG_FEATURE_UNCACHED)
extern atomic_uint openreg_cache_features;

static inline unsigned
openreg_features(void)
{
    return atomic_load_explicit(&openreg_cache_features, memory_order_relaxed) | openreg_watched();
}

/* ---- cache_settings.c ---- */

/* Adds or removes a reason for a bit of openreg_cache_features, which is set while there is one. */
void openreg_cache_feature(unsigned feature, bool on);
/* The current settings: a change makes new ones, and leaves these as they are. */
const openreg_allocator_settings *openreg_cache_settings(void);
/* Rounds a request up to its block's size: beyond the largest segment only if the request is. */
uint64_t openreg_cache_round(const openreg_device *device, uint64_t size);
/* Warns once in a process that this device's driver has no segments that grow. */
void openreg_cache_warn_of_growing(const openreg_device *device);
/* Bytes of the largest segment that the device's driver can allocate. */
static inline uint64_t
openreg_cache_most(const openreg_device *device)
{
    const uint64_t most = device->info.max_allocation;
    return most == 0 ? OPENREG_MAX_ALLOCATION : most / OPENREG_BLOCK_UNIT * OPENREG_BLOCK_UNIT;
}

#endif
