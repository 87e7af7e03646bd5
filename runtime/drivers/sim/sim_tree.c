/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_tree.c: ordered trees of pieces of memory (sim_tree.h). */
#include "sim_tree.h"

#include <stdbool.h>

static uint32_t
rank(const openreg_sim_node *node)
{
    uint64_t mixed = (uint64_t)(uintptr_t)node * UINT64_C(0xFF51AFD7ED558CCD);
    mixed = (mixed ^ (mixed >> 32)) * UINT64_C(0xC4CEB9FE1A85EC53);
    return (uint32_t)(mixed >> 32);
}

static bool
is_before(const openreg_sim_node *a, const openreg_sim_node *b)
{
    return a->key != b->key ? a->key < b->key : a->second < b->second;
}

void
openreg_sim_tree_insert(openreg_sim_node **tree, openreg_sim_node *node)
{
    openreg_sim_node **link = tree;
    while (*link != NULL && rank(*link) >= rank(node))
        link = &(*link)->child[is_before(*link, node)];
    openreg_sim_node *below = *link;
    openreg_sim_node **ends[2] = {&node->child[0], &node->child[1]};
    while (below != NULL) {
        const int side = !is_before(below, node);
        *ends[side] = below;
        ends[side] = &below->child[1 - side];
        below = *ends[side];
    }
    *ends[0] = *ends[1] = NULL;
    *link = node;
}

void
openreg_sim_tree_remove(openreg_sim_node **tree, openreg_sim_node *node)
{
    openreg_sim_node **link = tree;
    while (*link != node)
        link = &(*link)->child[is_before(*link, node)];
    openreg_sim_node *parts[2] = {node->child[0], node->child[1]};
    while (parts[0] != NULL && parts[1] != NULL) {
        const int side = rank(parts[0]) < rank(parts[1]);
        *link = parts[side];
        link = &parts[side]->child[1 - side];
        parts[side] = *link;
    }
    *link = parts[0] != NULL ? parts[0] : parts[1];
}

openreg_sim_node *
openreg_sim_tree_at_least(openreg_sim_node *tree, uint64_t key)
{
    openreg_sim_node *found = NULL;
    while (tree != NULL) {
        const bool fits = tree->key >= key;
        found = fits ? tree : found;
        tree = tree->child[!fits];
    }
    return found;
}

openreg_sim_node *
openreg_sim_tree_at_most(openreg_sim_node *tree, uint64_t key)
{
    openreg_sim_node *found = NULL;
    while (tree != NULL) {
        const bool fits = tree->key <= key;
        found = fits ? tree : found;
        tree = tree->child[fits];
    }
    return found;
}
