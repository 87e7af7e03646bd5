/* SPDX-License-Identifier: BSD-3-Clause */
/* free_lists.h: the free blocks of one pool by size. Internal.
 *
 * Sizes in units of 512 bytes are sorted into bins: a row for each power of two, 32 bins a row, and two bitmaps that
 * find the first bin that is not empty. A bin of the first two rows, below 32 KiB, holds blocks of one size, in a list.
 * A bin above holds several sizes: a tree of them, each with its list, so the smallest block that fits is found in
 * O(log n) steps, however many smaller ones the bin holds, or in one step for a recurring size, as in training.
 * Inserting and removing cost the same. Guarded by the cache's lock. */
#ifndef OPENREG_SRC_FREE_LISTS_H
#define OPENREG_SRC_FREE_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tree.h"
#include "memory/cache_block.h"

#define OPENREG_BIN_SHIFT 9   /* log2 of the unit */
#define OPENREG_BIN_BITS 5    /* log2 of the bins of a row */
#define OPENREG_BIN_ROWS 36   /* sizes below 2^49 */
#define OPENREG_EXACT_ROWS 2u /* their bins hold one size each */

typedef struct openreg_free_lists {
    uint64_t rows;                   /* bit r: bins[r] is not 0 */
    uint32_t bins[OPENREG_BIN_ROWS]; /* bit b: that bin is not empty */
    openreg_block *exact[OPENREG_EXACT_ROWS][1u << OPENREG_BIN_BITS];
    openreg_tree sized[OPENREG_BIN_ROWS - OPENREG_EXACT_ROWS][1u << OPENREG_BIN_BITS]; /* keys: sizes in bytes */
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

/* Puts a block behind the first one of its size, which is the one in the tree, or into the tree. */
static inline void
openreg_free_lists_insert_sized(openreg_tree *tree, openreg_block *block)
{
    openreg_tree_node *same = openreg_tree_find_or_insert(tree, openreg_block_node(block), block->size);
    if (same == NULL) {
        block->u.free.previous = block->u.free.next = NULL;
        return;
    }
    openreg_block *first = openreg_block_of_node(same), *second = first->u.free.next;
    block->u.free.previous = first;
    block->u.free.next = second;
    if (second != NULL)
        second->u.free.previous = block;
    first->u.free.next = block;
}

static inline void
openreg_free_lists_insert(openreg_free_lists *lists, openreg_block *block)
{
    unsigned row, bin;
    openreg_bin_of(block->size, &row, &bin);
    block->row = (uint8_t)row;
    block->bin = (uint8_t)bin;
    lists->bins[row] |= UINT32_C(1) << bin;
    lists->rows |= UINT64_C(1) << row;
    if (row >= OPENREG_EXACT_ROWS) {
        openreg_free_lists_insert_sized(&lists->sized[row - OPENREG_EXACT_ROWS][bin], block);
        return;
    }
    openreg_block *head = lists->exact[row][bin];
    block->u.free.previous = NULL;
    block->u.free.next = head;
    if (head != NULL)
        head->u.free.previous = block;
    lists->exact[row][bin] = block;
}

/* Removes the first block of a list. True if its bin is then empty. */
static inline bool
openreg_free_lists_remove_first(openreg_free_lists *lists, openreg_block *block, openreg_block *next)
{
    if (block->row < OPENREG_EXACT_ROWS) {
        lists->exact[block->row][block->bin] = next;
        return next == NULL;
    }
    openreg_tree *tree = &lists->sized[block->row - OPENREG_EXACT_ROWS][block->bin];
    if (next != NULL) {
        openreg_tree_replace(tree, openreg_block_node(block), openreg_block_node(next));
        return false;
    }
    openreg_tree_remove(tree, openreg_block_node(block));
    return tree->root == NULL;
}

static inline void
openreg_free_lists_remove(openreg_free_lists *lists, openreg_block *block)
{
    openreg_block *previous = block->u.free.previous, *next = block->u.free.next;
    if (next != NULL)
        next->u.free.previous = previous;
    if (previous != NULL) {
        previous->u.free.next = next;
    } else if (openreg_free_lists_remove_first(lists, block, next)) {
        lists->bins[block->row] &= ~(UINT32_C(1) << block->bin);
        if (lists->bins[block->row] == 0)
            lists->rows &= ~(UINT64_C(1) << block->row);
    }
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

/* The smallest block of the bin of at least `size` bytes, or NULL; of several, the last one added, except the one in the
 * tree. */
static inline openreg_block *
openreg_free_lists_in_bin(const openreg_free_lists *lists, uint64_t size, unsigned row, unsigned bin)
{
    if (row < OPENREG_EXACT_ROWS)
        return lists->exact[row][bin];
    const openreg_tree_node *node = openreg_tree_at_least(&lists->sized[row - OPENREG_EXACT_ROWS][bin], size);
    if (node == NULL)
        return NULL;
    openreg_block *first = openreg_block_of_node(node), *second = first->u.free.next;
    return second != NULL ? second : first;
}

/* The smallest block of at least `size` bytes, still in its list, or NULL. */
static inline openreg_block *
openreg_free_lists_find(const openreg_free_lists *lists, uint64_t size)
{
    unsigned row, bin;
    openreg_bin_of(size, &row, &bin);
    openreg_block *own = openreg_free_lists_in_bin(lists, size, row, bin);
    if (own != NULL)
        return own;
    return openreg_free_lists_next_bin(lists, &row, &bin) ? openreg_free_lists_in_bin(lists, size, row, bin) : NULL;
}

#endif
