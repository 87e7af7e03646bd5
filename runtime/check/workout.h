/* SPDX-License-Identifier: BSD-3-Clause */
/* workout.h: every slot of a driver, called as a program would. */
#ifndef OPENREG_CHECK_WORKOUT_H
#define OPENREG_CHECK_WORKOUT_H

#include "check.h"

/* Calls each slot that the table has on each device, with valid arguments, and gives everything back. Copied bytes must
 * be right. */
void check_workout(check_context *c);
/* check_open(), check_workout(), check_close(). */
void check_whole_workout(check_context *c);

#endif
