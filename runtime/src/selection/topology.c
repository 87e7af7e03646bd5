/* SPDX-License-Identifier: BSD-3-Clause */
/* topology.c: describes the devices of a driver that need not be open (openreg/registry.h). */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sized_struct.h"
#include "driver/driver_calls.h"
#include "driver/properties.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"
#include "selection/selection.h"

typedef struct question {
    const char *call, *driver, *topology;
    const openreg_option *options;
    uint32_t option_count;
    int32_t capacity;
    openreg_device_properties *devices;
    uint8_t *peers;
} question;

/* A GPU driver whose library, or the vendor's, is missing: the text does not depend on which. */
static openreg_status
reject_if_not_installed(const question *q, const openreg_candidate *candidate, openreg_status status)
{
    const int is_gpu = candidate->source == OPENREG_SOURCE_BUNDLED;
    if (!is_gpu || (status != OPENREG_E_NO_DEVICE && status != OPENREG_E_INCOMPATIBLE))
        return status;
    char title[OPENREG_NAME_SIZE];
    openreg_driver_name_upper(candidate->name, title, sizeof title);
    const openreg_error reason = *openreg_last_error();
    return openreg_error_set(OPENREG_E_INCOMPATIBLE, q->call,
                             "%s support not installed; cannot generate %s topology (%.700s)", title, title,
                             candidate->is_absent ? "the library is not there" : reason.message);
}

static openreg_status
describe(const question *q, const openreg_candidate *candidate, openreg_device_info *const *infos, int32_t *count)
{
    openreg_settings settings;
    OPENREG_RETURN_NOT_OK(openreg_settings_read(q->call, candidate, &settings));
    openreg_status status = OPENREG_E_NOMEM;
    if (openreg_options_set_all(&settings.options, q->options, q->option_count))
        status = openreg_call_describe(&candidate->table, candidate->name, q->call, &settings.options, q->topology,
                                       q->capacity, infos, q->peers, count);
    else
        (void)openreg_error_set(status, q->call, "no host memory for the options of driver '%s'", candidate->name);
    openreg_settings_free(&settings);
    return reject_if_not_installed(q, candidate, status);
}

/* Element i of the caller's array, whose elements have the struct_size of the first one. */
static openreg_device_properties *
next(const question *q, int32_t i)
{
    const uint32_t size = q->devices->struct_size;
    void *const element = (char *)q->devices + (size_t)i * size;
    memcpy(element, &size, sizeof size);
    return element;
}

static openreg_status
describe_all(const question *q, const openreg_candidate *candidate, int32_t *count)
{
    const size_t room = q->capacity > 0 ? (size_t)q->capacity : 1;
    openreg_device_info *const infos = calloc(room, sizeof *infos + sizeof(openreg_device_info *));
    if (infos == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, q->call, "no host memory for %d devices", q->capacity);
    openreg_device_info **const pointers = (openreg_device_info **)(void *)(infos + room);
    for (size_t i = 0; i < room; ++i) {
        infos[i].struct_size = sizeof infos[i];
        pointers[i] = &infos[i];
    }
    const openreg_status status = describe(q, candidate, pointers, count);
    for (int32_t i = 0; status == OPENREG_OK && i < *count && i < q->capacity; ++i)
        openreg_properties_fill(&candidate->table, candidate->name, i, &infos[i], next(q, i));
    free(infos);
    return status;
}

static openreg_status
answer(const question *q, int32_t *count)
{
    openreg_candidate *candidate;
    OPENREG_RETURN_NOT_OK(openreg_discovery_refresh(q->call, 0));
    OPENREG_RETURN_NOT_OK(openreg_inactive_driver_find(q->call, q->driver, &candidate));
    if (candidate->factory == NULL) { /* a factory is not called for this: that would open the driver */
        const openreg_status status = openreg_candidate_load(q->call, candidate);
        if (status != OPENREG_OK && candidate->source == OPENREG_SOURCE_BUNDLED)
            return reject_if_not_installed(q, candidate, OPENREG_E_INCOMPATIBLE);
        if (status != OPENREG_OK)
            return openreg_report_not_open(q->call, candidate);
    }
    if (!candidate->has_table)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, q->call, "topology not implemented for %s", candidate->name);
    return describe_all(q, candidate, count);
}

static openreg_status
check(const question *q, const int32_t *count)
{
    if (q->driver == NULL || count == NULL || q->capacity < 0 || (q->devices == NULL && q->capacity > 0) ||
        (q->options == NULL && q->option_count > 0))
        return openreg_error_set(OPENREG_E_INVALID, q->call, "an argument is NULL, or capacity negative");
    if (q->capacity > 0 && (!openreg_sized_is_valid(q->devices, OPENREG_DEVICE_PROPERTIES_SIZE_1) ||
                            q->devices->struct_size % sizeof(uint64_t) != 0))
        return openreg_error_set(OPENREG_E_INVALID, q->call, "struct_size of device 0 is not set");
    return OPENREG_OK;
}

openreg_status
openreg_driver_get_topology(const char *driver, const char *topology, const struct openreg_option *options,
                            uint32_t option_count, int32_t capacity, struct openreg_device_properties *devices,
                            uint8_t *peers, int32_t *count)
{
    const question q = {"openreg_driver_get_topology",
                        driver,
                        topology != NULL ? topology : "",
                        options,
                        option_count,
                        capacity,
                        devices,
                        peers};
    OPENREG_RETURN_NOT_OK(check(&q, count));
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(q.call));
    const openreg_status status = answer(&q, count);
    openreg_driver_lock_release();
    return status;
}
