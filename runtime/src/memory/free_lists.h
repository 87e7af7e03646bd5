/* SPDX-License-Identifier: BSD-3-Clause */
/* free_lists.h: the free blocks of one pool by size: a two-level segregated fit (TLSF). Internal.
 *
 * Sizes in units of 512 bytes are sorted into bins: a row for each power of two, 32 bins a row. Two bitmaps find the
 * first bin that is not empty and certainly holds a fit. Because the same sizes come again and again in training, the
 * request's own bin is looked at first, as far as a few blocks. Guarded by the cache's lock. */
#ifndef OPENREG_SRC_FREE_LISTS_H
#define OPENREG_SRC_FREE_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory/cache_block.h"

#define OPENREG_BIN_SHIFT 9 /* log2 of the unit */
#define OPENREG_BIN_BITS 5  /* log2 of the bins of a row */
#define OPENREG_BIN_ROWS 36 /* sizes below 2^49 */
#define OPENREG_BIN_LOOKS 8 /* blocks of the request's own bin that are looked at */

typedef struct openreg_free_lists {
    uint64_t rows;                   /* bit r: bins[r] is not 0 */
    uint32_t bins[OPENREG_BIN_ROWS]; /* bit b: heads[r][b] is not NULL */
    openreg_block *heads[OPENREG_BIN_ROWS][1u << OPENREG_BIN_BITS];
} openreg_free_lists;

static inline void
openreg_bin_of(uint64_t size, unsigned *row, unsigned *bin)
{
    const uint64_t units = size >> OPENREG_BIN_SHIFT;
    const uint64_t guarded = units | (1u << OPENREG_BIN_BITS); /* sizes below one row share its shift */
    const unsigned shift = 63u - (unsigned)__builtin_clzll(guarded) - OPENREG_BIN_BITS;
    *row = shift + (units >= (1u << OPENREG_BIN_BITS));
    *bin = (unsigned)(units >> shift) & ((1u << OPENREG_BIN_BITS) - 1);
}

static inline void
openreg_free_lists_insert(openreg_free_lists *lists, openreg_block *block)
{
    unsigned row, bin;
    openreg_bin_of(block->size, &row, &bin);
    block->row = (uint8_t)row;
    block->bin = (uint8_t)bin;
    openreg_block *head = lists->heads[row][bin];
    block->u.free.previous = NULL;
    block->u.free.next = head;
    if (head != NULL)
        head->u.free.previous = block;
    lists->heads[row][bin] = block;
    lists->bins[row] |= UINT32_C(1) << bin;
    lists->rows |= UINT64_C(1) << row;
}

static inline void
openreg_free_lists_remove(openreg_free_lists *lists, openreg_block *block)
{
    const unsigned row = block->row, bin = block->bin;
    openreg_block *previous = block->u.free.previous, *next = block->u.free.next;
    if (next != NULL)
        next->u.free.previous = previous;
    if (previous != NULL) {
        previous->u.free.next = next;
        return;
    }
    lists->heads[row][bin] = next;
    if (next == NULL) {
        lists->bins[row] &= ~(UINT32_C(1) << bin);
        if (lists->bins[row] == 0)
            lists->rows &= ~(UINT64_C(1) << row);
    }
}

/* The smallest block of at least `size` bytes among the first `looks` of its own bin, or NULL. */
static inline openreg_block *
openreg_free_lists_own_bin(const openreg_free_lists *lists, uint64_t size, unsigned row, unsigned bin, size_t looks)
{
    openreg_block *best = NULL;
    for (openreg_block *at = lists->heads[row][bin]; at != NULL && looks > 0; at = at->u.free.next, looks--) {
        if (at->size >= size && (best == NULL || at->size < best->size)) {
            best = at;
            if (at->size == size)
                break;
        }
    }
    return best;
}

/* The first bin behind this one that holds blocks. False: there is none. */
static inline bool
openreg_free_lists_next_bin(const openreg_free_lists *lists, unsigned *row, unsigned *bin)
{
    uint32_t bins = *bin == 31 ? 0 : lists->bins[*row] & (UINT32_MAX << (*bin + 1));
    if (bins == 0) {
        const uint64_t rows = lists->rows & (UINT64_MAX << (*row + 1));
        if (rows == 0)
            return false;
        *row = (unsigned)__builtin_ctzll(rows);
        bins = lists->bins[*row];
    }
    *bin = (unsigned)__builtin_ctz(bins);
    return true;
}

/* A block of at least `size` bytes, still in its list, or NULL. `exhaustive` also looks at all of the request's own
 * bin: for use before the driver is asked, when time matters less than a fit that was missed. */
static inline openreg_block *
openreg_free_lists_find(const openreg_free_lists *lists, uint64_t size, bool exhaustive)
{
    unsigned row, bin;
    openreg_bin_of(size, &row, &bin);
    openreg_block *own = openreg_free_lists_own_bin(lists, size, row, bin, exhaustive ? SIZE_MAX : OPENREG_BIN_LOOKS);
    if (own != NULL)
        return own;
    return openreg_free_lists_next_bin(lists, &row, &bin) ? lists->heads[row][bin] : NULL;
}

/* The smallest block of at least `size` bytes that is smaller than `limit`, still in its list, or NULL. Walks lists:
 * for programs that set a limit. */
static inline openreg_block *
openreg_free_lists_find_below(const openreg_free_lists *lists, uint64_t size, uint64_t limit)
{
    unsigned row, bin;
    openreg_bin_of(size, &row, &bin);
    openreg_block *best = openreg_free_lists_own_bin(lists, size, row, bin, SIZE_MAX);
    while (best == NULL) {
        if (!openreg_free_lists_next_bin(lists, &row, &bin))
            return NULL;
        best = openreg_free_lists_own_bin(lists, size, row, bin, SIZE_MAX);
    }
    return best->size < limit ? best : NULL;
}

#endif
