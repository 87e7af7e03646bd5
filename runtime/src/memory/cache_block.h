/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_block.h: a block of the caching allocator. Internal to cache*.c. */
#ifndef OPENREG_SRC_CACHE_BLOCK_H
#define OPENREG_SRC_CACHE_BLOCK_H

#include <stdint.h>

#include <openreg/openreg.h>

struct openreg_segment;
struct openreg_stream_use;

/* A state beside OPENREG_BLOCK_*: freed, but neither in a list nor joined with its neighbours yet, because the next
 * request is likely to be for its size (openreg_pool.hot). To everyone outside it is free. */
#define OPENREG_BLOCK_HOT 3
/* Another one: live, but nobody here can free it. Its owner has, and other processes still hold it (exports.c); or it is
 * memory of another process (imports.c). */
#define OPENREG_BLOCK_SHARED 4

/* Blocks tile their segment. No two neighbours are both free. 64 bytes: one cache line. */
typedef struct openreg_block {
    char *address;
    uint64_t size;                         /* a multiple of 512 */
    struct openreg_block *previous, *next; /* neighbours in the segment */
    struct openreg_segment *segment;
    union {
        struct {
            struct openreg_block *previous, *next;
        } free; /* FREE: in its pool's list; in the store of unused blocks `next` alone */
        struct {
            struct openreg_stream_use *uses; /* ALLOCATED: streams recorded */
            uint64_t requested;              /* the bytes that were asked for; HOT: asked for last */
        } used;                              /* every other state */
    } u;
    uint32_t waiting;      /* AWAITING_FREE: uses that have not been passed */
    uint8_t state;         /* OPENREG_BLOCK_*, also HOT and LENT */
    uint8_t row, bin;      /* FREE: where its list is */
    uint8_t oversize : 1;  /* ALLOCATED: counted as oversize */
    uint8_t is_shared : 1; /* ALLOCATED: other processes may hold it */
} openreg_block;

#endif
