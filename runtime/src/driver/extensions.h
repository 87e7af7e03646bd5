/* SPDX-License-Identifier: BSD-3-Clause */
/* extensions.h: the tables of functions that a driver's extension() returns, and whether one is fit for use. Internal. */
#ifndef OPENREG_SRC_EXTENSIONS_H
#define OPENREG_SRC_EXTENSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <openreg/status.h>

#include "base/internal_api.h"
#include "driver/device_table.h"

/* A table begins with two uint32_t, its size and version; functions follow. */
typedef struct openreg_extension {
    const char *name;
    uint32_t version;
    uint32_t size;            /* frozen, of that version */
    const char *const *slots; /* names of the functions in the table's order; '?' before one that may be NULL */
} openreg_extension;

OPENREG_INTERNAL extern const openreg_extension openreg_extension_comm, openreg_extension_graph, openreg_extension_ipc,
    openreg_extension_schedule, openreg_extension_vmm;

/* Whether a table has the size and version, and no required function is NULL; else `why` says which it lacks. */
OPENREG_INTERNAL bool openreg_extension_is_fit(const openreg_extension *what, const void *table, char *why,
                                               size_t size);

/* The driver's table; NULL, and OPENREG_OK, if it has none. OPENREG_E_INCOMPATIBLE: one that is not fit. Fields beyond the
 * frozen size exist only if its struct_size includes them. */
OPENREG_INTERNAL openreg_status openreg_call_extension(const char *call, const openreg_opened_driver *driver,
                                                       const openreg_extension *what, const void **out);
/* The same for callers that work without the extension: an unfit table is a warning, and NULL. */
const void *openreg_find_extension(const char *call, const openreg_opened_driver *driver,
                                   const openreg_extension *what);

/* 1: the driver itself is capturing the stream for a graph: each launch does what is queued now, or nothing ever does. */
OPENREG_INTERNAL int openreg_driver_captures(const openreg_driver *table, openreg_instance instance, int32_t ordinal,
                                             openreg_driver_stream stream);

#endif
