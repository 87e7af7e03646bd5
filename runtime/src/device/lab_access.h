/* SPDX-License-Identifier: BSD-3-Clause */
/* lab_access.h: what libopenreg_lab.so asks of the devices. Internal. */
#ifndef OPENREG_SRC_LAB_ACCESS_H
#define OPENREG_SRC_LAB_ACCESS_H

#include "base/internal_api.h"
#include "driver/device_table.h"

/* The driver of openreg:index, the same for all devices of one; NULL: there is no such device. Never initialises. */
OPENREG_INTERNAL const void *openreg_lab_driver_of(int32_t index);

/* Likewise, and the driver's handle of a stream. 0: there is none. Sets no error. */
OPENREG_INTERNAL int openreg_lab_stream_of(int32_t index, openreg_stream stream, const void **driver,
                                           openreg_driver_stream *handle);

/* The device counts as lost no longer. */
OPENREG_INTERNAL void openreg_lab_heal(int32_t index);

#endif
