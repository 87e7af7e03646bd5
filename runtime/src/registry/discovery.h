/* SPDX-License-Identifier: BSD-3-Clause */
/* discovery.h: updates the list of candidates from the environment. Internal. */
#ifndef OPENREG_SRC_DISCOVERY_H
#define OPENREG_SRC_DISCOVERY_H

#include "registry/candidates.h"

/* Makes the candidates that every process has, before any registered one. Must not be called with the lock held.
 * Errors: OPENREG_E_NOMEM. */
openreg_status openreg_discovery_ensure(const char *call);

/* ---- With the driver lock held. ---- */

/* Re-reads the environment, unless a device table is published and `again` is 0, and updates the list.
 * Errors: OPENREG_E_NOMEM. */
openreg_status openreg_discovery_refresh(const char *call, int again);
const openreg_environment *openreg_discovery_environment(void); /* the one that was read last; may be NULL */

/* Refuses variables that make a selection impossible: an OPENREG_TARGET other than "local", an unusable item of
 * OPENREG_DRIVER_LIBRARIES. Errors: OPENREG_E_INVALID. */
openreg_status openreg_discovery_check(const char *call);

#endif
