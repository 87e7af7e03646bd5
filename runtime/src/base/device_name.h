/* SPDX-License-Identifier: BSD-3-Clause */
/* device_name.h: the name of devices in texts: "openreg" in "openreg:1", or a vendor's. Internal. */
#ifndef OPENREG_SRC_DEVICE_NAME_H
#define OPENREG_SRC_DEVICE_NAME_H

#include "base/internal_api.h"

/* The name that openreg_set_device_name() has set. Lock-free, also for signal handlers; the text never changes. */
OPENREG_INTERNAL const char *openreg_device_name(void);

/* The same for the beginning of a sentence: "OpenReg", or the vendor's name unchanged. */
OPENREG_INTERNAL const char *openreg_device_title(void);

#endif
