/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_segment.h: segments, the driver's allocations that blocks tile. Internal to cache*.c. The cache's lock is held, unless a
 * function says otherwise. */
#ifndef OPENREG_SRC_CACHE_SEGMENT_H
#define OPENREG_SRC_CACHE_SEGMENT_H

#include <sys/queue.h>

#include <openreg/vmm.h>

#include "memory/block_index.h"
#include "memory/cache_pool.h"

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

/* ---- cache_segment.c ---- */

/* Adds a segment whose `start` and `size` are set to the address map. No lock is needed. */
openreg_status openreg_cache_map_segment(const char *call, openreg_device *device, openreg_segment *segment);

/* Allocates a segment from the driver and adds it, or grows one. *refused = true: out of memory, or the limit of the
 * process is reached. The lock is held, and released during the call. */
openreg_status openreg_cache_add_segment(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded,
                                         openreg_block **out, bool *refused);
/* The same, of a new segment that only this request fits in. Refused without a call if the usual one is no larger. */
openreg_status openreg_cache_add_smallest_segment(struct openreg_cache *cache, openreg_pool *pool, uint64_t rounded,
                                                  openreg_block **out, bool *refused);

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

#endif
