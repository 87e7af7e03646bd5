/* SPDX-License-Identifier: BSD-3-Clause */
/* lab.h: loads the libraries beside libopenreg.so: libopenreg_lab.so, which has the tools of openreg/lab.h,
 * libopenreg_graph.so (openreg/graphs.h) and libopenreg_sharing.so (openreg/sharing.h). Internal. */
#ifndef OPENREG_SRC_LAB_H
#define OPENREG_SRC_LAB_H

#include <openreg/graphs.h>
#include <openreg/lab.h>
#include <openreg/layer.h>
#include <openreg/sharing.h>

/* The library's functions for the runtime. */
typedef struct openreg_lab_parts {
    const char *version; /* OPENREG_VERSION_STRING, which must equal the runtime's */
    const openreg_lab *functions;
    const openreg_layer *validation;
    /* Applies the value of OPENREG_FLIGHT_RECORDER; warns about a bad one. */
    void (*read_recorder)(const char *text);
    /* Begins a fault plan for the devices of one driver. The text of OPENREG_E_INVALID names `what`, the variable. */
    openreg_status (*begin_faults)(const char *call, const char *what, const char *plan, const void *driver,
                                   openreg_faults *out);
} openreg_lab_parts;

typedef const openreg_lab_parts *(*openreg_lab_query_fn)(void);
#define OPENREG_LAB_ENTRY_NAME "openreg_lab_query"

/* The same for libopenreg_graph.so. */
typedef struct openreg_graph_parts {
    const char *version;
    const openreg_graphs *functions;
} openreg_graph_parts;

#define OPENREG_GRAPH_ENTRY_NAME "openreg_graph_query"

/* The same for libopenreg_sharing.so. */
typedef struct openreg_sharing_parts {
    const char *version;
    const openreg_sharing *functions;
    void (*free_exported)(void *ptr); /* openreg_free() of a block that was exported */
    int32_t (*collect)(void);         /* openreg_memory_collect_exports() */
} openreg_sharing_parts;

#define OPENREG_SHARING_ENTRY_NAME "openreg_sharing_query"

/* NULL: it is not loaded, so nothing is shared. */
const openreg_sharing_parts *openreg_sharing_peek(void);

/* NULL with an error: see openreg_lab_get(). */
const openreg_lab_parts *openreg_lab_load(void);
/* The same, with the error logged as a warning: for features that a variable switches on. */
const openreg_lab_parts *openreg_lab_load_or_warn(const char *variable);

/* Set before the first use by a program that has the library's objects linked in. */
extern openreg_lab_query_fn openreg_lab_linked;

#endif
