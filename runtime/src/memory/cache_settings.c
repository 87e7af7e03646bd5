/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_settings.c: settings and limits of the caching allocator (openreg/allocator.h). */
#include "memory/cache_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "base/log.h"
#include "base/sized_struct.h"

/* Beyond this nothing is rounded, so that no size overflows. */
#define MAX_ROUNDED (UINT64_C(1) << 46)
#define FIRST_INTERVAL 20 /* log2 of 1 MiB */

atomic_uint openreg_cache_features;

static const openreg_allocator_settings first_values = {
    .struct_size = sizeof first_values,
    .max_split_size = UINT64_MAX,
    .max_non_split_rounding = OPENREG_LARGE_SEGMENT,
    .large_segment_size = OPENREG_LARGE_SEGMENT,
    .memory_fraction = 1.0,
};

/* Settings that were set. Never freed, as threads may still read earlier ones; each distinct one is kept once. */
typedef struct kept_settings {
    openreg_allocator_settings values;
    struct kept_settings *next;
} kept_settings;

static _Atomic(const openreg_allocator_settings *) settings = &first_values;

/* Guards the kept settings and the counts. Taken with a cache's lock held, but not the other way around. */
static openreg_lock lock = OPENREG_LOCK_INITIALIZER;
static kept_settings *kept;
static int64_t reasons[OPENREG_FEATURES]; /* reasons for each bit of openreg_cache_features */

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_SETTINGS, &lock);
}

void
openreg_cache_feature(unsigned feature, bool on)
{
    const int bit = __builtin_ctz(feature) - OPENREG_FEATURES_FIRST;
    openreg_lock_acquire(&lock);
    reasons[bit] += on ? 1 : -1;
    if (reasons[bit] > 0)
        atomic_fetch_or_explicit(&openreg_cache_features, feature, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&openreg_cache_features, ~feature, memory_order_relaxed);
    openreg_lock_release(&lock);
}

/* For a feature that is either on or off. The lock is held. */
static void
switch_feature(unsigned feature, bool on)
{
    if (on)
        atomic_fetch_or_explicit(&openreg_cache_features, feature, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&openreg_cache_features, ~feature, memory_order_relaxed);
}

/* ---------------------------------------------------------------------------------------------------------- reading */

const openreg_allocator_settings *
openreg_cache_settings(void)
{
    return atomic_load_explicit(&settings, memory_order_acquire);
}

static uint64_t
divided_up(uint64_t size, unsigned divisions)
{
    if ((size & (size - 1)) == 0)
        return size;
    const uint64_t floor = UINT64_C(1) << (63 - __builtin_clzll(size));
    const uint64_t step = floor >> (31 - __builtin_clz(divisions));
    if (step == 0)
        return floor << 1;
    return (size + step - 1) / step * step;
}

uint64_t
openreg_cache_round(const openreg_device *device, uint64_t size)
{
    const uint64_t rounded = (size + OPENREG_BLOCK_UNIT - 1) / OPENREG_BLOCK_UNIT * OPENREG_BLOCK_UNIT;
    if (size == 0 || size > MAX_ROUNDED)
        return rounded;
    int interval = 63 - __builtin_clzll(size) - FIRST_INTERVAL;
    if (interval < 0)
        interval = 0;
    if (interval >= OPENREG_ROUNDUP_INTERVALS)
        interval = OPENREG_ROUNDUP_INTERVALS - 1;
    const unsigned divisions = openreg_cache_settings()->roundup_divisions[interval];
    if (divisions <= 1 || size <= OPENREG_BLOCK_UNIT * divisions)
        return rounded;
    const uint64_t divided = (divided_up(size, divisions) + OPENREG_BLOCK_UNIT - 1) / OPENREG_BLOCK_UNIT *
                             OPENREG_BLOCK_UNIT;
    return divided <= openreg_cache_most(device) ? divided : rounded;
}

void
openreg_cache_warn_of_growing(const openreg_device *device)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&warned))
        openreg_log(OPENREG_LOG_WARNING, "expandable_segments is ignored on %s:%d: driver \"%s\" has none",
                    openreg_device_name(), device->index, device->driver->name);
}

static double
fraction_of(const struct openreg_cache *cache)
{
    return cache->fraction >= 0 ? cache->fraction : openreg_cache_settings()->memory_fraction;
}

uint64_t
openreg_cache_limit(const struct openreg_cache *cache)
{
    const double fraction = fraction_of(cache);
    const uint64_t total = cache->device->info.total_bytes;
    return fraction >= 1.0 || total == 0 ? UINT64_MAX : (uint64_t)(fraction * (double)total);
}

uint64_t
openreg_cache_garbage_limit(const struct openreg_cache *cache)
{
    const double threshold = openreg_cache_settings()->garbage_collection_threshold;
    const uint64_t total = cache->device->info.total_bytes;
    if (threshold <= 0 || total == 0)
        return UINT64_MAX;
    return (uint64_t)(threshold * fraction_of(cache) * (double)total);
}

/* ---------------------------------------------------------------------------------------------------------- setting */

/* Copies as much as the caller's structure holds. */
static openreg_status
give_settings(const char *call, const openreg_allocator_settings *values, openreg_allocator_settings *inout)
{
    if (!openreg_sized_is_valid(inout, OPENREG_ALLOCATOR_SETTINGS_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "struct_size must be set to the size of openreg_allocator_settings");
    openreg_sized_write(inout, values, sizeof *values);
    return OPENREG_OK;
}

openreg_status
openreg_allocator_default_settings(openreg_allocator_settings *inout)
{
    return give_settings("openreg_allocator_default_settings", &first_values, inout);
}

openreg_status
openreg_allocator_get_settings(openreg_allocator_settings *inout)
{
    return give_settings("openreg_allocator_get_settings", openreg_cache_settings(), inout);
}

/* Written so that a NaN is refused too. */
static bool
is_fraction(double value)
{
    return value >= 0 && value <= 1;
}

static openreg_status
check_settings(const char *call, const openreg_allocator_settings *values)
{
    if (values->max_split_size < OPENREG_LARGE_SEGMENT)
        return openreg_error_set(OPENREG_E_INVALID, call, "max_split_size must be at least 20 MiB, but is %llu bytes",
                                 (unsigned long long)values->max_split_size);
    if (values->large_segment_size < OPENREG_LARGE_SEGMENT || values->large_segment_size > OPENREG_MAX_ALLOCATION)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "large_segment_size must be between 20 MiB and 2^47 bytes, but is %llu bytes",
                                 (unsigned long long)values->large_segment_size);
    if (!is_fraction(values->garbage_collection_threshold) || values->garbage_collection_threshold >= 1)
        return openreg_error_set(OPENREG_E_INVALID, call, "garbage_collection_threshold must be in [0, 1), but is %g",
                                 values->garbage_collection_threshold);
    if (!is_fraction(values->memory_fraction))
        return openreg_error_set(OPENREG_E_INVALID, call, "memory_fraction must be in [0, 1], but is %g",
                                 values->memory_fraction);
    for (int i = 0; i < OPENREG_ROUNDUP_INTERVALS; i++) {
        const uint32_t divisions = values->roundup_divisions[i];
        if ((divisions & (divisions - 1)) != 0)
            return openreg_error_set(OPENREG_E_INVALID, call, "roundup_divisions[%d] must be a power of two, but is %u",
                                     i, divisions);
    }
    return OPENREG_OK;
}

/* The lock is held. NULL: host memory is short. */
static const openreg_allocator_settings *
keep(const openreg_allocator_settings *values)
{
    for (const kept_settings *known = kept; known != NULL; known = known->next)
        if (memcmp(&known->values, values, sizeof *values) == 0)
            return &known->values;
    kept_settings *const made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (kept_settings){*values, kept};
    kept = made;
    return &made->values;
}

static openreg_status
take_settings(const char *call, const openreg_allocator_settings *values)
{
    bool rounds = false;
    for (int i = 0; i < OPENREG_ROUNDUP_INTERVALS; i++)
        rounds = rounds || values->roundup_divisions[i] > 1;
    openreg_lock_acquire(&lock);
    const openreg_allocator_settings *const own = keep(values);
    if (own != NULL) {
        atomic_store_explicit(&settings, own, memory_order_release);
        switch_feature(OPENREG_FEATURE_ROUNDING, rounds);
        switch_feature(OPENREG_FEATURE_SPLIT_LIMIT, values->max_split_size != UINT64_MAX);
    }
    openreg_lock_release(&lock);
    return own != NULL ? OPENREG_OK : openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the settings");
}

openreg_status
openreg_allocator_set_settings(const openreg_allocator_settings *values)
{
    static const char call[] = "openreg_allocator_set_settings";
    if (!openreg_sized_is_valid(values, OPENREG_ALLOCATOR_SETTINGS_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "struct_size must be set to the size of openreg_allocator_settings");
    openreg_allocator_settings all = first_values; /* for fields that an older caller does not know */
    memcpy(&all, values, values->struct_size < sizeof all ? values->struct_size : sizeof all);
    OPENREG_RETURN_NOT_OK(check_settings(call, &all));
    if (all.max_split_size > OPENREG_MAX_ALLOCATION)
        all.max_split_size = UINT64_MAX; /* larger than any request */
    if (all.max_non_split_rounding > MAX_ROUNDED)
        all.max_non_split_rounding = MAX_ROUNDED;
    all.expandable_segments = all.expandable_segments != 0;
    all.struct_size = sizeof all;
    return take_settings(call, &all);
}

openreg_status
openreg_memory_set_fraction(int32_t device, double fraction)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_set_fraction";
    openreg_device *entry;
    if (!is_fraction(fraction))
        return openreg_error_set(OPENREG_E_INVALID, call, "fraction must be in [0, 1], but is %g", fraction);
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    openreg_fast_lock_acquire(&entry->cache->lock);
    entry->cache->fraction = fraction;
    openreg_fast_lock_release(&entry->cache->lock);
    return OPENREG_OK;
}

openreg_status
openreg_memory_get_fraction(int32_t device, double *fraction)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_get_fraction";
    openreg_device *entry;
    if (fraction == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "fraction must not be NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    openreg_fast_lock_acquire(&entry->cache->lock);
    *fraction = fraction_of(entry->cache);
    openreg_fast_lock_release(&entry->cache->lock);
    return OPENREG_OK;
}

int32_t
openreg_allocator_set_caching(int32_t on)
{
    openreg_lock_acquire(&lock);
    const int32_t before = (openreg_features() & OPENREG_FEATURE_UNCACHED) == 0;
    switch_feature(OPENREG_FEATURE_UNCACHED, on == 0);
    openreg_lock_release(&lock);
    return before;
}
