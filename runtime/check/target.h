/* SPDX-License-Identifier: BSD-3-Clause */
/* target.h: where the driver that is checked comes from. */
#ifndef OPENREG_CHECK_TARGET_H
#define OPENREG_CHECK_TARGET_H

#include "check.h"

/* Finds a driver: a path to a library, "sim", or the name of one that the runtime knows as a library ("cuda").
 * Returns 0, or -1 with *why a text. Loads nothing. */
int check_target_find(const char *name, check_target *target, const char **why);
/* The same target with the options that variables OPENREG_<DRIVER>_<KEY> hold behind those of the command line, which
 * go first. Valid until the next call; for the process of a check, which calls it once. */
const check_target *check_target_with_variables(const check_target *target, const char *driver);
/* The driver's entry point; loads the library. Fails the check if there is none. */
openreg_driver_query_fn check_target_entry(const check_target *target);

#endif
