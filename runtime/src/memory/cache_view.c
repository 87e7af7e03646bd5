/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_view.c: which block is at an address, and figures of a cache (cache.h). */
#define _GNU_SOURCE
#include "memory/cache_internal.h"

#include "base/device_name.h"
#include "base/error.h"

/* The block around an address of the segment. */
static openreg_block *
block_around(const openreg_segment *segment, uintptr_t address)
{
    openreg_block *block = openreg_block_index_before(segment->index, address - (uintptr_t)segment->start);
    /* The cell of the address may hold a block's start behind the address. */
    return address < (uintptr_t)block->address ? block->previous : block;
}

/* Whether the segment has been released since the lookup, or has no memory at the address yet: a segment is in the address
 * map before it has a block. The lock is held. */
static bool
has_gone(const openreg_found_range *found, uintptr_t address)
{
    return atomic_load_explicit(&found->range->sequence, memory_order_relaxed) != found->sequence ||
           found->info.segment->first == NULL ||
           address - (uintptr_t)found->info.segment->start >= found->info.segment->size;
}

openreg_block *
openreg_cache_block_at(const openreg_found_range *found, uintptr_t address)
{
    return has_gone(found, address) ? NULL : block_around(found->info.segment, address);
}

openreg_status
openreg_cache_reject_block(const openreg_found_range *found, const char *call, const void *ptr)
{
    const int32_t device = found->info.device->index;
    if (has_gone(found, (uintptr_t)ptr))
        return openreg_error_set(OPENREG_E_INVALID, call, "%p is not memory of %s, or was freed already", ptr,
                                 openreg_device_name());
    const openreg_block *block = block_around(found->info.segment, (uintptr_t)ptr);
    const uint64_t offset = (uint64_t)((const char *)ptr - block->address);
    if (block->state == OPENREG_BLOCK_SHARED && block->segment->pool == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "%p on %s:%d is memory of another process; openreg_import_release() ends its "
                                 "use",
                                 ptr, openreg_device_name(), device);
    if (block->state != OPENREG_BLOCK_ALLOCATED)
        return openreg_error_set(OPENREG_E_INVALID, call, "%p on %s:%d was freed already%s", ptr, openreg_device_name(),
                                 device,
                                 block->state == OPENREG_BLOCK_AWAITING_FREE ? " (a stream may still use it)" : "");
    return openreg_error_set(OPENREG_E_INVALID, call,
                             "%p is inside a block, %llu bytes behind its start %p on %s:%d; only the start "
                             "of a block names it",
                             ptr, (unsigned long long)offset, (void *)block->address, openreg_device_name(), device);
}

/* The lock is held. */
static bool
view(const openreg_found_range *found, uintptr_t address, openreg_block_view *out)
{
    const openreg_block *block = openreg_cache_block_at(found, address);
    if (block == NULL)
        return false;
    out->address = (uintptr_t)block->address;
    out->size = block->size;
    out->live = block->state == OPENREG_BLOCK_ALLOCATED || block->state == OPENREG_BLOCK_SHARED;
    out->requested = out->live ? block->u.used.requested : 0;
    return true;
}

bool
openreg_cache_view(const openreg_found_range *found, uintptr_t address, openreg_block_view *out)
{
    struct openreg_cache *cache = found->info.device->cache;
    openreg_fast_lock_acquire(&cache->lock);
    const bool seen = view(found, address, out);
    openreg_fast_lock_release(&cache->lock);
    return seen;
}

bool
openreg_cache_try_view(const openreg_found_range *found, uintptr_t address, openreg_block_view *out)
{
    struct openreg_cache *cache = found->info.device->cache;
    if (!openreg_fast_lock_try(&cache->lock))
        return false;
    const bool seen = view(found, address, out);
    openreg_fast_lock_release(&cache->lock);
    return seen;
}

bool
openreg_cache_is_replayed(const openreg_found_range *found, uintptr_t address, uint64_t size)
{
    struct openreg_cache *cache = found->info.device->cache;
    bool replayed = false;
    openreg_fast_lock_acquire(&cache->lock);
    if (!has_gone(found, address)) {
        const openreg_segment *segment = found->info.segment;
        const openreg_private_pool *pool = segment->pool == NULL ? NULL : segment->pool->owner->private_pool;
        replayed = pool != NULL && (pool->flags & OPENREG_MEMORY_POOL_REPLAYED) != 0 && pool->uses > 0 &&
                   size <= segment->size - (address - (uintptr_t)segment->start);
    }
    openreg_fast_lock_release(&cache->lock);
    return replayed;
}

int64_t
openreg_cache_live_blocks(const struct openreg_cache *cache)
{
    struct openreg_cache *mutable = (struct openreg_cache *)(uintptr_t)cache; /* takes and releases the lock */
    openreg_fast_lock_acquire(&mutable->lock);
    const int64_t blocks = openreg_stat_current(cache->stats.allocation);
    openreg_fast_lock_release(&mutable->lock);
    return blocks;
}

uint64_t
openreg_cache_reserved(struct openreg_cache *cache)
{
    openreg_fast_lock_acquire(&cache->lock);
    const int64_t bytes = openreg_stat_current(cache->stats.reserved_bytes);
    openreg_fast_lock_release(&cache->lock);
    return (uint64_t)bytes;
}
