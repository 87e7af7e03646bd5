/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_block.h: a block of the caching allocator. Internal to cache*.c. */
#ifndef OPENREG_SRC_CACHE_BLOCK_H
#define OPENREG_SRC_CACHE_BLOCK_H

#include <assert.h>
#include <stdint.h>

#include <openreg/openreg.h>

#include "base/tree.h"

struct openreg_segment;
struct openreg_stream_use;

/* A state in addition to OPENREG_BLOCK_*: freed, but neither in a free list nor joined with its neighbours yet, because a
 * request for its size is likely (openreg_pool.hot, .warm). Reported as free. */
#define OPENREG_BLOCK_HOT 5
/* Another one: live, but openreg_free() refuses it. Its owner has freed it, and other processes still hold it (exports.c);
 * or it is memory of another process (imports.c). */
#define OPENREG_BLOCK_SHARED 6

/* Blocks tile their segment. No two neighbours are both free. 64 bytes: one cache line. */
typedef struct openreg_block {
    char *address;
    uint64_t size;                         /* a multiple of 512 */
    struct openreg_block *previous, *next; /* neighbours in the segment */
    struct openreg_segment *segment;
    union {
        struct {
            struct openreg_block *previous, *next;
        } free; /* FREE: in its pool's list; in the store of unused blocks only `next` */
        struct {
            union {
                struct openreg_stream_use *uses; /* ALLOCATED: streams recorded */
                struct openreg_block *warm;      /* HOT: the next warm block of its size */
            };
            uint64_t requested; /* requested bytes; HOT: of the last request */
        } used;                 /* every other state */
    } u;
    uint32_t waiting;      /* AWAITING_FREE: uses that are not complete */
    uint8_t state;         /* OPENREG_BLOCK_*, also HOT and SHARED */
    uint8_t row, bin;      /* FREE: the place of its list */
    uint8_t oversize : 1;  /* ALLOCATED: counted as oversize */
    uint8_t is_shared : 1; /* ALLOCATED: other processes may hold it */
} openreg_block;

/* Blocks are made by the chunk, with a node each for the free lists' trees. The nodes are kept apart, so that every
 * request touches only one cache line a block. Chunks are aligned to OPENREG_CHUNK_ALIGNMENT, which leads from a block
 * to its node and back. The first block links the chunks. */
#define OPENREG_BLOCKS_PER_CHUNK 128
#define OPENREG_CHUNK_ALIGNMENT 16384

typedef struct openreg_block_chunk {
    openreg_block blocks[OPENREG_BLOCKS_PER_CHUNK];
    openreg_tree_node nodes[OPENREG_BLOCKS_PER_CHUNK];
} openreg_block_chunk;
static_assert(sizeof(openreg_block) == 64, "one cache line");
static_assert(sizeof(openreg_block_chunk) <= OPENREG_CHUNK_ALIGNMENT, "a chunk lies between two multiples of it");

static inline openreg_tree_node *
openreg_block_node(const openreg_block *block)
{
    const uintptr_t address = (uintptr_t)block;
    openreg_block_chunk *chunk = (openreg_block_chunk *)(address - address % OPENREG_CHUNK_ALIGNMENT);
    return &chunk->nodes[block - chunk->blocks];
}

static inline openreg_block *
openreg_block_of_node(const openreg_tree_node *node)
{
    const uintptr_t address = (uintptr_t)node;
    openreg_block_chunk *chunk = (openreg_block_chunk *)(address - address % OPENREG_CHUNK_ALIGNMENT);
    return &chunk->blocks[node - chunk->nodes];
}

#endif
