/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_libraries.h: loads what OPENREG_LAYERS names. Internal. The caller holds the driver lock. */
#ifndef OPENREG_SRC_LAYER_LIBRARIES_H
#define OPENREG_SRC_LAYER_LIBRARIES_H

#include <openreg/layer.h>

#define OPENREG_LAYERS_MAX 8

/* The layers of a list name:path[,name:path] in its order; NULL is an empty one. A library is loaded once, and stays.
 * Errors: OPENREG_E_INVALID (not such a list, or more than OPENREG_LAYERS_MAX), OPENREG_E_INCOMPATIBLE (a file is missing, or
 * is no layer: the text names it), the layer's own. */
openreg_status openreg_layer_libraries_find(const char *call, const char *text,
                                            const openreg_layer *out[OPENREG_LAYERS_MAX], int *count);

#endif
