/* SPDX-License-Identifier: BSD-3-Clause */
/* recorded_blocks.c: blocks that streams were recorded for (recorded_blocks.h). */
#include "races/recorded_blocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/tree.h"

typedef struct recorded_block {
    openreg_tree_node node; /* by start */
    uint64_t size;
    uint32_t count;
    uint32_t lines[]; /* their streams', each once */
} recorded_block;

static openreg_tree recorded;

static recorded_block *
recorded_of(openreg_tree_node *node)
{
    return OPENREG_TREE_OWNER(node, recorded_block, node);
}

static void
forget(recorded_block *block)
{
    openreg_tree_remove(&recorded, &block->node);
    free(block);
}

static recorded_block *
find(uint64_t start)
{
    openreg_tree_node *const node = openreg_tree_at_most(&recorded, start);
    return node != NULL && node->key == start ? recorded_of(node) : NULL;
}

bool
openreg_recorded_blocks_add(uint64_t start, uint64_t size, uint32_t line)
{
    recorded_block *const before = find(start);
    const uint32_t count = before == NULL ? 0 : before->count;
    for (uint32_t i = 0; i < count; ++i)
        if (before->lines[i] == line)
            return true;
    recorded_block *const block = malloc(sizeof *block + (count + 1) * sizeof block->lines[0]);
    if (block == NULL)
        return false;
    block->size = size;
    block->count = count + 1;
    block->lines[count] = line;
    if (before != NULL) {
        memcpy(block->lines, before->lines, count * sizeof block->lines[0]);
        forget(before);
    }
    block->node.key = start;
    openreg_tree_insert(&recorded, &block->node);
    return true;
}

void
openreg_recorded_blocks_take(uint64_t start, void (*see)(uint64_t start, uint64_t size, uint32_t line))
{
    recorded_block *const block = find(start);
    if (block == NULL)
        return;
    for (uint32_t i = 0; i < block->count; ++i)
        see(start, block->size, block->lines[i]);
    forget(block);
}

void
openreg_recorded_blocks_reset(void)
{
    while (recorded.root != NULL)
        forget(recorded_of(recorded.root));
}
