/* SPDX-License-Identifier: BSD-3-Clause */
/* slot_tour.h: every slot of a driver, called as a program would. */
#ifndef OPENREG_CHECK_SLOT_TOUR_H
#define OPENREG_CHECK_SLOT_TOUR_H

#include "check.h"

/* Calls each slot that the table has on each device, with valid arguments, and gives everything back. Copied bytes must
 * be right. */
void check_slot_tour(check_context *c);
/* Calls one slot of a device, with what it needs alone, and gives that back. Returns a name for it; "": the table lacks the
 * slot; NULL: `which`, from 0 on, is beyond them. */
const char *check_use_alone(check_context *c, int32_t dev, int which);
/* check_open(), check_slot_tour(), check_close(). */
void check_whole_slot_tour(check_context *c);

#endif
