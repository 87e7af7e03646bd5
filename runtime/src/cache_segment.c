/* cache_segment.c: segments of the caching allocator, from the driver and back, and running out of memory. */
#define _GNU_SOURCE
#include "cache_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "error.h"
#include "exports.h"
#include "size_text.h"
#include "text.h"

static const char malloc_call[] = "openreg_malloc";

static uint64_t
segment_size_for(uint64_t rounded)
{
    if (rounded <= OPENREG_SMALL_BLOCK_MAX)
        return OPENREG_SMALL_SEGMENT;
    if (rounded < OPENREG_LARGE_SEGMENT_BELOW)
        return OPENREG_LARGE_SEGMENT;
    return (rounded + OPENREG_SEGMENT_UNIT - 1) / OPENREG_SEGMENT_UNIT * OPENREG_SEGMENT_UNIT;
}

/* Extra bytes to ask for, so that a start that is aligned to 512 bytes fits whatever the driver gives. */
static uint64_t
padding_of(const openreg_device *device)
{
    const uint64_t alignment = device->info.min_alignment == 0 ? 16 : device->info.min_alignment;
    return alignment >= OPENREG_BLOCK_UNIT ? 0 : OPENREG_BLOCK_UNIT - alignment;
}

openreg_status
openreg_cache_map_segment(const char *call, openreg_device *device, openreg_segment *segment)
{
    openreg_range_info info = {
        .start = (uintptr_t)segment->start, .size = segment->size, .device = device, .segment = segment};
    const openreg_driver *table = &device->driver->table;
    if ((table->caps & OPENREG_CAP_FENCED) != 0)
        info.flags |= OPENREG_RANGE_FENCED;
    if ((table->caps & OPENREG_CAP_HOST_VISIBLE) != 0 && table->host_alias != NULL) {
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

/* A new segment for a block of `rounded` bytes. No lock is held. *refused = true if the driver had no memory. */
static openreg_status
make_segment(openreg_device *device, openreg_pool *pool, uint64_t rounded, openreg_segment **out, bool *refused)
{
    openreg_segment *segment = calloc(1, sizeof *segment);
    openreg_block_index *index =
        openreg_block_index_create(segment_size_for(rounded), pool->kind == OPENREG_POOL_SMALL ? 9 : 20);
    if (segment == NULL || index == NULL) {
        free(segment);
        free(index);
        return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for the books of openreg:%d", malloc_call,
                                 device->index);
    }
    segment->index = index;
    segment->size = segment_size_for(rounded);
    segment->pool = pool;
    openreg_status status = openreg_call_mem_alloc(device, malloc_call, segment->size + padding_of(device),
                                                   pool->owner->handle, &segment->allocation);
    *refused = status == OPENREG_E_NOMEM;
    if (status == OPENREG_OK) {
        const uintptr_t given = (uintptr_t)segment->allocation;
        segment->start = (char *)segment->allocation + (padding_of(device) == 0 ? 0 : (0 - given) % OPENREG_BLOCK_UNIT);
        status = openreg_cache_map_segment(malloc_call, device, segment);
        if (status != OPENREG_OK) {
            const openreg_error error = *openreg_error_record();
            (void)openreg_call_mem_free(device, malloc_call, segment->allocation, pool->owner->handle);
            *openreg_error_record() = error;
        }
    }
    if (status != OPENREG_OK)
        free_segment(segment);
    else
        *out = segment;
    return status;
}

/* Adds a segment to the cache, or takes it out: the list, its one free block, the figures. The lock is held. */
static void
link_segment(struct openreg_cache *cache, openreg_segment *segment)
{
    segment->previous = NULL;
    segment->next = cache->segments;
    if (segment->next != NULL)
        segment->next->previous = segment;
    cache->segments = segment;
    openreg_free_lists_insert(&segment->pool->free, segment->first);
    openreg_stat_add(cache->stats.segment, segment->pool->kind, 1);
    openreg_stat_add(cache->stats.reserved_bytes, segment->pool->kind, (int64_t)segment->size);
}

static void
unlink_segment(struct openreg_cache *cache, openreg_segment *segment)
{
    if (segment->previous != NULL)
        segment->previous->next = segment->next;
    else
        cache->segments = segment->next;
    if (segment->next != NULL)
        segment->next->previous = segment->previous;
    openreg_free_lists_remove(&segment->pool->free, segment->first);
    openreg_stat_subtract(cache->stats.segment, segment->pool->kind, 1);
    openreg_stat_subtract(cache->stats.reserved_bytes, segment->pool->kind, (int64_t)segment->size);
}

/* Asks the driver for a segment and adds it. The lock is held, and let go meanwhile. */
static openreg_status
add_segment(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, openreg_block **out, bool *refused)
{
    *refused = false;
    openreg_block *block = openreg_cache_take_block(cache);
    if (block == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for the books of openreg:%d", malloc_call,
                                 cache->device->index);
    openreg_segment *segment;
    openreg_fast_lock_release(&cache->lock);
    const openreg_status status = make_segment(cache->device, pool, rounded, &segment, refused);
    openreg_fast_lock_acquire(&cache->lock);
    if (status != OPENREG_OK) {
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
openreg_cache_give_segments(struct openreg_cache *cache, const char *call)
{
    openreg_segment *given = NULL, *kept = NULL;
    openreg_cache_unpark(cache);
    for (openreg_segment *segment = cache->segments, *next; segment != NULL; segment = next) {
        next = segment->next;
        if (segment->first->state != OPENREG_BLOCK_FREE || segment->first->next != NULL)
            continue;
        unlink_segment(cache, segment);
        /* Before the driver has it back, or another thread could be given the same addresses and find them taken. */
        openreg_address_map_remove(segment->range);
        segment->next = given;
        given = segment;
    }
    openreg_fast_lock_release(&cache->lock);
    openreg_status result = OPENREG_OK;
    openreg_block *blocks = NULL;
    int64_t freed = 0;
    while (given != NULL) {
        openreg_segment *segment = given;
        given = segment->next;
        openreg_status status =
            openreg_call_mem_free(cache->device, call, segment->allocation, segment->pool->owner->handle);
        if (status != OPENREG_OK) {
            const openreg_error error = *openreg_error_record();
            result = status;
            status = openreg_cache_map_segment(call, cache->device, segment);
            *openreg_error_record() = error;
            if (status == OPENREG_OK) {
                segment->next = kept;
                kept = segment;
                continue;
            }
            /* The driver neither takes it nor lets it be used: nothing is left but to forget it. */
        }
        segment->first->u.free.next = blocks;
        blocks = segment->first;
        free_segment(segment);
        freed++;
    }
    openreg_fast_lock_acquire(&cache->lock);
    cache->stats.driver_frees += freed;
    while (blocks != NULL) {
        openreg_block *block = blocks;
        blocks = block->u.free.next;
        openreg_cache_give_block(cache, block);
    }
    while (kept != NULL) {
        openreg_segment *segment = kept;
        kept = segment->next;
        link_segment(cache, segment);
    }
    return result;
}

void
openreg_cache_destroy_segments(struct openreg_cache *cache)
{
    while (cache->segments != NULL) {
        openreg_segment *segment = cache->segments;
        cache->segments = segment->next;
        openreg_address_map_remove(segment->range);
        (void)openreg_call_mem_free(cache->device, "openreg_shutdown", segment->allocation, segment->pool->owner->handle);
        free_segment(segment); /* its blocks go with their chunks */
    }
}

openreg_status
openreg_cache_trim(struct openreg_cache *cache, const char *call)
{
    openreg_lock_acquire(&cache->flush);
    openreg_fast_lock_acquire(&cache->lock);
    openreg_status status = openreg_cache_sync_waiting(cache, call);
    if (status == OPENREG_OK)
        status = openreg_cache_give_segments(cache, call);
    openreg_fast_lock_release(&cache->lock);
    openreg_lock_release(&cache->flush);
    return status;
}

/* The text of running out of memory, with the figures. The lock is held, and let go meanwhile. */
static openreg_status
out_of_memory(struct openreg_cache *cache, uint64_t size)
{
    openreg_device *device = cache->device;
    const int64_t vendor_code = openreg_error_record()->vendor_code;
    const int64_t allocated = openreg_stat_current(cache->stats.allocated_bytes);
    const int64_t reserved = openreg_stat_current(cache->stats.reserved_bytes);
    uint64_t unused, total;
    openreg_fast_lock_release(&cache->lock);
    openreg_size_text asked = openreg_size_text_of(size), used = openreg_size_text_of((uint64_t)allocated);
    openreg_size_text cached = openreg_size_text_of((uint64_t)(reserved - allocated));
    char capacity[128] = "";
    openreg_status status = openreg_call_mem_info(device, malloc_call, &unused, &total);
    if (status != OPENREG_OK) {
        total = device->info.total_bytes;
        unused = total > (uint64_t)reserved ? total - (uint64_t)reserved : 0;
    }
    if (total > 0)
        (void)snprintf(capacity, sizeof capacity, " openreg:%d has %s in all, of which %s are free.", device->index,
                       openreg_size_text_of(total).text, openreg_size_text_of(unused).text);
    status = openreg_error_set(OPENREG_E_NOMEM,
                               "%s: out of memory on openreg:%d (driver \"%s\"). Tried to allocate %s.%s %s are "
                               "allocated by openreg, and %s are reserved by openreg but unallocated.",
                               malloc_call, device->index, device->driver->name, asked.text, capacity, used.text,
                               cached.text);
    openreg_error *record = openreg_error_record();
    record->vendor_code = vendor_code;
    openreg_text_copy(record->driver, sizeof record->driver, device->driver->name);
    openreg_fast_lock_acquire(&cache->lock);
    return status;
}

/* The driver is out of memory: gives back what is cached, and asks once more. Both locks are held. */
static openreg_status
grow_after_flush(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, uint64_t size, openreg_block **out)
{
    cache->stats.retries++;
    /* Another thread may have flushed, or freed what fits, since the driver was asked. */
    openreg_cache_unpark(cache);
    *out = openreg_free_lists_find(&pool->free, rounded, true);
    if (*out != NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_cache_sync_waiting(cache, malloc_call));
    *out = openreg_free_lists_find(&pool->free, rounded, true);
    if (*out != NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_cache_give_segments(cache, malloc_call));
    bool refused;
    const openreg_status status = add_segment(cache, pool, rounded, out, &refused);
    if (!refused)
        return status;
    cache->stats.ooms++;
    return out_of_memory(cache, size);
}

openreg_status
openreg_cache_grow(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, uint64_t size,
                   openreg_block **out)
{
    *out = openreg_free_lists_find(&pool->free, rounded, true);
    if (*out != NULL)
        return OPENREG_OK;
    const openreg_error before = *openreg_error_record();
    bool refused;
    openreg_status status = add_segment(cache, pool, rounded, out, &refused);
    if (!refused)
        return status;
    openreg_fast_lock_release(&cache->lock); /* the flush lock comes first */
    (void)openreg_exports_collect();
    openreg_lock_acquire(&cache->flush);
    openreg_fast_lock_acquire(&cache->lock);
    status = grow_after_flush(cache, pool, rounded, size, out);
    openreg_lock_release(&cache->flush);
    if (status == OPENREG_OK)
        *openreg_error_record() = before; /* a success leaves the last error alone */
    return status;
}
