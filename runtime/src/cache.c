/* cache.c: allocation and freeing of blocks (cache.h). */
#define _GNU_SOURCE
#include "cache_internal.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

#define BLOCKS_PER_CHUNK 128
#define CACHE_ALIGNMENT 128 /* two lines: the neighbour that a processor fetches along is ours too */

/* --------------------------------------------------------------------------------------------------------- objects */

/* Blocks are never given back before the cache goes: a chunk holds many, and the number of blocks settles. */
static bool
refill_blocks(struct openreg_cache *cache)
{
    openreg_block *chunk = aligned_alloc(sizeof *chunk, BLOCKS_PER_CHUNK * sizeof *chunk);
    if (chunk == NULL)
        return false;
    memset(chunk, 0, BLOCKS_PER_CHUNK * sizeof *chunk);
    *(void **)(void *)chunk = cache->block_chunks; /* the first block is the link */
    cache->block_chunks = chunk;
    for (int i = BLOCKS_PER_CHUNK - 1; i > 0; i--)
        openreg_cache_give_block(cache, &chunk[i]);
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

struct openreg_cache *
openreg_cache_create(openreg_device *device)
{
    struct openreg_cache *cache =
        aligned_alloc(CACHE_ALIGNMENT, (sizeof *cache + CACHE_ALIGNMENT - 1) / CACHE_ALIGNMENT * CACHE_ALIGNMENT);
    if (cache == NULL)
        return NULL;
    memset(cache, 0, sizeof *cache);
    cache->device = device;
    openreg_lock_init(&cache->lock);
    openreg_lock_init(&cache->flush);
    return cache;
}

void
openreg_cache_destroy(struct openreg_cache *cache)
{
    if (cache == NULL)
        return;
    const openreg_error before = *openreg_error_record();
    (void)openreg_cache_trim(cache, "openreg_shutdown");
    openreg_cache_destroy_segments(cache);
    openreg_cache_destroy_streams(cache);
    while (cache->block_chunks != NULL) {
        void *chunk = cache->block_chunks;
        cache->block_chunks = *(void **)chunk;
        free(chunk);
    }
    openreg_lock_destroy(&cache->lock);
    openreg_lock_destroy(&cache->flush);
    free(cache);
    *openreg_error_record() = before;
}

/* ------------------------------------------------------------------------------------------------------ allocation */

/* The rules of PyTorch's CUDA caching allocator, so that programs tuned to those behave alike. */
static bool
should_split(const openreg_pool *pool, uint64_t remainder)
{
    return pool->kind == OPENREG_POOL_SMALL ? remainder >= OPENREG_BLOCK_UNIT : remainder > OPENREG_SMALL_BLOCK_MAX;
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

static void
note_active_peak(openreg_cache_stats *stats, int pool)
{
    const int indices[2] = {OPENREG_POOL_ALL, pool};
    for (int i = 0; i < 2; i++) {
        const int at = indices[i];
        const int64_t blocks = stats->allocation[at].current + stats->waiting[at].current;
        const int64_t bytes = stats->allocated_bytes[at].current + stats->waiting_bytes[at].current;
        if (blocks > stats->waiting[at].peak)
            stats->waiting[at].peak = blocks;
        if (bytes > stats->waiting_bytes[at].peak)
            stats->waiting_bytes[at].peak = bytes;
    }
}

/* Everything but the lock. */
static openreg_status
allocate(struct openreg_cache *cache, uint64_t size, openreg_stream stream, void **out)
{
    static const char call[] = "openreg_malloc";
    const uint64_t rounded = (size + OPENREG_BLOCK_UNIT - 1) / OPENREG_BLOCK_UNIT * OPENREG_BLOCK_UNIT;
    openreg_stream_pools *pools = openreg_cache_find_pools(cache, stream);
    if (__builtin_expect(pools == NULL, 0))
        OPENREG_RETURN_NOT_OK(openreg_cache_make_pools(cache, call, stream, &pools));
    if (__builtin_expect(cache->waiting_uses > 0, 0))
        OPENREG_RETURN_NOT_OK(openreg_cache_poll_waiting(cache, call));

    openreg_pool *pool = rounded <= OPENREG_SMALL_BLOCK_MAX ? &pools->small : &pools->large;
    openreg_block *block = openreg_free_lists_find(&pool->free, rounded, false);
    if (__builtin_expect(block == NULL, 0))
        OPENREG_RETURN_NOT_OK(openreg_cache_grow(cache, pool, rounded, size, &block));

    openreg_cache_stats *stats = &cache->stats;
    const uint64_t remainder = block->size - rounded;
    const bool was_split = is_split(block);
    if (should_split(pool, remainder)) {
        openreg_block *rest = openreg_cache_take_block(cache);
        if (rest == NULL)
            return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for the books of openreg:%d", call,
                                     cache->device->index);
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
    block->state = OPENREG_BLOCK_ALLOCATED;
    block->slack = (uint32_t)(block->size - size);
    block->u.used.uses = NULL;
    openreg_stat_add(stats->allocation, pool->kind, 1);
    openreg_stat_add(stats->allocated_bytes, pool->kind, (int64_t)block->size);
    openreg_stat_add(stats->requested_bytes, pool->kind, (int64_t)size);
    if (__builtin_expect(stats->waiting[OPENREG_POOL_ALL].current > 0, 0))
        note_active_peak(stats, pool->kind);
    *out = block->address;
    return OPENREG_OK;
}

openreg_status
openreg_cache_malloc(struct openreg_cache *cache, uint64_t size, openreg_stream stream, void **out)
{
    openreg_lock_acquire(&cache->lock);
    const openreg_status status = allocate(cache, size, stream, out);
    openreg_lock_release(&cache->lock);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- freeing */

/* `next` joins `block`, its neighbour before it; both are in no list. */
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

void
openreg_cache_release(struct openreg_cache *cache, openreg_block *block)
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
    }
    if (pieces > 0)
        openreg_stat_add(cache->stats.inactive_split, pool->kind, pieces);
    else if (pieces < 0)
        openreg_stat_subtract(cache->stats.inactive_split, pool->kind, -pieces);
    if (bytes > 0)
        openreg_stat_add(cache->stats.inactive_split_bytes, pool->kind, bytes);
    else if (bytes < 0)
        openreg_stat_subtract(cache->stats.inactive_split_bytes, pool->kind, -bytes);
}

openreg_block *
openreg_cache_block_around(const openreg_segment *segment, uintptr_t address)
{
    openreg_block *block = openreg_block_index_before(segment->index, address - (uintptr_t)segment->start);
    /* The cell of the address may hold a start that lies behind it. */
    return address < (uintptr_t)block->address ? block->previous : block;
}

/* The live block that starts at `ptr`. The lock is held. */
static openreg_status
find_live(const openreg_found_range *found, const char *call, const void *ptr, openreg_block **out)
{
    const int32_t device = found->info.device->index;
    if (atomic_load_explicit(&found->range->sequence, memory_order_relaxed) != found->sequence)
        return openreg_error_set(OPENREG_E_INVALID, "%s: %p is not memory of openreg, or was freed already", call, ptr);
    const openreg_segment *segment = found->info.segment;
    openreg_block *block = openreg_block_index_at(segment->index, (uintptr_t)ptr - (uintptr_t)segment->start);
    if (__builtin_expect(block != NULL && block->address == ptr && block->state == OPENREG_BLOCK_ALLOCATED, 1)) {
        *out = block;
        return OPENREG_OK;
    }
    block = openreg_cache_block_around(segment, (uintptr_t)ptr);
    const uint64_t offset = (uint64_t)((const char *)ptr - block->address);
    if (block->state != OPENREG_BLOCK_ALLOCATED)
        return openreg_error_set(OPENREG_E_INVALID, "%s: %p on openreg:%d was freed already%s", call, ptr, device,
                                 block->state == OPENREG_BLOCK_AWAITING_FREE ? " (a stream may still use it)" : "");
    return openreg_error_set(OPENREG_E_INVALID,
                             "%s: %p is inside a block, %llu bytes behind its start %p on openreg:%d; only the start "
                             "of a block names it",
                             call, ptr, (unsigned long long)offset, (void *)block->address, device);
}

openreg_status
openreg_cache_free(const openreg_found_range *found, void *ptr)
{
    struct openreg_cache *cache = found->info.device->cache;
    openreg_block *block;
    openreg_lock_acquire(&cache->lock);
    openreg_status status = find_live(found, "openreg_free", ptr, &block);
    if (status == OPENREG_OK) {
        if (__builtin_expect(block->u.used.uses != NULL, 0)) {
            status = openreg_cache_free_used(cache, block);
        } else {
            const int kind = block->segment->pool->kind;
            openreg_stat_subtract(cache->stats.allocation, kind, 1);
            openreg_stat_subtract(cache->stats.allocated_bytes, kind, (int64_t)block->size);
            openreg_stat_subtract(cache->stats.requested_bytes, kind, (int64_t)(block->size - block->slack));
            openreg_cache_release(cache, block);
        }
    }
    openreg_lock_release(&cache->lock);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- queries */

/* Notes on the block that `stream` uses it. The lock is held. */
static openreg_status
record_stream(struct openreg_cache *cache, openreg_block *block, openreg_stream stream)
{
    openreg_stream_pools *pools = openreg_cache_find_pools(cache, stream);
    if (pools == NULL)
        OPENREG_RETURN_NOT_OK(openreg_cache_make_pools(cache, "openreg_record_stream", stream, &pools));
    if (pools == block->segment->pool->owner)
        return OPENREG_OK; /* its own stream is in order anyway */
    for (openreg_stream_use *use = block->u.used.uses; use != NULL; use = use->next_of_block)
        if (use->stream == pools)
            return OPENREG_OK;
    openreg_stream_use *use = cache->unused_uses;
    if (use != NULL)
        cache->unused_uses = use->next;
    else
        use = calloc(1, sizeof *use);
    if (use == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, "openreg_record_stream: no host memory for the books of openreg:%d",
                                 cache->device->index);
    use->block = block;
    use->stream = pools;
    use->next = NULL;
    use->next_of_block = block->u.used.uses;
    block->u.used.uses = use;
    return OPENREG_OK;
}

openreg_status
openreg_cache_record_stream(const openreg_found_range *found, void *ptr, openreg_stream stream)
{
    struct openreg_cache *cache = found->info.device->cache;
    openreg_block *block;
    openreg_lock_acquire(&cache->lock);
    openreg_status status = find_live(found, "openreg_record_stream", ptr, &block);
    if (status == OPENREG_OK)
        status = record_stream(cache, block, stream);
    openreg_lock_release(&cache->lock);
    return status;
}

/* The lock is held. */
static bool
view(const openreg_found_range *found, uintptr_t address, openreg_block_view *out)
{
    if (atomic_load_explicit(&found->range->sequence, memory_order_relaxed) != found->sequence)
        return false;
    const openreg_block *block = openreg_cache_block_around(found->info.segment, address);
    out->address = (uintptr_t)block->address;
    out->size = block->size;
    out->live = block->state == OPENREG_BLOCK_ALLOCATED;
    out->requested = out->live ? block->size - block->slack : 0;
    return true;
}

bool
openreg_cache_view(const openreg_found_range *found, uintptr_t address, openreg_block_view *out)
{
    struct openreg_cache *cache = found->info.device->cache;
    openreg_lock_acquire(&cache->lock);
    const bool seen = view(found, address, out);
    openreg_lock_release(&cache->lock);
    return seen;
}

bool
openreg_cache_try_view(const openreg_found_range *found, uintptr_t address, openreg_block_view *out)
{
    struct openreg_cache *cache = found->info.device->cache;
    if (pthread_mutex_trylock(&cache->lock.mutex) != 0)
        return false;
    const bool seen = view(found, address, out);
    (void)pthread_mutex_unlock(&cache->lock.mutex);
    return seen;
}

int64_t
openreg_cache_live_blocks(const struct openreg_cache *cache)
{
    struct openreg_cache *mutable = (struct openreg_cache *)(uintptr_t)cache; /* for the lock */
    openreg_lock_acquire(&mutable->lock);
    const int64_t blocks = cache->stats.allocation[OPENREG_POOL_ALL].current;
    openreg_lock_release(&mutable->lock);
    return blocks;
}

uint64_t
openreg_cache_reserved(struct openreg_cache *cache)
{
    openreg_lock_acquire(&cache->lock);
    const int64_t bytes = cache->stats.reserved_bytes[OPENREG_POOL_ALL].current;
    openreg_lock_release(&cache->lock);
    return (uint64_t)bytes;
}
