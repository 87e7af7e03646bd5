/* SPDX-License-Identifier: BSD-3-Clause */
/* device_table.c: builds and dismantles the table of devices (device_table.h). */
#include "driver/device_table.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/fork.h"
#include "device/stream.h"
#include "memory/cache.h"
#include "memory/host_memory.h"
#include "selection/activation.h"

_Atomic(openreg_device_table *) openreg_device_table_published;

static openreg_device_table *retired_tables; /* of the holder of the gate */
static uint32_t last_generation;             /* likewise */

static void
dismantle_device(openreg_device *device)
{
    if (device->cache != NULL)
        openreg_cache_destroy(device->cache);
    if (device->streams != NULL)
        openreg_stream_set_destroy(device->streams);
    device->cache = NULL;
    device->streams = NULL;
}

void
openreg_device_table_dismantle(openreg_device_table *table, int retire)
{
    for (int32_t i = 0; i < table->count; ++i) {
        dismantle_device(table->devices[i]);
        if (!retire)
            free(table->devices[i]);
    }
    if (!retire) {
        free(table);
        return;
    }
    table->retired = retired_tables;
    retired_tables = table;
}

static openreg_status
add_device(const char *call, openreg_device_table *table, openreg_opened_driver *driver, int32_t i)
{
    openreg_device *const device = calloc(1, sizeof *device);
    if (device != NULL) {
        device->index = table->count;
        device->ordinal = driver->visible.ordinals[i];
        device->driver = driver;
        device->info = driver->infos[i];
        device->cache = openreg_cache_create(device);
        device->streams = openreg_stream_set_create(device);
    }
    if (device == NULL || device->cache == NULL || device->streams == NULL) {
        if (device != NULL)
            dismantle_device(device);
        free(device);
        return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for device %d of driver \"%s\"", call, i,
                                 driver->name);
    }
    table->devices[table->count++] = device;
    return OPENREG_OK;
}

openreg_status
openreg_device_table_build(const char *call, openreg_opened_driver *const *drivers, int count,
                           openreg_device_table **out)
{
    int64_t total = 0;
    for (int i = 0; i < count; ++i)
        total += drivers[i]->visible.count;
    if (total > OPENREG_MAX_DEVICES)
        return openreg_error_set(OPENREG_E_NO_DEVICE,
                                 "%s: the drivers have %lld devices together; PyTorch can count to %d", call,
                                 (long long)total, OPENREG_MAX_DEVICES);

    openreg_device_table *const table = calloc(1, sizeof *table);
    if (table == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for the device table", call);
    if (++last_generation == 0) /* 0 is "no table" in thread-local records */
        ++last_generation;
    table->generation = last_generation;
    for (int i = 0; i < count; ++i) {
        table->binds |= drivers[i]->table.device_bind != NULL;
        for (int32_t k = 0; k < drivers[i]->visible.count; ++k) {
            const openreg_status status = add_device(call, table, drivers[i], k);
            if (status != OPENREG_OK) {
                openreg_device_table_dismantle(table, 0);
                return status;
            }
        }
    }
    *out = table;
    return OPENREG_OK;
}

openreg_status
openreg_device_get(const char *call, int32_t index, openreg_device **out)
{
    openreg_device_table *table = openreg_device_table_peek();
    if (__builtin_expect(table == NULL, 0)) {
        OPENREG_RETURN_NOT_OK(openreg_initialize(call));
        table = openreg_device_table_peek();
        if (table == NULL) /* another thread has shut down at once */
            return openreg_error_set(OPENREG_E_BUSY, "%s: the runtime is being shut down by another thread", call);
    }
    if (__builtin_expect((uint32_t)index >= (uint32_t)table->count, 0))
        return openreg_error_set(OPENREG_E_INVALID,
                                 "%s: The device index is out of range. It must be in [0, %d), but got %d.", call,
                                 table->count, index);
    *out = table->devices[index];
    return OPENREG_OK;
}

int64_t
openreg_device_live_objects(const openreg_device *device)
{
    return openreg_cache_live_blocks(device->cache) + openreg_host_memory_live_blocks(device) +
           atomic_load_explicit(&device->live_events, memory_order_relaxed) +
           atomic_load_explicit(&device->live_imports, memory_order_relaxed);
}

int64_t
openreg_device_table_live_objects(const openreg_device_table *table)
{
    int64_t live = 0;
    for (int32_t i = 0; i < table->count; ++i)
        live += openreg_device_live_objects(table->devices[i]);
    return live;
}
