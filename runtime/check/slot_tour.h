/* SPDX-License-Identifier: BSD-3-Clause */
/* slot_tour.h: every slot of a driver, called as a program would. */
#ifndef OPENREG_CHECK_SLOT_TOUR_H
#define OPENREG_CHECK_SLOT_TOUR_H

#include "check.h"

/* Calls each slot that the table has on each device, with valid arguments, and gives everything back. Copied bytes must
 * be right. */
void check_slot_tour(check_context *c);
/* check_open(), check_slot_tour(), check_close(). */
void check_whole_slot_tour(check_context *c);

#endif
