/* SPDX-License-Identifier: BSD-3-Clause */
/* cache.h: the caching allocator of one device. Internal.
 *
 * Segments come from the driver (2 MiB for blocks up to 1 MiB, 20 MiB for those below 10 MiB, else rounded up to 2 MiB);
 * inside them blocks are found by size in O(log n) at most of the free ones (free_lists.h), split and coalesced in O(1).
 * Free blocks belong to the stream that they were allocated for. One lock a device; no driver is called with it held. */
#ifndef OPENREG_SRC_CACHE_H
#define OPENREG_SRC_CACHE_H

#include "base/internal_api.h"
#include "driver/device_table.h"
#include "memory/address_map.h"

#define OPENREG_MAX_ALLOCATION OPENREG_MEMORY_UNKNOWN

/* For built_table.c. NULL if host memory is short. empty() waits for blocks that still await a stream, and releases every
 * segment; there must be no live blocks. It keeps the last error. The rest remains for late calls, and for free(). A closed
 * cache serves only threads that are inside a call (inside.h): the others start over, with the table that is published
 * then. */
struct openreg_cache *openreg_cache_create(openreg_device *device);
void openreg_cache_set_closed(struct openreg_cache *cache, bool is_closed);
void openreg_cache_empty(struct openreg_cache *cache);

/* Number of allocated blocks, without freed ones that await a stream: the caller no longer holds these. */
int64_t openreg_cache_live_blocks(const struct openreg_cache *cache);

/* Sets the error text for an address that no lookup of device memory accepts: freed, foreign, an alias, pinned; or for a
 * bad fork. Returns the code. memory.c. */
openreg_status openreg_reject_address(const char *call, const void *ptr);

typedef struct openreg_block_view {
    uintptr_t address;
    uint64_t size;      /* bytes of the block */
    uint64_t requested; /* bytes that were requested; 0 unless live */
    bool live;
} openreg_block_view;

/* The block around `address`, a device address in the range found. False if the segment was released since. */
bool openreg_cache_view(const openreg_found_range *found, uintptr_t address, openreg_block_view *out);
/* The same for a signal handler: never waits. False also if the lock is taken. */
bool openreg_cache_try_view(const openreg_found_range *found, uintptr_t address, openreg_block_view *out);
/* Whether the bytes lie in one segment of a pool that is OPENREG_MEMORY_POOL_REPLAYED. */
bool openreg_cache_is_replayed(const openreg_found_range *found, uintptr_t address, uint64_t size);

/* ---- cache_sharing.c ---- */

typedef struct openreg_shared_block {
    openreg_device *device;
    void *block;
    uint64_t requested; /* bytes of the block that were requested */
    void *allocation;   /* the driver's allocation, and its bytes */
    uint64_t allocation_size;
} openreg_shared_block;

/* Notes that other processes may hold the block around `ptr`: openreg_free() then leaves it to openreg_cache_free_shared(),
 * which leaves it to runtime/sharing. Errors: OPENREG_E_INVALID (not in a live block of this process). */
OPENREG_INTERNAL openreg_status openreg_cache_share(const char *call, const void *ptr, openreg_shared_block *out);
void openreg_cache_free_shared(void *ptr);
/* Makes a shared block that its owner has freed and no process holds an ordinary live one. False if it isn't such a block. */
OPENREG_INTERNAL bool openreg_cache_take_back(void *ptr);
/* Adds memory of another process, `size` bytes at `base`; and removes it. */
OPENREG_INTERNAL openreg_status openreg_cache_adopt(const char *call, openreg_device *device, void *base, uint64_t size,
                                                    struct openreg_segment **out);
OPENREG_INTERNAL void openreg_cache_disown(struct openreg_segment *segment);

openreg_status openreg_cache_trim(struct openreg_cache *cache, const char *call);
uint64_t openreg_cache_reserved(struct openreg_cache *cache); /* bytes of its segments */

/* Called once by activation.c when a device with OPENREG_CAP_FENCED becomes active: installs a SIGSEGV handler that writes one
 * message and then runs the previous handler. Does nothing if OPENREG_FENCE_SIGNAL=0. fence_signal.c. */
void openreg_fence_signal_install(void);

#endif
