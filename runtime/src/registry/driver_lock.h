/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_lock.h: lets one thread at a time load, open or close drivers. Internal.
 *
 * Other threads wait on a condition, and a driver that calls back is refused. The blocking hooks of
 * openreg_set_blocking_hooks() run before the wait and after the release, with no other lock held. */
#ifndef OPENREG_SRC_DRIVER_LOCK_H
#define OPENREG_SRC_DRIVER_LOCK_H

#include <openreg/openreg.h>

/* Waits for the driver lock. Errors: OPENREG_E_FORKED; OPENREG_E_BUSY if this thread holds it already (a driver or
 * factory calls the runtime). */
openreg_status openreg_driver_lock_acquire(const char *call);
void openreg_driver_lock_release(void);

/* The errors of openreg_driver_lock_acquire(), without waiting. */
openreg_status openreg_driver_lock_reject_reentry(const char *call);
/* 1 while a thread holds it. */
int openreg_driver_lock_is_held(void);

/* Runs the discovery callback, unless this thread is inside it; not with the driver lock held. */
void openreg_run_discovery_callback(void);
/* openreg_driver_lock_reject_reentry(), openreg_run_discovery_callback(), openreg_driver_lock_acquire(). */
openreg_status openreg_driver_lock_acquire_discovering(const char *call);

#endif
