/* SPDX-License-Identifier: BSD-3-Clause */
/* inactive_driver.h: drivers that are opened to be asked. Internal. */
#ifndef OPENREG_SRC_IDLE_DRIVER_H
#define OPENREG_SRC_IDLE_DRIVER_H

#include "registry/candidates.h"

/* The candidate of a name, with the errors of openreg_find_driver(); of a group the first open member, else the first
 * that can be opened, which is open then. The caller holds the driver lock. */
openreg_status openreg_inactive_driver_find(const char *call, const char *name, openreg_candidate **out);

#endif
