/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_stats.c: the caching allocator's figures (openreg.h), and events to observers (openreg/allocator.h). */
#include "memory/cache_internal.h"

#include <string.h>

#include <openreg/sharing.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "base/sized_struct.h"
#include "watch/observers.h"

/* Index 0 with the sums over the pools, where only `peak` is kept. */
static openreg_stat
sum_of(const openreg_stat stat[OPENREG_POOLS])
{
    const openreg_stat *small = &stat[OPENREG_POOL_SMALL], *large = &stat[OPENREG_POOL_LARGE];
    return (openreg_stat){.current = small->current + large->current,
                          .peak = stat[OPENREG_POOL_ALL].peak,
                          .allocated = small->allocated + large->allocated,
                          .freed = small->freed + large->freed};
}

/* Internally `freed` holds `current` at the last reset; the freed amount since follows from the other fields. */
static void
public_stats(const openreg_stat in[OPENREG_POOLS], openreg_stat out[OPENREG_POOLS])
{
    for (int i = 0; i < OPENREG_POOLS; i++) {
        out[i] = i == OPENREG_POOL_ALL ? sum_of(in) : in[i];
        out[i].freed += out[i].allocated - out[i].current;
    }
}

/* `freed` holds `current` at the last reset, as everywhere in the cache. */
static openreg_stat
single_stat(openreg_stat in)
{
    in.freed += in.allocated - in.current;
    return in;
}

/* Allocated and waiting blocks together. */
static void
active_stats(const openreg_stat allocated[OPENREG_POOLS], const openreg_stat waiting[OPENREG_POOLS],
             openreg_stat out[OPENREG_POOLS])
{
    public_stats(allocated, out);
    for (int i = 0; i < OPENREG_POOLS; i++) {
        const openreg_stat more = i == OPENREG_POOL_ALL ? sum_of(waiting) : waiting[i];
        out[i].current += more.current;
        /* The peak of `allocation` counts too: nothing waited then, or `waiting` has the higher one. */
        if (more.peak > out[i].peak)
            out[i].peak = more.peak;
        out[i].freed += more.freed - more.current;
    }
}

static void
fill_stats(struct openreg_cache *cache, openreg_memory_stats *out)
{
    const openreg_cache_stats *stats = &cache->stats;
    openreg_fast_lock_acquire(&cache->lock);
    openreg_cache_release_hot(cache);
#define OPENREG_EACH(name) public_stats(stats->name, out->name);
    OPENREG_STAT_MAP(OPENREG_EACH)
#undef OPENREG_EACH
    active_stats(stats->allocation, stats->waiting, out->active);
    active_stats(stats->allocated_bytes, stats->waiting_bytes, out->active_bytes);
    out->num_alloc_retries = stats->retries;
    out->num_ooms = stats->ooms;
    out->num_device_alloc = stats->driver_allocs;
    out->num_device_free = stats->driver_frees;
    out->num_sync_all_streams = stats->syncs;
#define OPENREG_EACH(name) out->name = single_stat(stats->name);
    OPENREG_SINGLE_STAT_MAP(OPENREG_EACH)
#undef OPENREG_EACH
    const uint64_t max_split = openreg_cache_settings()->max_split_size;
    out->max_split_size = max_split == UINT64_MAX ? -1 : (int64_t)max_split;
    openreg_fast_lock_release(&cache->lock);
}

openreg_status
openreg_memory_get_stats(int32_t device, openreg_memory_stats *inout)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_get_stats";
    openreg_device *entry;
    if (!openreg_sized_is_valid(inout, OPENREG_MEMORY_STATS_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "struct_size must be set to the size of openreg_memory_stats");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    openreg_memory_stats stats;
    memset(&stats, 0, sizeof stats);
    fill_stats(entry->cache, &stats);
    openreg_sized_write(inout, &stats, sizeof stats);
    return OPENREG_OK;
}

static void
reset_peaks(openreg_stat stat[OPENREG_POOLS])
{
    for (int i = 0; i < OPENREG_POOLS; i++)
        stat[i].peak = i == OPENREG_POOL_ALL ? openreg_stat_current(stat) : stat[i].current;
}

static void
reset_active_peaks(const openreg_stat allocated[OPENREG_POOLS], openreg_stat waiting[OPENREG_POOLS])
{
    waiting[OPENREG_POOL_ALL].peak = openreg_stat_current(allocated) + openreg_stat_current(waiting);
    for (int i = OPENREG_POOL_SMALL; i < OPENREG_POOLS; i++)
        waiting[i].peak = allocated[i].current + waiting[i].current;
}

openreg_status
openreg_memory_reset_peak_stats(int32_t device)
{
    OPENREG_INSIDE;
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get("openreg_memory_reset_peak_stats", device, &entry));
    openreg_cache_stats *stats = &entry->cache->stats;
    openreg_fast_lock_acquire(&entry->cache->lock);
    openreg_cache_release_hot(entry->cache);
#define OPENREG_EACH(name) reset_peaks(stats->name);
    OPENREG_STAT_MAP(OPENREG_EACH)
#undef OPENREG_EACH
#define OPENREG_EACH(name) stats->name.peak = stats->name.current;
    OPENREG_SINGLE_STAT_MAP(OPENREG_EACH)
#undef OPENREG_EACH
    for (openreg_private_pool *pool = LIST_FIRST(&entry->cache->private_pools); pool != NULL;
         pool = LIST_NEXT(pool, all))
        reset_peaks(pool->reserved);
    reset_active_peaks(stats->allocation, stats->waiting);
    reset_active_peaks(stats->allocated_bytes, stats->waiting_bytes);
    openreg_fast_lock_release(&entry->cache->lock);
    return OPENREG_OK;
}

/* From now on allocated = freed = 0: freed is computed as allocated - current + base. */
static void
reset_single(openreg_stat *stat)
{
    stat->allocated = 0;
    stat->freed = stat->current;
}

static void
reset_accumulated(openreg_stat stat[OPENREG_POOLS])
{
    for (int i = 0; i < OPENREG_POOLS; i++)
        reset_single(&stat[i]);
}

openreg_status
openreg_memory_reset_accumulated_stats(int32_t device)
{
    OPENREG_INSIDE;
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get("openreg_memory_reset_accumulated_stats", device, &entry));
    openreg_cache_stats *stats = &entry->cache->stats;
    openreg_fast_lock_acquire(&entry->cache->lock);
    openreg_cache_release_hot(entry->cache);
#define OPENREG_EACH(name) reset_accumulated(stats->name);
    OPENREG_STAT_MAP(OPENREG_EACH)
#undef OPENREG_EACH
    reset_accumulated(stats->waiting);
    reset_accumulated(stats->waiting_bytes);
    for (openreg_private_pool *pool = LIST_FIRST(&entry->cache->private_pools); pool != NULL;
         pool = LIST_NEXT(pool, all))
        reset_accumulated(pool->reserved);
#define OPENREG_EACH(name) reset_single(&stats->name);
    OPENREG_SINGLE_STAT_MAP(OPENREG_EACH)
#undef OPENREG_EACH
    stats->retries = stats->ooms = stats->driver_allocs = stats->driver_frees = stats->syncs = 0;
    openreg_fast_lock_release(&entry->cache->lock);
    return OPENREG_OK;
}

openreg_status
openreg_memory_empty_cache(int32_t device)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_empty_cache";
    openreg_device *entry;
    (void)openreg_memory_collect_exports();
    if (device != -1) {
        OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
        return openreg_cache_trim(entry->cache, call);
    }
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    openreg_device_table *table = openreg_device_table_peek();
    for (int32_t i = 0; table != NULL && i < table->count; i++)
        OPENREG_RETURN_NOT_OK(openreg_cache_trim(table->devices[i]->cache, call));
    return OPENREG_OK;
}

openreg_status
openreg_memory_visit_blocks(int32_t device, int (*visit)(void *ctx, const openreg_block_info *block), void *ctx)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_visit_blocks";
    openreg_device *entry;
    if (visit == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "visit must not be NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    int stop = 0;
    openreg_fast_lock_acquire(&entry->cache->lock);
    openreg_cache_release_hot(entry->cache);
    for (const openreg_segment *segment = LIST_FIRST(&entry->cache->segments); segment != NULL && !stop;
         segment = LIST_NEXT(segment, all)) {
        const openreg_private_pool *pool = segment->pool->owner->private_pool;
        const openreg_memory_pool_id id = pool == NULL ? (openreg_memory_pool_id){0, 0} : pool->id;
        for (const openreg_block *block = segment->first; block != NULL && !stop; block = block->next) {
            const openreg_block_info info = {
                .struct_size = sizeof info,
                .segment = segment->start,
                .address = block->address,
                .segment_size = segment->size,
                .size = block->size,
                .requested = block->state == OPENREG_BLOCK_FREE ? 0 : block->u.used.requested,
                .stream = segment->pool->owner->stream,
                .state = block->state == OPENREG_BLOCK_SHARED ? OPENREG_BLOCK_ALLOCATED : block->state,
                .large = segment->pool->kind == OPENREG_POOL_LARGE,
                .pool = id,
                .expandable = segment->room > 0,
            };
            stop = visit(ctx, &info);
        }
    }
    openreg_fast_lock_release(&entry->cache->lock);
    return OPENREG_OK;
}

openreg_status
openreg_memory_visit_pools(int32_t device, int (*visit)(void *ctx, const openreg_memory_pool_info *pool), void *ctx)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_visit_pools";
    openreg_device *entry;
    if (visit == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "visit must not be NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    int stop = 0;
    openreg_fast_lock_acquire(&entry->cache->lock);
    for (const openreg_private_pool *pool = LIST_FIRST(&entry->cache->private_pools); pool != NULL && !stop;
         pool = LIST_NEXT(pool, all)) {
        openreg_memory_pool_info info = {.struct_size = sizeof info, .id = pool->id, .uses = pool->uses};
        public_stats(pool->reserved, info.reserved);
        stop = visit(ctx, &info);
    }
    openreg_fast_lock_release(&entry->cache->lock);
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------------ observers */

void
openreg_cache_trace(const struct openreg_cache *cache, int32_t action, const openreg_pool *pool, uint64_t address,
                    uint64_t size)
{
    openreg_memory_event event = {
        .struct_size = sizeof event,
        .action = action,
        .device = cache->device->index,
        .address = address,
        .size = size,
        .stream = pool->owner->stream,
    };
    if (pool->owner->private_pool != NULL)
        event.pool = pool->owner->private_pool->id;
    openreg_observers_memory(&event);
}
