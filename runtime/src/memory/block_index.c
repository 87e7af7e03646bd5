/* SPDX-License-Identifier: BSD-3-Clause */
/* block_index.c: finding the block of an address inside a segment (block_index.h). */
#include "memory/block_index.h"

#include <stdlib.h>

openreg_block_index *
openreg_block_index_create(uint64_t size, unsigned shift)
{
    const uint64_t cells = ((size - 1) >> shift) + 1;
    uint64_t words[OPENREG_BLOCK_INDEX_MAX_LEVELS], total = 0;
    unsigned levels = 0;
    uint64_t bits = cells;
    do {
        words[levels] = (bits + 63) / 64;
        bits = words[levels];
        total += bits;
        levels++;
    } while (bits > 1 && levels < OPENREG_BLOCK_INDEX_MAX_LEVELS);

    openreg_block_index *index = calloc(1, sizeof *index + total * sizeof(uint64_t) + cells * sizeof index->at[0]);
    if (index == NULL)
        return NULL;
    index->shift = shift;
    index->levels = levels;
    uint64_t *next = (uint64_t *)(index + 1);
    for (unsigned level = 0; level < levels; level++) {
        index->bits[level] = next;
        next += words[level];
    }
    index->at = (struct openreg_block **)next;
    return index;
}

struct openreg_block *
openreg_block_index_before(const openreg_block_index *index, uint64_t offset)
{
    uint64_t cell = offset >> index->shift;
    uint64_t mask = UINT64_MAX >> (63 - (cell & 63)); /* this bit and lower ones */
    for (unsigned level = 0; level < index->levels; level++) {
        uint64_t word = index->bits[level][cell >> 6] & mask;
        if (word == 0) {
            cell >>= 6;
            mask = (UINT64_C(1) << (cell & 63)) - 1; /* lower bits */
            continue;
        }
        cell = (cell & ~UINT64_C(63)) | (63u - (unsigned)__builtin_clzll(word));
        while (level > 0) {
            level--;
            word = index->bits[level][cell];
            cell = (cell << 6) | (63u - (unsigned)__builtin_clzll(word));
        }
        return index->at[cell];
    }
    return NULL;
}
