/* SPDX-License-Identifier: BSD-3-Clause */
/* device.c: the calling thread's current device, and properties of devices (openreg.h). */
#include "base/error.h"
#include "base/inside.h"
#include "base/sized_struct.h"
#include "driver/device_table.h"
#include "driver/driver_calls.h"
#include "driver/properties.h"
#include "driver/span.h"
#include "watch/capture.h"

/* The thread's current device, packed so that it is read and written at once: generation of the table << 32 | bound << 16 |
 * index. It is valid only for the table of that generation: after a shutdown, and in a new thread, the current device is
 * 0. `bound` is the device that device_bind() last made current for the vendor, whose initial device 0 need not be
 * openreg:0. */
static _Thread_local uint64_t current;
#define NONE_BOUND 0xffff

static inline int32_t
index_in(const openreg_device_table *table)
{
    const uint64_t packed = current;
    return (uint32_t)(packed >> 32) == table->generation ? (int32_t)(packed & 0xffff) : 0;
}

static inline int32_t
bound_in(const openreg_device_table *table)
{
    const uint64_t packed = current;
    if ((uint32_t)(packed >> 32) == table->generation)
        return (int32_t)(packed >> 16 & 0xffff);
    return table->devices[0]->ordinal == 0 ? 0 : NONE_BOUND;
}

static inline void
set_index(const openreg_device_table *table, int32_t index, int32_t bound)
{
    current = (uint64_t)table->generation << 32 | (uint64_t)(uint32_t)bound << 16 | (uint32_t)index;
}

/* Whether setting the index is all there is to do: the usual case, kept apart from the rest so that it needs no stack
 * frame. */
static inline int
is_simple(const openreg_device_table *table, int32_t index)
{
    return __builtin_expect(table != NULL, 1) && __builtin_expect((uint32_t)index < (uint32_t)table->count, 1) &&
           __builtin_expect(!table->binds, 1);
}

/* Makes an index current, also for the vendor if a driver has device_bind(). `previous` may be NULL. */
static __attribute__((noinline)) openreg_status
set_with_care(const char *call, int32_t index, int32_t *previous)
{
    OPENREG_INSIDE;
    const openreg_device_table *table = NULL;
    OPENREG_RETURN_NOT_OK(openreg_device_table_get(call, index, &table));
    const int32_t before = index_in(table);
    if (table->binds && bound_in(table) != index)
        OPENREG_RETURN_NOT_OK(openreg_call_device_bind(table->devices[index], call));
    set_index(table, index, index);
    if (previous != NULL)
        *previous = before;
    return OPENREG_OK;
}

int32_t
openreg_current_device(void)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    return __builtin_expect(table != NULL, 1) ? index_in(table) : 0;
}

openreg_status
openreg_set_device(int32_t device)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    if (!is_simple(table, device))
        return set_with_care("openreg_set_device", device, NULL);
    set_index(table, device, device);
    return OPENREG_OK;
}

openreg_status
openreg_exchange_device(int32_t device, int32_t *previous)
{
    static const char call[] = "openreg_exchange_device";
    const openreg_device_table *const table = openreg_device_table_peek();
    if (__builtin_expect(previous == NULL, 0))
        return openreg_error_set(OPENREG_E_INVALID, call, "previous is NULL");
    if (!is_simple(table, device))
        return set_with_care(call, device, previous);
    *previous = index_in(table);
    set_index(table, device, device);
    return OPENREG_OK;
}

openreg_status
openreg_maybe_exchange_device(int32_t device, int32_t *previous)
{
    static const char call[] = "openreg_maybe_exchange_device";
    const openreg_device_table *table = NULL;
    if (__builtin_expect(previous == NULL, 0))
        return openreg_error_set(OPENREG_E_INVALID, call, "previous is NULL");
    if (device == -1) {
        *previous = -1;
        return OPENREG_OK;
    }
    OPENREG_RETURN_NOT_OK(openreg_device_table_get(call, device, &table));
    *previous = index_in(table);
    set_index(table, device, bound_in(table));
    return OPENREG_OK;
}

void
openreg_restore_device(int32_t device)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    if (table != NULL && (uint32_t)device < (uint32_t)table->count)
        set_index(table, device, bound_in(table));
}

openreg_status
openreg_device_get_properties(int32_t index, openreg_device_properties *inout)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_device_get_properties";
    openreg_device *device = NULL;
    if (!openreg_sized_is_valid(inout, OPENREG_DEVICE_PROPERTIES_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call, "inout is NULL or its struct_size not set");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));

    openreg_properties_fill(device->driver->table, device->driver->name, device->ordinal, &device->info, inout);
    return OPENREG_OK;
}

openreg_status
openreg_device_active(int32_t index, int32_t *active)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_device_active";
    openreg_device *device = NULL;
    if (active == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "active is NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    return openreg_call_device_active(device, call, active);
}

openreg_status
openreg_device_synchronize(int32_t index)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_device_synchronize";
    openreg_device *device = NULL;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_DEVICE, .call = call, .device = index);
    openreg_watched_span span;
    openreg_span_begin(&span, OPENREG_TRACE_WAIT, call, "", device, OPENREG_STREAM_DEFAULT, 0, OPENREG_HOST,
                       OPENREG_HOST);
    OPENREG_RETURN_NOT_OK(openreg_span_end(&span, openreg_call_device_sync(device, call)));
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        openreg_observers_order(&(openreg_order){.what = OPENREG_ORDER_HOST_DEVICE, .device = index});
    return OPENREG_OK;
}
