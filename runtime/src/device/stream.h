/* SPDX-License-Identifier: BSD-3-Clause */
/* stream.h: stream ids of a device and the current stream of a thread. Internal; the public half is openreg.h. */
#ifndef OPENREG_SRC_STREAM_H
#define OPENREG_SRC_STREAM_H

#include "driver/device_table.h"
#include "watch/observers.h"

/* For built_table.c; `generation` is that of the device's table. NULL if memory is short. destroy() synchronises and destroys
 * the streams that were made. */
struct openreg_stream_set *openreg_stream_set_create(openreg_device *device, uint32_t generation);
void openreg_stream_set_destroy(struct openreg_stream_set *streams);

/* The driver's handle of a stream of this device; refuses ids of other devices and unknown ones with a text that names
 * both ("<call>: stream 0x20001 belongs to openreg:1, not to openreg:0"). Lock-free. */
openreg_status openreg_stream_resolve(openreg_device *device, const char *call, openreg_stream stream,
                                      openreg_driver_stream *out);

/* Called before each call that uses a stream, or an event of one: reports those of a lost device to observers. No lock is
 * held. */
void openreg_stream_tell_of_loss(const openreg_device *device, const char *call, openreg_stream stream);
static inline void
openreg_stream_is_used(const openreg_device *device, const char *call, openreg_stream stream)
{
    if (openreg_is_observed(OPENREG_OBSERVE_USES) && openreg_device_is_lost(device))
        openreg_stream_tell_of_loss(device, call, stream);
}

/* This thread's current stream of the device. Lock-free, never fails. */
openreg_stream openreg_stream_current_of(openreg_device *device);

#endif
