/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_settings.c: settings and limits of the caching allocator (openreg/allocator.h). */
#include "memory/cache_internal.h"

#include <string.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/sized_struct.h"

/* Beyond this nothing is rounded, so that no size overflows. */
#define MAX_ROUNDED (UINT64_C(1) << 46)
#define FIRST_INTERVAL 20 /* log2 of 1 MiB */

atomic_uint openreg_cache_features;

/* Each value is read alone, so each is an atomic of its own. */
static struct {
    atomic_int expandable_segments;
    atomic_uint_least64_t max_split_size, max_non_split_rounding, large_segment_size;
    _Atomic double garbage_collection_threshold, memory_fraction;
    atomic_uint roundup_divisions[OPENREG_ROUNDUP_INTERVALS];
} settings = {
    .max_split_size = UINT64_MAX,
    .max_non_split_rounding = OPENREG_LARGE_SEGMENT,
    .large_segment_size = OPENREG_LARGE_SEGMENT,
    .memory_fraction = 1.0,
};

/* Guards the counts, and keeps one change of the settings from mixing with another. Never held with a cache's lock but
 * inside it. */
static openreg_lock lock = OPENREG_LOCK_INITIALIZER;
static int64_t reasons[OPENREG_FEATURES]; /* for each bit of openreg_cache_features to be set */

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

/* For what is either on or off. The lock is held. */
static void
switch_feature(unsigned feature, bool on)
{
    if (on)
        atomic_fetch_or_explicit(&openreg_cache_features, feature, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&openreg_cache_features, ~feature, memory_order_relaxed);
}

/* ---------------------------------------------------------------------------------------------------------- reading */

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
openreg_cache_round(uint64_t size)
{
    const uint64_t rounded = (size + OPENREG_BLOCK_UNIT - 1) / OPENREG_BLOCK_UNIT * OPENREG_BLOCK_UNIT;
    if (size == 0 || size > MAX_ROUNDED)
        return rounded;
    int interval = 63 - __builtin_clzll(size) - FIRST_INTERVAL;
    if (interval < 0)
        interval = 0;
    if (interval >= OPENREG_ROUNDUP_INTERVALS)
        interval = OPENREG_ROUNDUP_INTERVALS - 1;
    const unsigned divisions = atomic_load_explicit(&settings.roundup_divisions[interval], memory_order_relaxed);
    if (divisions <= 1 || size <= OPENREG_BLOCK_UNIT * divisions)
        return rounded;
    const uint64_t divided = divided_up(size, divisions);
    return (divided + OPENREG_BLOCK_UNIT - 1) / OPENREG_BLOCK_UNIT * OPENREG_BLOCK_UNIT;
}

uint64_t
openreg_cache_max_split(void)
{
    return atomic_load_explicit(&settings.max_split_size, memory_order_relaxed);
}

uint64_t
openreg_cache_split_rounding(void)
{
    return atomic_load_explicit(&settings.max_non_split_rounding, memory_order_relaxed);
}

uint64_t
openreg_cache_large_segment(void)
{
    return atomic_load_explicit(&settings.large_segment_size, memory_order_relaxed);
}

bool
openreg_cache_wants_growing(void)
{
    return atomic_load_explicit(&settings.expandable_segments, memory_order_relaxed) != 0;
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
    return cache->fraction >= 0 ? cache->fraction
                                : atomic_load_explicit(&settings.memory_fraction, memory_order_relaxed);
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
    const double threshold = atomic_load_explicit(&settings.garbage_collection_threshold, memory_order_relaxed);
    const uint64_t total = cache->device->info.total_bytes;
    if (threshold <= 0 || total == 0)
        return UINT64_MAX;
    return (uint64_t)(threshold * fraction_of(cache) * (double)total);
}

/* ---------------------------------------------------------------------------------------------------------- setting */

static const openreg_allocator_settings first_values = {
    .max_split_size = UINT64_MAX,
    .max_non_split_rounding = OPENREG_LARGE_SEGMENT,
    .large_segment_size = OPENREG_LARGE_SEGMENT,
    .memory_fraction = 1.0,
};

/* Copies as much as the caller's structure holds. */
static openreg_status
give_settings(const char *call, openreg_allocator_settings values, openreg_allocator_settings *inout)
{
    if (!openreg_sized_is_valid(inout, OPENREG_ALLOCATOR_SETTINGS_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "struct_size must be set to the size of openreg_allocator_settings");
    openreg_sized_write(inout, &values, sizeof values);
    return OPENREG_OK;
}

openreg_status
openreg_default_allocator_settings(openreg_allocator_settings *inout)
{
    return give_settings("openreg_default_allocator_settings", first_values, inout);
}

openreg_status
openreg_get_allocator_settings(openreg_allocator_settings *inout)
{
    openreg_allocator_settings values = {
        .expandable_segments = openreg_cache_wants_growing(),
        .max_split_size = openreg_cache_max_split(),
        .max_non_split_rounding = openreg_cache_split_rounding(),
        .large_segment_size = openreg_cache_large_segment(),
        .garbage_collection_threshold = atomic_load_explicit(&settings.garbage_collection_threshold,
                                                             memory_order_relaxed),
        .memory_fraction = atomic_load_explicit(&settings.memory_fraction, memory_order_relaxed),
    };
    for (int i = 0; i < OPENREG_ROUNDUP_INTERVALS; i++)
        values.roundup_divisions[i] = atomic_load_explicit(&settings.roundup_divisions[i], memory_order_relaxed);
    return give_settings("openreg_get_allocator_settings", values, inout);
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

static void
take_settings(const openreg_allocator_settings *values)
{
    bool rounds = false;
    openreg_lock_acquire(&lock);
    atomic_store_explicit(&settings.expandable_segments, values->expandable_segments != 0, memory_order_relaxed);
    atomic_store_explicit(&settings.max_split_size, values->max_split_size, memory_order_relaxed);
    atomic_store_explicit(&settings.max_non_split_rounding,
                          values->max_non_split_rounding < MAX_ROUNDED ? values->max_non_split_rounding : MAX_ROUNDED,
                          memory_order_relaxed);
    atomic_store_explicit(&settings.large_segment_size, values->large_segment_size, memory_order_relaxed);
    atomic_store_explicit(&settings.garbage_collection_threshold, values->garbage_collection_threshold,
                          memory_order_relaxed);
    atomic_store_explicit(&settings.memory_fraction, values->memory_fraction, memory_order_relaxed);
    for (int i = 0; i < OPENREG_ROUNDUP_INTERVALS; i++) {
        rounds = rounds || values->roundup_divisions[i] > 1;
        atomic_store_explicit(&settings.roundup_divisions[i], values->roundup_divisions[i], memory_order_relaxed);
    }
    switch_feature(OPENREG_FEATURE_ROUNDING, rounds);
    switch_feature(OPENREG_FEATURE_SPLIT_LIMIT, values->max_split_size != UINT64_MAX);
    openreg_lock_release(&lock);
}

openreg_status
openreg_set_allocator_settings(const openreg_allocator_settings *values)
{
    static const char call[] = "openreg_set_allocator_settings";
    if (!openreg_sized_is_valid(values, OPENREG_ALLOCATOR_SETTINGS_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "struct_size must be set to the size of openreg_allocator_settings");
    openreg_allocator_settings all = first_values; /* for what an older caller does not know */
    memcpy(&all, values, values->struct_size < sizeof all ? values->struct_size : sizeof all);
    OPENREG_RETURN_NOT_OK(check_settings(call, &all));
    if (all.max_split_size > OPENREG_MAX_ALLOCATION)
        all.max_split_size = UINT64_MAX; /* no request is as large */
    take_settings(&all);
    return OPENREG_OK;
}

openreg_status
openreg_set_memory_fraction(int32_t device, double fraction)
{
    static const char call[] = "openreg_set_memory_fraction";
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
openreg_get_memory_fraction(int32_t device, double *fraction)
{
    static const char call[] = "openreg_get_memory_fraction";
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
openreg_set_caching(int32_t on)
{
    openreg_lock_acquire(&lock);
    const int32_t before = (openreg_features() & OPENREG_FEATURE_UNCACHED) == 0;
    switch_feature(OPENREG_FEATURE_UNCACHED, on == 0);
    openreg_lock_release(&lock);
    return before;
}
