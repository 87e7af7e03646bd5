/* SPDX-License-Identifier: BSD-3-Clause */
/* attached_layers.h: layers of libopenreg_lab.so that are put around drivers while these are open, and taken away again.
 * Internal.
 *
 * Such a layer keeps the driver's instance, and replaces functions that the table has. An open driver's table is one of a
 * few that are made once, for each set of such layers, and live as long as the driver; a pointer is changed. The layer
 * that a driver is opened through is around it already (registry/layer_stack.h). */
#ifndef OPENREG_SRC_ATTACHED_LAYERS_H
#define OPENREG_SRC_ATTACHED_LAYERS_H

#include "base/internal_api.h"
#include "driver/device_table.h"

/* From the driver outwards. */
enum { OPENREG_ATTACHED_FAULTS, OPENREG_ATTACHED_RECORDER };
static_assert(OPENREG_ATTACHED_SETS == 1 << (OPENREG_ATTACHED_RECORDER + 1), "a table for each set");

/* Puts the layer around all drivers that are open, and will be; NULL takes it away. `wrap` replaces functions of the table,
 * and is the same each time. Any thread. A call that has begun goes on in the layer. */
OPENREG_INTERNAL void openreg_layers_attach(int layer, void (*wrap)(openreg_driver *table));

/* A function of an attached layer was called: for whom. */
typedef struct openreg_caller {
    const openreg_driver *below; /* the table that the layer is around */
    const void *driver;
    int32_t device;
    const char *call;
} openreg_caller;
OPENREG_INTERNAL openreg_caller openreg_layers_caller(int layer);

/* The driver has been opened; it is about to be closed. */
void openreg_layers_add(openreg_opened_driver *driver);
void openreg_layers_remove(openreg_opened_driver *driver);

#endif
