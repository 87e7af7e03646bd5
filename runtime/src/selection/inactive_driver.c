/* SPDX-License-Identifier: BSD-3-Clause */
/* inactive_driver.c: opens and queries a driver without making it active (selection.h). */
#define _GNU_SOURCE
#include "selection/selection.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/sized_struct.h"
#include "driver/properties.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"

static openreg_status
open_quietly(const char *call, openreg_candidate *candidate)
{
    const openreg_error_fields before = openreg_error_save();
    int64_t devices;
    if (openreg_driver_open_try(call, candidate, openreg_candidate_open, &devices) != OPENREG_OK)
        return openreg_report_not_open(call, candidate);
    openreg_error_restore(&before);
    return OPENREG_OK;
}

/* The first member of a group that can be opened; none is open. */
static openreg_status
open_member(const char *call, const char *const *members, size_t count, openreg_candidate **out)
{
    openreg_status status = OPENREG_E_NO_DEVICE;
    for (size_t i = 0; i < count && status != OPENREG_OK; ++i) {
        *out = openreg_candidates_find(members[i]);
        status = open_quietly(call, *out);
    }
    return status;
}

openreg_status
openreg_inactive_driver_find(const char *call, const char *name, openreg_candidate **out)
{
    char canonical[OPENREG_NAME_SIZE];
    const char *const *members;
    if (!openreg_driver_name_resolve(name, strlen(name), canonical))
        return openreg_report_unknown(call, name);
    openreg_candidates_lock();
    *out = openreg_candidates_find_member_locked(canonical);
    openreg_candidates_unlock();
    if (*out == NULL)
        return openreg_report_unknown(call, canonical);
    const size_t count = openreg_driver_group(canonical, &members);
    if (count > 0 && (*out)->state != OPENREG_DRIVER_STATE_OPEN)
        return open_member(call, members, count, out);
    return OPENREG_OK;
}

static openreg_status
open_locked(const char *call, const char *name)
{
    openreg_candidate *candidate;
    OPENREG_RETURN_NOT_OK(openreg_discovery_refresh(call, 0));
    OPENREG_RETURN_NOT_OK(openreg_discovery_check(call));
    OPENREG_RETURN_NOT_OK(openreg_inactive_driver_find(call, name, &candidate));
    return open_quietly(call, candidate);
}

openreg_status
openreg_driver_open(const char *name)
{
    static const char call[] = "openreg_driver_open";
    if (name == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "name is NULL");
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = open_locked(call, name);
    openreg_driver_lock_release();
    return status;
}

/* ------------------------------------------------------------------------------------------------------- its options */

/* Appends "key=value" and its NUL as far as there is room. */
static void
append_option(openreg_option option, char *out, size_t size, size_t *length)
{
    const size_t room = *length < size ? size - *length : 0;
    const int needed = snprintf(room > 0 ? out + *length : NULL, room, "%s=%s", option.key, option.value);
    *length += needed > 0 ? (size_t)needed + 1 : 0;
}

static openreg_status
read_options(const char *call, const char *driver, char *out, size_t size, size_t *length)
{
    char name[OPENREG_NAME_SIZE];
    openreg_settings settings;
    OPENREG_RETURN_NOT_OK(openreg_discovery_refresh(call, 0));
    if (!openreg_driver_name_resolve(driver, strlen(driver), name))
        return openreg_report_unknown(call, driver);
    openreg_candidates_lock();
    const openreg_candidate *const candidate = openreg_candidates_find_member_locked(name);
    openreg_candidates_unlock();
    if (candidate == NULL)
        return openreg_report_unknown(call, name);
    OPENREG_RETURN_NOT_OK(openreg_settings_read(call, candidate, &settings));
    *length = 0;
    for (size_t i = 0; i < settings.options.count; ++i)
        append_option(settings.options.items[i], out, size, length);
    if (settings.visible.key != NULL)
        append_option(settings.visible, out, size, length);
    openreg_settings_free(&settings);
    return OPENREG_OK;
}

openreg_status
openreg_driver_get_options(const char *driver, char *out, size_t size, size_t *length)
{
    static const char call[] = "openreg_driver_get_options";
    if (driver == NULL || length == NULL || (out == NULL && size > 0))
        return openreg_error_set(OPENREG_E_INVALID, call, "an argument is NULL");
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = read_options(call, driver, out, size, length);
    openreg_driver_lock_release();
    return status;
}

/* ----------------------------------------------------------------------------------------------- asking open drivers */

openreg_status
openreg_driver_get_device_properties(const char *driver, int32_t i, struct openreg_device_properties *inout)
{
    static const char call[] = "openreg_driver_get_device_properties";
    char name[OPENREG_NAME_SIZE];
    if (driver == NULL || !openreg_sized_is_valid(inout, OPENREG_DEVICE_PROPERTIES_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call, "an argument is NULL, or struct_size not set");
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    int is_open = 0, is_described = 0;
    int32_t count = 0;
    if (openreg_driver_name_resolve(driver, strlen(driver), name)) {
        openreg_candidates_lock();
        const openreg_candidate *const candidate = openreg_candidates_find_open_locked(name);
        is_open = candidate != NULL;
        if (is_open) {
            const openreg_opened_driver *const opened = candidate->opened;
            count = candidate->device_count;
            is_described = opened == NULL;
            if (opened != NULL && i >= 0 && i < count)
                openreg_properties_fill(opened->table, opened->name, opened->visible.ordinals[i], &opened->infos[i],
                                        inout);
        }
        openreg_candidates_unlock();
    }
    if (!is_open)
        return openreg_error_set(OPENREG_E_INVALID, call, "driver '%.40s' is not open", driver);
    if (i < 0 || i >= count)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "the index is out of range. It must be in [0, %d), but got %d.", count, i);
    if (is_described)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call, "driver '%s' is only described by its factory", name);
    return OPENREG_OK;
}
