/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_segment.c: allocates segments of the caching allocator from the driver, and releases them. */
#define _GNU_SOURCE
#include "memory/cache_internal.h"

#include <stdlib.h>

#include "base/device_name.h"
#include "base/error.h"

static const char malloc_call[] = "openreg_malloc";

static uint64_t
segment_size_for(const openreg_device *device, const openreg_pool *pool, uint64_t rounded, bool is_smallest)
{
    uint64_t size = OPENREG_SMALL_SEGMENT;
    if (rounded > OPENREG_SMALL_BLOCK_MAX) {
        const bool is_shared = rounded < OPENREG_LARGE_SEGMENT_BELOW && !pool->no_split && !is_smallest;
        size = is_shared ? openreg_cache_settings()->large_segment_size : rounded;
        size = (size + OPENREG_SEGMENT_UNIT - 1) / OPENREG_SEGMENT_UNIT * OPENREG_SEGMENT_UNIT;
    }
    const uint64_t most = openreg_cache_most(device);
    return size < most ? size : most;
}

openreg_status
openreg_cache_map_segment(const char *call, openreg_device *device, openreg_segment *segment)
{
    openreg_range_info info = {.start = (uintptr_t)segment->start,
                               .size = segment->room > 0 ? segment->room : segment->size,
                               .device = device,
                               .segment = segment};
    if ((device->info.caps & OPENREG_CAP_FENCED) != 0)
        info.flags |= OPENREG_RANGE_FENCED;
    if ((device->info.caps & OPENREG_CAP_HOST_VISIBLE) != 0) {
        void *alias;
        OPENREG_RETURN_NOT_OK(openreg_call_host_alias(device, call, segment->start, &alias));
        info.flags |= OPENREG_RANGE_VISIBLE;
        info.distance = (uintptr_t)alias - info.start;
    }
    return openreg_address_map_insert(call, &info, &segment->range);
}

static void
free_segment(openreg_segment *segment)
{
    free(segment->index);
    free(segment);
}

static openreg_status
free_allocation(openreg_device *device, const char *call, const openreg_segment *segment)
{
    if (segment->room > 0)
        return openreg_call_release(device, call, openreg_cache_vmm(device), segment->allocation);
    return openreg_call_mem_free(device, call, segment->allocation);
}

/* Memory for a segment whose `pool` and `size` are set: sets `allocation`, `start` and `room`. Requests exactly the bytes
 * needed: one more would cost a page, and may exceed the memory. If a driver with a smaller min_alignment returns an
 * address at which no block can begin, the request is repeated with room to align it, and so are all later ones. */
static openreg_status
allocate_plain(openreg_device *device, openreg_segment *segment)
{
    const uint64_t promised = device->info.min_alignment == 0 ? OPENREG_LEAST_ALIGNMENT : device->info.min_alignment;
    if (promised >= OPENREG_BLOCK_UNIT || !atomic_load_explicit(&device->cache->pads_segments, memory_order_relaxed)) {
        OPENREG_RETURN_NOT_OK(openreg_call_mem_alloc(device, malloc_call, segment->size, &segment->allocation));
        segment->start = segment->allocation;
        if ((uintptr_t)segment->start % OPENREG_BLOCK_UNIT == 0)
            return OPENREG_OK;
        OPENREG_RETURN_NOT_OK(openreg_call_mem_free(device, malloc_call, segment->allocation));
        atomic_store_explicit(&device->cache->pads_segments, true, memory_order_relaxed);
    }
    OPENREG_RETURN_NOT_OK(openreg_call_mem_alloc(device, malloc_call, segment->size + OPENREG_BLOCK_UNIT - promised,
                                                 &segment->allocation));
    segment->start = (char *)segment->allocation + (0 - (uintptr_t)segment->allocation) % OPENREG_BLOCK_UNIT;
    return OPENREG_OK;
}

static openreg_status
allocate_segment(openreg_device *device, openreg_segment *segment)
{
    if (openreg_cache_settings()->expandable_segments && !segment->pool->no_split) {
        const openreg_status status = openreg_cache_allocate_growing(device, segment);
        if (status != OPENREG_E_UNSUPPORTED)
            return status;
        if (openreg_cache_vmm(device) == NULL)
            openreg_cache_warn_of_growing(device);
    }
    return allocate_plain(device, segment);
}

/* A new segment of `size` bytes. No lock is held. *refused = true if the driver had no memory. */
static openreg_status
make_segment(openreg_device *device, openreg_pool *pool, uint64_t size, openreg_segment **out, bool *refused)
{
    openreg_segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL)
        return openreg_cache_no_memory(malloc_call, device);
    segment->size = size;
    segment->pool = pool;
    openreg_status status = allocate_segment(device, segment);
    *refused = status == OPENREG_E_NOMEM;
    if (status != OPENREG_OK) {
        free_segment(segment);
        return status;
    }
    segment->index = openreg_block_index_create(segment->room > 0 ? segment->room : size,
                                                pool->kind == OPENREG_POOL_SMALL ? 9 : 20);
    status = segment->index == NULL ? openreg_cache_no_memory(malloc_call, device)
                                    : openreg_cache_map_segment(malloc_call, device, segment);
    if (status != OPENREG_OK) {
        const openreg_error_fields error = openreg_error_save();
        (void)free_allocation(device, malloc_call, segment);
        openreg_error_restore(&error);
        free_segment(segment);
        return status;
    }
    *out = segment;
    return OPENREG_OK;
}

static void
trace_segment(const struct openreg_cache *cache, int32_t action, const openreg_segment *segment)
{
    if ((openreg_features() & OPENREG_FEATURE_TRACE) != 0)
        openreg_cache_trace(cache, action, segment->pool, (uintptr_t)segment->start, segment->size);
}

void
openreg_cache_note_returning(struct openreg_cache *cache, openreg_segment *segment)
{
    if (segment->is_returning)
        return;
    segment->is_returning = true;
    LIST_INSERT_HEAD(&cache->returning, segment, returning);
}

static void
forget_returning(openreg_segment *segment)
{
    if (!segment->is_returning)
        return;
    segment->is_returning = false;
    LIST_REMOVE(segment, returning);
}

/* Adds a segment to the cache, or removes it: the list, its one free block, the figures. The lock is held. */
static void
link_segment(struct openreg_cache *cache, openreg_segment *segment)
{
    openreg_private_pool *private_pool = segment->pool->owner->private_pool;
    if ((openreg_features() & OPENREG_FEATURE_SPLIT_LIMIT) != 0 &&
        segment->size >= openreg_cache_settings()->max_split_size) {
        segment->oversize = true;
        openreg_stat_count(&cache->stats.oversize_segments, 1);
    }
    if (private_pool != NULL) {
        openreg_stat_add(private_pool->reserved, segment->pool->kind, (int64_t)segment->size);
        LIST_INSERT_HEAD(&private_pool->own_segments, segment, own);
    }
    trace_segment(cache, OPENREG_MEMORY_EVENT_SEGMENT_ALLOC, segment);
    segment->free_since = cache->clock;
    LIST_INSERT_HEAD(&cache->segments, segment, all);
    if (segment->room > 0)
        LIST_INSERT_HEAD(&segment->pool->growing, segment, growing);
    openreg_free_lists_insert(&segment->pool->free, segment->first);
    openreg_stat_add(cache->stats.segment, segment->pool->kind, 1);
    openreg_stat_add(cache->stats.reserved_bytes, segment->pool->kind, (int64_t)segment->size);
}

static void
unlink_segment(struct openreg_cache *cache, openreg_segment *segment)
{
    openreg_private_pool *private_pool = segment->pool->owner->private_pool;
    if (segment->oversize)
        openreg_stat_count(&cache->stats.oversize_segments, -1);
    segment->oversize = false;
    if (private_pool != NULL) {
        openreg_stat_subtract(private_pool->reserved, segment->pool->kind, (int64_t)segment->size);
        LIST_REMOVE(segment, own);
    }
    forget_returning(segment);
    trace_segment(cache, OPENREG_MEMORY_EVENT_SEGMENT_FREE, segment);
    LIST_REMOVE(segment, all);
    if (segment->room > 0)
        LIST_REMOVE(segment, growing);
    openreg_free_lists_remove(&segment->pool->free, segment->first);
    openreg_stat_subtract(cache->stats.segment, segment->pool->kind, 1);
    openreg_stat_subtract(cache->stats.reserved_bytes, segment->pool->kind, (int64_t)segment->size);
}

/* Whether the cache may reserve that much more. The lock is held. */
static openreg_status
check_limit(const struct openreg_cache *cache, uint64_t size)
{
    const uint64_t limit = openreg_cache_limit(cache);
    const uint64_t reserved = (uint64_t)openreg_stat_current(cache->stats.reserved_bytes) + cache->coming;
    if (size <= limit && reserved <= limit - size)
        return OPENREG_OK;
    return openreg_error_set(OPENREG_E_NOMEM, malloc_call, "%s:%d is limited to %llu bytes", openreg_device_name(),
                             cache->device->index, (unsigned long long)limit);
}

/* Grows a segment of the pool for the request, unless a block fits once none is hot or warm. *out = NULL if no segment can
 * grow. The lock is held, and released in between, so each round starts anew. */
static openreg_status
extend_segment(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, openreg_block **out, bool *refused)
{
    for (;;) {
        uint64_t amount;
        openreg_cache_release_hot(cache);
        *out = openreg_cache_find(pool, rounded);
        openreg_segment *segment = *out != NULL ? NULL : openreg_cache_growable(pool, rounded, &amount);
        if (segment == NULL)
            return OPENREG_OK;
        openreg_status status = check_limit(cache, amount);
        if (status == OPENREG_OK)
            status = openreg_cache_grow_segment(cache, segment, amount);
        if (status != OPENREG_OK) {
            *refused = status == OPENREG_E_NOMEM;
            return status;
        }
    }
}

/* A new segment of `size` bytes. */
static openreg_status
add_new(struct openreg_cache *cache, openreg_pool *pool, uint64_t size, openreg_block **out, bool *refused)
{
    openreg_status status = check_limit(cache, size);
    if (status != OPENREG_OK) {
        *refused = true;
        return status;
    }
    openreg_block *block = openreg_cache_take_block(cache);
    if (block == NULL)
        return openreg_cache_no_memory(malloc_call, cache->device);
    openreg_segment *segment;
    cache->coming += size;
    openreg_cache_count_segment(cache, pool->owner->private_pool, 1);
    openreg_cache_ask(cache);
    openreg_fast_lock_release(&cache->lock);
    status = make_segment(cache->device, pool, size, &segment, refused);
    openreg_fast_lock_acquire(&cache->lock);
    openreg_cache_answered(cache);
    cache->coming -= size;
    if (status != OPENREG_OK) {
        openreg_cache_count_segment(cache, pool->owner->private_pool, -1);
        openreg_cache_give_block(cache, block);
        return status;
    }
    *block = (openreg_block){.address = segment->start, .size = segment->size, .segment = segment};
    segment->first = block;
    openreg_block_index_set(segment->index, 0, block);
    link_segment(cache, segment);
    cache->stats.driver_allocs++;
    *out = block;
    return OPENREG_OK;
}

openreg_status
openreg_cache_add_segment(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, openreg_block **out,
                          bool *refused)
{
    *refused = false;
    cache->clock++;
    if (openreg_cache_settings()->expandable_segments && !pool->no_split) {
        OPENREG_RETURN_NOT_OK(extend_segment(cache, pool, rounded, out, refused));
        if (*out != NULL)
            return OPENREG_OK;
    }
    return add_new(cache, pool, segment_size_for(cache->device, pool, rounded, false), out, refused);
}

openreg_status
openreg_cache_add_smallest_segment(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded,
                                   openreg_block **out, bool *refused)
{
    const uint64_t size = segment_size_for(cache->device, pool, rounded, true);
    *refused = size == segment_size_for(cache->device, pool, rounded, false);
    return *refused ? OPENREG_E_NOMEM : add_new(cache, pool, size, out, refused);
}

bool
openreg_cache_filter_matches(const openreg_segment *segment, openreg_segment_filter filter)
{
    const openreg_private_pool *pool = segment->pool->owner->private_pool;
    switch (filter.kind) {
    case OPENREG_FILTER_POOL:
        return pool == filter.pool;
    case OPENREG_FILTER_RELEASED:
        return openreg_cache_is_released(pool);
    case OPENREG_FILTER_OVERSIZE:
        return pool == NULL && segment->oversize;
    case OPENREG_FILTER_UNUSED:
        return pool == NULL && segment->pool->kind == OPENREG_POOL_LARGE && segment->free_since <= filter.free_since;
    case OPENREG_FILTER_CACHED:
        break;
    }
    return pool == NULL || openreg_cache_is_released(pool);
}

bool
openreg_cache_is_given(const openreg_segment *segment, openreg_segment_filter filter)
{
    return segment->first->state == OPENREG_BLOCK_FREE && segment->first->next == NULL && !segment->resizing &&
           openreg_cache_filter_matches(segment, filter);
}

/* Segments are released in batches: other threads get the lock in between, and the data stays in the processor's cache. */
#define BATCH_TAKEN 32
#define BATCH_SEEN 512

/* Removes a segment from the cache, to be released to the driver. */
static void
take_segment(struct openreg_cache *cache, openreg_segment *segment, openreg_segment **taken)
{
    unlink_segment(cache, segment);
    /* Before the driver frees it, or another thread could get the same addresses and find them in the map. */
    openreg_address_map_remove(segment->range);
    segment->next_taken = *taken;
    *taken = segment;
}

openreg_segment *
openreg_cache_first_segment(const struct openreg_cache *cache, openreg_segment_filter filter)
{
    return filter.kind == OPENREG_FILTER_POOL ? LIST_FIRST(&filter.pool->own_segments) : LIST_FIRST(&cache->segments);
}

openreg_segment *
openreg_cache_next_segment(const openreg_segment *segment, openreg_segment_filter filter)
{
    return filter.kind == OPENREG_FILTER_POOL ? LIST_NEXT(segment, own) : LIST_NEXT(segment, all);
}

/* Removes some segments of a kind from the cache, from *position on, and links them through `next_taken`. Moves *position
 * behind the segments it examined; NULL: behind the last. The lock is held. */
static openreg_segment *
take_segments(struct openreg_cache *cache, openreg_segment_filter filter, openreg_segment **position)
{
    openreg_segment *taken = NULL;
    int left = BATCH_TAKEN;
    for (int seen = 0; *position != NULL && left > 0 && seen < BATCH_SEEN; seen++) {
        openreg_segment *segment = *position;
        *position = openreg_cache_next_segment(segment, filter);
        if (!openreg_cache_is_given(segment, filter))
            continue;
        take_segment(cache, segment, &taken);
        left--;
    }
    return taken;
}

/* Releases removed segments to the driver; those that it refuses return to the cache. Releases and reacquires the lock. */
static openreg_status
give_taken(struct openreg_cache *cache, const char *call, openreg_segment *given)
{
    openreg_segment *kept = NULL, *gone = NULL;
    openreg_status result = OPENREG_OK;
    openreg_fast_lock_release(&cache->lock);
    while (given != NULL) {
        openreg_segment *segment = given;
        given = segment->next_taken;
        openreg_status status = free_allocation(cache->device, call, segment);
        if (status != OPENREG_OK) {
            const openreg_error_fields error = openreg_error_save();
            result = status;
            status = openreg_cache_map_segment(call, cache->device, segment);
            openreg_error_restore(&error);
            if (status == OPENREG_OK) {
                segment->next_taken = kept;
                kept = segment;
                continue;
            }
            /* The driver neither frees it nor lets it be used: it can only be forgotten. */
        }
        segment->next_taken = gone;
        gone = segment;
    }
    openreg_fast_lock_acquire(&cache->lock);
    while (gone != NULL) {
        openreg_segment *segment = gone;
        gone = segment->next_taken;
        cache->stats.driver_frees++;
        openreg_cache_count_segment(cache, segment->pool->owner->private_pool, -1);
        openreg_cache_give_block(cache, segment->first);
        free_segment(segment);
    }
    while (kept != NULL) {
        openreg_segment *segment = kept;
        kept = segment->next_taken;
        link_segment(cache, segment);
    }
    return result;
}

openreg_status
openreg_cache_give_segments(struct openreg_cache *cache, const char *call, openreg_segment_filter filter)
{
    openreg_cache_release_hot(cache);
    OPENREG_RETURN_NOT_OK(openreg_cache_shrink_segments(cache, call, filter));
    openreg_cache_release_hot(cache);
    openreg_status result = OPENREG_OK;
    /* No segment is removed while the flush lock is held, but new ones are added, at the start of the list. */
    for (openreg_segment *position = openreg_cache_first_segment(cache, filter); position != NULL;) {
        openreg_segment *given = take_segments(cache, filter, &position);
        const openreg_status status = give_taken(cache, call, given);
        if (status != OPENREG_OK)
            result = status;
    }
    return result;
}

void
openreg_cache_give_returning(struct openreg_cache *cache, const char *call)
{
    while (!LIST_EMPTY(&cache->returning)) {
        openreg_segment *taken = NULL;
        for (int left = BATCH_TAKEN; !LIST_EMPTY(&cache->returning) && left > 0; left--) {
            openreg_segment *segment = LIST_FIRST(&cache->returning);
            forget_returning(segment);
            if (openreg_cache_is_given(segment, (openreg_segment_filter){.kind = OPENREG_FILTER_RELEASED}))
                take_segment(cache, segment, &taken);
        }
        if (taken != NULL)
            (void)give_taken(cache, call, taken);
    }
}

void
openreg_cache_destroy_segments(struct openreg_cache *cache)
{
    while (!LIST_EMPTY(&cache->segments)) {
        openreg_segment *segment = LIST_FIRST(&cache->segments);
        openreg_fast_lock_acquire(&cache->lock); /* for calls that have found it, and check it under the lock */
        LIST_REMOVE(segment, all);
        openreg_address_map_remove(segment->range);
        openreg_fast_lock_release(&cache->lock);
        (void)free_allocation(cache->device, "openreg_shutdown", segment);
        free_segment(segment); /* its blocks are freed with their chunks */
    }
}

openreg_status
openreg_cache_trim(struct openreg_cache *cache, const char *call)
{
    openreg_lock_acquire(&cache->flush);
    openreg_fast_lock_acquire(&cache->lock);
    openreg_status status = openreg_cache_sync_waiting(cache, call);
    if (status == OPENREG_OK)
        status = openreg_cache_give_segments(cache, call, (openreg_segment_filter){.kind = OPENREG_FILTER_CACHED});
    openreg_cache_forget_pools(cache);
    openreg_fast_lock_release(&cache->lock);
    openreg_lock_release(&cache->flush);
    return status;
}
