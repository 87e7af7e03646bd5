/* SPDX-License-Identifier: BSD-3-Clause */
/* nodes.h: the nodes that a capture has recorded: calls with copies of their arguments, and their order. Internal to
 * runtime/graph. */
#ifndef OPENREG_GRAPH_NODES_H
#define OPENREG_GRAPH_NODES_H

#include <stdbool.h>

#include "watch/capture.h"

typedef struct openreg_indices {
    uint32_t *items;
    uint32_t count, room;
} openreg_indices;

/* Adds the elements of `from` that `to` lacks. False: memory is short. */
bool openreg_indices_add(openreg_indices *to, const openreg_indices *from);

typedef struct openreg_node {
    openreg_captured_call call; /* its pointers are owned by the list */
    openreg_indices after;      /* nodes before it */
} openreg_node;

/* Reference-counted; constant once its capture has ended. */
typedef struct openreg_nodes {
    atomic_int references;
    int32_t device; /* that the capture began on, */
    openreg_stream stream;
    openreg_node *list;
    uint32_t count, room;
    struct openreg_node_memory *memory;
} openreg_nodes;

/* With one reference; NULL: memory is short. */
openreg_nodes *openreg_nodes_create(int32_t device, openreg_stream stream);
openreg_nodes *openreg_nodes_share(openreg_nodes *nodes);
void openreg_nodes_release(openreg_nodes *nodes);

/* Appends a copy of the call, and sets *tail to only this node. False: memory is short, and nothing has changed. */
bool openreg_nodes_add(openreg_nodes *nodes, const openreg_captured_call *call, openreg_indices *tail);

/* Whether both have the same calls of the same devices in the same order; arguments may differ. */
bool openreg_nodes_match(const openreg_nodes *a, const openreg_nodes *b);

/* Does the call on a stream of its device. */
openreg_status openreg_node_run(const openreg_node *node, openreg_stream stream);

/* Text of GraphViz. False: the file can't be written; errno says why. */
bool openreg_nodes_dump(const openreg_nodes *nodes, const char *path);

#endif
