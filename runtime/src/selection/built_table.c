/* SPDX-License-Identifier: BSD-3-Clause */
/* built_table.c: device tables as objects: built, closed, retired (built_table.h). */
#define _GNU_SOURCE
#include "selection/built_table.h"

#include <stdlib.h>

#include "base/error.h"
#include "device/stream.h"
#include "memory/cache.h"
#include "memory/host_memory.h"

static openreg_device_table *retired_tables; /* written by the holder of the driver lock */
static uint32_t last_generation;             /* the same */

static void
discard_device(openreg_device *device)
{
    if (device == NULL)
        return;
    if (device->cache != NULL)
        openreg_cache_empty(device->cache);
    if (device->streams != NULL)
        openreg_stream_set_destroy(device->streams);
    free(device->cache);
    free(device);
}

void
openreg_table_discard(openreg_device_table *table)
{
    for (int32_t i = 0; i < table->count; ++i)
        discard_device(table->devices[i]);
    free(table);
}

void
openreg_table_retire(openreg_device_table *table)
{
    /* All of them before streams are destroyed: a cache may hold markers of another device. */
    for (int32_t i = 0; i < table->count; ++i)
        openreg_cache_empty(table->devices[i]->cache);
    for (int32_t i = 0; i < table->count; ++i) {
        openreg_stream_set_destroy(table->devices[i]->streams);
        table->devices[i]->streams = NULL;
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
        device->streams = openreg_stream_set_create(device, table->generation);
    }
    if (device == NULL || device->cache == NULL || device->streams == NULL) {
        discard_device(device);
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for device %d of driver \"%s\"", i,
                                 driver->name);
    }
    table->devices[table->count++] = device;
    return OPENREG_OK;
}

openreg_status
openreg_table_build(const char *call, openreg_opened_driver *const *drivers, int count, openreg_device_table **out)
{
    int64_t total = 0;
    for (int i = 0; i < count; ++i)
        total += drivers[i]->visible.count;
    if (total > OPENREG_MAX_DEVICES)
        return openreg_error_set(OPENREG_E_NO_DEVICE, call,
                                 "the drivers have %lld devices together; PyTorch can count to %d", (long long)total,
                                 OPENREG_MAX_DEVICES);

    openreg_device_table *const table = calloc(1, sizeof *table);
    if (table == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the device table");
    if (++last_generation == 0) /* 0 is "no table" in thread-local records */
        ++last_generation;
    table->generation = last_generation;
    for (int i = 0; i < count; ++i) {
        table->binds |= drivers[i]->own.device_bind != NULL;
        for (int32_t k = 0; k < drivers[i]->visible.count; ++k) {
            const openreg_status status = add_device(call, table, drivers[i], k);
            if (status != OPENREG_OK) {
                openreg_table_discard(table);
                return status;
            }
        }
    }
    *out = table;
    return OPENREG_OK;
}

void
openreg_table_set_closed(const openreg_device_table *table, bool are_closed)
{
    for (int32_t i = 0; i < table->count; ++i)
        openreg_cache_set_closed(table->devices[i]->cache, are_closed);
}

int64_t
openreg_table_live_objects_of(const openreg_device *device)
{
    return openreg_cache_live_blocks(device->cache) + openreg_host_memory_live_blocks(device) +
           atomic_load_explicit(&device->live_events, memory_order_relaxed) +
           atomic_load_explicit(&device->live_imports, memory_order_relaxed) +
           atomic_load_explicit(&device->live_communicators, memory_order_relaxed) +
           atomic_load_explicit(&device->live_graphs, memory_order_relaxed);
}

int64_t
openreg_table_live_objects(const openreg_device_table *table)
{
    int64_t live = 0;
    for (int32_t i = 0; i < table->count; ++i)
        live += openreg_table_live_objects_of(table->devices[i]);
    return live;
}
