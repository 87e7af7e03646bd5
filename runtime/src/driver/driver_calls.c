/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_calls.c: every call of a driver's slot, and the emulation of those that it lacks (driver_calls.h).
 * Events and their emulation: emulated_events.c. */
#define _GNU_SOURCE
#include "driver/driver_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sized_struct.h"
#include "base/text.h"
#include "driver/driver_slots.h"
#include "driver/host_errors.h"
#include "watch/capture.h"
#include "watch/observers.h"

#define FILL_CHUNK ((size_t)1 << 20)
#define HOST_ALIGNMENT 64

uint64_t
openreg_driver_slots(const openreg_driver *table)
{
    uint64_t slots = 0;
    for (int i = 0; i < OPENREG_SLOT_COUNT; ++i) {
        void (*function)(void);
        memcpy(&function, (const char *)table + openreg_slots[i].offset, sizeof function);
        if (function != NULL)
            slots |= UINT64_C(1) << i;
    }
    return slots;
}

/* Runs one slot between begin_call() and end_call(). */
#define CALL_OF(name, call, expression)                                                                                \
    (openreg_error_begin_call(), openreg_error_end_call((name), (call), (expression)))

static openreg_status
defect(const char *name, const char *call, const char *text)
{
    return openreg_error_set_driver(OPENREG_E_INTERNAL, call, name, "%s", text);
}

/* A wait or query, which also reports errors of work on the host (host_errors.h). */
#define OPENREG_WAIT_CALL(device, call, stream, whole, expression)                                                     \
    OPENREG_DEVICE_CALL(device, call, openreg_host_error_of((device), (stream), (whole), (expression)))

openreg_status
openreg_call_lost(const openreg_device *device, const char *call)
{
    const int is_known = atomic_load_explicit(&device->loss, memory_order_acquire) == OPENREG_LOSS_KNOWN;
    (void)openreg_error_set_driver(OPENREG_E_DEVICE_LOST, call, device->driver->name,
                                   "%s:%d was lost in an earlier call%s%s", openreg_device_name(), device->index,
                                   is_known ? ": " : "", is_known ? device->loss_text : "");
    return openreg_error_names_driver(device->driver->name, is_known ? device->loss_vendor_code : 0);
}

openreg_status
openreg_call_end(openreg_device *device, const char *call, openreg_status status)
{
    if (__builtin_expect(status == OPENREG_OK, 1))
        return status;
    status = openreg_error_end_call(device->driver->name, call, status);
    int none = OPENREG_LOSS_NONE;
    if (status == OPENREG_E_DEVICE_LOST &&
        atomic_compare_exchange_strong_explicit(&device->loss, &none, OPENREG_LOSS_SEEN, memory_order_relaxed,
                                                memory_order_relaxed)) {
        const openreg_error_fields error = openreg_error_save();
        openreg_text_copy(device->loss_text, sizeof device->loss_text, error.text);
        device->loss_vendor_code = error.vendor_code;
        openreg_text_copy(device->loss_call, sizeof device->loss_call, call);
        if (openreg_is_observed(OPENREG_OBSERVE_USES))
            openreg_observers_place(device->loss_place, sizeof device->loss_place);
        atomic_store_explicit(&device->loss, OPENREG_LOSS_KNOWN, memory_order_release);
    }
    if (openreg_is_observed(OPENREG_OBSERVE_WORK) && (status == OPENREG_E_DEVICE_LOST || status == OPENREG_E_INTERNAL ||
                                                      status == OPENREG_E_PEER || status == OPENREG_E_TIMEOUT))
        openreg_observers_alarm(device->index, status);
    return status;
}

static void
set_active(openreg_device *device)
{
    if (device != NULL && !atomic_load_explicit(&device->active, memory_order_relaxed))
        atomic_store_explicit(&device->active, 1, memory_order_relaxed);
}

/* --------------------------------------------------------------------------------------------------------- opening */

openreg_status
openreg_call_open(const openreg_driver *table, const char *name, const char *call, const openreg_option *options,
                  uint32_t n, openreg_instance *out)
{
    openreg_instance instance = NULL;
    OPENREG_RETURN_NOT_OK(CALL_OF(name, call, table->open(&openreg_host_services, options, n, &instance)));
    *out = instance;
    return OPENREG_OK;
}

openreg_status
openreg_call_close(const openreg_driver *table, const char *name, const char *call, openreg_instance instance)
{
    return CALL_OF(name, call, table->close(instance));
}

static openreg_status
check_count(const char *name, const char *call, int32_t count, int32_t *out)
{
    if (count < 0)
        return defect(name, call, "gave a negative number of devices");
    if (count == 0) {
        (void)openreg_error_set(OPENREG_E_NO_DEVICE, call, "Driver '%s' provides no devices.", name);
        return openreg_error_names_driver(name, 0);
    }
    *out = count;
    return OPENREG_OK;
}

openreg_status
openreg_call_device_count(const openreg_driver *table, const char *name, const char *call, openreg_instance instance,
                          int32_t *out)
{
    int32_t count = -1;
    OPENREG_RETURN_NOT_OK(CALL_OF(name, call, table->device_count(instance, &count)));
    return check_count(name, call, count, out);
}

openreg_status
openreg_call_count(const openreg_driver *table, const char *name, const char *call, const openreg_options *options,
                   int32_t *out)
{
    if (table->describe == NULL)
        return OPENREG_E_UNSUPPORTED;
    int32_t count = -1;
    OPENREG_RETURN_NOT_OK(
        CALL_OF(name, call,
                table->describe(&openreg_host_services, options->items, options->count, "", 0, NULL, NULL, &count)));
    return check_count(name, call, count, out);
}

/* --------------------------------------------------------------------------------------------------------- devices */

/* Completes the driver's description of a device, or refuses it. */
static openreg_status
check_info(const openreg_driver *table, const char *name, const char *call, int32_t ordinal, openreg_device_info *info)
{
    info->struct_size = sizeof *info;
    info->torch_device_type[sizeof info->torch_device_type - 1] = '\0';
    info->name[sizeof info->name - 1] = '\0';
    if (info->name[0] == '\0')
        (void)snprintf(info->name, sizeof info->name, "%s device %d", name, ordinal);
    if ((info->min_alignment & (info->min_alignment - 1)) != 0)
        return defect(name, call, "gave an alignment that is not a power of two");
    if (info->priority_high > info->priority_low)
        return defect(name, call, "gave a most urgent priority above its least urgent one");
    if ((info->caps & OPENREG_CAP_HOST_VISIBLE) != 0 && table->host_alias == NULL)
        return openreg_error_set_driver(OPENREG_E_INCOMPATIBLE, call, name,
                                        "says OPENREG_CAP_HOST_VISIBLE of device %d but lacks host_alias", ordinal);
    return OPENREG_OK;
}

openreg_status
openreg_call_device_info(openreg_opened_driver *driver, const char *call, int32_t ordinal, openreg_device_info *out)
{
    openreg_device_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    if (driver->table->device_info != NULL)
        OPENREG_RETURN_NOT_OK(
            CALL_OF(driver->name, call, driver->table->device_info(driver->instance, ordinal, &info)));
    OPENREG_RETURN_NOT_OK(check_info(driver->table, driver->name, call, ordinal, &info));
    *out = info;
    return OPENREG_OK;
}

openreg_status
openreg_call_describe(const openreg_driver *table, const char *name, const char *call, const openreg_options *options,
                      const char *topology, int32_t capacity, openreg_device_info *const *infos, uint8_t *peers,
                      int32_t *count)
{
    int32_t described = -1;
    if (table->describe == NULL)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call, "topology not implemented for %s", name);
    OPENREG_RETURN_NOT_OK(CALL_OF(name, call,
                                  table->describe(&openreg_host_services, options->items, options->count, topology,
                                                  capacity, infos, peers, &described)));
    if (described < 0)
        return defect(name, call, "described a negative number of devices");
    for (int32_t i = 0; i < described && i < capacity; ++i)
        OPENREG_RETURN_NOT_OK(check_info(table, name, call, i, infos[i]));
    *count = described;
    return OPENREG_OK;
}

openreg_status
openreg_call_device_active(openreg_device *device, const char *call, int32_t *out)
{
    openreg_opened_driver *const driver = device->driver;
    int32_t active = atomic_load_explicit(&device->active, memory_order_relaxed);
    if (driver->table->device_active != NULL)
        OPENREG_RETURN_NOT_OK(
            CALL_OF(driver->name, call, driver->table->device_active(driver->instance, device->ordinal, &active)));
    *out = active != 0;
    return OPENREG_OK;
}

openreg_status
openreg_call_device_bind(openreg_device *device, const char *call)
{
    openreg_opened_driver *const driver = device->driver;
    if (driver->table->device_bind == NULL)
        return OPENREG_OK;
    return OPENREG_DEVICE_CALL(device, call, driver->table->device_bind(driver->instance, device->ordinal));
}

openreg_status
openreg_call_device_sync(openreg_device *device, const char *call)
{
    openreg_opened_driver *const driver = device->driver;
    /* Markers (emulated_events.c) wait for a sync that starts after they were recorded: number the starts, and
     * remember the greatest number that has ended. */
    const unsigned long long number = atomic_fetch_add_explicit(&device->syncs_started, 1, memory_order_acq_rel) + 1;
    OPENREG_RETURN_NOT_OK(
        OPENREG_WAIT_CALL(device, call, NULL, 1, driver->table->device_sync(driver->instance, device->ordinal)));
    unsigned long long ended = atomic_load_explicit(&device->syncs_ended, memory_order_relaxed);
    while (ended < number && !atomic_compare_exchange_weak_explicit(&device->syncs_ended, &ended, number,
                                                                    memory_order_release, memory_order_relaxed)) {
    }
    return OPENREG_OK;
}

openreg_status
openreg_call_device_drain(openreg_device *device, const char *call)
{
    openreg_opened_driver *const driver = device->driver;
    return OPENREG_RELEASE_CALL(device, call, driver->table->device_sync(driver->instance, device->ordinal));
}

/* ---------------------------------------------------------------------------------------------------------- memory */

openreg_status
openreg_call_mem_alloc(openreg_device *device, const char *call, uint64_t size, void **out)
{
    openreg_opened_driver *const driver = device->driver;
    const openreg_alloc_info info = openreg_alloc_bytes(size);
    void *memory = NULL;
    OPENREG_RETURN_NOT_OK(
        OPENREG_DEVICE_CALL(device, call, driver->table->mem_alloc(driver->instance, device->ordinal, &info, &memory)));
    if (memory == NULL)
        return defect(driver->name, call, "mem_alloc returned OK without memory");
    const uint64_t alignment = device->info.min_alignment == 0 ? OPENREG_LEAST_ALIGNMENT : device->info.min_alignment;
    if ((uintptr_t)memory % alignment != 0) {
        (void)openreg_call_mem_free(device, call, memory);
        return openreg_error_set_driver(OPENREG_E_INTERNAL, call, driver->name,
                                        "mem_alloc gave the address %p, which is not a multiple of %llu bytes", memory,
                                        (unsigned long long)alignment);
    }
    set_active(device);
    *out = memory;
    return OPENREG_OK;
}

openreg_status
openreg_call_mem_free(openreg_device *device, const char *call, void *ptr)
{
    openreg_opened_driver *const driver = device->driver;
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_FREE, .call = call, .device = device->index);
    return OPENREG_RELEASE_CALL(device, call, driver->table->mem_free(driver->instance, device->ordinal, ptr));
}

openreg_status
openreg_call_reserve(openreg_device *device, const char *call, const openreg_vmm *growing, uint64_t size,
                     uint64_t granularity, void **out)
{
    openreg_opened_driver *const driver = device->driver;
    void *start = NULL;
    OPENREG_RETURN_NOT_OK(
        OPENREG_DEVICE_CALL(device, call, growing->reserve(driver->instance, device->ordinal, size, &start)));
    if ((uintptr_t)start % granularity != 0 || start == NULL)
        return defect(driver->name, call,
                      "reserve returned OK with an address that isn't a multiple of its granularity");
    *out = start;
    return OPENREG_OK;
}

openreg_status
openreg_call_granularity(openreg_device *device, const char *call, const openreg_vmm *growing, uint64_t *out)
{
    openreg_opened_driver *const driver = device->driver;
    uint64_t granularity = 0;
    OPENREG_RETURN_NOT_OK(
        OPENREG_DEVICE_CALL(device, call, growing->granularity(driver->instance, device->ordinal, &granularity)));
    if (granularity == 0 || (granularity & (granularity - 1)) != 0)
        return defect(driver->name, call, "granularity returned OK with a size that isn't a power of two");
    *out = granularity;
    return OPENREG_OK;
}

openreg_status
openreg_call_map(openreg_device *device, const char *call, const openreg_vmm *growing, void *ptr, uint64_t offset,
                 uint64_t size)
{
    openreg_opened_driver *const driver = device->driver;
    OPENREG_RETURN_NOT_OK(
        OPENREG_DEVICE_CALL(device, call, growing->map(driver->instance, device->ordinal, ptr, offset, size)));
    set_active(device);
    return OPENREG_OK;
}

openreg_status
openreg_call_unmap(openreg_device *device, const char *call, const openreg_vmm *growing, void *ptr, uint64_t offset,
                   uint64_t size)
{
    openreg_opened_driver *const driver = device->driver;
    return OPENREG_RELEASE_CALL(device, call, growing->unmap(driver->instance, device->ordinal, ptr, offset, size));
}

openreg_status
openreg_call_release(openreg_device *device, const char *call, const openreg_vmm *growing, void *ptr)
{
    openreg_opened_driver *const driver = device->driver;
    return OPENREG_RELEASE_CALL(device, call, growing->release(driver->instance, device->ordinal, ptr));
}

openreg_status
openreg_call_poison(openreg_device *device, const char *call, const openreg_schedule *schedule, void *ptr,
                    uint64_t size, openreg_driver_stream stream)
{
    openreg_opened_driver *const driver = device->driver;
    return OPENREG_DEVICE_CALL(device, call, schedule->poison(driver->instance, device->ordinal, stream, ptr, size));
}

openreg_status
openreg_call_copy(openreg_device *on, const char *call, void *dst, openreg_device *dst_device, const void *src,
                  openreg_device *src_device, uint64_t size, openreg_driver_stream stream)
{
    openreg_opened_driver *const driver = on->driver;
    if (size == 0)
        return OPENREG_OK;
    if (dst_device != NULL && openreg_device_is_lost(dst_device))
        return openreg_call_lost(dst_device, call);
    if (src_device != NULL && openreg_device_is_lost(src_device))
        return openreg_call_lost(src_device, call);
    const int32_t dst_ordinal = dst_device == NULL ? -1 : dst_device->ordinal;
    const int32_t src_ordinal = src_device == NULL ? -1 : src_device->ordinal;
    OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
        on, call,
        driver->table->copy(driver->instance, on->ordinal, stream, dst, dst_ordinal, src, src_ordinal, size)));
    set_active(on);
    set_active(dst_device);
    set_active(src_device);
    return OPENREG_OK;
}

/* A device's range cannot be set without `fill`, but bytes can be copied there. The last chunks are still being read
 * when copy() returns, so the device is synchronised before the buffer ends, also after a failure. */
static openreg_status
fill_by_copying(openreg_device *device, const char *call, void *dst, uint8_t value, uint64_t size,
                openreg_driver_stream stream)
{
    const size_t chunk = size < FILL_CHUNK ? (size_t)size : FILL_CHUNK;
    void *const source = malloc(chunk);
    if (source == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a fill by copying");
    memset(source, value, chunk);
    openreg_status status = OPENREG_OK;
    for (uint64_t done = 0; done < size && status == OPENREG_OK; done += chunk) {
        const uint64_t part = size - done < chunk ? size - done : chunk;
        status = openreg_call_copy(device, call, (char *)dst + done, device, source, NULL, part, stream);
    }
    if (status == OPENREG_OK) {
        status = openreg_call_device_drain(device, call);
    } else {
        const openreg_error_fields first = openreg_error_save();
        (void)openreg_call_device_drain(device, call);
        openreg_error_restore(&first);
    }
    free(source);
    return status;
}

openreg_status
openreg_call_fill(openreg_device *device, const char *call, void *dst, uint8_t value, uint64_t size,
                  openreg_driver_stream stream)
{
    openreg_opened_driver *const driver = device->driver;
    if (size == 0)
        return OPENREG_OK;
    if (driver->table->fill == NULL)
        return fill_by_copying(device, call, dst, value, size, stream);
    OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
        device, call, driver->table->fill(driver->instance, device->ordinal, stream, dst, value, size)));
    set_active(device);
    return OPENREG_OK;
}

openreg_status
openreg_call_host_alloc(openreg_device *device, const char *call, uint64_t size, void **out)
{
    openreg_opened_driver *const driver = device->driver;
    void *memory = NULL;
    if (driver->table->host_alloc == NULL) {
        if (posix_memalign(&memory, HOST_ALIGNMENT, size) != 0)
            return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for %llu bytes", (unsigned long long)size);
    } else {
        const openreg_alloc_info info = openreg_alloc_bytes(size);
        OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
            device, call, driver->table->host_alloc(driver->instance, device->ordinal, &info, &memory)));
        if (memory == NULL)
            return defect(driver->name, call, "host_alloc returned OK without memory");
    }
    *out = memory;
    return OPENREG_OK;
}

/* A caller that frees pinned memory has waited for the work that uses it, except on a lost device, where it can't: the
 * device's last copies may still read the memory. */
static void
drain_lost_devices(const char *call)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    const openreg_error_fields before = openreg_error_save();
    for (int32_t i = 0; table != NULL && i < table->count; ++i)
        if (openreg_device_is_lost(table->devices[i]))
            (void)openreg_call_device_drain(table->devices[i], call);
    openreg_error_restore(&before);
}

openreg_status
openreg_call_host_free(openreg_device *device, const char *call, void *ptr)
{
    openreg_opened_driver *const driver = device->driver;
    drain_lost_devices(call);
    if (driver->table->host_free == NULL) {
        free(ptr);
        return OPENREG_OK;
    }
    return OPENREG_RELEASE_CALL(device, call, driver->table->host_free(driver->instance, device->ordinal, ptr));
}

openreg_status
openreg_call_mem_info(openreg_device *device, const char *call, uint64_t *free_bytes, uint64_t *total)
{
    openreg_opened_driver *const driver = device->driver;
    if (driver->table->mem_info == NULL)
        return OPENREG_E_UNSUPPORTED;
    uint64_t free_now = 0;
    uint64_t total_now = 0;
    OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
        device, call, driver->table->mem_info(driver->instance, device->ordinal, &free_now, &total_now)));
    if (free_now > total_now)
        return openreg_error_set_driver(OPENREG_E_INTERNAL, call, driver->name,
                                        "mem_info gave %llu free bytes, but only %llu in all",
                                        (unsigned long long)free_now, (unsigned long long)total_now);
    *free_bytes = free_now;
    *total = total_now;
    return OPENREG_OK;
}

openreg_status
openreg_call_host_alias(openreg_device *device, const char *call, void *ptr, void **out)
{
    openreg_opened_driver *const driver = device->driver;
    if ((device->info.caps & OPENREG_CAP_HOST_VISIBLE) == 0)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call, "the memory of driver \"%s\" is not visible to the host",
                                 driver->name);
    void *alias = NULL;
    OPENREG_RETURN_NOT_OK(
        OPENREG_RELEASE_CALL(device, call, driver->table->host_alias(driver->instance, device->ordinal, ptr, &alias)));
    if (alias == NULL)
        return defect(driver->name, call, "host_alias returned OK without an address");
    *out = alias;
    return OPENREG_OK;
}

/* --------------------------------------------------------------------------------------------------------- streams */

openreg_status
openreg_call_stream_create(openreg_device *device, const char *call, int32_t priority, openreg_driver_stream *out)
{
    openreg_opened_driver *const driver = device->driver;
    openreg_driver_stream stream = NULL;
    if (driver->table->stream_create != NULL) {
        OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
            device, call, driver->table->stream_create(driver->instance, device->ordinal, 0, priority, &stream)));
        set_active(device);
    }
    *out = stream;
    return OPENREG_OK;
}

openreg_status
openreg_call_stream_destroy(openreg_device *device, const char *call, openreg_driver_stream stream)
{
    openreg_opened_driver *const driver = device->driver;
    if (driver->table->stream_destroy == NULL)
        return OPENREG_OK;
    return OPENREG_RELEASE_CALL(device, call, driver->table->stream_destroy(driver->instance, device->ordinal, stream));
}

openreg_status
openreg_call_stream_query(openreg_device *device, const char *call, openreg_driver_stream stream, int32_t *done)
{
    openreg_opened_driver *const driver = device->driver;
    int32_t finished = 1;
    if (driver->table->stream_query == NULL)
        OPENREG_RETURN_NOT_OK(openreg_call_device_sync(device, call));
    else
        OPENREG_RETURN_NOT_OK(
            OPENREG_WAIT_CALL(device, call, stream, 0,
                              driver->table->stream_query(driver->instance, device->ordinal, stream, &finished)));
    *done = finished != 0;
    return OPENREG_OK;
}

openreg_status
openreg_call_stream_sync(openreg_device *device, const char *call, openreg_driver_stream stream)
{
    openreg_opened_driver *const driver = device->driver;
    if (driver->table->stream_sync == NULL)
        return openreg_call_device_sync(device, call);
    return OPENREG_WAIT_CALL(device, call, stream, 0,
                             driver->table->stream_sync(driver->instance, device->ordinal, stream));
}

openreg_status
openreg_call_stream_native(openreg_device *device, const char *call, openreg_driver_stream stream, void **out)
{
    openreg_opened_driver *const driver = device->driver;
    void *native = stream;
    if (driver->table->stream_native != NULL)
        OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(
            device, call, driver->table->stream_native(driver->instance, device->ordinal, stream, &native)));
    *out = native;
    return OPENREG_OK;
}
