/* SPDX-License-Identifier: BSD-3-Clause */
/* lab_access.c: devices by their index (lab_access.h). */
#define _GNU_SOURCE
#include "device/lab_access.h"

#include "base/error.h"
#include "base/inside.h"
#include "device/stream.h"
#include "driver/driver_calls.h"

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
    OPENREG_INSIDE;
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

openreg_status
openreg_graph_reach(const char *call, int32_t index, openreg_stream stream, openreg_graph_site *out)
{
    const void *table = NULL;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &out->device));
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(out->device, call, stream, &out->handle));
    OPENREG_RETURN_NOT_OK(openreg_call_extension(call, out->device->driver, &openreg_extension_graph, &table));
    out->table = table;
    out->instance = out->device->driver->instance;
    out->ordinal = out->device->ordinal;
    return OPENREG_OK;
}

openreg_status
openreg_part_device(const char *call, int32_t index, openreg_device **out)
{
    return openreg_device_get(call, index, out);
}

openreg_status
openreg_part_call_begin(const char *call, openreg_device *device, int releases)
{
    if (!releases && openreg_device_is_lost(device))
        return openreg_call_lost(device, call);
    openreg_call_begin(device, call);
    return OPENREG_OK;
}

openreg_status
openreg_part_call_end(const char *call, openreg_device *device, openreg_status status)
{
    return openreg_call_end(device, call, status);
}
