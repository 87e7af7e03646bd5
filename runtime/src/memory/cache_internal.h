/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_internal.h: the cache of one device, and what its files call of each other. Internal to cache*.c.
 *
 * cache.c          malloc and free: splitting, coalescing
 * cache_grow.c     more memory, running out of it
 * cache_lifetime.c the caches of all devices: made, closed, emptied, held over a fork()
 * cache_private.c  private pools (cache_pool.h), and which of them a thread's requests go to
 * cache_segment.c  allocating and releasing segments (cache_segment.h)
 * cache_settings.c settings and limits (cache_settings.h)
 * cache_sharing.c  blocks in several processes
 * cache_stats.c    statistics (cache_stats.h), snapshot, events to observers
 * cache_stream.c   pools by stream (cache_pool.h), recorded streams
 * cache_view.c     which block is at an address
 * cache_vmm.c      segments that grow and shrink (cache_segment.h) */
#ifndef OPENREG_SRC_CACHE_INTERNAL_H
#define OPENREG_SRC_CACHE_INTERNAL_H

#include <stdatomic.h>
#include <sys/queue.h>

#include <openreg/schedule.h>

#include "base/lock.h"
#include "memory/cache_pool.h"
#include "memory/cache_segment.h"
#include "memory/cache_stats.h"

#define OPENREG_STREAM_BUCKETS 64

/* No driver is called with `lock` held: a slow call would stall every thread that allocates on the device. */
struct openreg_cache {
    openreg_fast_lock
        lock; /* guards the fields below except the other locks, `device`, `schedule`, `next_of_all` and `pads_segments` */
    openreg_stream_pools *default_pools; /* of stream 0 */
    openreg_block *unused_blocks;
    int64_t waiting_blocks; /* OPENREG_BLOCK_AWAITING_FREE */
    bool is_closed;         /* its table is being withdrawn, or has been */
    openreg_cache_stats stats;

    openreg_stream_use *unused_uses;
    LIST_HEAD(, openreg_segment) segments;
    LIST_HEAD(, openreg_stream_pools) streams; /* also those of private pools */
    openreg_stream_pools *shared_streams;      /* the others; freed with the cache */
    openreg_pool *parked;                      /* all pools that may have a hot or a warm block */
    openreg_stream_pools *buckets[OPENREG_STREAM_BUCKETS];
    LIST_HEAD(, openreg_private_pool) private_pools;
    openreg_tree pools_by_id;          /* those that are in use */
    openreg_private_pool *released;    /* have just lost their last use; openreg_cache_return() follows */
    openreg_private_pool *ended_pools; /* released, without a segment: to be freed */
    openreg_tree routes; /* of threads that are in pools, or have ended in one; a thread's latest comes last */
    openreg_private_pool uncached; /* for openreg_allocator_set_caching(0): not in the list, never had a use */
    /* Segments of released pools and of `uncached` that had no block in use when they were added. */
    LIST_HEAD(, openreg_segment) returning;
    uint64_t clock;              /* driver allocations tried: the unit of age */
    uint64_t coming;             /* bytes that are being requested from the driver */
    double fraction;             /* set by openreg_memory_set_fraction(); negative: use that of the settings */
    openreg_block *block_chunks; /* linked through `next` of their first blocks */
    openreg_device *device;
    const openreg_schedule *schedule; /* the driver's table, or NULL; never changes */
    openreg_lock flush;               /* one thread at a time releases memory to satisfy a request; outside `lock` */
    openreg_fast_lock waiting;        /* for querying streams about their uses; outside `lock`, inside `flush` */
    int64_t asking;                   /* threads for which the driver makes or changes a segment now */
    atomic_uint_least64_t answers;    /* how often it has done or refused that; changes under `lock` */
    int64_t awaiting;                 /* threads that wait for the result of another thread's request */
    openreg_lock answer_lock;         /* with `answer`; inside `lock` */
    pthread_cond_t answer;
    struct openreg_cache *next_of_all;
    atomic_bool pads_segments; /* the driver has returned an address at which no block can begin */
};

/* ---- cache.c; the lock is held ---- */

/* A block object that is not in use, or NULL if host memory is short. */
openreg_block *openreg_cache_take_block(struct openreg_cache *cache);
void openreg_cache_give_block(struct openreg_cache *cache, openreg_block *block);
/* Frees a block that is no longer used, and joins it with free neighbours. Counts only "inactive split". */
void openreg_cache_release(struct openreg_cache *cache, openreg_block *block);
/* Makes the hot and the warm blocks of all pools free, for callers that examine the whole cache. */
void openreg_cache_release_hot(struct openreg_cache *cache);

/* ---- cache_view.c; the lock is held ---- */

/* The block around a device address in the range found, or NULL if the segment has been released since or has no memory
 * there yet. */
openreg_block *openreg_cache_block_at(const openreg_found_range *found, uintptr_t address);

/* The range of a device address. False for anything else, and in a bad fork, which has no table. No lock is needed. */
static inline bool
openreg_cache_find_range(const void *ptr, openreg_found_range *found)
{
    return openreg_device_table_peek() != NULL && openreg_address_map_find(ptr, found) && !found->alias;
}

/* The live block that starts at `ptr`, or NULL. */
static inline openreg_block *
openreg_cache_find_live(const openreg_found_range *found, const void *ptr)
{
    if (__builtin_expect(atomic_load_explicit(&found->range->sequence, memory_order_relaxed) != found->sequence, 0))
        return NULL; /* the segment has been released since the lookup */
    const openreg_segment *segment = found->info.segment;
    openreg_block *block = openreg_block_index_at(segment->index, (uintptr_t)ptr - (uintptr_t)segment->start);
    const bool live = block != NULL && block->address == ptr && block->state == OPENREG_BLOCK_ALLOCATED;
    return __builtin_expect(live, 1) ? block : NULL;
}

/* Sets the error that explains why openreg_cache_find_live() found nothing. Returns its code. */
openreg_status openreg_cache_reject_block(const openreg_found_range *found, const char *call, const void *ptr);

/* ---- cache_grow.c; the lock is held ---- */

/* Sets OPENREG_E_NOMEM with a text of the figures, and of the driver's error if it is the thread's last one. Counts it.
 * Called with the lock held; releases and reacquires it. */
openreg_status openreg_cache_out_of_memory(struct openreg_cache *cache, const openreg_pool *pool, uint64_t size);
/* A free block of at least `rounded` bytes: allocates from the driver and if need be releases cached segments; repeats that
 * while the driver serves other threads. The lock is released in between; on success the block is in the pool's list.
 * `size` is for the text. */
openreg_status openreg_cache_grow(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, uint64_t size,
                                  openreg_block **out);
/* Called around driver calls that make or change a segment: threads that are refused memory wait for their end. */
void openreg_cache_ask(struct openreg_cache *cache);
void openreg_cache_answered(struct openreg_cache *cache);

/* ---- cache_stream.c; the lock is held ---- */

static inline size_t
openreg_stream_bucket(openreg_stream stream)
{
    return (size_t)(((uint64_t)stream * UINT64_C(0x9E3779B97F4A7C15)) >> 58); /* 64 buckets */
}

/* The pools of a stream of any device, or NULL if they don't exist. */
static inline openreg_stream_pools *
openreg_cache_find_pools(const struct openreg_cache *cache, const openreg_device *device, openreg_stream stream)
{
    if (stream == OPENREG_STREAM_DEFAULT && device == cache->device)
        return cache->default_pools;
    openreg_stream_pools *pools = cache->buckets[openreg_stream_bucket(stream)];
    while (pools != NULL && (pools->stream != stream || pools->device != device))
        pools = pools->next_in_bucket;
    return pools;
}

/* Resolves the stream and makes its pools. Errors: the stream is not of that device; E_NOMEM. */
openreg_status openreg_cache_make_pools(struct openreg_cache *cache, const char *call, openreg_device *device,
                                        openreg_stream stream, openreg_stream_pools **out);
/* The same without adding them to a list, for a private pool or NULL. */
openreg_status openreg_cache_new_pools(struct openreg_cache *cache, const char *call, openreg_device *device,
                                       openreg_stream stream, openreg_private_pool *private_pool,
                                       openreg_stream_pools **out);
/* Frees a block that other streams use: records a marker on each, and frees it at once if all are complete. Releases the
 * lock in between. On failure the block is allocated as before. */
openreg_status openreg_cache_free_used(struct openreg_cache *cache, openreg_block *block);
/* Before a block that no stream uses any more becomes free: lets a driver with openreg/schedule.h overwrite it, behind the work
 * of its own stream. Releases the lock in between; to other threads the block then awaits its streams. */
void openreg_cache_poison(struct openreg_cache *cache, openreg_block *block);
/* Frees waiting blocks whose uses are complete, unless another thread does so. Releases the lock in between. */
openreg_status openreg_cache_poll_waiting(struct openreg_cache *cache, const char *call);
/* Waits for all of them; releases the lock in between. The flush lock is held. */
openreg_status openreg_cache_sync_waiting(struct openreg_cache *cache, const char *call);
void openreg_cache_destroy_streams(struct openreg_cache *cache); /* for openreg_cache_empty(), after the segments */

/* ---- cache_private.c; the lock is held ---- */

/* Sets the error of short host memory, and returns its code; with or without the lock. */
openreg_status openreg_cache_no_memory(const char *call, const openreg_device *device);
/* The pools for a request of the calling thread, if OPENREG_FEATURE_ROUTES or _UNCACHED is set (there may be special ones).
 * Made if needed; errors as openreg_cache_make_pools(). */
openreg_status openreg_cache_route(struct openreg_cache *cache, openreg_stream stream, openreg_stream_pools **out);

/* A free block of a private pool that lends memory when the device has none left, or NULL. */
openreg_block *openreg_cache_borrow(const struct openreg_cache *cache, const openreg_pool *pool, uint64_t rounded);
/* Moves a segment of a released pool, which no longer has a block in use, to `returning`. */
void openreg_cache_note_returning(struct openreg_cache *cache, openreg_segment *segment);
/* Counts one more or one less segment that a private pool must outlive. NULL: no private pool. */
void openreg_cache_count_segment(struct openreg_cache *cache, openreg_private_pool *pool, int64_t amount);
/* Frees private pools that are released and have no segment left. */
void openreg_cache_forget_pools(struct openreg_cache *cache);
void openreg_cache_destroy_pools(struct openreg_cache *cache); /* for openreg_cache_empty(), before the streams */
/* Releases segments without a block in use of the pools in `released`, and those in `returning`. Takes the locks itself, so none
 * is held. Keeps errors from the caller. */
void openreg_cache_return(struct openreg_cache *cache);

/* The limit of reserved bytes; UINT64_MAX: none. The lock is held. */
uint64_t openreg_cache_limit(const struct openreg_cache *cache);
/* The reserved bytes above which segments are released; UINT64_MAX: never. The lock is held. */
uint64_t openreg_cache_garbage_limit(const struct openreg_cache *cache);

/* ---- cache_stats.c; the lock is held ---- */

/* For OPENREG_FEATURE_TRACE. */
void openreg_cache_trace(const struct openreg_cache *cache, int32_t action, const openreg_pool *pool, uint64_t address,
                         uint64_t size);

static inline void
openreg_cache_trace_block(const struct openreg_cache *cache, int32_t action, const openreg_block *block)
{
    openreg_cache_trace(cache, action, block->segment->pool, (uintptr_t)block->address, block->u.used.requested);
}

#endif
