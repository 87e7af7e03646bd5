/* SPDX-License-Identifier: BSD-3-Clause */
/* perf.h: a driver's figures beside the host's. They judge nothing. */
#ifndef OPENREG_CHECK_PERF_H
#define OPENREG_CHECK_PERF_H

#include "check.h"

/* Measures in a process of its own, prints a table, and writes it to `json` unless that is NULL. Returns the exit status:
 * 0, 1 if the driver failed during it, 2 if the file can't be written, 77 without a device. */
int check_perf(const check_target *target, int limit, const char *json);

#endif
