/* SPDX-License-Identifier: BSD-3-Clause */
/* loader.h: reads a driver's table, from a library or from memory. Internal.
 *
 * Errors are set without the name of a call ("cannot load ..."): the caller knows why the driver is needed. */
#ifndef OPENREG_SRC_LOADER_H
#define OPENREG_SRC_LOADER_H

#include <openreg/driver.h>

/* A copy of the text, kept until the process ends, once for equal texts. "" for NULL, or if host memory is short. Lock-free. */
const char *openreg_loader_keep_path(const char *path);

/* Checks a driver's table and copies the part that both sides know into *out, the rest zero.
 * Errors: OPENREG_E_INCOMPATIBLE (NULL, shorter than 1.0, a required slot or part of a group missing), OPENREG_E_INVALID
 * (the name). */
openreg_status openreg_loader_accept(const openreg_driver *given, openreg_driver *out);

/* Calls an entry point and accepts its table. Errors: those above, and the driver's own. */
openreg_status openreg_loader_query(openreg_driver_query_fn query, const char *name, openreg_driver *out);

/* Loads a library (never the same file twice) and reads its table; `name` is for messages and may be NULL. `resolved`
 * receives the real path once that is known, also on failure. *is_missing = 1 if the library, or one that it needs, is
 * not on this machine, else 0. Not thread-safe: the caller holds the driver lock (driver_lock.h).
 * Errors, whose texts name `path`: those above; OPENREG_E_INCOMPATIBLE: missing, not a library, no entry point, another
 * ABI. */
openreg_status openreg_loader_load(const char *path, const char *name, openreg_driver *out, const char **resolved,
                                   int *is_missing);

#endif
