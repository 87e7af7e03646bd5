/* SPDX-License-Identifier: BSD-3-Clause */
/* lab.h: loads libopenreg_lab.so, which holds all instruments (openreg/lab.h). Internal. */
#ifndef OPENREG_SRC_LAB_H
#define OPENREG_SRC_LAB_H

#include <openreg/lab.h>
#include <openreg/layer.h>

/* What the library gives the runtime. */
typedef struct openreg_lab_parts {
    const char *version; /* OPENREG_VERSION_STRING: it is of one build with the runtime */
    const openreg_lab *functions;
    const openreg_layer *validation;
    /* What OPENREG_FLIGHT_RECORDER says; a bad value is warned of. */
    void (*read_recorder)(const char *text);
    /* A plan of faults begins, for the devices of one driver. The text of OPENREG_E_INVALID names `what`, the variable. */
    openreg_status (*begin_faults)(const char *call, const char *what, const char *plan, const void *driver,
                                   openreg_faults *out);
} openreg_lab_parts;

typedef const openreg_lab_parts *(*openreg_lab_query_fn)(void);
#define OPENREG_LAB_ENTRY_NAME "openreg_lab_query"

/* NULL with an error: see openreg_lab_get(). */
const openreg_lab_parts *openreg_lab_load(void);
/* Likewise, with the error as a warning in the log: for what a variable asks for. */
const openreg_lab_parts *openreg_lab_load_or_warn(const char *variable);

/* Set before the first use by a program that has the library's objects linked in. */
extern openreg_lab_query_fn openreg_lab_linked;

#endif
