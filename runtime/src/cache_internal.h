/* cache_internal.h: structures of the caching allocator, shared by cache*.c. Internal to those.
 *
 * cache.c          malloc and free: splitting, coalescing
 * cache_segment.c  segments from the driver and back, running out of memory
 * cache_stream.c   pools by stream, recorded streams
 * cache_stats.c    statistics and snapshot
 * cache_sharing.c  blocks in several processes */
#ifndef OPENREG_SRC_CACHE_INTERNAL_H
#define OPENREG_SRC_CACHE_INTERNAL_H

#include "block_index.h"
#include "cache.h"
#include "cache_block.h"
#include "driver_calls.h"
#include "fork.h"
#include "free_lists.h"
#include "lock.h"

#define OPENREG_MIB (UINT64_C(1) << 20)
#define OPENREG_BLOCK_UNIT UINT64_C(512)
#define OPENREG_SMALL_BLOCK_MAX OPENREG_MIB
#define OPENREG_SMALL_SEGMENT (2 * OPENREG_MIB)
#define OPENREG_LARGE_SEGMENT (20 * OPENREG_MIB)
#define OPENREG_LARGE_SEGMENT_BELOW (10 * OPENREG_MIB) /* bigger blocks get a segment of their own size */
#define OPENREG_SEGMENT_UNIT (2 * OPENREG_MIB)

#define OPENREG_POOL_ALL 0 /* indices of the statistics */
#define OPENREG_POOL_SMALL 1
#define OPENREG_POOL_LARGE 2
#define OPENREG_POOLS 3

struct openreg_stream_pools;

typedef struct openreg_pool {
    struct openreg_stream_pools *owner;
    int kind; /* OPENREG_POOL_SMALL or OPENREG_POOL_LARGE */
    openreg_block *parked; /* the block freed last, or NULL: OPENREG_BLOCK_PARKED */
    openreg_free_lists free;
} openreg_pool;

/* The pools of one stream, and the uses of other streams' blocks that this stream has yet to pass. */
typedef struct openreg_stream_pools {
    openreg_stream stream;
    openreg_driver_stream handle;
    openreg_pool small, large;
    struct openreg_stream_use *first_waiting, *last_waiting; /* in stream order */
    struct openreg_stream_pools *next;                       /* all of the cache */
    struct openreg_stream_pools *next_in_bucket;
} openreg_stream_pools;

/* "Work on this stream uses this block." */
typedef struct openreg_stream_use {
    openreg_block *block;
    openreg_stream_pools *stream;
    struct openreg_stream_use *next_of_block;
    struct openreg_stream_use *next; /* waiting in the stream, or unused */
    openreg_marker marker;           /* kept when the use is over, for the next one */
    bool has_marker;
    bool passed; /* while its block is being freed: the stream was waited for, no marker is needed */
} openreg_stream_use;

typedef struct openreg_segment {
    char *start;
    uint64_t size;
    void *allocation; /* what the driver gave: `start`, or before it where the driver aligns to less than 512 */
    openreg_pool *pool;
    openreg_block *first;
    openreg_block_index *index;
    openreg_range *range;
    struct openreg_segment *previous, *next; /* all of the cache */
} openreg_segment;

/* What was freed is not counted but computed, as allocated - current + (current at the last reset); the field `freed`
 * holds the last of the three. Of index 0 only `peak` is used. */
typedef struct openreg_cache_stats {
    openreg_stat allocation[OPENREG_POOLS], allocated_bytes[OPENREG_POOLS], requested_bytes[OPENREG_POOLS];
    openreg_stat segment[OPENREG_POOLS], reserved_bytes[OPENREG_POOLS];
    openreg_stat inactive_split[OPENREG_POOLS], inactive_split_bytes[OPENREG_POOLS];
    /* Freed and awaiting a stream. "Active" is this and `allocation`, so on the fast path, where nothing waits, it needs
     * no counters; `peak` here is the peak of the sum while something waited, `allocated` is not used. */
    openreg_stat waiting[OPENREG_POOLS], waiting_bytes[OPENREG_POOLS];
    int64_t retries, ooms, driver_allocs, driver_frees, syncs;
} openreg_cache_stats;

#define OPENREG_STREAM_BUCKETS 64

struct openreg_cache {
    openreg_fast_lock lock; /* guards all below but `flush` and `device` */
    openreg_stream_pools *default_pools; /* of stream 0 */
    openreg_block *unused_blocks;
    int64_t waiting_blocks; /* OPENREG_BLOCK_AWAITING_FREE */
    openreg_cache_stats stats;

    openreg_stream_use *unused_uses;
    openreg_segment *segments;
    openreg_stream_pools *streams;
    openreg_stream_pools *buckets[OPENREG_STREAM_BUCKETS];
    openreg_block *block_chunks; /* linked through `next` of their first blocks */
    openreg_device *device;
    openreg_lock flush; /* one thread at a time gives memory back to satisfy a request; outside `lock` */
};

/* Of the sum over the pools only the peak is kept; the rest is added up when it is asked for. */
static inline int64_t
openreg_stat_current(const openreg_stat stat[OPENREG_POOLS])
{
    return stat[OPENREG_POOL_SMALL].current + stat[OPENREG_POOL_LARGE].current;
}

static inline void
openreg_stat_add(openreg_stat stat[OPENREG_POOLS], int pool, int64_t amount)
{
    const int64_t current = stat[pool].current + amount;
    stat[pool].allocated += amount;
    stat[pool].current = current;
    if (current > stat[pool].peak)
        stat[pool].peak = current;
    const int64_t sum = openreg_stat_current(stat);
    if (sum > stat[OPENREG_POOL_ALL].peak)
        stat[OPENREG_POOL_ALL].peak = sum;
}

static inline void
openreg_stat_subtract(openreg_stat stat[OPENREG_POOLS], int pool, int64_t amount)
{
    stat[pool].current -= amount;
}

/* ---- cache.c; the lock is held ---- */

/* A block object that is not in use, or NULL if host memory is short. */
openreg_block *openreg_cache_take_block(struct openreg_cache *cache);
void openreg_cache_give_block(struct openreg_cache *cache, openreg_block *block);
/* Makes a block whose owner is done with it free, and joins it with free neighbours. Counts "inactive split" only. */
void openreg_cache_release(struct openreg_cache *cache, openreg_block *block);
/* Releases the parked blocks of all pools, for whoever looks at the whole cache. */
void openreg_cache_unpark(struct openreg_cache *cache);
/* The block around a device address in the range found, or NULL if the segment went back to the driver meanwhile. */
openreg_block *openreg_cache_block_at(const openreg_found_range *found, uintptr_t address);
/* ---- cache_segment.c ---- */

/* Enters a segment whose `start` and `size` are set into the address map. No lock is needed. */
openreg_status openreg_cache_map_segment(const char *call, openreg_device *device, openreg_segment *segment);

/* A free block of at least `rounded` bytes, after asking the driver and if need be giving cached segments back. The
 * lock is held, let go meanwhile, and held again; on success the block is in the pool's list. `size` is for the text. */
openreg_status openreg_cache_grow(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, uint64_t size,
                                  openreg_block **out);

/* Gives back every segment that has no block in use; lets go of the lock meanwhile. The flush lock is held too. */
openreg_status openreg_cache_give_segments(struct openreg_cache *cache, const char *call);
void openreg_cache_destroy_segments(struct openreg_cache *cache); /* for openreg_cache_destroy(): all of them */

/* ---- cache_stream.c; the lock is held ---- */

static inline size_t
openreg_stream_bucket(openreg_stream stream)
{
    return (size_t)(((uint64_t)stream * UINT64_C(0x9E3779B97F4A7C15)) >> 58); /* 64 buckets */
}

/* The pools of a stream, or NULL if they have not been made. */
static inline openreg_stream_pools *
openreg_cache_find_pools(const struct openreg_cache *cache, openreg_stream stream)
{
    if (stream == OPENREG_STREAM_DEFAULT)
        return cache->default_pools;
    openreg_stream_pools *pools = cache->buckets[openreg_stream_bucket(stream)];
    while (pools != NULL && pools->stream != stream)
        pools = pools->next_in_bucket;
    return pools;
}

/* Resolves the stream and makes its pools. Errors: the stream is not of this device; E_NOMEM. */
openreg_status openreg_cache_make_pools(struct openreg_cache *cache, const char *call, openreg_stream stream,
                                        openreg_stream_pools **out);
/* Frees a block that other streams use: marks their streams, and frees it at once if none is behind. On failure the
 * block is allocated as before. */
openreg_status openreg_cache_free_used(struct openreg_cache *cache, openreg_block *block);
/* Frees waiting blocks whose streams have passed. */
openreg_status openreg_cache_poll_waiting(struct openreg_cache *cache, const char *call);
/* Waits for all of them; lets go of the lock meanwhile. Holds the flush lock. */
openreg_status openreg_cache_sync_waiting(struct openreg_cache *cache, const char *call);
void openreg_cache_destroy_streams(struct openreg_cache *cache); /* for openreg_cache_destroy(), after the segments */

#endif
