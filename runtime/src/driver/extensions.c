/* SPDX-License-Identifier: BSD-3-Clause */
#include "driver/extensions.h"

#include <stdio.h>
#include <string.h>

#include <openreg/comm.h>
#include <openreg/graph.h>
#include <openreg/ipc.h>
#include <openreg/schedule.h>
#include <openreg/vmm.h>

#include "base/error.h"
#include "base/log.h"

typedef void (*function)(void);
#define HEAD (2 * sizeof(uint32_t))

/* EXTENSION(name of the variable, NAME of the macros, slots...) */
#define EXTENSION(name_, NAME_, ...)                                                                                   \
    static const char *const name_##_slots[] = {__VA_ARGS__};                                                          \
    static_assert(HEAD + sizeof name_##_slots / sizeof name_##_slots[0] * sizeof(function) == NAME_##_SIZE_1,          \
                  "a name for each function");                                                                         \
    const openreg_extension openreg_extension_##name_ = {NAME_##_NAME, NAME_##_VERSION, NAME_##_SIZE_1, name_##_slots}

EXTENSION(comm, OPENREG_COMM, "id_size", "unique_id", "init", "queue", "get_error", "abort", "destroy");
EXTENSION(graph, OPENREG_GRAPH, "begin", "end", "status", "instantiate", "launch", "?update", "destroy_graph",
          "destroy_exec", "?dump", "?exchange_mode");
EXTENSION(ipc, OPENREG_IPC, "handle_size", "memory_export", "memory_open", "memory_close");
EXTENSION(schedule, OPENREG_SCHEDULE, "poison");
EXTENSION(vmm, OPENREG_VMM, "granularity", "reserve", "map", "unmap", "release");

bool
openreg_extension_is_fit(const openreg_extension *what, const void *table, char *why, size_t size)
{
    uint32_t head[2];
    memcpy(head, table, sizeof head[0]);
    if (head[0] < what->size) {
        (void)snprintf(why, size, "its table %s has %u bytes, version %u needs at least %u", what->name,
                       (unsigned)head[0], (unsigned)what->version, (unsigned)what->size);
        return false;
    }
    memcpy(head, table, sizeof head);
    if (head[1] < what->version) {
        (void)snprintf(why, size, "its table %s has version %u, at least version %u is needed", what->name,
                       (unsigned)head[1], (unsigned)what->version);
        return false;
    }
    for (size_t i = 0; i < (what->size - HEAD) / sizeof(function); ++i) {
        function slot;
        memcpy(&slot, (const char *)table + HEAD + i * sizeof slot, sizeof slot);
        if (slot == NULL && what->slots[i][0] != '?') {
            (void)snprintf(why, size, "its table %s lacks the required function %s", what->name, what->slots[i]);
            return false;
        }
    }
    return true;
}

openreg_status
openreg_call_extension(const char *call, const openreg_opened_driver *driver, const openreg_extension *what,
                       const void **out)
{
    char why[160];
    const void *const table = driver->table->extension == NULL
                                  ? NULL
                                  : driver->table->extension(driver->instance, what->name, what->version);
    if (table != NULL && !openreg_extension_is_fit(what, table, why, sizeof why))
        return openreg_error_set_driver(OPENREG_E_INCOMPATIBLE, call, driver->name, "%s", why);
    *out = table;
    return OPENREG_OK;
}

const void *
openreg_find_extension(const char *call, const openreg_opened_driver *driver, const openreg_extension *what)
{
    const void *table = NULL;
    const openreg_error_fields before = openreg_error_save();
    if (openreg_call_extension(call, driver, what, &table) != OPENREG_OK) {
        openreg_log(OPENREG_LOG_WARNING, "%s: not used", openreg_last_error()->message);
        openreg_error_restore(&before);
    }
    return table;
}

int
openreg_driver_captures(const openreg_driver *table, openreg_instance instance, int32_t ordinal,
                        openreg_driver_stream stream)
{
    const openreg_extension *const what = &openreg_extension_graph;
    const openreg_graph_table *const graphs = table->extension == NULL
                                                  ? NULL
                                                  : table->extension(instance, what->name, what->version);
    char why[160];
    int32_t status = OPENREG_CAPTURE_NONE;
    return graphs != NULL && openreg_extension_is_fit(what, graphs, why, sizeof why) &&
           graphs->status(instance, ordinal, stream, &status) == OPENREG_OK && status != OPENREG_CAPTURE_NONE;
}
