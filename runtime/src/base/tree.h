/* SPDX-License-Identifier: BSD-3-Clause */
/* tree.h: an ordered tree of 64-bit keys whose nodes lie in their owners' structures. Internal.
 *
 * A treap: a search tree by key, and a heap by a number that is mixed from the node's address. So it is as deep as a
 * tree of randomly ordered keys, whatever the order of insertion: insert, remove and the searches take O(log n) steps,
 * about 30 at 10^5 nodes. Nothing is allocated, and nothing fails. Keys may be equal; the new one is then behind the
 * others. The tree's owner guards it with a lock. An all-zero tree is empty. */
#ifndef OPENREG_SRC_TREE_H
#define OPENREG_SRC_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct openreg_tree_node {
    struct openreg_tree_node *parent,
        *child[2]; /* child[0]: smaller keys, child[1]: greater ones; equal keys in either */
    uint64_t key;  /* set by the owner before insert, constant until remove */
    uint32_t rank; /* a parent's is the greatest of its subtree */
} openreg_tree_node;

typedef struct openreg_tree {
    openreg_tree_node *root;
} openreg_tree;

/* The structure of type `type` whose member `member` is the node. NULL for NULL. */
#define OPENREG_TREE_OWNER(node, type, member) ((type *)openreg_tree_owner((node), offsetof(type, member)))

static inline void *
openreg_tree_owner(openreg_tree_node *node, size_t offset)
{
    return node == NULL ? NULL : (char *)node - offset;
}

static inline uint32_t
openreg_tree_rank(const openreg_tree_node *node)
{
    uint64_t mixed = (uint64_t)(uintptr_t)node * UINT64_C(0xFF51AFD7ED558CCD);
    mixed = (mixed ^ (mixed >> 32)) * UINT64_C(0xC4CEB9FE1A85EC53);
    return (uint32_t)(mixed >> 32);
}

/* The link that leads to the node. */
static inline openreg_tree_node **
openreg_tree_link(openreg_tree *tree, const openreg_tree_node *node)
{
    openreg_tree_node *parent = node->parent;
    return parent == NULL ? &tree->root : &parent->child[parent->child[1] == node];
}

/* `node` takes its parent's place, and the parent becomes its child. */
static inline void
openreg_tree_rotate(openreg_tree *tree, openreg_tree_node *node)
{
    openreg_tree_node *parent = node->parent;
    const int side = parent->child[1] == node;
    openreg_tree_node *inner = node->child[1 - side];
    *openreg_tree_link(tree, parent) = node;
    node->parent = parent->parent;
    node->child[1 - side] = parent;
    parent->parent = node;
    parent->child[side] = inner;
    if (inner != NULL)
        inner->parent = parent;
}

/* Adds the node under `parent`, at its empty link. */
static inline void
openreg_tree_attach(openreg_tree *tree, openreg_tree_node *parent, openreg_tree_node **link, openreg_tree_node *node)
{
    node->parent = parent;
    node->child[0] = node->child[1] = NULL;
    node->rank = openreg_tree_rank(node);
    *link = node;
    while (node->parent != NULL && node->parent->rank < node->rank)
        openreg_tree_rotate(tree, node);
}

static inline void
openreg_tree_insert(openreg_tree *tree, openreg_tree_node *node)
{
    openreg_tree_node *parent = NULL, **link = &tree->root;
    while (*link != NULL) {
        parent = *link;
        link = &parent->child[node->key >= parent->key];
    }
    openreg_tree_attach(tree, parent, link, node);
}

/* The node that has this key already, or NULL; then `node` is inserted with it. For trees without equal keys. */
static inline openreg_tree_node *
openreg_tree_find_or_insert(openreg_tree *tree, openreg_tree_node *node, uint64_t key)
{
    openreg_tree_node *parent = NULL, **link = &tree->root;
    while (*link != NULL) {
        parent = *link;
        if (parent->key == key)
            return parent;
        link = &parent->child[key > parent->key];
    }
    node->key = key;
    openreg_tree_attach(tree, parent, link, node);
    return NULL;
}

static inline void
openreg_tree_remove(openreg_tree *tree, openreg_tree_node *node)
{
    while (node->child[0] != NULL && node->child[1] != NULL) {
        const int side = node->child[0]->rank < node->child[1]->rank;
        openreg_tree_rotate(tree, node->child[side]);
    }
    openreg_tree_node *child = node->child[node->child[0] == NULL];
    *openreg_tree_link(tree, node) = child;
    if (child != NULL)
        child->parent = node->parent;
}

/* `next`, which is in no tree, takes the place of a node, with its key. */
static inline void
openreg_tree_replace(openreg_tree *tree, openreg_tree_node *node, openreg_tree_node *next)
{
    *openreg_tree_link(tree, node) = next;
    *next = *node;
    for (int side = 0; side < 2; side++)
        if (next->child[side] != NULL)
            next->child[side]->parent = next;
}

/* The first node with a key of at least `key`, or NULL. */
static inline openreg_tree_node *
openreg_tree_at_least(const openreg_tree *tree, uint64_t key)
{
    openreg_tree_node *found = NULL;
    for (openreg_tree_node *at = tree->root; at != NULL;) {
        const bool fits = at->key >= key;
        if (fits)
            found = at;
        at = at->child[!fits];
    }
    return found;
}

/* The last node with a key of at most `key`, or NULL. */
static inline openreg_tree_node *
openreg_tree_at_most(const openreg_tree *tree, uint64_t key)
{
    openreg_tree_node *found = NULL;
    for (openreg_tree_node *at = tree->root; at != NULL;) {
        const bool fits = at->key <= key;
        if (fits)
            found = at;
        at = at->child[fits];
    }
    return found;
}

/* The node before this one (side 0) or behind it (side 1), or NULL. */
static inline openreg_tree_node *
openreg_tree_beside(const openreg_tree_node *node, int side)
{
    if (node->child[side] != NULL) {
        openreg_tree_node *at = node->child[side];
        while (at->child[1 - side] != NULL)
            at = at->child[1 - side];
        return at;
    }
    while (node->parent != NULL && node->parent->child[side] == node)
        node = node->parent;
    return node->parent;
}

#endif
