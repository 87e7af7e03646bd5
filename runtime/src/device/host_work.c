/* SPDX-License-Identifier: BSD-3-Clause */
/* host_work.c: functions for libraries that do a stream's work on the host (openreg/host_work.h). */
#define _GNU_SOURCE
#include <openreg/host_work.h>

#include "base/error.h"
#include "base/inside.h"
#include "device/stream.h"
#include "driver/device_table.h"
#include "driver/host_errors.h"

openreg_status
openreg_host_func_is_queued(int32_t index, int32_t *queued)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_host_func_is_queued";
    openreg_device *device = NULL;
    if (queued == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "queued is NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    const openreg_driver *const table = device->driver->table;
    *queued = table->host_func != NULL && table->stream_wait != NULL && table->event_create != NULL;
    return OPENREG_OK;
}

openreg_status
openreg_stream_report_error(int32_t index, openreg_stream stream, openreg_status code, const char *text)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_report_error";
    openreg_device *device = NULL;
    openreg_driver_stream handle = NULL;
    if (text == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "text is NULL");
    if (code == OPENREG_OK || code == OPENREG_E_DEVICE_LOST)
        return openreg_error_set(OPENREG_E_INVALID, call, "%d is not an error code of a stream's work", code);
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(device, call, stream, &handle));
    openreg_host_error_leave(NULL, index, handle, code, text);
    return OPENREG_OK;
}
