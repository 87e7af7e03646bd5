/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_version.h: whether the installed copy of a vendor's library is new enough. Internal to drivers/gpu. */
#ifndef OPENREG_DRIVERS_GPU_VERSION_H
#define OPENREG_DRIVERS_GPU_VERSION_H

#include <stdbool.h>
#include <stdint.h>

#include <openreg/driver.h>

/* Whether version `found` is at least `built`, after division of both by `scale` (> 0), which drops the digits that do
 * not count. */
bool openreg_version_ok(int64_t built, int64_t found, int64_t scale);

/* The same, with the error: E_INCOMPATIBLE, "Found <name> version ...", which ends with the advice: "", or " A sentence." */
openreg_status openreg_version_check(const openreg_host *host, const char *name, int64_t built, int64_t found,
                                     int64_t scale, const char *advice);

#endif
