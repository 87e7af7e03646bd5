/* SPDX-License-Identifier: BSD-3-Clause */
/* stream.h: stream ids of a device and the current stream of a thread. Internal; the public half is openreg.h. */
#ifndef OPENREG_SRC_STREAM_H
#define OPENREG_SRC_STREAM_H

#include "driver/device_table.h"

/* For device_table.c. NULL if memory is short. destroy() syncs and destroys the streams that were made. */
struct openreg_stream_set *openreg_stream_set_create(openreg_device *device);
void openreg_stream_set_destroy(struct openreg_stream_set *streams);

/* The driver's handle of a stream of this device; refuses ids of other devices and unknown ones with a text that names
 * both ("<call>: stream 0x20001 belongs to openreg:1, not to openreg:0"). Lock-free. */
openreg_status openreg_stream_resolve(openreg_device *device, const char *call, openreg_stream stream,
                                      openreg_driver_stream *out);

/* This thread's current stream of the device. Lock-free, never fails. */
openreg_stream openreg_stream_current_of(openreg_device *device);

#endif
