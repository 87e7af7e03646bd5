/* SPDX-License-Identifier: BSD-3-Clause */
/* built_table.h: device tables as objects, which activation.c publishes (driver/device_table.h). Internal. The caller holds the
 * driver lock, except where a function says otherwise. */
#ifndef OPENREG_SRC_BUILT_TABLE_H
#define OPENREG_SRC_BUILT_TABLE_H

#include <stdbool.h>

#include "driver/device_table.h"

/* An unpublished table of the visible devices of `count` open drivers, in that order, with caches and streams. Errors:
 * OPENREG_E_NO_DEVICE (more than OPENREG_MAX_DEVICES), OPENREG_E_NOMEM. On failure nothing is left. */
openreg_status openreg_table_build(const char *call, openreg_opened_driver *const *drivers, int count,
                                   openreg_device_table **out);
/* Frees a table that was never published. */
void openreg_table_discard(openreg_device_table *table);
/* Empties caches and destroys streams of a table that was published; keeps the entries for late readers. */
void openreg_table_retire(openreg_device_table *table);
/* Closes the caches of a table, or opens them again (openreg_cache_set_closed()). */
void openreg_table_set_closed(const openreg_device_table *table, bool are_closed);

/* Objects that pin a table: allocations, pinned blocks, events, imports, communicators and graphs. No lock is needed. */
int64_t openreg_table_live_objects(const openreg_device_table *table);
/* The same of one device. */
int64_t openreg_table_live_objects_of(const openreg_device *device);

#endif
