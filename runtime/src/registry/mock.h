/* SPDX-License-Identifier: BSD-3-Clause */
/* mock.h: OPENREG_USE_MOCK_GPU and OPENREG_MOCK_NUM_GPUS: GPU drivers over simulated memory. Internal. */
#ifndef OPENREG_SRC_MOCK_H
#define OPENREG_SRC_MOCK_H

#include "driver/options.h"
#include "registry/driver_names.h"

#define OPENREG_MOCK_VARIABLE "OPENREG_USE_MOCK_GPU"
#define OPENREG_MOCK_COUNT_VARIABLE "OPENREG_MOCK_NUM_GPUS"

/* Whether the value of OPENREG_USE_MOCK_GPU ("1", or a list of cuda, hip and gpu; "0" and "" are none) requests a mock
 * of this driver. */
int openreg_mock_is_wanted(const char *value, const char *name);
/* Warns of each other item. */
void openreg_mock_warn_of_bad_items(const char *value);

/* Adds the simulator's options of a mock driver, with `count`, the value of OPENREG_MOCK_NUM_GPUS (NULL: 1).
 * Errors: OPENREG_E_INVALID (not 1 to 127), OPENREG_E_NOMEM. */
openreg_status openreg_mock_set_options(const char *call, const char *name, const char *count,
                                        openreg_options *options);

#endif
