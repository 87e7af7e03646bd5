/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_vmm.c: segments of the caching allocator that grow and shrink in place (openreg/vmm.h).
 *
 * A segment of this kind has addresses for much more than its memory, which is the first `size` bytes. It grows if the
 * last block is too small for a request, and shrinks when cached memory is released. A pool has one of them at a time:
 * the next is made when its addresses are used up. */
#include "memory/cache_internal.h"

#include <stdlib.h>

#include "base/error.h"
#include "watch/observers.h"

#define SMALL_ROOM (256 * OPENREG_MIB)
#define UNKNOWN_ROOM (UINT64_C(64) << 30) /* if the device's size is not known */
#define LEAST_STEP (2 * OPENREG_MIB)      /* the granularity may be as small as a page, and each piece costs a call */

static const char malloc_call[] = "openreg_malloc";

const openreg_vmm *
openreg_cache_vmm(const openreg_device *device)
{
    return openreg_find_extension(malloc_call, device->driver, &openreg_extension_vmm);
}

static uint64_t
round_up(uint64_t size, uint64_t step)
{
    return (size + step - 1) / step * step;
}

/* Bytes of addresses for a segment that begins with `size` bytes. */
static openreg_status
reserve(openreg_device *device, const openreg_vmm *growing, openreg_segment *segment, uint64_t size)
{
    const uint64_t total = device->info.total_bytes == 0 ? UNKNOWN_ROOM : device->info.total_bytes;
    uint64_t wanted = segment->pool->kind == OPENREG_POOL_SMALL ? SMALL_ROOM : total / 2;
    for (; wanted >= size; wanted /= 2) {
        const uint64_t room = wanted / segment->step * segment->step;
        if (room < size)
            break;
        const openreg_status status = openreg_call_reserve(device, malloc_call, growing, room, segment->step,
                                                           &segment->allocation);
        segment->room = status == OPENREG_OK ? room : 0;
        if (status == OPENREG_OK || status != OPENREG_E_NOMEM)
            return status;
    }
    return OPENREG_E_UNSUPPORTED;
}

openreg_status
openreg_cache_allocate_growing(openreg_device *device, openreg_segment *segment)
{
    const openreg_vmm *const growing = openreg_cache_vmm(device);
    if (growing == NULL)
        return OPENREG_E_UNSUPPORTED;
    OPENREG_RETURN_NOT_OK(openreg_call_granularity(device, malloc_call, growing, &segment->step));
    if (segment->step < LEAST_STEP)
        segment->step = LEAST_STEP;
    const uint64_t size = round_up(segment->size, segment->step);
    OPENREG_RETURN_NOT_OK(reserve(device, growing, segment, size));
    const openreg_status status = openreg_call_map(device, malloc_call, growing, segment->allocation, 0, size);
    if (status != OPENREG_OK) {
        const openreg_error_fields error = openreg_error_save();
        (void)openreg_call_release(device, malloc_call, growing, segment->allocation);
        openreg_error_restore(&error);
        segment->room = 0;
        return status;
    }
    segment->start = segment->allocation;
    segment->size = size;
    return OPENREG_OK;
}

static openreg_block *
last_block(const openreg_segment *segment)
{
    return openreg_block_index_before(segment->index, segment->size - 1);
}

/* Counts free bytes at the end of a segment as "inactive split", or no longer. */
static void
count_tail(struct openreg_cache *cache, const openreg_block *tail, int64_t pieces, int64_t bytes)
{
    const int kind = tail->segment->pool->kind;
    if (tail->previous == NULL)
        return; /* the whole segment is free */
    openreg_stat_move(cache->stats.inactive_split, kind, pieces);
    openreg_stat_move(cache->stats.inactive_split_bytes, kind, bytes);
}

static void
count_reserved(struct openreg_cache *cache, const openreg_segment *segment, int64_t bytes)
{
    const int kind = segment->pool->kind;
    openreg_private_pool *private_pool = segment->pool->owner->private_pool;
    openreg_stat_move(cache->stats.reserved_bytes, kind, bytes);
    if (private_pool != NULL)
        openreg_stat_move(private_pool->reserved, kind, bytes);
}

static void
trace_range(const struct openreg_cache *cache, int32_t action, const openreg_segment *segment, uint64_t offset,
            uint64_t size)
{
    if ((openreg_features() & OPENREG_FEATURE_TRACE) != 0)
        openreg_cache_trace(cache, action, segment->pool, (uintptr_t)segment->start + offset, size);
}

/* Adds `amount` bytes to the segment: they join its last block if that is free, else they become a block, for which
 * `spare` is used. */
static void
append(struct openreg_cache *cache, openreg_segment *segment, uint64_t amount, openreg_block *spare)
{
    openreg_cache_release_hot(cache);
    openreg_block *last = last_block(segment);
    trace_range(cache, OPENREG_MEMORY_EVENT_SEGMENT_MAP, segment, segment->size, amount);
    if (last->state == OPENREG_BLOCK_FREE) {
        openreg_free_lists_remove(&segment->pool->free, last);
        last->size += amount;
        count_tail(cache, last, 0, (int64_t)amount);
        openreg_cache_give_block(cache, spare);
    } else {
        *spare = (openreg_block){
            .address = segment->start + segment->size, .size = amount, .segment = segment, .previous = last};
        last->next = spare;
        last = spare;
        openreg_block_index_set(segment->index, segment->size, last);
        count_tail(cache, last, 1, (int64_t)amount);
    }
    openreg_free_lists_insert(&segment->pool->free, last);
    segment->size += amount;
    count_reserved(cache, segment, (int64_t)amount);
}

/* Maps or unmaps [offset, offset + size) of the segment. Releases and reacquires the lock. */
static openreg_status
change(struct openreg_cache *cache, const char *call, openreg_segment *segment, bool grows, uint64_t offset,
       uint64_t size)
{
    segment->resizing = true;
    openreg_cache_ask(cache);
    openreg_fast_lock_release(&cache->lock);
    openreg_device *const device = cache->device;
    const openreg_vmm *const growing = openreg_cache_vmm(device);
    const openreg_status status = grows ? openreg_call_map(device, call, growing, segment->allocation, offset, size)
                                        : openreg_call_unmap(device, call, growing, segment->allocation, offset, size);
    openreg_fast_lock_acquire(&cache->lock);
    segment->resizing = false;
    openreg_cache_answered(cache);
    return status;
}

openreg_segment *
openreg_cache_growable(const openreg_pool *pool, uint64_t rounded, uint64_t *amount)
{
    const uint64_t unit = pool->kind == OPENREG_POOL_SMALL ? OPENREG_SMALL_SEGMENT : OPENREG_LARGE_SEGMENT;
    /* A pool has one of them until its addresses are used up, so a device has few. */
    for (openreg_segment *segment = LIST_FIRST(&pool->growing); segment != NULL;
         segment = LIST_NEXT(segment, growing)) {
        if (segment->resizing)
            continue;
        const openreg_block *last = last_block(segment);
        const uint64_t there = last->state == OPENREG_BLOCK_FREE ? last->size : 0;
        const uint64_t room = segment->room - segment->size;
        if (there >= rounded)
            continue; /* max_split_size keeps it whole */
        *amount = round_up(round_up(rounded - there, unit), segment->step);
        if (*amount > room || !openreg_cache_fits(pool, there + *amount, rounded))
            *amount = round_up(rounded - there, segment->step);
        if (*amount <= room && openreg_cache_fits(pool, there + *amount, rounded))
            return segment;
    }
    return NULL;
}

openreg_status
openreg_cache_grow_segment(struct openreg_cache *cache, openreg_segment *segment, uint64_t amount)
{
    openreg_block *spare = openreg_cache_take_block(cache);
    if (spare == NULL)
        return openreg_cache_no_memory(malloc_call, cache->device);
    cache->coming += amount;
    const openreg_status status = change(cache, malloc_call, segment, true, segment->size, amount);
    cache->coming -= amount;
    if (status != OPENREG_OK) {
        openreg_cache_give_block(cache, spare);
        return status;
    }
    cache->stats.driver_allocs++;
    append(cache, segment, amount, spare);
    return OPENREG_OK;
}

/* Unmaps the free end of a segment that has blocks in use, in whole units. No effect if there is none. */
static openreg_status
shrink(struct openreg_cache *cache, const char *call, openreg_segment *segment)
{
    openreg_block *last = last_block(segment);
    const uint64_t begin = (uint64_t)(last->address - segment->start);
    const uint64_t end = round_up(begin, segment->step);
    if (last->state != OPENREG_BLOCK_FREE || last->previous == NULL || end >= segment->size)
        return OPENREG_OK;
    const uint64_t amount = segment->size - end;
    openreg_block *spare = openreg_cache_take_block(cache); /* to restore it */
    if (spare == NULL)
        return OPENREG_OK;
    openreg_free_lists_remove(&segment->pool->free, last);
    count_tail(cache, last, begin == end ? -1 : 0, -(int64_t)amount);
    if (begin == end) {
        last->previous->next = NULL;
        openreg_block_index_clear(segment->index, begin);
        openreg_cache_give_block(cache, last);
    } else {
        last->size -= amount;
        openreg_free_lists_insert(&segment->pool->free, last);
    }
    segment->size = end;
    count_reserved(cache, segment, -(int64_t)amount);
    trace_range(cache, OPENREG_MEMORY_EVENT_SEGMENT_UNMAP, segment, end, amount);
    const openreg_status status = change(cache, call, segment, false, end, amount);
    if (status != OPENREG_OK) {
        append(cache, segment, amount, spare);
        return status;
    }
    cache->stats.driver_frees++;
    if (openreg_is_observed(OPENREG_OBSERVE_USES)) /* the driver has waited for all work on it */
        openreg_observers_block(OPENREG_BLOCK_GONE, segment->start + end, amount, OPENREG_HOST, 0);
    openreg_cache_give_block(cache, spare);
    return OPENREG_OK;
}

openreg_status
openreg_cache_shrink_segments(struct openreg_cache *cache, const char *call, openreg_segment_filter filter)
{
    for (openreg_segment *segment = openreg_cache_first_segment(cache, filter); segment != NULL;) {
        /* No segment is removed while the flush lock is held, but new ones are added, at the start of the list. */
        if (segment->room > 0 && !segment->resizing && openreg_cache_filter_matches(segment, filter))
            OPENREG_RETURN_NOT_OK(shrink(cache, call, segment));
        segment = openreg_cache_next_segment(segment, filter);
    }
    return OPENREG_OK;
}
