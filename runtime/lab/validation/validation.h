/* SPDX-License-Identifier: BSD-3-Clause */
/* validation.h: OPENREG_VALIDATE=1, checks of every call between the runtime and a driver. Internal.
 *
 * The layer (openreg/layer.h) is a driver table around the driver's own: the functions that the driver has, with checks before and after
 * each, and an instance of its own. The driver's streams, events and addresses are passed on as they are. Without
 * the variable the runtime holds the driver's own table, and no call costs anything.
 *
 * A broken rule of driver.h is logged as an error, once for each rule and driver, with the function, the rule and what
 * was seen. The call goes on, but for these, where going on would corrupt memory or call the driver with what it may
 * crash on: they fail with OPENREG_E_INTERNAL (the driver gave memory that overlaps or is misaligned, a handle that is
 * alive already, or another distance to the host's view) or OPENREG_E_INVALID (the caller gave a handle or an allocation
 * that is not alive, a range that ends beyond its allocation, a device that does not exist). */
#ifndef OPENREG_SRC_VALIDATION_H
#define OPENREG_SRC_VALIDATION_H

#include <openreg/layer.h>

extern const openreg_layer openreg_validation_layer;

#endif
