/* SPDX-License-Identifier: BSD-3-Clause */
/* activation.c: publishes the device table, changes it and takes it back (activation.h).
 *
 * Everything is opened and built before anything is published, and what was opened in vain is closed again. Drivers that
 * are no longer active stay open until openreg_shutdown(). */
#define _GNU_SOURCE
#include "selection/activation.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/text.h"
#include "device/trace.h"
#include "memory/cache.h"
#include "memory/fault.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"
#include "selection/device_count.h"
#include "selection/preference.h"
#include "selection/selection.h"

/* What stands. Written by the holder of the gate, under the lock of the list. */
static struct {
    int32_t chosen_by;
    int count;
    openreg_candidate *drivers[OPENREG_CANDIDATES_MAX];
} standing;

static char *chosen_list; /* of openreg_use_drivers(), or NULL; of the holder of the gate */
static unsigned list_changes;

const char *
openreg_chosen_list(unsigned *changes)
{
    *changes = list_changes;
    return chosen_list;
}

/* ------------------------------------------------------------------------------------------------- in use or not */

static int
is_pinned(void)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    return table != NULL && openreg_device_table_live_objects(table) > 0;
}

/* Sets the error for a table that is in use. */
static openreg_status
reject_in_use(const char *call, const openreg_device_table *table)
{
    for (int i = 0; i < standing.count; ++i) {
        const openreg_opened_driver *const driver = standing.drivers[i]->opened;
        long long allocations = 0;
        long long events = 0;
        for (int32_t k = 0; k < table->count; ++k) {
            const openreg_device *const device = table->devices[k];
            if (device->driver != driver)
                continue;
            const long long here = atomic_load_explicit(&device->live_events, memory_order_relaxed);
            allocations += openreg_device_live_objects(device) - here;
            events += here;
        }
        if (events > 0)
            return openreg_error_set(
                OPENREG_E_BUSY, "%s: %lld live allocation(s) and %lld live event(s) on driver '%s'; free them first",
                call, allocations, events, driver->name);
        if (allocations > 0)
            return openreg_error_set(OPENREG_E_BUSY, "%s: %lld live allocation(s) on driver '%s'; free them first",
                                     call, allocations, driver->name);
    }
    return OPENREG_OK;
}

/* ---------------------------------------------------------------------------------------------------- publishing */

/* Makes the table (NULL: none) the one that stands, and gives back the one before. */
static openreg_device_table *
exchange_table(openreg_device_table *table, const openreg_decision *decision)
{
    openreg_candidates_lock();
    for (int i = 0; i < standing.count; ++i)
        standing.drivers[i]->first_device = -1;
    standing.chosen_by = decision->chosen_by;
    standing.count = decision->count;
    memcpy(standing.drivers, decision->drivers, (size_t)decision->count * sizeof decision->drivers[0]);
    int32_t first = 0;
    for (int i = 0; i < standing.count; ++i) {
        standing.drivers[i]->first_device = first;
        standing.drivers[i]->opened->was_published = 1;
        first += standing.drivers[i]->device_count;
    }
    openreg_device_table *const before = openreg_device_table_peek();
    atomic_store_explicit(&openreg_device_table_published, table, memory_order_release);
    openreg_candidates_unlock();
    openreg_count_forget();
    openreg_fork_note_count(table != NULL ? table->count : -1);
    return before;
}

static void
publish(openreg_device_table *table, const openreg_decision *decision)
{
    uint64_t caps = 0;
    for (int i = 0; i < decision->count; ++i)
        caps |= decision->drivers[i]->table.caps;
    if ((caps & OPENREG_CAP_FENCED) != 0)
        openreg_fault_handler_install();
    openreg_device_table *const before = exchange_table(table, decision);
    if (before != NULL)
        openreg_device_table_dismantle(before, 1);
    openreg_log(OPENREG_LOG_INFO, "%d device%s, first driver \"%s\"", table->count, table->count == 1 ? "" : "s",
                decision->drivers[0]->name);
}

static int
is_standing(const openreg_decision *decision)
{
    return openreg_device_table_peek() != NULL && decision->count == standing.count &&
           memcmp(decision->drivers, standing.drivers, (size_t)standing.count * sizeof standing.drivers[0]) == 0;
}

/* Makes the decision the one that stands. */
static openreg_status
commit(const char *call, const openreg_decision *decision)
{
    if (is_standing(decision)) {
        openreg_candidates_lock();
        standing.chosen_by = decision->chosen_by;
        openreg_candidates_unlock();
        return OPENREG_OK;
    }
    openreg_opened_driver *drivers[OPENREG_CANDIDATES_MAX];
    openreg_device_table *table = NULL;
    for (int i = 0; i < decision->count; ++i)
        drivers[i] = decision->drivers[i]->opened;
    OPENREG_RETURN_NOT_OK(openreg_device_table_build(call, drivers, decision->count, &table));
    publish(table, decision);
    return OPENREG_OK;
}

typedef enum scope { CHOSEN, EVERY } scope;

/* Selects by `list` (NULL: by the other rules) and commits, or leaves everything as it was. A table that is in use stays;
 * then drivers are only opened, and only in scope EVERY. */
static openreg_status
select_and_commit(const char *call, const char *list, scope wanted)
{
    const openreg_error before = *openreg_last_error();
    const int pinned = is_pinned();
    OPENREG_RETURN_NOT_OK(openreg_discovery_refresh(call, !pinned));
    openreg_decision decision;
    const int mark = openreg_driver_open_mark();
    openreg_status status = wanted == EVERY ? openreg_select_all(call, list, &decision)
                                            : openreg_select(call, list, openreg_driver_open, &decision);
    if (status == OPENREG_OK && !pinned)
        status = commit(call, &decision);
    if (status == OPENREG_OK)
        *openreg_error_record() = before; /* drivers that were tried in vain have left their errors */
    else
        openreg_driver_open_close_back_to(call, mark);
    return status;
}

/* -------------------------------------------------------------------------------------------------- initialisation */

openreg_status
openreg_initialize_gated(const char *call)
{
    return select_and_commit(call, chosen_list, CHOSEN);
}

openreg_status
openreg_initialize(const char *call)
{
    if (openreg_device_table_peek() != NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = openreg_device_table_peek() != NULL ? OPENREG_OK : openreg_initialize_gated(call);
    openreg_driver_lock_release();
    return status;
}

openreg_status
openreg_init(void)
{
    return openreg_initialize("openreg_init");
}

int
openreg_is_initialized(void)
{
    return openreg_device_table_peek() != NULL;
}

openreg_status
openreg_reselect(void)
{
    static const char call[] = "openreg_reselect";
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = is_pinned() ? OPENREG_OK : select_and_commit(call, chosen_list, CHOSEN);
    openreg_driver_lock_release();
    return status;
}

openreg_status
openreg_open_all(void)
{
    static const char call[] = "openreg_open_all";
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = select_and_commit(call, chosen_list, EVERY);
    openreg_driver_lock_release();
    return status;
}

/* ------------------------------------------------------------------------------------------------ the explicit call */

static void
remember_list(char *list)
{
    free(chosen_list);
    chosen_list = list;
    ++list_changes;
}

/* Takes the choice back; a table that stands and is not in use follows. */
static openreg_status
use_none(const char *call)
{
    if (openreg_device_table_peek() != NULL && !is_pinned())
        OPENREG_RETURN_NOT_OK(select_and_commit(call, NULL, CHOSEN));
    remember_list(NULL);
    return OPENREG_OK;
}

static openreg_status
use_list(const char *call, const char *names)
{
    char *const list = strdup(names);
    if (list == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for the list of drivers", call);
    openreg_status status;
    if (!is_pinned()) {
        status = select_and_commit(call, list, CHOSEN);
    } else if (openreg_list_means(list, standing.drivers, standing.count)) {
        openreg_candidates_lock();
        standing.chosen_by = OPENREG_CHOSEN_BY_CALL;
        openreg_candidates_unlock();
        status = OPENREG_OK;
    } else {
        status = reject_in_use(call, openreg_device_table_peek());
    }
    if (status != OPENREG_OK) {
        free(list);
        return status;
    }
    remember_list(list);
    return OPENREG_OK;
}

openreg_status
openreg_use_drivers(const char *names)
{
    static const char call[] = "openreg_use_drivers";
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = openreg_list_is_empty(names) ? use_none(call) : use_list(call, names);
    openreg_driver_lock_release();
    return status;
}

/* -------------------------------------------------------------------------------------------------------- the state */

openreg_status
openreg_get_selection(openreg_selection *out)
{
    if (out == NULL || out->struct_size < sizeof out->struct_size)
        return openreg_error_set(OPENREG_E_INVALID, "openreg_get_selection: out is NULL or its struct_size not set");
    openreg_selection now;
    memset(&now, 0, sizeof now);
    now.struct_size = out->struct_size;
    (void)openreg_preference_get(now.preference);
    /* The table cannot be dismantled before the lock is released. */
    openreg_candidates_lock();
    const openreg_device_table *const table = openreg_device_table_peek();
    if (table != NULL) {
        now.chosen_by = standing.chosen_by;
        now.live_objects = openreg_device_table_live_objects(table);
        now.generation = table->generation;
        openreg_text_copy(now.default_driver, sizeof now.default_driver, standing.drivers[0]->name);
    }
    openreg_candidates_unlock();
    memcpy(out, &now, out->struct_size < sizeof now ? out->struct_size : sizeof now);
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------ forgetting, ending */

static void
reset_failures(void)
{
    openreg_candidate *candidate;
    for (int i = 0;; ++i) {
        openreg_candidates_lock();
        candidate = openreg_candidates_at_locked(i);
        openreg_candidates_unlock();
        if (candidate == NULL)
            return;
        if (candidate->state == OPENREG_DRIVER_FAILED && !candidate->is_absent)
            openreg_candidate_reset(candidate);
    }
}

void
openreg_forget_failures(void)
{
    const openreg_error before = *openreg_last_error();
    openreg_candidates_note_change();
    openreg_preference_forget_warnings();
    if (openreg_driver_lock_acquire("openreg_forget_failures") == OPENREG_OK) {
        reset_failures();
        openreg_driver_lock_release();
    } else {
        *openreg_error_record() = before;
    }
}

openreg_status
openreg_shutdown(void)
{
    static const char call[] = "openreg_shutdown";
    static const openreg_decision nothing = {.chosen_by = OPENREG_CHOSEN_NONE};
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire(call));
    openreg_device_table *const table = openreg_device_table_peek();
    const openreg_status status = table != NULL ? reject_in_use(call, table) : OPENREG_OK;
    if (status == OPENREG_OK) {
        openreg_trace_leave_devices();
        if (table != NULL)
            openreg_device_table_dismantle(exchange_table(NULL, &nothing), 1);
        openreg_driver_open_close_back_to(call, 0);
        reset_failures();
        openreg_candidates_note_change();
        remember_list(NULL);
        openreg_count_forget();
    }
    openreg_driver_lock_release();
    return status;
}
