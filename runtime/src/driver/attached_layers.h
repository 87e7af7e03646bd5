/* SPDX-License-Identifier: BSD-3-Clause */
/* attached_layers.h: the layer of libopenreg_lab.so that is put around drivers while these are open, and taken away again.
 * Internal.
 *
 * It keeps the driver's instance, and replaces functions that the table has. The table with it is made once for an open driver,
 * and lives as long; a pointer is changed. The layer that a driver is opened through is around it already
 * (registry/layer_stack.h). */
#ifndef OPENREG_SRC_ATTACHED_LAYERS_H
#define OPENREG_SRC_ATTACHED_LAYERS_H

#include "base/internal_api.h"
#include "driver/device_table.h"

/* What it is there for. */
#define OPENREG_ATTACHED_FAULTS 1u
#define OPENREG_ATTACHED_RECORDER 2u

/* Puts the layer around all drivers that are open, and will be, as long as it is on for one of these. `wrap` replaces
 * functions of the table, and is the same each time. Any thread. A call that has begun goes on in the layer. */
OPENREG_INTERNAL void openreg_layers_attach(unsigned user, int on, void (*wrap)(openreg_driver *table));

/* A function of the layer was called: for whom. */
typedef struct openreg_caller {
    const openreg_driver *below; /* the table that the layer is around */
    const void *driver;
    int32_t device;
    const char *call;
} openreg_caller;
OPENREG_INTERNAL openreg_caller openreg_layers_caller(void);

/* The driver has been opened; it is about to be closed. */
void openreg_layers_add(openreg_opened_driver *driver);
void openreg_layers_remove(openreg_opened_driver *driver);

#endif
