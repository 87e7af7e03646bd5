/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_tree.h: ordered trees of pieces of memory. Internal to drivers/sim.
 *
 * Treaps: search trees by key, and heaps by a number that is mixed from the node's address. Insert, remove and the searches
 * take O(log n) steps. Nothing is allocated, and nothing fails. The owner's lock guards a tree, which is empty when NULL. */
#ifndef OPENREG_DRIVERS_SIM_SIM_TREE_H
#define OPENREG_DRIVERS_SIM_SIM_TREE_H

#include <stddef.h>
#include <stdint.h>

typedef struct openreg_sim_node {
    struct openreg_sim_node *child[2];
    uint64_t key, second; /* set before insert, constant until remove; no two nodes of a tree have both equal */
} openreg_sim_node;

void openreg_sim_tree_insert(openreg_sim_node **tree, openreg_sim_node *node);
void openreg_sim_tree_remove(openreg_sim_node **tree, openreg_sim_node *node);
/* The first node with a key of at least `key`, and the last with one of at most `key`; or NULL. */
openreg_sim_node *openreg_sim_tree_at_least(openreg_sim_node *tree, uint64_t key);
openreg_sim_node *openreg_sim_tree_at_most(openreg_sim_node *tree, uint64_t key);

/* The structure of type `type` whose member `member` is the node. NULL for NULL. */
#define OPENREG_SIM_OWNER(node, type, member) ((type *)openreg_sim_owner((node), offsetof(type, member)))

static inline void *
openreg_sim_owner(openreg_sim_node *node, size_t offset)
{
    return node == NULL ? NULL : (char *)node - offset;
}

#endif
