/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/allocator.h: the caching allocator's settings, private pools and history. Valid C11 and C++17.
 *
 * Nothing here is needed to use openreg_malloc() and the other functions of openreg.h. Every function may be called from
 * any thread. Those with a `device` initialise the runtime if needed and may return its common errors (openreg.h). */
#ifndef OPENREG_ALLOCATOR_H
#define OPENREG_ALLOCATOR_H

#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------------------------------- settings */

#define OPENREG_ROUNDUP_INTERVALS 16 /* sizes below 2 MiB, then one a power of two, the last from 32 GiB on */

/* For all devices of the process. Sizes in bytes. The initial values are those of openreg_allocator_default_settings(). */
typedef struct openreg_allocator_settings {
    uint32_t struct_size;            /* set by the caller */
    int32_t expandable_segments;     /* 1: segments grow in place, if the driver has openreg.vmm (vmm.h) */
    uint64_t max_split_size;         /* blocks of this size or larger are never split; UINT64_MAX: no limit */
    uint64_t max_non_split_rounding; /* most bytes by which such a block may exceed the request that it serves */
    uint64_t large_segment_size;     /* of segments for blocks above 1 MiB and below 10 MiB: at least 20 MiB */
    double
        garbage_collection_threshold; /* in [0, 1): the used part of the device's (or the process's) memory above which
                                          * cached segments are released, the longest unused first; 0: never. Above it,
                                          * a request that needs the driver looks at every segment */
    double memory_fraction;           /* in [0, 1]: limit of devices without openreg_memory_set_fraction() */
    uint32_t roundup_divisions[OPENREG_ROUNDUP_INTERVALS]; /* number of steps between two powers of two, to which
                                                            * requests are rounded up; a power of two, 0 or 1: none */
} openreg_allocator_settings;

#define OPENREG_ALLOCATOR_SETTINGS_SIZE_1 112u
static_assert(sizeof(openreg_allocator_settings) == OPENREG_ALLOCATOR_SETTINGS_SIZE_1,
              "append a field, then freeze its size");

/* Fills in the initial values. Writes no byte beyond `struct_size`. */
OPENREG_API openreg_status openreg_allocator_default_settings(openreg_allocator_settings *inout);

/* Takes effect for later requests; existing blocks and segments stay as they are.
 * Errors: OPENREG_E_INVALID (a value outside its range; the text names it), OPENREG_E_NOMEM. Nothing has changed then. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status
openreg_allocator_set_settings(const openreg_allocator_settings *settings);
OPENREG_API openreg_status openreg_allocator_get_settings(openreg_allocator_settings *inout);

/* Limits the allocator to `fraction` of the device's memory, 0 to 1, until openreg_shutdown(). Existing segments beyond the
 * limit stay. Errors: OPENREG_E_INVALID (fraction), common ones. */
OPENREG_API openreg_status openreg_memory_set_fraction(int32_t device, double fraction);
OPENREG_API openreg_status openreg_memory_get_fraction(int32_t device, double *fraction); /* 1: all of it */

/* Switches caching on (as at the start) or off. Without it each request gets a segment of its own, a multiple of 2 MiB,
 * which is released to the driver when it is freed: for debugging only. Returns the previous setting. */
OPENREG_API int32_t openreg_allocator_set_caching(int32_t on);

/* ---------------------------------------------------------------------------------------------------- private pools */

#define OPENREG_MEMORY_POOL_USE_ON_OOM 1u /* requests outside the pool use its free blocks before they fail */
#define OPENREG_MEMORY_POOL_NO_SPLIT 2u   /* its segments are not split */
/* Captured graphs use its free blocks, too: so copies to and from free blocks are allowed, and the pool keeps all of its
 * memory until it is released. Stays set from the first call with it. */
#define OPENREG_MEMORY_POOL_REPLAYED 4u

/* Creates the pool on this device, or adds a use to it (the other `flags` are then ignored). A pool's memory serves only
 * requests in the pool, and openreg_memory_empty_cache() leaves it. A program may have thousands: the functions here take
 * no longer for one when there are others, and release and trim look only at its own segments.
 * Errors: OPENREG_E_INVALID (the id {0, 0}, unknown flags), OPENREG_E_NOMEM (host memory), common ones. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_memory_pool_retain(int32_t device, openreg_memory_pool_id id,
                                                                          uint32_t flags);

/* Removes one use. After the last one the pool is released: its free segments return to the driver at once, the
 * others as soon as their blocks are freed. Errors: OPENREG_E_INVALID (no such pool, or it was released as often as it was
 * retained and only threads that are in it still use it), common ones; the driver's. */
OPENREG_API openreg_status openreg_memory_pool_release(int32_t device, openreg_memory_pool_id id);

/* Until the calling thread leaves the pool, its allocations on the device come from it. A thread may be in several pools;
 * the one entered last counts. Counts as a use of the pool; if a thread ends without leaving, that use lasts until
 * openreg_shutdown().
 * Errors: OPENREG_E_INVALID (no such pool; the thread is in it already, or, for leave, is not), OPENREG_E_NOMEM. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_memory_pool_enter(int32_t device, openreg_memory_pool_id id);
OPENREG_API openreg_status openreg_memory_pool_leave(int32_t device, openreg_memory_pool_id id);

/* Releases the pool's segments without live blocks to the driver, unless it has OPENREG_MEMORY_POOL_REPLAYED. No error if
 * there is no such pool. */
OPENREG_API openreg_status openreg_memory_pool_trim(int32_t device, openreg_memory_pool_id id);

typedef struct openreg_memory_pool_info {
    uint32_t struct_size, padding;
    openreg_memory_pool_id id;
    int64_t uses;                         /* 0: it is released, but live blocks still hold some of its segments */
    openreg_stat reserved[OPENREG_POOLS]; /* bytes of its segments */
} openreg_memory_pool_info;

/* Calls `visit` for every private pool of the device, under the cache's lock: it must not call the runtime. A non-zero
 * return ends the walk. */
OPENREG_API openreg_status openreg_memory_visit_pools(int32_t device,
                                                      int (*visit)(void *ctx, const openreg_memory_pool_info *pool),
                                                      void *ctx);

/* ---------------------------------------------------------------------------------------------------------- history */

#define OPENREG_MEMORY_EVENT_ALLOC 0          /* a block was allocated */
#define OPENREG_MEMORY_EVENT_FREE_REQUESTED 1 /* openreg_free() was called */
#define OPENREG_MEMORY_EVENT_FREE_COMPLETED                                                                            \
    2                                        /* the block is free: at once, or when recorded streams are done with it */
#define OPENREG_MEMORY_EVENT_SEGMENT_ALLOC 3 /* a segment came from the driver */
#define OPENREG_MEMORY_EVENT_SEGMENT_FREE 4  /* a segment is released to the driver */
#define OPENREG_MEMORY_EVENT_SEGMENT_MAP 5   /* a segment has grown by this range */
#define OPENREG_MEMORY_EVENT_SEGMENT_UNMAP 6 /* a segment has shrunk by this range */
#define OPENREG_MEMORY_EVENT_OOM 7           /* a request has failed for lack of device memory */

/* An action of the allocator, passed to memory() of observers (observer.h). */
typedef struct openreg_memory_event {
    uint32_t struct_size;
    int32_t action; /* OPENREG_MEMORY_EVENT_* */
    int32_t device, reserved;
    uint64_t address; /* OOM: the free bytes of the device */
    uint64_t size;    /* bytes of the block, segment or range; OOM: bytes requested */
    openreg_stream stream;
    openreg_memory_pool_id pool;
} openreg_memory_event;

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_ALLOCATOR_H */
