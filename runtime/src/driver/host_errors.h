/* SPDX-License-Identifier: BSD-3-Clause */
/* host_errors.h: errors of work that the host did for a stream (openreg/host_work.h), and of injected faults, kept until a
 * query or wait of the stream reports them. Internal. */
#ifndef OPENREG_SRC_HOST_ERRORS_H
#define OPENREG_SRC_HOST_ERRORS_H

#include <stdatomic.h>

#include "base/internal_api.h"
#include "driver/device_table.h"

/* Leaves one; `from`: the argument of openreg_host_errors_drop(), or NULL. The text is cut at 511 bytes. Any thread. */
OPENREG_INTERNAL void openreg_host_error_leave(const void *from, int32_t device, openreg_driver_stream stream,
                                               openreg_status code, const char *text);
/* Forgets all errors of that `from`. */
OPENREG_INTERNAL void openreg_host_errors_drop(const void *from);

extern atomic_uint openreg_host_errors; /* the number of errors in the list */
OPENREG_INTERNAL openreg_status openreg_host_error_take(int32_t device, openreg_driver_stream stream, int whole,
                                                        openreg_status status);

/* The result of a query or wait of the stream, or with `whole` of a wait of the device: `status`, or if that is OPENREG_OK
 * the first error left there, which is then forgotten and set as the driver's. */
static inline openreg_status
openreg_host_error_of(const openreg_device *device, openreg_driver_stream stream, int whole, openreg_status status)
{
    return __builtin_expect(atomic_load_explicit(&openreg_host_errors, memory_order_relaxed) == 0, 1)
               ? status
               : openreg_host_error_take(device->index, stream, whole, status);
}

#endif
