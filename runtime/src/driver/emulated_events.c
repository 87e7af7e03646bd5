/* SPDX-License-Identifier: BSD-3-Clause */
/* emulated_events.c: a driver's events, and their emulation (driver_calls.h).
 *
 * An emulated event is complete once a device_sync() that began after its record has returned; its ticket is the number
 * of the first such call (openreg_call_device_sync() counts them). Nothing is queued, so no polling is needed: query and
 * sync of a marker that is not complete synchronise the device. A timed one is synchronised when it is recorded, so
 * that the clock is read when the work before it has just ended.
 *
 * Timed events are emulated as well if the driver has events but cannot measure them (no event_elapsed). */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/error.h"
#include "driver/driver_calls.h"

static int
is_emulated(const openreg_driver *table, uint32_t flags)
{
    return table->event_create == NULL || ((flags & OPENREG_EVENT_TIMING) != 0 && table->event_elapsed == NULL);
}

openreg_status
openreg_call_marker_create(openreg_device *device, const char *call, uint32_t flags, openreg_backend_event *out)
{
    openreg_opened_driver *const driver = device->driver;
    openreg_backend_event marker = {.flags = flags};
    if (!is_emulated(driver->table, flags)) {
        const uint32_t native_flags = (flags & OPENREG_EVENT_TIMING) != 0 ? OPENREG_EVENT_TIMING : 0;
        OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
            device, call,
            driver->table->event_create(driver->instance, device->ordinal, native_flags, &marker.native)));
        if (marker.native == NULL)
            return openreg_error_set_driver(OPENREG_E_INTERNAL, call, driver->name,
                                            "event_create returned OK without an event");
    }
    *out = marker;
    return OPENREG_OK;
}

openreg_status
openreg_call_marker_destroy(openreg_device *device, const char *call, openreg_backend_event *marker)
{
    openreg_opened_driver *const driver = device->driver;
    if (is_emulated(driver->table, marker->flags))
        return OPENREG_OK;
    return OPENREG_RELEASE_CALL(device, call,
                                driver->table->event_destroy(driver->instance, device->ordinal, marker->native));
}

openreg_status
openreg_call_marker_record(openreg_device *device, const char *call, openreg_backend_event *marker,
                           openreg_driver_stream stream)
{
    openreg_opened_driver *const driver = device->driver;
    if (!is_emulated(driver->table, marker->flags)) {
        OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
            device, call, driver->table->event_record(driver->instance, device->ordinal, stream, marker->native)));
    } else if ((marker->flags & OPENREG_EVENT_TIMING) != 0) {
        OPENREG_RETURN_NOT_OK(openreg_call_stream_sync(device, call, stream));
        marker->ticket = 0;
        marker->recorded_ns = openreg_clock_ns();
    } else {
        /* A read-modify-write, so that the sync that takes the next number is ordered behind the work queued here. */
        marker->ticket = atomic_fetch_add_explicit(&device->syncs_started, 0, memory_order_acq_rel) + 1;
        marker->recorded_ns = 0;
    }
    marker->recorded = 1;
    return OPENREG_OK;
}

static int
is_complete(const openreg_device *device, const openreg_backend_event *marker)
{
    return !marker->recorded || marker->ticket == 0 ||
           atomic_load_explicit(&device->syncs_ended, memory_order_acquire) >= marker->ticket;
}

openreg_status
openreg_call_marker_sync(openreg_device *device, const char *call, openreg_backend_event *marker)
{
    openreg_opened_driver *const driver = device->driver;
    if (!is_emulated(driver->table, marker->flags))
        return OPENREG_DEVICE_CALL(device, call,
                                   driver->table->event_sync(driver->instance, device->ordinal, marker->native));
    if (is_complete(device, marker))
        return OPENREG_OK;
    return openreg_call_device_sync(device, call);
}

openreg_status
openreg_call_marker_query(openreg_device *device, const char *call, openreg_backend_event *marker, int32_t *done)
{
    openreg_opened_driver *const driver = device->driver;
    int32_t passed = 1;
    if (is_emulated(driver->table, marker->flags))
        OPENREG_RETURN_NOT_OK(openreg_call_marker_sync(device, call, marker));
    else
        OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
            device, call, driver->table->event_query(driver->instance, device->ordinal, marker->native, &passed)));
    *done = passed != 0;
    return OPENREG_OK;
}

openreg_status
openreg_call_stream_wait(openreg_device *waiter, const char *call, openreg_driver_stream stream,
                         openreg_device *recorded_on, openreg_backend_event *marker)
{
    openreg_opened_driver *const driver = waiter->driver;
    if (!marker->recorded)
        return OPENREG_OK;
    if (openreg_device_is_lost(recorded_on))
        return openreg_call_lost(recorded_on, call);
    if (driver != recorded_on->driver || driver->table->stream_wait == NULL ||
        is_emulated(driver->table, marker->flags))
        return openreg_call_marker_sync(recorded_on, call, marker);
    return OPENREG_DEVICE_CALL(waiter, call,
                               driver->table->stream_wait(driver->instance, waiter->ordinal, stream, marker->native));
}

openreg_status
openreg_call_marker_elapsed(openreg_device *device, const char *call, openreg_backend_event *start,
                            openreg_backend_event *end, int64_t *nanoseconds)
{
    openreg_opened_driver *const driver = device->driver;
    if (is_emulated(driver->table, start->flags | end->flags)) {
        *nanoseconds = (int64_t)(end->recorded_ns - start->recorded_ns);
        return OPENREG_OK;
    }
    int64_t measured = 0;
    OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
        device, call,
        driver->table->event_elapsed(driver->instance, device->ordinal, start->native, end->native, &measured)));
    *nanoseconds = measured;
    return OPENREG_OK;
}
