/* SPDX-License-Identifier: BSD-3-Clause */
/* lab_access.c: devices by their index (lab_access.h). */
#define _GNU_SOURCE
#include "device/lab_access.h"

#include "base/error.h"
#include "device/stream.h"

static openreg_device *
find(int32_t index)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    return table != NULL && index >= 0 && index < table->count ? table->devices[index] : NULL;
}

const void *
openreg_lab_driver_of(int32_t index)
{
    const openreg_device *const device = find(index);
    return device != NULL ? device->driver : NULL;
}

int
openreg_lab_stream_of(int32_t index, openreg_stream stream, const void **driver, openreg_driver_stream *handle)
{
    openreg_device *const device = find(index);
    if (device == NULL)
        return 0;
    *driver = device->driver;
    *handle = NULL;
    if (stream == OPENREG_STREAM_DEFAULT)
        return 1;
    const openreg_error_fields before = openreg_error_save();
    const openreg_status status = openreg_stream_resolve(device, "", stream, handle);
    openreg_error_restore(&before);
    return status == OPENREG_OK;
}

void
openreg_lab_heal(int32_t index)
{
    openreg_device *const device = find(index);
    if (device != NULL)
        atomic_store_explicit(&device->loss, OPENREG_LOSS_NONE, memory_order_release);
}
