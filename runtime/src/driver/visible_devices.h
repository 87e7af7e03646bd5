/* SPDX-License-Identifier: BSD-3-Clause */
/* visible_devices.h: which devices of a driver are used, and in which order. Internal. */
#ifndef OPENREG_SRC_VISIBLE_DEVICES_H
#define OPENREG_SRC_VISIBLE_DEVICES_H

#include <openreg/openreg.h>

#define OPENREG_VISIBLE_DEVICES "visible_devices" /* key of the option */

/* The visible devices of a driver, in order. */
typedef struct openreg_visible_devices {
    int32_t count;
    int32_t ordinals[OPENREG_MAX_DEVICES];
} openreg_visible_devices;

/* `value`: NULL or "all", or ids separated by commas, of the `found` devices that the driver has. `variable` is what the
 * message calls the value. Errors: OPENREG_E_INVALID (not an id, an id that does not exist or is repeated, an empty
 * item), OPENREG_E_NO_DEVICE (more devices than PyTorch can count). */
openreg_status openreg_visible_devices_read(const char *call, const char *driver, const char *variable,
                                            const char *value, int32_t found, openreg_visible_devices *out);

#endif
