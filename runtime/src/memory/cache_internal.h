/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_internal.h: structures of the caching allocator, shared by cache*.c. Internal to those.
 *
 * cache.c          malloc and free: splitting, coalescing
 * cache_grow.c     more memory, running out of it
 * cache_segment.c  segments from the driver and back
 * cache_stream.c   pools by stream, recorded streams
 * cache_vmm.c      segments that grow and shrink
 * cache_private.c  private pools, and which of them a thread's requests go to
 * cache_settings.c settings and limits
 * cache_sharing.c  blocks in several processes
 * cache_stats.c    statistics, snapshot, events to a listener */
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

/* What requests and frees must look after beside the ordinary: events that somebody observes, in the low byte, and features.
 * No bit is set in a process that asks for nothing special, so the fast paths test one word. */
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
#define OPENREG_WARM_BLOCKS 16u /* of a size: so much is kept from joining, 1 MiB a pool at most */

typedef struct openreg_pool {
    struct openreg_stream_pools *owner;
    int kind; /* OPENREG_POOL_SMALL or OPENREG_POOL_LARGE */
    bool no_split;
    openreg_block *hot; /* the block freed last, or NULL: OPENREG_BLOCK_HOT */
    /* Of the small pool, by size in units less one: blocks that were hot before, the last one first, for the next
     * request of their size. To join a block with its neighbours and to cut it off again touches ten lines that no
     * processor's cache holds where there are many blocks; to find it here touches one. */
    openreg_block *warm[OPENREG_WARM_SIZES];
    uint8_t warm_blocks[OPENREG_WARM_SIZES];
    bool is_parked; /* in the cache's list of pools that may have a hot or a warm block */
    struct openreg_pool *next_parked;
    LIST_HEAD(, openreg_segment) growing; /* its segments that can grow, the latest first */
    openreg_free_lists free;
} openreg_pool;

/* Memory that serves its own requests alone. It is gone (`uses` is 0) before its last segment is. */
typedef struct openreg_private_pool {
    openreg_memory_pool_id id;
    int64_t uses;     /* by openreg_memory_pool_retain(), by threads that are in it, and while it is trimmed */
    int64_t retained; /* those by openreg_memory_pool_retain() */
    uint32_t flags;
    int64_t segments; /* those that the driver is being asked for, or is being given back, too */
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
    openreg_tree_node node; /* by the thread: a number that no other one has had, as a pthread_t may */
    openreg_private_pool *pool;
} openreg_pool_binding;

/* The pools of one stream, and the uses of other streams' blocks that this stream has yet to pass. A stream of another device
 * has uses alone. */
typedef struct openreg_stream_pools {
    openreg_device *device; /* of the stream */
    openreg_stream stream;
    openreg_driver_stream handle;
    openreg_private_pool *private_pool; /* NULL: the cache that every request uses without one */
    openreg_pool small, large;
    struct openreg_stream_use *first_waiting, *last_waiting; /* in stream order */
    LIST_ENTRY(openreg_stream_pools) all;                    /* of the cache */
    struct openreg_stream_pools *next_shared;                /* all but those of private pools, which have no uses */
    struct openreg_stream_pools *next_in_bucket;
} openreg_stream_pools;

/* "Work on this stream uses this block." */
typedef struct openreg_stream_use {
    openreg_block *block;
    openreg_stream_pools *stream;
    struct openreg_stream_use *next_of_block;
    struct openreg_stream_use *next; /* waiting in the stream, or unused */
    openreg_backend_event marker;    /* kept when the use is over, for the next one */
    openreg_device *marker_device;   /* NULL: there is no marker */
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
    uint64_t free_since; /* while no block is in use: the cache's clock when the last one was freed */
    bool oversize;       /* counted as such */
    uint64_t room; /* of one that grows: what `size` may become, the bytes that `index` and `range` cover; else 0 */
    uint64_t step; /* of one that grows: its memory comes and goes by multiples of it; a power of two */
    bool resizing; /* the driver is changing it: it must neither go nor be changed by another thread */
    LIST_ENTRY(openreg_segment) all;       /* of the cache */
    LIST_ENTRY(openreg_segment) own;       /* all of a private pool */
    LIST_ENTRY(openreg_segment) growing;   /* those of a pool that can grow */
    LIST_ENTRY(openreg_segment) returning; /* the cache's list of that name */
    bool is_returning;                     /* is in it */
    struct openreg_segment *next_taken;    /* of those that are on their way to the driver */
} openreg_segment;

/* X(name): the statistics that are kept for each kind of pool, and those that there is one of. Whatever fills or resets
 * statistics goes through these lists. */
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

/* What was freed is not counted but computed, as allocated - current + (current at the last reset); the field `freed`
 * holds the last of the three. Of index 0 only `peak` is used. */
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

/* No driver is called while `lock` is held: a slow call would stall every thread that allocates on the device. */
struct openreg_cache {
    openreg_fast_lock
        lock; /* guards all below but the other locks, `device`, `schedule`, `next_of_all` and `pads_segments` */
    openreg_stream_pools *default_pools; /* of stream 0 */
    openreg_block *unused_blocks;
    int64_t waiting_blocks; /* OPENREG_BLOCK_AWAITING_FREE */
    bool is_closed;         /* its table is about to go, or has gone */
    openreg_cache_stats stats;

    openreg_stream_use *unused_uses;
    LIST_HEAD(, openreg_segment) segments;
    LIST_HEAD(, openreg_stream_pools) streams; /* also those of private pools */
    openreg_stream_pools *shared_streams;      /* the others; they go with the cache */
    openreg_pool *parked; /* pools that may have a hot or a warm block: whoever wants them all looks nowhere else */
    openreg_stream_pools *buckets[OPENREG_STREAM_BUCKETS];
    LIST_HEAD(, openreg_private_pool) private_pools;
    openreg_tree pools_by_id;          /* those that are in use */
    openreg_private_pool *released;    /* have just lost their last use: openreg_cache_return() comes */
    openreg_private_pool *ended_pools; /* released, without a segment: to be freed */
    openreg_tree routes;           /* of threads that are in pools, or have ended in one; of a thread the latest last */
    openreg_private_pool uncached; /* for openreg_allocator_set_caching(0): not in the list, never had a use */
    /* Of released pools and of `uncached`, and had no block in use when they came here. */
    LIST_HEAD(, openreg_segment) returning;
    uint64_t clock;              /* driver allocations tried: the unit of age */
    uint64_t coming;             /* bytes that the driver is being asked for */
    double fraction;             /* of openreg_memory_set_fraction(); negative: that of the settings */
    openreg_block *block_chunks; /* linked through `next` of their first blocks */
    openreg_device *device;
    const openreg_schedule *schedule; /* the driver's table, or NULL; never changes */
    openreg_lock flush;               /* one thread at a time gives memory back to satisfy a request; outside `lock` */
    openreg_fast_lock waiting;        /* for asking streams what they have passed; outside `lock`, inside `flush` */
    int64_t asking;                   /* threads that the driver makes a segment for, or changes one for */
    atomic_uint_least64_t answers;    /* how often it has done so, or refused to; changes under `lock` */
    int64_t awaiting;                 /* threads that wait for an answer to another one */
    openreg_lock answer_lock;         /* with `answer`; inside `lock` */
    pthread_cond_t answer;
    struct openreg_cache *next_of_all;
    atomic_bool pads_segments; /* the driver has given an address that blocks can't begin at */
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

/* Adds, or subtracts what is less than 0. */
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

/* Of "oversize" there is one pool only. */
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
/* Makes a block whose owner is done with it free, and joins it with free neighbours. Counts "inactive split" only. */
void openreg_cache_release(struct openreg_cache *cache, openreg_block *block);
/* Releases the hot and the warm blocks of all pools, for whoever looks at the whole cache. */
void openreg_cache_release_hot(struct openreg_cache *cache);
/* The block around a device address in the range found, or NULL if the segment went back to the driver meanwhile or
 * has no memory there yet. */
openreg_block *openreg_cache_block_at(const openreg_found_range *found, uintptr_t address);
/* ---- cache_segment.c ---- */

/* Enters a segment whose `start` and `size` are set into the address map. No lock is needed. */
openreg_status openreg_cache_map_segment(const char *call, openreg_device *device, openreg_segment *segment);

/* Asks the driver for a segment and adds it, or lets one grow. *refused = true: it has no memory, or the limit of the
 * process is reached. The lock is held, and released meanwhile. */
openreg_status openreg_cache_add_segment(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded,
                                         openreg_block **out, bool *refused);

/* ---- cache_grow.c; the lock is held ---- */

/* Bytes of the largest segment that the device's driver allocates. */
static inline uint64_t
openreg_cache_most(const openreg_device *device)
{
    const uint64_t most = device->info.max_allocation;
    return most == 0 ? OPENREG_MAX_ALLOCATION : most / OPENREG_BLOCK_UNIT * OPENREG_BLOCK_UNIT;
}

/* OPENREG_E_NOMEM with a text of the figures, and of what the driver said if the thread's error is its. Counts it. Called
 * with the lock held; releases and reacquires it. */
openreg_status openreg_cache_out_of_memory(struct openreg_cache *cache, const openreg_pool *pool, uint64_t size);
/* A free block of at least `rounded` bytes, after asking the driver and if need be giving cached segments back; where the
 * driver has none for it while it answers other threads, again. The lock is released meanwhile; on success the block is
 * in the pool's list. `size` is for the text. */
openreg_status openreg_cache_grow(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded, uint64_t size,
                                  openreg_block **out);
/* Around a call of the driver that makes a segment or changes one: whoever is refused meanwhile awaits its end. */
void openreg_cache_ask(struct openreg_cache *cache);
void openreg_cache_answered(struct openreg_cache *cache);

/* ---- cache_segment.c ---- */

/* Segments that are to go back to the driver. */
typedef enum openreg_filter_kind {
    OPENREG_FILTER_CACHED,   /* all but those of private pools in use */
    OPENREG_FILTER_POOL,     /* those of `pool` */
    OPENREG_FILTER_RELEASED, /* those of released private pools */
    OPENREG_FILTER_OVERSIZE, /* those that max_split_size keeps whole */
    OPENREG_FILTER_UNUSED    /* large ones that have been free since the time `free_since` */
} openreg_filter_kind;

typedef struct openreg_segment_filter {
    openreg_filter_kind kind;
    openreg_private_pool *pool;
    uint64_t free_since;
} openreg_segment_filter;

/* The segments that may be of a kind, the latest first. */
openreg_segment *openreg_cache_first_segment(const struct openreg_cache *cache, openreg_segment_filter filter);
openreg_segment *openreg_cache_next_segment(const openreg_segment *segment, openreg_segment_filter filter);
/* Whether it is for segments of that kind, whatever their blocks. */
bool openreg_cache_filter_matches(const openreg_segment *segment, openreg_segment_filter filter);

/* Whether it is of that kind, no block of it is in use, and no thread changes it. */
bool openreg_cache_is_given(const openreg_segment *segment, openreg_segment_filter filter);
/* Gives back those segments of a kind that have no block in use; releases the lock meanwhile. The flush lock is held
 * too. */
openreg_status openreg_cache_give_segments(struct openreg_cache *cache, const char *call,
                                           openreg_segment_filter filter);
/* Gives back those of the cache's list `returning`, likewise. */
void openreg_cache_give_returning(struct openreg_cache *cache, const char *call);
void openreg_cache_destroy_segments(struct openreg_cache *cache); /* for openreg_cache_empty(): all of them */

/* ---- cache_stream.c; the lock is held ---- */

static inline size_t
openreg_stream_bucket(openreg_stream stream)
{
    return (size_t)(((uint64_t)stream * UINT64_C(0x9E3779B97F4A7C15)) >> 58); /* 64 buckets */
}

/* The pools of a stream of any device, or NULL if they have not been made. */
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
/* The same without entering them anywhere, for a private pool or NULL. */
openreg_status openreg_cache_new_pools(struct openreg_cache *cache, const char *call, openreg_device *device,
                                       openreg_stream stream, openreg_private_pool *private_pool,
                                       openreg_stream_pools **out);
/* Frees a block that other streams use: marks their streams, and frees it at once if none is behind. Releases the lock
 * meanwhile. On failure the block is allocated as before. */
openreg_status openreg_cache_free_used(struct openreg_cache *cache, openreg_block *block);
/* Before a block that no stream uses any more becomes free: has a driver that wishes so overwrite it, behind the work of its
 * own stream. Releases the lock meanwhile; to other threads the block awaits its streams then. */
void openreg_cache_poison(struct openreg_cache *cache, openreg_block *block);
/* Frees waiting blocks whose streams have passed, unless another thread is at it. Releases the lock meanwhile. */
openreg_status openreg_cache_poll_waiting(struct openreg_cache *cache, const char *call);
/* Waits for all of them; releases the lock meanwhile. Holds the flush lock. */
openreg_status openreg_cache_sync_waiting(struct openreg_cache *cache, const char *call);
void openreg_cache_destroy_streams(struct openreg_cache *cache); /* for openreg_cache_empty(), after the segments */

/* ---- cache_private.c; the lock is held ---- */

/* Sets the error where host memory is short, and returns its code; with or without the lock. */
openreg_status openreg_cache_no_memory(const char *call, const openreg_device *device);
/* The pools that a request of the calling thread goes to, if OPENREG_FEATURE_ROUTES or _UNCACHED says that there may be
 * special ones. Made if needed; errors as openreg_cache_make_pools(). */
openreg_status openreg_cache_route(struct openreg_cache *cache, openreg_stream stream, openreg_stream_pools **out);

static inline bool
openreg_cache_is_released(const openreg_private_pool *pool)
{
    return pool != NULL && pool->uses == 0;
}

/* A free block of a pool that shares its memory when there is none left, or NULL. */
openreg_block *openreg_cache_borrow(const struct openreg_cache *cache, const openreg_pool *pool, uint64_t rounded);
/* A segment of a released pool has no block in use any more: it goes to `returning`. */
void openreg_cache_note_returning(struct openreg_cache *cache, openreg_segment *segment);
/* Counts a segment that a private pool must outlive, or one less. NULL: no private pool. */
void openreg_cache_count_segment(struct openreg_cache *cache, openreg_private_pool *pool, int64_t amount);
/* Frees private pools that are released and have no segment left. */
void openreg_cache_forget_pools(struct openreg_cache *cache);
void openreg_cache_destroy_pools(struct openreg_cache *cache); /* for openreg_cache_empty(), before the streams */
/* Gives back what has no block in use of `released`, and what is in `returning`. Takes the locks itself, so none is held. Errors are not the caller's. */
void openreg_cache_return(struct openreg_cache *cache);

/* ---- cache_vmm.c ---- */

/* The driver's functions, or NULL. No lock is needed. */
const openreg_vmm *openreg_cache_vmm(const openreg_device *device);
/* Addresses and memory for a segment whose `pool` and `size` are set: sets `allocation`, `start`, `room` and `step`, and
 * rounds `size` up to the step. No lock is held. OPENREG_E_UNSUPPORTED, without a text, where the driver has no addresses to
 * give. */
openreg_status openreg_cache_allocate_growing(openreg_device *device, openreg_segment *segment);
/* A segment of the pool whose end is a free block that the request may have when it has grown by *amount, more than 0; or
 * NULL. Nothing that is free now fits, and no block is hot or warm. */
openreg_segment *openreg_cache_growable(const openreg_pool *pool, uint64_t rounded, uint64_t *amount);
/* Lets it grow by so much. Releases the lock meanwhile, so whoever wants the free block at its end looks for it: other
 * threads may have taken from it or added to it. Errors: the driver's. */
openreg_status openreg_cache_grow_segment(struct openreg_cache *cache, openreg_segment *segment, uint64_t amount);
/* Takes the free ends off segments that stay. Releases the lock meanwhile; the flush lock is held too. */
openreg_status openreg_cache_shrink_segments(struct openreg_cache *cache, const char *call,
                                             openreg_segment_filter filter);

/* ---- cache_settings.c ---- */

/* Sets a bit of openreg_cache_features for one more reason, or for one less. */
void openreg_cache_feature(unsigned feature, bool on);
/* As of now: another change makes others, and leaves these as they are. */
const openreg_allocator_settings *openreg_cache_settings(void);
/* Of a request, to its block: beyond the largest segment only where the request is. */
uint64_t openreg_cache_round(const openreg_device *device, uint64_t size);
/* Says once in a process that this device's driver has no segments that grow. */
void openreg_cache_warn_of_growing(const openreg_device *device);
/* What the cache may reserve; UINT64_MAX: no limit. The lock is held. */
uint64_t openreg_cache_limit(const struct openreg_cache *cache);
/* The reserved bytes from which on segments go back; UINT64_MAX: none do. The lock is held. */
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

/* Whether a request may have a free block of that size. */
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

/* The smallest block of at least `rounded` bytes in the pool's lists, still in them; NULL if there is none, or none that
 * max_split_size lets this request have. */
static inline openreg_block *
openreg_cache_find(const openreg_pool *pool, uint64_t rounded)
{
    openreg_block *block = openreg_free_lists_find(&pool->free, rounded);
    return block != NULL && openreg_cache_fits(pool, block->size, rounded) ? block : NULL;
}

#endif
