/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_grow.c: more memory for the caching allocator, and running out of it. */
#define _GNU_SOURCE
#include <stdio.h>

#include <openreg/sharing.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/format_bytes.h"
#include "base/text.h"
#include "memory/cache_internal.h"

static const char malloc_call[] = "openreg_malloc";

static _Thread_local uint64_t own_answers; /* the driver's answers to this thread, in all caches */

openreg_status
openreg_cache_out_of_memory(struct openreg_cache *cache, const openreg_pool *pool, uint64_t size)
{
    openreg_device *device = cache->device;
    const openreg_error_fields cause = openreg_error_save();
    const int64_t allocated = openreg_stat_current(cache->stats.allocated_bytes);
    const int64_t reserved = openreg_stat_current(cache->stats.reserved_bytes);
    const uint64_t limit = openreg_cache_limit(cache);
    uint64_t unused, total;
    cache->stats.ooms++;
    openreg_fast_lock_release(&cache->lock);
    openreg_byte_text asked = openreg_format_bytes(size), used = openreg_format_bytes((uint64_t)allocated);
    openreg_byte_text cached = openreg_format_bytes((uint64_t)(reserved - allocated));
    char capacity[128] = "", limited[128] = "", at_once[96] = "", vendor_code[48] = "";
    openreg_status status = openreg_call_mem_info(device, malloc_call, &unused, &total);
    if (status != OPENREG_OK) {
        total = device->info.total_bytes;
        unused = total > (uint64_t)reserved ? total - (uint64_t)reserved : 0;
    }
    if (total > 0)
        (void)snprintf(capacity, sizeof capacity, " %s:%d has %s in all, of which %s are free.", openreg_device_name(),
                       device->index, openreg_format_bytes(total).text, openreg_format_bytes(unused).text);
    if (limit != UINT64_MAX)
        (void)snprintf(limited, sizeof limited, " This process is limited to %s.", openreg_format_bytes(limit).text);
    if (size > openreg_cache_most(device))
        (void)snprintf(at_once, sizeof at_once, " One allocation can have at most %s.",
                       openreg_format_bytes(openreg_cache_most(device)).text);
    if (cause.is_drivers && cause.vendor_code != 0)
        (void)snprintf(vendor_code, sizeof vendor_code, " (vendor code %lld)", (long long)cause.vendor_code);
    status = openreg_error_set(OPENREG_E_NOMEM, malloc_call,
                               "out of memory on %s:%d (driver \"%s\"). Tried to allocate %s.%s%s%s %s are "
                               "allocated by %s, and %s are reserved by %s but unallocated%s%s%s",
                               openreg_device_name(), device->index, device->driver->name, asked.text, at_once,
                               capacity, limited, used.text, openreg_device_name(), cached.text, openreg_device_name(),
                               cause.is_drivers ? "; the driver said: " : ".", cause.is_drivers ? cause.text : "",
                               vendor_code);
    (void)openreg_error_names_driver(device->driver->name, cause.vendor_code);
    openreg_fast_lock_acquire(&cache->lock);
    if ((openreg_features() & OPENREG_FEATURE_TRACE) != 0)
        openreg_cache_trace(cache, OPENREG_MEMORY_EVENT_OOM, pool, unused, size);
    return status;
}

/* Memory that the driver refused may soon be available: another thread may be getting a segment of which it needs a part, or
 * be changing a segment, which can neither grow nor be released in that time. */
#define ATTEMPTS 100 /* if other threads change segments all the time */

void
openreg_cache_ask(struct openreg_cache *cache)
{
    cache->asking++;
}

void
openreg_cache_answered(struct openreg_cache *cache)
{
    cache->asking--;
    (void)atomic_fetch_add_explicit(&cache->answers, 1, memory_order_release);
    own_answers++;
    if (cache->awaiting > 0) {
        openreg_lock_acquire(&cache->answer_lock);
        (void)pthread_cond_broadcast(&cache->answer);
        openreg_lock_release(&cache->answer_lock);
    }
}

/* How many requests of other threads the driver has served or refused. */
static uint64_t
answers_to_others(struct openreg_cache *cache)
{
    return atomic_load_explicit(&cache->answers, memory_order_acquire) - own_answers;
}

/* Whether the driver has completed a request of another thread since the count was `seen`, or does so while this waits.
 * False: no other thread calls it. The lock is held, and released during the wait. */
static bool
await_answer(struct openreg_cache *cache, uint64_t seen)
{
    if (answers_to_others(cache) != seen)
        return true;
    if (cache->asking == 0)
        return false;
    cache->awaiting++;
    openreg_fast_lock_release(&cache->lock);
    openreg_lock_acquire(&cache->answer_lock);
    while (answers_to_others(cache) == seen)
        (void)pthread_cond_wait(&cache->answer, &cache->answer_lock.mutex);
    openreg_lock_release(&cache->answer_lock);
    openreg_fast_lock_acquire(&cache->lock);
    cache->awaiting--;
    return true;
}

/* One attempt of grow_after_flush(). *refused = true if there is no memory now. */
static openreg_status
grow_once(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, openreg_block **out, bool *refused)
{
    *refused = false;
    /* Another thread may have flushed, or freed a block that fits, since the driver was called. */
    openreg_cache_release_hot(cache);
    *out = openreg_cache_find(pool, rounded);
    if (*out != NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_cache_sync_waiting(cache, malloc_call));
    *out = openreg_cache_find(pool, rounded);
    if (*out != NULL)
        return OPENREG_OK;
    if ((openreg_features() & OPENREG_FEATURE_SPLIT_LIMIT) != 0) {
        OPENREG_RETURN_NOT_OK(
            openreg_cache_give_segments(cache, malloc_call, (openreg_segment_filter){.kind = OPENREG_FILTER_OVERSIZE}));
        const openreg_status status = openreg_cache_add_segment(cache, pool, rounded, out, refused);
        if (!*refused)
            return status;
    }
    OPENREG_RETURN_NOT_OK(
        openreg_cache_give_segments(cache, malloc_call, (openreg_segment_filter){.kind = OPENREG_FILTER_CACHED}));
    openreg_status status = openreg_cache_add_segment(cache, pool, rounded, out, refused);
    if (*refused)
        status = openreg_cache_add_smallest_segment(cache, pool, rounded, out, refused);
    if (*refused) {
        openreg_cache_release_hot(cache);
        *out = openreg_cache_find(pool, rounded); /* freed while the driver was called */
        if (*out == NULL)
            *out = openreg_cache_borrow(cache, pool, rounded);
        *refused = *out == NULL;
        status = OPENREG_OK;
    }
    return status;
}

/* The driver is out of memory: releases cached segments, and tries again. Both locks are held. */
static openreg_status
grow_after_flush(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, uint64_t size, openreg_block **out)
{
    cache->stats.retries++;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        const uint64_t seen = answers_to_others(cache);
        bool refused;
        const openreg_status status = grow_once(cache, pool, rounded, out, &refused);
        if (!refused)
            return status;
        const openreg_error_fields error = openreg_error_save();
        const bool is_worth_it = await_answer(cache, seen);
        openreg_error_restore(&error);
        if (!is_worth_it)
            break;
    }
    return openreg_cache_out_of_memory(cache, pool, size);
}

/* While more is reserved than garbage_collection_threshold allows, releases segments that have been free for longer than
 * the average. Called with the lock held; releases and reacquires it. If the driver fails to free one, the request is
 * served all the same. */
static void
collect_garbage(struct openreg_cache *cache)
{
    const uint64_t limit = openreg_cache_garbage_limit(cache);
    if ((uint64_t)openreg_stat_current(cache->stats.reserved_bytes) <= limit)
        return;
    openreg_fast_lock_release(&cache->lock); /* the flush lock comes first */
    openreg_lock_acquire(&cache->flush);
    openreg_fast_lock_acquire(&cache->lock);
    openreg_status status = OPENREG_OK;
    while (status == OPENREG_OK && (uint64_t)openreg_stat_current(cache->stats.reserved_bytes) > limit) {
        openreg_segment_filter filter = {.kind = OPENREG_FILTER_UNUSED, .free_since = UINT64_MAX};
        uint64_t count = 0, sum = 0;
        openreg_cache_release_hot(cache);
        for (const openreg_segment *segment = LIST_FIRST(&cache->segments); segment != NULL;
             segment = LIST_NEXT(segment, all)) {
            if (!openreg_cache_is_given(segment, filter))
                continue;
            count++;
            sum += segment->free_since;
        }
        if (count == 0)
            break;
        filter.free_since = sum / count;
        status = openreg_cache_give_segments(cache, malloc_call, filter);
    }
    openreg_lock_release(&cache->flush);
}

openreg_status
openreg_cache_grow(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, uint64_t size,
                   openreg_block **out)
{
    const openreg_error_fields before = openreg_error_save();
    bool refused;
    if (rounded > openreg_cache_most(cache->device)) {
        (void)openreg_error_set(OPENREG_E_NOMEM, malloc_call, "too much for one allocation");
        return openreg_cache_out_of_memory(cache, pool, size);
    }
    collect_garbage(cache);
    openreg_status status = openreg_cache_add_segment(cache, pool, rounded, out, &refused);
    if (!refused) {
        if (status == OPENREG_OK)
            openreg_error_restore(&before);
        return status;
    }
    openreg_fast_lock_release(&cache->lock); /* the flush lock comes first */
    (void)openreg_memory_collect_exports();
    openreg_lock_acquire(&cache->flush);
    openreg_fast_lock_acquire(&cache->lock);
    status = grow_after_flush(cache, pool, rounded, size, out);
    openreg_lock_release(&cache->flush);
    if (status == OPENREG_OK)
        openreg_error_restore(&before); /* a success leaves the last error alone */
    return status;
}
