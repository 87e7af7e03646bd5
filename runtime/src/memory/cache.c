/* SPDX-License-Identifier: BSD-3-Clause */
/* cache.c: allocation and freeing of blocks (cache.h). */
#define _GNU_SOURCE
#include "memory/cache_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "device/stream.h"
#include "watch/interceptors.h"
#include "watch/observers.h"

static const char malloc_call[] = "openreg_malloc";

/* --------------------------------------------------------------------------------------------------------- objects */

/* Blocks are not freed before the cache: a chunk holds many, and the number of blocks settles. */
static bool
refill_blocks(struct openreg_cache *cache)
{
    void *memory;
    if (posix_memalign(&memory, OPENREG_CHUNK_ALIGNMENT, sizeof(openreg_block_chunk)) != 0)
        return false;
    openreg_block *blocks = ((openreg_block_chunk *)memset(memory, 0, sizeof(openreg_block_chunk)))->blocks;
    blocks[0].next = cache->block_chunks; /* the first block links the chunks */
    cache->block_chunks = blocks;
    for (int i = OPENREG_BLOCKS_PER_CHUNK - 1; i > 0; i--)
        openreg_cache_give_block(cache, &blocks[i]);
    return true;
}

openreg_block *
openreg_cache_take_block(struct openreg_cache *cache)
{
    if (cache->unused_blocks == NULL && !refill_blocks(cache))
        return NULL;
    openreg_block *block = cache->unused_blocks;
    cache->unused_blocks = block->u.free.next;
    return block;
}

void
openreg_cache_give_block(struct openreg_cache *cache, openreg_block *block)
{
    block->u.free.next = cache->unused_blocks;
    cache->unused_blocks = block;
}

/* --------------------------------------------------------------------------------------------- splitting and joining */

/* The rules of PyTorch's CUDA caching allocator, so that programs tuned to it behave alike. */
static bool
should_split(const openreg_pool *pool, uint64_t rounded, uint64_t remainder)
{
    if (pool->no_split)
        return false;
    if (pool->kind == OPENREG_POOL_SMALL)
        return remainder >= OPENREG_BLOCK_UNIT;
    if (__builtin_expect((openreg_features() & OPENREG_FEATURE_SPLIT_LIMIT) != 0, 0) &&
        rounded >= openreg_cache_settings()->max_split_size)
        return false;
    return remainder > OPENREG_SMALL_BLOCK_MAX;
}

static uint64_t
offset_of(const openreg_block *block)
{
    return (uint64_t)(block->address - block->segment->start);
}

static bool
is_split(const openreg_block *block)
{
    return block->previous != NULL || block->next != NULL;
}

/* Joins `next` to `block`, its neighbour before it; both are in no list. */
static void
join(struct openreg_cache *cache, openreg_block *block, openreg_block *next)
{
    openreg_block_index_clear(next->segment->index, offset_of(next));
    block->size += next->size;
    block->next = next->next;
    if (block->next != NULL)
        block->next->previous = block;
    openreg_cache_give_block(cache, next);
}

static inline void
release(struct openreg_cache *cache, openreg_block *block)
{
    openreg_pool *pool = block->segment->pool;
    int64_t pieces = 0, bytes = 0; /* change of "inactive split" */
    openreg_block *previous = block->previous, *next = block->next;
    if (next != NULL && next->state == OPENREG_BLOCK_FREE) {
        pieces--;
        bytes -= (int64_t)next->size;
        openreg_free_lists_remove(&pool->free, next);
        join(cache, block, next);
    }
    if (previous != NULL && previous->state == OPENREG_BLOCK_FREE) {
        pieces--;
        bytes -= (int64_t)previous->size;
        openreg_free_lists_remove(&pool->free, previous);
        join(cache, previous, block);
        block = previous;
    }
    block->state = OPENREG_BLOCK_FREE;
    openreg_free_lists_insert(&pool->free, block);
    if (is_split(block)) {
        pieces++;
        bytes += (int64_t)block->size;
    } else {
        block->segment->free_since = cache->clock;
        if (__builtin_expect((openreg_features() & (OPENREG_FEATURE_RETURNS | OPENREG_FEATURE_UNCACHED)) != 0, 0) &&
            openreg_cache_is_released(pool->owner->private_pool))
            openreg_cache_note_returning(cache, block->segment);
    }
    openreg_stat_move(cache->stats.inactive_split, pool->kind, pieces);
    openreg_stat_move(cache->stats.inactive_split_bytes, pool->kind, bytes);
}

/* Cuts `rounded` bytes off the start of a block that is in no list, and makes the rest a free block. `rest` is unused. */
static void
split(openreg_pool *pool, openreg_block *block, uint64_t rounded, openreg_block *rest)
{
    rest->address = block->address + rounded;
    rest->size = block->size - rounded;
    rest->previous = block;
    rest->next = block->next;
    rest->segment = block->segment;
    rest->state = OPENREG_BLOCK_FREE;
    if (rest->next != NULL)
        rest->next->previous = rest;
    block->next = rest;
    block->size = rounded;
    openreg_block_index_set(rest->segment->index, offset_of(rest), rest);
    openreg_free_lists_insert(&pool->free, rest);
}

/* ------------------------------------------------------------------------------------------------------ allocation */

/* While blocks wait, "active" exceeds "allocated", and has a peak of its own. */
static void
note_active_peak(const openreg_stat allocated[OPENREG_POOLS], openreg_stat waiting[OPENREG_POOLS], int pool)
{
    const int64_t in_pool = allocated[pool].current + waiting[pool].current;
    const int64_t in_all = openreg_stat_current(allocated) + openreg_stat_current(waiting);
    if (in_pool > waiting[pool].peak)
        waiting[pool].peak = in_pool;
    if (in_all > waiting[OPENREG_POOL_ALL].peak)
        waiting[OPENREG_POOL_ALL].peak = in_all;
}

/* The index of a block or request of the small pool in the warm lists; OPENREG_WARM_SIZES or more: none. */
static inline uint64_t
warm_place(const openreg_pool *pool, uint64_t size)
{
    return pool->kind == OPENREG_POOL_SMALL ? size / OPENREG_BLOCK_UNIT - 1 : OPENREG_WARM_SIZES;
}

/* Handles a block that is no longer the hot one. */
static inline void
cool(struct openreg_cache *cache, openreg_pool *pool, openreg_block *block)
{
    const uint64_t place = warm_place(pool, block->size);
    if (place >= OPENREG_WARM_SIZES || pool->warm_blocks[place] == OPENREG_WARM_BLOCKS) {
        release(cache, block);
        return;
    }
    block->u.used.warm = pool->warm[place];
    pool->warm[place] = block;
    pool->warm_blocks[place]++;
}

static inline openreg_block *
take_warm(openreg_pool *pool, uint64_t rounded)
{
    const uint64_t place = warm_place(pool, rounded);
    if (place >= OPENREG_WARM_SIZES || pool->warm[place] == NULL)
        return NULL;
    openreg_block *block = pool->warm[place];
    pool->warm[place] = block->u.used.warm;
    pool->warm_blocks[place]--;
    return block;
}

static void
release_warm(struct openreg_cache *cache, openreg_pool *pool)
{
    for (unsigned place = 0; place < OPENREG_WARM_SIZES; place++) {
        for (openreg_block *block = pool->warm[place], *next; block != NULL; block = next) {
            next = block->u.used.warm;
            release(cache, block);
        }
        pool->warm[place] = NULL;
        pool->warm_blocks[place] = 0;
    }
}

/* The block freed last, if the request is for its size, or a warm one: nothing needs to be split or was joined. Fits no
 * worse than before: if the block exceeds its first request, the new request is at least as large as that. */
static inline openreg_block *
take_freed(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded)
{
    openreg_block *block = pool->hot;
    if (block == NULL)
        return take_warm(pool, rounded);
    pool->hot = NULL;
    if (rounded <= block->size && rounded >= block->u.used.requested)
        return block;
    cool(cache, pool, block);
    return take_warm(pool, rounded);
}

/* Takes a block out of the lists, and splits it if much is left over. */
static inline openreg_status
take_listed(struct openreg_cache *cache, openreg_block *block, uint64_t rounded)
{
    openreg_pool *const pool = block->segment->pool;
    openreg_cache_stats *stats = &cache->stats;
    const uint64_t remainder = block->size - rounded;
    const bool was_split = is_split(block);
    if (should_split(pool, rounded, remainder)) {
        openreg_block *rest = openreg_cache_take_block(cache);
        if (rest == NULL)
            return openreg_cache_no_memory(malloc_call, cache->device);
        openreg_free_lists_remove(&pool->free, block);
        split(pool, block, rounded, rest);
        if (was_split) {
            openreg_stat_subtract(stats->inactive_split_bytes, pool->kind, (int64_t)rounded);
        } else {
            openreg_stat_add(stats->inactive_split, pool->kind, 1);
            openreg_stat_add(stats->inactive_split_bytes, pool->kind, (int64_t)remainder);
        }
    } else {
        openreg_free_lists_remove(&pool->free, block);
        if (was_split) {
            openreg_stat_subtract(stats->inactive_split, pool->kind, 1);
            openreg_stat_subtract(stats->inactive_split_bytes, pool->kind, (int64_t)block->size);
        }
    }
    return OPENREG_OK;
}

/* Allocates a block that is in no list to the caller. */
static inline void
give_out(struct openreg_cache *cache, openreg_block *block, uint64_t size, void **out)
{
    openreg_cache_stats *stats = &cache->stats;
    const int kind = block->segment->pool->kind;
    block->state = OPENREG_BLOCK_ALLOCATED;
    block->oversize = 0;
    block->u.used.uses = NULL;
    block->u.used.requested = size;
    block->is_shared = 0;
    openreg_stat_add(stats->allocation, kind, 1);
    openreg_stat_add(stats->allocated_bytes, kind, (int64_t)block->size);
    openreg_stat_add(stats->requested_bytes, kind, (int64_t)size);
    *out = block->address;
}

static inline uint64_t
round_up(uint64_t size)
{
    return (size + OPENREG_BLOCK_UNIT - 1) / OPENREG_BLOCK_UNIT * OPENREG_BLOCK_UNIT;
}

/* Work on an allocated block that only processes with special features need. */
static void
note_special(struct openreg_cache *cache, openreg_block *block, unsigned features)
{
    if ((features & OPENREG_FEATURE_SPLIT_LIMIT) != 0 && block->size >= openreg_cache_settings()->max_split_size) {
        block->oversize = 1;
        openreg_stat_count(&cache->stats.oversize_allocations, 1);
    }
    if ((features & OPENREG_FEATURE_TRACE) != 0)
        openreg_cache_trace_block(cache, OPENREG_MEMORY_EVENT_ALLOC, block);
}

/* Whether an interceptor refuses memory for this request. */
__attribute__((noinline)) static openreg_status
fail_on_purpose(struct openreg_cache *cache, const openreg_pool *pool, uint64_t size)
{
    openreg_device *const device = cache->device;
    char text[512];
    if (!openreg_intercepted_allocate(device->index, size, text, sizeof text))
        return OPENREG_OK;
    (void)openreg_error_set_driver(OPENREG_E_NOMEM, malloc_call, device->driver->name, "%s", text);
    return openreg_cache_out_of_memory(cache, pool, size);
}

/* The whole allocation, except the lock. */
static openreg_status
allocate(struct openreg_cache *cache, unsigned features, uint64_t size, openreg_stream stream, void **out)
{
    if (cache->waiting_blocks > 0)
        OPENREG_RETURN_NOT_OK(openreg_cache_poll_waiting(cache, malloc_call));
    uint64_t rounded = round_up(size);
    openreg_stream_pools *pools = openreg_cache_find_pools(cache, cache->device, stream);
    if ((features & OPENREG_FEATURES_OF_REQUESTS) != 0) {
        rounded = openreg_cache_round(cache->device, size);
        OPENREG_RETURN_NOT_OK(openreg_cache_route(cache, stream, &pools));
    } else if (pools == NULL) {
        OPENREG_RETURN_NOT_OK(openreg_cache_make_pools(cache, malloc_call, cache->device, stream, &pools));
    }

    openreg_pool *pool = rounded <= OPENREG_SMALL_BLOCK_MAX ? &pools->small : &pools->large;
    openreg_cache_stats *stats = &cache->stats;
    if ((features & OPENREG_INTERCEPT_ALLOCATIONS) != 0)
        OPENREG_RETURN_NOT_OK(fail_on_purpose(cache, pool, size));
    openreg_block *block = take_freed(cache, pool, rounded);
    if (block == NULL) {
        block = openreg_cache_find(pool, rounded);
        if (block == NULL) /* the new block may belong to another pool */
            OPENREG_RETURN_NOT_OK(openreg_cache_grow(cache, pool, rounded, size, &block));
        OPENREG_RETURN_NOT_OK(take_listed(cache, block, rounded));
    }
    give_out(cache, block, size, out);
    if (cache->waiting_blocks > 0) {
        const int kind = block->segment->pool->kind;
        note_active_peak(stats->allocation, stats->waiting, kind);
        note_active_peak(stats->allocated_bytes, stats->waiting_bytes, kind);
    }
    if (features != 0)
        note_special(cache, block, features);
    return OPENREG_OK;
}

/* A request on the slow path. */
static __attribute__((noinline)) openreg_status
allocate_with_care(int32_t device, openreg_stream stream, size_t size, void **out)
{
    OPENREG_INSIDE;
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get(malloc_call, device, &entry));
    if (size == 0)
        return OPENREG_OK;
    if (size > OPENREG_MAX_ALLOCATION)
        return openreg_error_set(OPENREG_E_INVALID, malloc_call, "size must be at most 2^47 bytes, but is %zu", size);
    if (openreg_device_is_lost(entry))
        return openreg_call_lost(entry, malloc_call); /* cached blocks would suffice, but could not be used */
    struct openreg_cache *cache = entry->cache;
    openreg_fast_lock_acquire(&cache->lock);
    const unsigned features = openreg_features();
    const openreg_status status = allocate(cache, features, size, stream, out);
    const bool returns = features != 0 && !LIST_EMPTY(&cache->returning);
    openreg_fast_lock_release(&cache->lock);
    if ((features & OPENREG_OBSERVE_USES) != 0 && status == OPENREG_OK)
        openreg_observers_block(OPENREG_BLOCK_ALLOCATED, *out, size, OPENREG_HOST, 0);
    if (returns)
        openreg_cache_return(cache);
    return status;
}

/* Serves a request from cached blocks, if no observer or feature needs more. False: use the slow path. The lock is held. */
static inline bool
allocate_at_once(struct openreg_cache *cache, uint64_t size, openreg_stream stream, void **out)
{
    if (cache->is_closed || cache->waiting_blocks > 0 ||
        openreg_features() != 0) /* a closed one may have no pools left */
        return false;
    openreg_stream_pools *const pools = openreg_cache_find_pools(cache, cache->device, stream);
    if (pools == NULL)
        return false;
    const uint64_t rounded = round_up(size);
    openreg_pool *const pool = rounded <= OPENREG_SMALL_BLOCK_MAX ? &pools->small : &pools->large;
    openreg_block *block = take_freed(cache, pool, rounded);
    if (block == NULL) {
        block = openreg_cache_find(pool, rounded);
        if (block == NULL || take_listed(cache, block, rounded) != OPENREG_OK)
            return false;
    }
    give_out(cache, block, size, out);
    return true;
}

/* Most requests need no mark (inside.h): they call no driver, and the cache is closed only under its lock, which they hold. */
openreg_status
openreg_malloc(int32_t device, openreg_stream stream, size_t size, void **out)
{
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, malloc_call, "out must not be NULL");
    *out = NULL;
    const openreg_device_table *const table = openreg_device_table_peek();
    const bool is_found = table != NULL && (uint32_t)device < (uint32_t)table->count;
    if (__builtin_expect(
            is_found && size - 1 < OPENREG_MAX_ALLOCATION && !openreg_device_is_lost(table->devices[device]), 1)) {
        struct openreg_cache *const cache = table->devices[device]->cache;
        openreg_fast_lock_acquire(&cache->lock);
        const bool is_done = allocate_at_once(cache, size, stream, out);
        openreg_fast_lock_release(&cache->lock);
        if (__builtin_expect(is_done, 1))
            return OPENREG_OK;
    }
    return allocate_with_care(device, stream, size, out);
}

/* ---------------------------------------------------------------------------------------------------------- freeing */

void
openreg_cache_release(struct openreg_cache *cache, openreg_block *block)
{
    release(cache, block);
}

void
openreg_cache_release_hot(struct openreg_cache *cache)
{
    while (cache->parked != NULL) {
        openreg_pool *pool = cache->parked;
        cache->parked = pool->next_parked;
        pool->is_parked = false;
        if (pool->hot != NULL)
            release(cache, pool->hot);
        pool->hot = NULL;
        release_warm(cache, pool);
    }
}

/* Counts a block as no longer allocated. It is in no list then. */
static inline void
discount(struct openreg_cache *cache, const openreg_block *block)
{
    const int kind = block->segment->pool->kind;
    openreg_stat_subtract(cache->stats.allocation, kind, 1);
    openreg_stat_subtract(cache->stats.allocated_bytes, kind, (int64_t)block->size);
    openreg_stat_subtract(cache->stats.requested_bytes, kind, (int64_t)block->u.used.requested);
}

/* The next request is likely to be for this size. */
static inline void
park(struct openreg_cache *cache, openreg_block *block)
{
    openreg_pool *pool = block->segment->pool;
    openreg_block *before = pool->hot;
    block->state = OPENREG_BLOCK_HOT;
    pool->hot = block;
    if (before != NULL) {
        cool(cache, pool, before);
    } else if (!pool->is_parked) {
        pool->is_parked = true;
        pool->next_parked = cache->parked;
        cache->parked = pool;
    }
}

/* Frees a block on the slow path. */
static openreg_status
free_special(struct openreg_cache *cache, openreg_block *block, unsigned features)
{
    if (block->u.used.uses != NULL)
        return openreg_cache_free_used(cache, block);
    openreg_cache_poison(cache, block);
    discount(cache, block);
    if (block->oversize)
        openreg_stat_count(&cache->stats.oversize_allocations, -1);
    if ((features & OPENREG_FEATURE_TRACE) != 0) {
        openreg_cache_trace_block(cache, OPENREG_MEMORY_EVENT_FREE_REQUESTED, block);
        openreg_cache_trace_block(cache, OPENREG_MEMORY_EVENT_FREE_COMPLETED, block);
    }
    if (openreg_cache_is_released(block->segment->pool->owner->private_pool))
        release(cache, block);
    else
        park(cache, block);
    return OPENREG_OK;
}

static __attribute__((noinline)) openreg_status
free_with_care(void *ptr)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_free";
    openreg_found_range found;
    if (!openreg_cache_find_range(ptr, &found))
        return openreg_reject_address(call, ptr);
    struct openreg_cache *cache = found.info.device->cache;
    openreg_status status = OPENREG_OK;
    openreg_fast_lock_acquire(&cache->lock);
    const unsigned features = openreg_features();
    openreg_block *block = openreg_cache_find_live(&found, ptr);
    if (block != NULL && (features & OPENREG_OBSERVE_USES) != 0)
        openreg_observers_block(OPENREG_BLOCK_FREE, ptr, block->u.used.requested, OPENREG_HOST, 0);
    if (block == NULL) {
        status = openreg_cache_reject_block(&found, call, ptr);
    } else if (block->is_shared) {
        block->state = OPENREG_BLOCK_SHARED;
        openreg_fast_lock_release(&cache->lock);
        openreg_cache_free_shared(ptr);
        return OPENREG_OK;
    } else if (block->u.used.uses != NULL || (features | block->oversize) != 0) {
        status = free_special(cache, block, features);
    } else {
        discount(cache, block);
        park(cache, block);
    }
    const bool returns = features != 0 && !LIST_EMPTY(&cache->returning);
    openreg_fast_lock_release(&cache->lock);
    if (returns)
        openreg_cache_return(cache);
    return status;
}

/* As in openreg_malloc(): a live block keeps its cache from being closed, until the lock is released. */
openreg_status
openreg_free(void *ptr)
{
    openreg_found_range found;
    if (ptr == NULL)
        return OPENREG_OK;
    if (__builtin_expect(openreg_cache_find_range(ptr, &found), 1)) {
        struct openreg_cache *const cache = found.info.device->cache;
        openreg_fast_lock_acquire(&cache->lock);
        openreg_block *const block = openreg_features() == 0 ? openreg_cache_find_live(&found, ptr) : NULL;
        const bool is_plain = block != NULL && (block->is_shared | block->oversize) == 0 && block->u.used.uses == NULL;
        if (__builtin_expect(is_plain, 1)) {
            discount(cache, block);
            park(cache, block);
        }
        openreg_fast_lock_release(&cache->lock);
        if (__builtin_expect(is_plain, 1))
            return OPENREG_OK;
    }
    return free_with_care(ptr);
}
