/* SPDX-License-Identifier: BSD-3-Clause */
/* discovery.h: brings the list of candidates up to the environment. Internal. */
#ifndef OPENREG_SRC_DISCOVERY_H
#define OPENREG_SRC_DISCOVERY_H

#include "registry/candidates.h"

/* Makes the candidates that every process has; they are older than any registered one. Not with the lock held.
 * Errors: OPENREG_E_NOMEM. */
openreg_status openreg_discovery_ensure(const char *call);

/* ---- With the driver lock held. ---- */

/* Reads the environment again, unless a device table is published and `again` is 0, and brings the list up to it.
 * Errors: OPENREG_E_NOMEM. */
openreg_status openreg_discovery_refresh(const char *call, int again);
const openreg_environment *openreg_discovery_environment(void); /* the one that was read last; may be NULL */

/* Refuses variables by which nothing can be chosen: an OPENREG_TARGET other than "local", an item of
 * OPENREG_DRIVER_LIBRARIES that can't be used. Errors: OPENREG_E_INVALID. */
openreg_status openreg_discovery_check(const char *call);

#endif
