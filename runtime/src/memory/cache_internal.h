/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_internal.h: structures of the caching allocator, shared by cache*.c. Internal to those.
 *
 * cache.c          malloc and free: splitting, coalescing
 * cache_grow.c     more memory, running out of it
 * cache_segment.c  allocating and releasing segments
 * cache_stream.c   pools by stream, recorded streams
 * cache_vmm.c      segments that grow and shrink
 * cache_private.c  private pools, and which of them a thread's requests go to
 * cache_settings.c settings and limits
 * cache_sharing.c  blocks in several processes
 * cache_stats.c    statistics, snapshot, events to observers */
#ifndef OPENREG_SRC_CACHE_INTERNAL_H
#define OPENREG_SRC_CACHE_INTERNAL_H

#include <stdatomic.h>
#include <sys/queue.h>

#include <openreg/allocator.h>
#include <openreg/schedule.h>
#include <openreg/vmm.h>

#include "base/lock.h"
#include "driver/driver_calls.h"
#include "memory/block_index.h"
#include "memory/cache.h"
#include "memory/cache_block.h"
#include "memory/free_lists.h"
#include "watch/observers.h"

#define OPENREG_MIB (UINT64_C(1) << 20)
#define OPENREG_BLOCK_UNIT UINT64_C(512)
#define OPENREG_SMALL_BLOCK_MAX OPENREG_MIB
#define OPENREG_SMALL_SEGMENT (2 * OPENREG_MIB)
#define OPENREG_LARGE_SEGMENT (20 * OPENREG_MIB)
#define OPENREG_LARGE_SEGMENT_BELOW (10 * OPENREG_MIB) /* bigger blocks get a segment of their own size */
#define OPENREG_SEGMENT_UNIT (2 * OPENREG_MIB)

/* Special handling that requests and frees need: observed events, in the low byte, and features. No bit is set in an
 * ordinary process, so the fast paths test one word. */
#define OPENREG_FEATURE_TRACE OPENREG_OBSERVE_MEMORY
#define OPENREG_FEATURE_ROUNDING 256u    /* roundup_divisions */
#define OPENREG_FEATURE_SPLIT_LIMIT 512u /* max_split_size */
#define OPENREG_FEATURE_ROUTES 1024u     /* a thread is in a private pool */
#define OPENREG_FEATURE_RETURNS 2048u    /* segments of a released pool wait for their blocks */
#define OPENREG_FEATURE_UNCACHED 4096u   /* openreg_allocator_set_caching(0) */
#define OPENREG_FEATURE_POISON 8192u     /* a driver overwrites freed memory (openreg/schedule.h) */
#define OPENREG_FEATURES_FIRST 8         /* their bits */
#define OPENREG_FEATURES 6
static_assert(OPENREG_OBSERVE_ALL < 1u << OPENREG_FEATURES_FIRST, "events and features share a word");
#define OPENREG_FEATURES_OF_REQUESTS (OPENREG_FEATURE_ROUNDING | OPENREG_FEATURE_ROUTES | OPENREG_FEATURE_UNCACHED)
extern atomic_uint openreg_cache_features;

struct openreg_stream_pools;

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

typedef struct openreg_segment {
    char *start;
    uint64_t size;
    void *allocation; /* the driver's address: `start`, or less if the driver aligns to less than 512 */
    openreg_pool *pool;
    openreg_block *first;
    openreg_block_index *index;
    openreg_range *range;
    uint64_t free_since; /* while no block is in use: the cache's clock when the last one was freed */
    bool oversize;       /* counted as such */
    uint64_t room;       /* of one that grows: the limit of `size`, which `index` and `range` cover; else 0 */
    uint64_t step;       /* of one that grows: the unit in which memory is mapped and unmapped; a power of two */
    bool resizing;       /* the driver is changing it: other threads must neither release nor change it */
    LIST_ENTRY(openreg_segment) all;       /* of the cache */
    LIST_ENTRY(openreg_segment) own;       /* all of a private pool */
    LIST_ENTRY(openreg_segment) growing;   /* those of a pool that can grow */
    LIST_ENTRY(openreg_segment) returning; /* the cache's list of that name */
    bool is_returning;                     /* is in it */
    struct openreg_segment *next_taken;    /* in the list of segments that are being released */
} openreg_segment;

/* X(name): statistics of each kind of pool, and those that exist once. Code that fills or resets statistics uses these
 * lists. */
#define OPENREG_STAT_MAP(X)                                                                                            \
    X(allocation)                                                                                                      \
    X(allocated_bytes)                                                                                                 \
    X(requested_bytes)                                                                                                 \
    X(segment)                                                                                                         \
    X(reserved_bytes)                                                                                                  \
    X(inactive_split)                                                                                                  \
    X(inactive_split_bytes)
#define OPENREG_SINGLE_STAT_MAP(X)                                                                                     \
    X(oversize_allocations)                                                                                            \
    X(oversize_segments)

/* The freed amount is computed as allocated - current + (current at the last reset); the field `freed` holds the last of
 * the three. At index 0 only `peak` is used. */
typedef struct openreg_cache_stats {
#define OPENREG_STAT_MEMBER(name) openreg_stat name[OPENREG_POOLS];
    OPENREG_STAT_MAP(OPENREG_STAT_MEMBER)
#undef OPENREG_STAT_MEMBER
    /* Freed and awaiting a stream. "Active" is this and `allocation`, so on the fast path, where nothing waits, it
     * needs no counters; `peak` here is the peak of the sum while something waited, `allocated` is not used. */
    openreg_stat waiting[OPENREG_POOLS], waiting_bytes[OPENREG_POOLS];
#define OPENREG_STAT_MEMBER(name) openreg_stat name;
    OPENREG_SINGLE_STAT_MAP(OPENREG_STAT_MEMBER)
#undef OPENREG_STAT_MEMBER
    int64_t retries, ooms, driver_allocs, driver_frees, syncs;
} openreg_cache_stats;

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

/* Of the sum over the pools only the peak is kept; the rest is computed on request. */
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

/* Adds an amount, which may be negative. */
static inline void
openreg_stat_move(openreg_stat stat[OPENREG_POOLS], int pool, int64_t amount)
{
    if (amount > 0)
        openreg_stat_add(stat, pool, amount);
    else
        openreg_stat_subtract(stat, pool, -amount);
}

static inline unsigned
openreg_features(void)
{
    return atomic_load_explicit(&openreg_cache_features, memory_order_relaxed) | openreg_watched();
}

/* "oversize" has no statistics by pool. */
static inline void
openreg_stat_count(openreg_stat *stat, int64_t amount)
{
    stat->current += amount;
    if (amount > 0)
        stat->allocated += amount;
    if (stat->current > stat->peak)
        stat->peak = stat->current;
}

/* ---- cache.c; the lock is held ---- */

/* A block object that is not in use, or NULL if host memory is short. */
openreg_block *openreg_cache_take_block(struct openreg_cache *cache);
void openreg_cache_give_block(struct openreg_cache *cache, openreg_block *block);
/* Frees a block that is no longer used, and joins it with free neighbours. Counts only "inactive split". */
void openreg_cache_release(struct openreg_cache *cache, openreg_block *block);
/* Makes the hot and the warm blocks of all pools free, for callers that examine the whole cache. */
void openreg_cache_release_hot(struct openreg_cache *cache);
/* The block around a device address in the range found, or NULL if the segment has been released since or has no memory
 * there yet. */
openreg_block *openreg_cache_block_at(const openreg_found_range *found, uintptr_t address);
/* ---- cache_segment.c ---- */

/* Adds a segment whose `start` and `size` are set to the address map. No lock is needed. */
openreg_status openreg_cache_map_segment(const char *call, openreg_device *device, openreg_segment *segment);

/* Allocates a segment from the driver and adds it, or grows one. *refused = true: out of memory, or the limit of the
 * process is reached. The lock is held, and released during the call. */
openreg_status openreg_cache_add_segment(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded,
                                         openreg_block **out, bool *refused);

/* ---- cache_grow.c; the lock is held ---- */

/* Bytes of the largest segment that the device's driver can allocate. */
static inline uint64_t
openreg_cache_most(const openreg_device *device)
{
    const uint64_t most = device->info.max_allocation;
    return most == 0 ? OPENREG_MAX_ALLOCATION : most / OPENREG_BLOCK_UNIT * OPENREG_BLOCK_UNIT;
}

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

/* ---- cache_segment.c ---- */

/* Which segments to release to the driver. */
typedef enum openreg_filter_kind {
    OPENREG_FILTER_CACHED,   /* all except those of private pools in use */
    OPENREG_FILTER_POOL,     /* segments of `pool` */
    OPENREG_FILTER_RELEASED, /* segments of released private pools */
    OPENREG_FILTER_OVERSIZE, /* segments that max_split_size keeps whole */
    OPENREG_FILTER_UNUSED    /* large segments that have been free since the time `free_since` */
} openreg_filter_kind;

typedef struct openreg_segment_filter {
    openreg_filter_kind kind;
    openreg_private_pool *pool;
    uint64_t free_since;
} openreg_segment_filter;

/* The list that holds all segments of a kind, latest first. */
openreg_segment *openreg_cache_first_segment(const struct openreg_cache *cache, openreg_segment_filter filter);
openreg_segment *openreg_cache_next_segment(const openreg_segment *segment, openreg_segment_filter filter);
/* Whether the segment is of that kind, whatever its blocks. */
bool openreg_cache_filter_matches(const openreg_segment *segment, openreg_segment_filter filter);

/* Whether the segment is of that kind, has no block in use, and is not being changed by a thread. */
bool openreg_cache_is_given(const openreg_segment *segment, openreg_segment_filter filter);
/* Releases the segments of a kind that have no block in use; releases the lock in between. The flush lock is held too. */
openreg_status openreg_cache_give_segments(struct openreg_cache *cache, const char *call,
                                           openreg_segment_filter filter);
/* The same for the cache's list `returning`. */
void openreg_cache_give_returning(struct openreg_cache *cache, const char *call);
void openreg_cache_destroy_segments(struct openreg_cache *cache); /* for openreg_cache_empty(): all of them */

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

static inline bool
openreg_cache_is_released(const openreg_private_pool *pool)
{
    return pool != NULL && pool->uses == 0;
}

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

/* ---- cache_vmm.c ---- */

/* The driver's functions, or NULL. No lock is needed. */
const openreg_vmm *openreg_cache_vmm(const openreg_device *device);
/* Addresses and memory for a segment whose `pool` and `size` are set: sets `allocation`, `start`, `room` and `step`, and
 * rounds `size` up to the step. No lock is held. OPENREG_E_UNSUPPORTED without a text if the driver has no addresses. */
openreg_status openreg_cache_allocate_growing(openreg_device *device, openreg_segment *segment);
/* A segment of the pool whose last block, once grown by *amount > 0, can serve the request; or NULL. No free block fits
 * now, and no block is hot or warm. */
openreg_segment *openreg_cache_growable(const openreg_pool *pool, uint64_t rounded, uint64_t *amount);
/* Grows the segment by that amount. Releases the lock in between, so the caller must search for the free block at its end:
 * other threads may have taken from it or added to it. Errors: the driver's. */
openreg_status openreg_cache_grow_segment(struct openreg_cache *cache, openreg_segment *segment, uint64_t amount);
/* Unmaps the free ends of segments that stay. Releases the lock in between; the flush lock is held too. */
openreg_status openreg_cache_shrink_segments(struct openreg_cache *cache, const char *call,
                                             openreg_segment_filter filter);

/* ---- cache_settings.c ---- */

/* Adds or removes a reason for a bit of openreg_cache_features, which is set while there is one. */
void openreg_cache_feature(unsigned feature, bool on);
/* The current settings: a change makes new ones, and leaves these as they are. */
const openreg_allocator_settings *openreg_cache_settings(void);
/* Rounds a request up to its block's size: beyond the largest segment only if the request is. */
uint64_t openreg_cache_round(const openreg_device *device, uint64_t size);
/* Warns once in a process that this device's driver has no segments that grow. */
void openreg_cache_warn_of_growing(const openreg_device *device);
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
