/* SPDX-License-Identifier: BSD-3-Clause */
/* validation.h: OPENREG_VALIDATE=1, checks of every call between the runtime and a driver. Internal.
 *
 * The layer (openreg/layer.h) is a driver table around the driver's own: the functions that the driver has, with checks before
 * and after each, and an instance of its own. The driver's streams, events and addresses are passed on unchanged. Without
 * the variable the runtime uses the driver's own table, and calls cost nothing extra.
 *
 * A broken rule of driver.h is logged as an error, once for each rule and driver, with the function, the rule and the
 * observed values. The call goes on, unless that would corrupt memory or may crash the driver: it then fails with
 * OPENREG_E_INTERNAL (the driver returned memory that overlaps or is misaligned, a live handle, or another distance to the
 * host's view) or OPENREG_E_INVALID (the caller passed a handle or an allocation that is not live, a range that ends beyond
 * its allocation, a device that does not exist). */
#ifndef OPENREG_SRC_VALIDATION_H
#define OPENREG_SRC_VALIDATION_H

#include <openreg/layer.h>

extern const openreg_layer openreg_validation_layer;

#endif
