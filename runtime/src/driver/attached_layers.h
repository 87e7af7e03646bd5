/* SPDX-License-Identifier: BSD-3-Clause */
/* attached_layers.h: attaches the layer of libopenreg_lab.so to open drivers, and detaches it. Internal.
 *
 * The layer keeps the driver's instance, and replaces functions that the table has. The table with the layer is made once for
 * an open driver, and lives as long; switching changes a pointer. Layers that a driver is opened through come first
 * (registry/layer_stack.h). */
#ifndef OPENREG_SRC_ATTACHED_LAYERS_H
#define OPENREG_SRC_ATTACHED_LAYERS_H

#include "base/internal_api.h"
#include "driver/device_table.h"

/* The users of the layer. */
#define OPENREG_ATTACHED_FAULTS 1u
#define OPENREG_ATTACHED_RECORDER 2u

/* Attaches the layer to all drivers that are open, or are opened later, while one of its users needs it. `wrap` replaces
 * functions of the table, and is the same each time. Any thread. Calls in flight stay in the layer. */
OPENREG_INTERNAL void openreg_layers_attach(unsigned user, int on, void (*wrap)(openreg_driver *table));

/* For whom a function of the layer was called. */
typedef struct openreg_caller {
    const openreg_driver *below; /* the table below the layer */
    const void *driver;
    int32_t device;
    const char *call;
} openreg_caller;
OPENREG_INTERNAL openreg_caller openreg_layers_caller(void);

/* Called after a driver was opened, and before it is closed. */
void openreg_layers_add(openreg_opened_driver *driver);
void openreg_layers_remove(openreg_opened_driver *driver);

#endif
