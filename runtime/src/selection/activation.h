/* SPDX-License-Identifier: BSD-3-Clause */
/* activation.h: what counts devices (device_count.c) and what activates them (activation.c) call of each other. Internal. The caller
 * holds the driver lock, except where a function says otherwise. */
#ifndef OPENREG_SRC_ACTIVATION_H
#define OPENREG_SRC_ACTIVATION_H

#include "selection/selection.h"

/* ---- activation.c ---- */

/* Selects, opens and publishes, as openreg_init(). Keeps the thread's error on success. */
openreg_status openreg_activation_select(const char *call);
/* The list of openreg_drivers_use(), or NULL. */
const char *openreg_activation_list(void);
/* Differs after each change of the inputs of a selection. Takes the lock of the list. */
uint32_t openreg_activation_changes(void);

/* ---- device_count.c ---- */

/* Notes the count for children made by fork(), where there are no devices; -1: not known. Any thread. */
void openreg_device_count_note(int32_t count);

#endif
