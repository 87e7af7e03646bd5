/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_pool.h: pools of free blocks, by stream and for private use. Internal to cache*.c. */
#ifndef OPENREG_SRC_CACHE_POOL_H
#define OPENREG_SRC_CACHE_POOL_H

#include <stdbool.h>
#include <sys/queue.h>

#include "driver/driver_calls.h"
#include "memory/cache_settings.h"
#include "memory/free_lists.h"

#define OPENREG_WARM_SIZES 16u  /* up to 8 KiB */
#define OPENREG_WARM_BLOCKS 16u /* warm blocks of a size: at most 1 MiB a pool is kept from joining */

typedef struct openreg_pool {
    struct openreg_stream_pools *owner;
    int kind; /* OPENREG_POOL_SMALL or OPENREG_POOL_LARGE */
    bool no_split;
    openreg_block *hot; /* the block freed last, or NULL: OPENREG_BLOCK_HOT */
    /* Of the small pool, by size in units less one: blocks that were hot before, latest first, for the next request of
     * their size. Joining a block with its neighbours and splitting it off touches ten cache lines, which are cold if
     * there are many blocks; finding it here touches one. */
    openreg_block *warm[OPENREG_WARM_SIZES];
    uint8_t warm_blocks[OPENREG_WARM_SIZES];
    bool is_parked; /* in the cache's list of pools that may have a hot or a warm block */
    struct openreg_pool *next_parked;
    LIST_HEAD(, openreg_segment) growing; /* its segments that can grow, latest first */
    openreg_free_lists free;
} openreg_pool;

/* A pool whose memory serves only its own requests. It is released (`uses` is 0) before its last segment. */
typedef struct openreg_private_pool {
    openreg_memory_pool_id id;
    int64_t uses;     /* of openreg_memory_pool_retain(), of threads in the pool, and while it is trimmed */
    int64_t retained; /* those of openreg_memory_pool_retain() */
    uint32_t flags;
    int64_t segments; /* including those being allocated from the driver or released to it */
    openreg_stat reserved[OPENREG_POOLS];
    struct openreg_stream_pools *streams;       /* linked through next_in_bucket */
    LIST_HEAD(, openreg_segment) own_segments;  /* linked through `own` */
    bool is_released;                           /* in the cache's list `released` */
    openreg_tree_node node;                     /* by a hash of the id, while `uses` is not 0 */
    LIST_ENTRY(openreg_private_pool) all;       /* of the cache */
    struct openreg_private_pool *next_released; /* in `released` or in `ended_pools` */
} openreg_private_pool;

/* "Requests of this thread go to this pool." */
typedef struct openreg_pool_binding {
    openreg_tree_node node; /* the thread's number, which is never reused, as a pthread_t may be */
    openreg_private_pool *pool;
} openreg_pool_binding;

/* The pools of one stream, and its incomplete uses of other streams' blocks. A stream of another device has only uses. */
typedef struct openreg_stream_pools {
    openreg_device *device; /* of the stream */
    openreg_stream stream;
    openreg_driver_stream handle;
    openreg_private_pool *private_pool; /* NULL: the cache for requests outside of private pools */
    openreg_pool small, large;
    struct openreg_stream_use *first_waiting, *last_waiting; /* in stream order */
    LIST_ENTRY(openreg_stream_pools) all;                    /* of the cache */
    struct openreg_stream_pools *next_shared;                /* all but streams of private pools, which have no uses */
    struct openreg_stream_pools *next_in_bucket;
} openreg_stream_pools;

/* "Work on this stream uses this block." */
typedef struct openreg_stream_use {
    openreg_block *block;
    openreg_stream_pools *stream;
    struct openreg_stream_use *next_of_block;
    struct openreg_stream_use *next; /* waiting in the stream, or unused */
    openreg_backend_event marker;    /* kept for the next use */
    openreg_device *marker_device;   /* NULL: there is no marker */
    bool passed; /* while its block is being freed: the stream has been waited for, no marker is needed */
} openreg_stream_use;

static inline bool
openreg_cache_is_released(const openreg_private_pool *pool)
{
    return pool != NULL && pool->uses == 0;
}

/* Whether a free block of that size may serve a request. */
static inline bool
openreg_cache_fits(const openreg_pool *pool, uint64_t size, uint64_t rounded)
{
    if (size < rounded)
        return false;
    if (__builtin_expect((openreg_features() & OPENREG_FEATURE_SPLIT_LIMIT) == 0, 1) ||
        pool->kind != OPENREG_POOL_LARGE)
        return true;
    const openreg_allocator_settings *const settings = openreg_cache_settings();
    const uint64_t limit = settings->max_split_size;
    return size < (rounded < limit ? limit : rounded + settings->max_non_split_rounding);
}

/* The smallest block of at least `rounded` bytes in the pool's lists, not yet removed; NULL if there is none, or none that
 * max_split_size allows for this request. */
static inline openreg_block *
openreg_cache_find(const openreg_pool *pool, uint64_t rounded)
{
    openreg_block *block = openreg_free_lists_find(&pool->free, rounded);
    return block != NULL && openreg_cache_fits(pool, block->size, rounded) ? block : NULL;
}

#endif
