/* SPDX-License-Identifier: BSD-3-Clause */
/* records.c: records of known drivers (openreg/registry.h). Nothing here loads or opens a driver. */
#define _GNU_SOURCE
#include <string.h>

#include "base/error.h"
#include "base/sized_struct.h"
#include "base/text.h"
#include "driver/driver_calls.h"
#include "registry/candidates.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"
#include "selection/selection.h"

/* Updates the list, unless another thread holds the driver lock. Keeps the last error. */
static void
refresh_if_idle(const char *call)
{
    const openreg_error_fields before = openreg_error_save();
    openreg_status status = openreg_discovery_ensure(call);
    if (status == OPENREG_OK && !openreg_in_bad_fork()) {
        if (openreg_driver_lock_reject_reentry(call) == OPENREG_OK)
            openreg_run_discovery_callback();
        if (!openreg_driver_lock_is_held() && openreg_driver_lock_acquire(call) == OPENREG_OK) {
            status = openreg_discovery_refresh(call, 0);
            openreg_driver_lock_release();
        }
    }
    openreg_error_restore(&before);
}

int32_t
openreg_driver_count(void)
{
    refresh_if_idle("openreg_driver_count");
    int32_t count = 0;
    const openreg_candidate *candidate;
    openreg_candidates_lock();
    for (int i = 0; (candidate = openreg_candidates_at_locked(i)) != NULL; ++i)
        count += openreg_candidate_is_listed_locked(candidate);
    openreg_candidates_unlock();
    return count;
}

static uint32_t
flags_of(const openreg_candidate *candidate)
{
    uint32_t flags = 0;
    if (candidate->first_device >= 0)
        flags |= OPENREG_DRIVER_FLAG_ACTIVE;
    if (openreg_candidate_is_gpu(candidate))
        flags |= OPENREG_DRIVER_FLAG_GPU;
    if (candidate->source == OPENREG_SOURCE_MOCK)
        flags |= OPENREG_DRIVER_FLAG_MOCK;
    if ((candidate->flags & OPENREG_REGISTER_REQUIRED) != 0)
        flags |= OPENREG_DRIVER_FLAG_REQUIRED;
    if ((candidate->flags & OPENREG_REGISTER_EXPERIMENTAL) != 0)
        flags |= OPENREG_DRIVER_FLAG_EXPERIMENTAL;
    if (candidate->has_table)
        flags |= OPENREG_DRIVER_FLAG_HAS_TABLE;
    if (openreg_candidate_is_plugin(candidate))
        flags |= OPENREG_DRIVER_FLAG_PLUGIN;
    if (candidate->is_absent && !candidate->was_tried)
        flags |= OPENREG_DRIVER_FLAG_UNTRIED;
    if (candidate->state == OPENREG_DRIVER_STATE_FAILED && openreg_candidate_is_not_loaded(candidate))
        flags |= OPENREG_DRIVER_FLAG_UNLOADABLE;
    return flags;
}

static void
fill_locked(const openreg_candidate *candidate, openreg_driver_record *record)
{
    record->state = candidate->state;
    if (candidate->state != OPENREG_DRIVER_STATE_OPEN && openreg_candidates_find_locked(candidate->name) != candidate)
        record->state = OPENREG_DRIVER_STATE_SHADOWED;
    record->code = candidate->failure.code;
    record->priority = candidate->priority;
    record->device_count = candidate->device_count;
    record->first_device = candidate->first_device;
    record->flags = flags_of(candidate);
    openreg_text_copy(record->name, sizeof record->name, candidate->name);
    openreg_text_copy(record->source, sizeof record->source, candidate->origin);
    record->path = candidate->path;
    openreg_text_copy(record->message, sizeof record->message, candidate->failure.text);
    openreg_text_copy(record->version, sizeof record->version, candidate->version);
    if (candidate->has_table) {
        record->abi_minor = candidate->table.abi_minor;
        record->caps = candidate->table.caps;
        record->slots = openreg_driver_slots(&candidate->table);
        openreg_text_copy(record->version, sizeof record->version, candidate->table.version);
    }
}

openreg_status
openreg_driver_get_record(int32_t i, openreg_driver_record *out)
{
    static const char call[] = "openreg_driver_get_record";
    if (!openreg_sized_is_valid(out, OPENREG_DRIVER_RECORD_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL or its struct_size not set");
    openreg_driver_record record;
    memset(&record, 0, sizeof record);
    int32_t visible = 0;
    int found = 0;
    const openreg_candidate *candidate;
    openreg_candidates_lock();
    for (int k = 0; !found && (candidate = openreg_candidates_at_locked(k)) != NULL; ++k)
        if (openreg_candidate_is_listed_locked(candidate) && visible++ == i) {
            fill_locked(candidate, &record);
            found = 1;
        }
    openreg_candidates_unlock();
    if (!found)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "the index is out of range. It must be in [0, %d), but got %d.", visible, i);
    openreg_sized_write(out, &record, sizeof record);
    return OPENREG_OK;
}

openreg_status
openreg_driver_find(const char *name, openreg_driver_record *out)
{
    static const char call[] = "openreg_driver_find";
    char canonical[OPENREG_NAME_SIZE];
    if (name == NULL || !openreg_sized_is_valid(out, OPENREG_DRIVER_RECORD_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call, "an argument is NULL, or struct_size not set");
    refresh_if_idle(call);
    if (!openreg_driver_name_resolve(name, strlen(name), canonical))
        return openreg_report_unknown(call, name);
    openreg_driver_record record;
    memset(&record, 0, sizeof record);
    openreg_candidates_lock();
    const openreg_candidate *const candidate = openreg_candidates_find_member_locked(canonical);
    if (candidate != NULL)
        fill_locked(candidate, &record);
    openreg_candidates_unlock();
    if (candidate == NULL)
        return openreg_report_unknown(call, canonical);
    openreg_sized_write(out, &record, sizeof record);
    return OPENREG_OK;
}

const char *
openreg_driver_state_name(int32_t state)
{
    static const char *const names[] = {[OPENREG_DRIVER_STATE_FOUND] = "found",
                                        [OPENREG_DRIVER_STATE_LOADED] = "loaded",
                                        [OPENREG_DRIVER_STATE_OPEN] = "open",
                                        [OPENREG_DRIVER_STATE_FAILED] = "failed",
                                        [OPENREG_DRIVER_STATE_SHADOWED] = "shadowed"};
    return state >= OPENREG_DRIVER_STATE_FOUND && state <= OPENREG_DRIVER_STATE_SHADOWED ? names[state] : "unknown";
}

const char *
openreg_selection_chosen_by_name(int32_t chosen_by)
{
    static const char *const names[] = {[OPENREG_CHOSEN_NONE] = "none",
                                        [OPENREG_CHOSEN_BY_CALL] = "call",
                                        [OPENREG_CHOSEN_BY_ENVIRONMENT] = "environment",
                                        [OPENREG_CHOSEN_BY_PREFERENCE] = "preference",
                                        [OPENREG_CHOSEN_AUTOMATICALLY] = "automatic"};
    return chosen_by >= OPENREG_CHOSEN_NONE && chosen_by <= OPENREG_CHOSEN_AUTOMATICALLY ? names[chosen_by] : names[0];
}
