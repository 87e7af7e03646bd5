/* SPDX-License-Identifier: BSD-3-Clause */
/* activation.h: the life of the device table: made, changed, taken back. Internal. */
#ifndef OPENREG_SRC_INITIALIZATION_H
#define OPENREG_SRC_INITIALIZATION_H

#include <openreg/openreg.h>

/* openreg_init() on behalf of `call`. */
openreg_status openreg_initialize(const char *call);

/* ---- By the holder of the gate. ---- */

/* Chooses, opens and publishes. The thread's error is as before if it succeeds. */
openreg_status openreg_initialize_gated(const char *call);

/* The list of openreg_use_drivers(), NULL without one; *changes differs after each change of it. */
const char *openreg_chosen_list(unsigned *changes);

#endif
