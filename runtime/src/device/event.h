/* SPDX-License-Identifier: BSD-3-Clause */
/* event.h: event handles. Internal.
 *
 * A handle is not an address but a slot number and the number of its use, so that a destroyed or made-up handle is
 * refused instead of followed. */
#ifndef OPENREG_SRC_EVENT_H
#define OPENREG_SRC_EVENT_H

#include "driver/driver_calls.h"

/* One event at one moment: query, sync and wait work on such a copy, and so mean the latest record at the time of
 * their call, whatever is recorded meanwhile. Errors: OPENREG_E_INVALID (not a live event), OPENREG_E_FORKED. */
openreg_status openreg_event_read(const char *call, openreg_event event, openreg_device **device,
                                  openreg_backend_event *marker);

#endif
