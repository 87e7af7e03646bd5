/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_stack.h: opens a driver through its layers (openreg/layer.h). Internal. The caller holds the driver lock. */
#ifndef OPENREG_SRC_LAYER_STACK_H
#define OPENREG_SRC_LAYER_STACK_H

#include <openreg/layer.h>

#include "driver/device_table.h"
#include "driver/options.h"

#define OPENREG_LAYERS_VARIABLE "OPENREG_LAYERS"
#define OPENREG_VALIDATE_VARIABLE "OPENREG_VALIDATE"
#define OPENREG_LAYERS_MAX 8

/* Opens `driver`, whose `own` is the driver's table: with layers `own` and the instance become the outermost layer's. From the
 * driver outwards the layers are that of OPENREG_VALIDATE, then those of OPENREG_LAYERS from the last to the first.
 * Errors: those of open(); of OPENREG_LAYERS: OPENREG_E_INVALID (not name:path), OPENREG_E_INCOMPATIBLE (not loaded: the
 * text names the file). */
openreg_status openreg_layer_stack_open(const char *call, openreg_opened_driver *driver, const char *layers,
                                        const char *validate, const openreg_options *options);

/* After close(), or a failed open. */
void openreg_layer_stack_free(openreg_opened_driver *driver);

/* The layers of a list name:path[,name:path] in its order; NULL is an empty list: layer_libraries.c. A library is loaded
 * once, and stays loaded. Errors: OPENREG_E_INVALID (not such a list, or more than OPENREG_LAYERS_MAX),
 * OPENREG_E_INCOMPATIBLE (a file is missing, or is not a layer: the text names it), the layer's own. */
openreg_status openreg_layer_libraries_find(const char *call, const char *text,
                                            const openreg_layer *out[OPENREG_LAYERS_MAX], int *count);

#endif
