/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_hints.h: a hint about GPUs for which no driver is installed. Internal. */
#ifndef OPENREG_SRC_MISSING_DRIVER_H
#define OPENREG_SRC_MISSING_DRIVER_H

/* Warns, once per process and driver, if the machine looks like one with an NVIDIA or AMD GPU (device files, PCI; under
 * OPENREG_SYSTEM_ROOT instead of "/"). For an automatic choice that came down to `sim`; the caller holds the driver
 * lock. */
void openreg_suggest_missing_drivers(void);

#endif
