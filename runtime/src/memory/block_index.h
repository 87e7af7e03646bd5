/* SPDX-License-Identifier: BSD-3-Clause */
/* block_index.h: the block that an address inside a segment belongs to. Internal.
 *
 * A segment is divided into cells that hold the start of at most one block each (512 bytes in the small pool; 1 MiB in
 * the large one, whose blocks are all longer). A bitmap with levels of summaries, a bit for each word of 64, finds the
 * last start at or before a cell in one step a level. Guarded by the cache's lock. */
#ifndef OPENREG_SRC_BLOCK_INDEX_H
#define OPENREG_SRC_BLOCK_INDEX_H

#include <stddef.h>
#include <stdint.h>

struct openreg_block;

#define OPENREG_BLOCK_INDEX_MAX_LEVELS 6

typedef struct openreg_block_index {
    unsigned shift; /* log2 of the bytes of a cell */
    unsigned levels;
    uint64_t *bits[OPENREG_BLOCK_INDEX_MAX_LEVELS]; /* [0]: a bit a cell; [n + 1]: a bit a word of [n] */
    struct openreg_block **at;                      /* by cell */
} openreg_block_index;

/* For a segment of `size` bytes. NULL if host memory is short. One allocation, freed by free(). */
openreg_block_index *openreg_block_index_create(uint64_t size, unsigned shift);

static inline void
openreg_block_index_set(openreg_block_index *index, uint64_t offset, struct openreg_block *block)
{
    uint64_t cell = offset >> index->shift;
    index->at[cell] = block;
    for (unsigned level = 0; level < index->levels; level++) {
        uint64_t *word = &index->bits[level][cell >> 6];
        const uint64_t before = *word;
        *word = before | UINT64_C(1) << (cell & 63);
        if (before != 0)
            return;
        cell >>= 6;
    }
}

static inline void
openreg_block_index_clear(openreg_block_index *index, uint64_t offset)
{
    uint64_t cell = offset >> index->shift;
    index->at[cell] = NULL;
    for (unsigned level = 0; level < index->levels; level++) {
        uint64_t *word = &index->bits[level][cell >> 6];
        *word &= ~(UINT64_C(1) << (cell & 63));
        if (*word != 0)
            return;
        cell >>= 6;
    }
}

/* The block that starts in the cell of `offset`, or NULL. */
static inline struct openreg_block *
openreg_block_index_at(const openreg_block_index *index, uint64_t offset)
{
    return index->at[offset >> index->shift];
}

/* The last block that starts in the cell of `offset` or before. There is one: blocks tile the segment from 0. */
struct openreg_block *openreg_block_index_before(const openreg_block_index *index, uint64_t offset);

#endif
