/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_lifetime.c: the caches of all devices: made, closed and emptied, and held over a fork() (cache.h). */
#define _GNU_SOURCE
#include "memory/cache_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"

static openreg_lock all_lock = OPENREG_LOCK_INITIALIZER; /* guards the list; outside each cache's lock */
static struct openreg_cache *all;

#define CACHE_ALIGNMENT 128 /* two cache lines: avoids false sharing through adjacent-line prefetch */

struct openreg_cache *
openreg_cache_create(openreg_device *device)
{
    const size_t size = (sizeof(struct openreg_cache) + CACHE_ALIGNMENT - 1) / CACHE_ALIGNMENT * CACHE_ALIGNMENT;
    void *memory;
    if (posix_memalign(&memory, CACHE_ALIGNMENT, size) != 0)
        return NULL;
    struct openreg_cache *cache = memset(memory, 0, size);
    cache->device = device;
    cache->fraction = -1;
    cache->schedule = openreg_find_extension("openreg_init", device->driver, &openreg_extension_schedule);
    if (cache->schedule != NULL)
        openreg_cache_feature(OPENREG_FEATURE_POISON, true);
    cache->uncached.flags = OPENREG_MEMORY_POOL_NO_SPLIT;
    openreg_lock_init(&cache->flush);
    openreg_lock_init(&cache->answer_lock);
    (void)pthread_cond_init(&cache->answer, NULL);
    openreg_lock_acquire(&all_lock);
    cache->next_of_all = all;
    all = cache;
    openreg_lock_release(&all_lock);
    return cache;
}

void
openreg_cache_set_closed(struct openreg_cache *cache, bool is_closed)
{
    openreg_fast_lock_acquire(&cache->lock);
    cache->is_closed = is_closed;
    openreg_fast_lock_release(&cache->lock);
}

void
openreg_cache_empty(struct openreg_cache *cache)
{
    const openreg_error_fields before = openreg_error_save();
    (void)openreg_cache_trim(cache, "openreg_shutdown");
    openreg_lock_acquire(&all_lock);
    struct openreg_cache **link = &all;
    while (*link != cache)
        link = &(*link)->next_of_all;
    *link = cache->next_of_all;
    openreg_lock_release(&all_lock);
    if (cache->schedule != NULL)
        openreg_cache_feature(OPENREG_FEATURE_POISON, false);
    openreg_cache_destroy_segments(cache);
    openreg_cache_destroy_pools(cache);
    openreg_cache_destroy_streams(cache);
    while (cache->block_chunks != NULL) {
        openreg_block *chunk = cache->block_chunks;
        cache->block_chunks = chunk[0].next;
        free(chunk);
    }
    (void)pthread_cond_destroy(&cache->answer);
    openreg_lock_destroy(&cache->answer_lock);
    openreg_lock_destroy(&cache->flush);
    openreg_error_restore(&before);
}

/* ------------------------------------------------------------------------------------------------------------ forks */

/* All caches' locks are held over a fork(), so the child finds them in a consistent state. */
static void
lock_for_fork(void)
{
    openreg_lock_acquire(&all_lock);
    for (struct openreg_cache *cache = all; cache != NULL; cache = cache->next_of_all)
        openreg_fast_lock_acquire(&cache->lock);
}

static void
unlock_after_fork(void)
{
    for (struct openreg_cache *cache = all; cache != NULL; cache = cache->next_of_all)
        openreg_fast_lock_release(&cache->lock);
    openreg_lock_release(&all_lock);
}

/* Driver calls of the parent's other threads never end in the child. A block that such a thread was freeing stays as it was,
 * and is not freed. Segments that it had taken out of the cache stay out, and one that it was changing stays marked
 * (`resizing`), because the driver's progress is not known. */
static void
end_steps_of_others(struct openreg_cache *cache)
{
    cache->asking = cache->awaiting = 0;
    cache->coming = 0;
    (void)pthread_cond_init(&cache->answer, NULL);
    for (openreg_segment *segment = LIST_FIRST(&cache->segments); segment != NULL; segment = LIST_NEXT(segment, all))
        for (openreg_block *block = segment->first; block != NULL; block = block->next)
            if (block->state == OPENREG_BLOCK_AWAITING_FREE && block->waiting == 0)
                block->state = OPENREG_BLOCK_ALLOCATED;
    for (openreg_private_pool *pool = LIST_FIRST(&cache->private_pools); pool != NULL; pool = LIST_NEXT(pool, all)) {
        pool->segments = 0;
        for (const openreg_segment *segment = LIST_FIRST(&pool->own_segments); segment != NULL;
             segment = LIST_NEXT(segment, own))
            pool->segments++;
    }
}

static void
after_fork_in_child(void)
{
    for (struct openreg_cache *cache = all; cache != NULL; cache = cache->next_of_all) {
        atomic_store_explicit(&cache->lock.state, 0, memory_order_relaxed);
        atomic_store_explicit(&cache->waiting.state, 0, memory_order_relaxed);
        if (!openreg_in_bad_fork())
            end_steps_of_others(cache);
    }
    openreg_lock_release(&all_lock);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_handle(
        OPENREG_FORK_CACHES,
        &(openreg_fork_handlers){.prepare = lock_for_fork, .parent = unlock_after_fork, .child = after_fork_in_child});
}
