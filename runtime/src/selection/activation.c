/* SPDX-License-Identifier: BSD-3-Clause */
/* activation.c: publishes, changes and withdraws the device table.
 *
 * A table is published once all its drivers are open and it is complete; on failure the newly opened drivers are closed.
 * Drivers that are no longer active stay open until openreg_shutdown(). */
#define _GNU_SOURCE
#include <openreg/embedding.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/inside.h"
#include "base/log.h"
#include "base/sized_struct.h"
#include "base/text.h"
#include "memory/cache.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"
#include "selection/activation.h"
#include "selection/built_table.h"
#include "selection/preference.h"
#include "watch/lab.h"
#include "watch/observers.h"

/* The published selection. Written by the holder of the driver lock, under the lock of the list. */
static struct {
    int32_t chosen_by;
    int count;
    openreg_candidate *drivers[OPENREG_CANDIDATES_MAX];
    unsigned requests; /* at that time; if it has changed, a GPU is chosen anew */
} standing;

static char *chosen_list;    /* of openreg_drivers_use(), or NULL; written by the holder of the driver lock */
static atomic_uint requests; /* openreg_selection.requests */

uint32_t
openreg_activation_changes(void)
{
    char preferred[OPENREG_NAME_SIZE];
    /* Each of these only grows, so their sum differs too. */
    return openreg_device_table_publications() + openreg_candidates_changes() + openreg_preference_get(preferred) +
           openreg_driver_open_attempts() + atomic_load_explicit(&requests, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------------------- in use or not */

static int
is_pinned(void)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    return table != NULL && openreg_table_live_objects(table) > 0;
}

/* Sets the error for a table that is in use. */
static openreg_status
reject_in_use(const char *call, const openreg_device_table *table)
{
    for (int i = 0; i < standing.count; ++i) {
        const openreg_opened_driver *const driver = standing.drivers[i]->opened;
        long long all = 0, events = 0, communicators = 0, graphs = 0;
        for (int32_t k = 0; k < table->count; ++k) {
            const openreg_device *const device = table->devices[k];
            if (device->driver != driver)
                continue;
            all += openreg_table_live_objects_of(device);
            events += atomic_load_explicit(&device->live_events, memory_order_relaxed);
            communicators += atomic_load_explicit(&device->live_communicators, memory_order_relaxed);
            graphs += atomic_load_explicit(&device->live_graphs, memory_order_relaxed);
        }
        const long long allocations = all - events - communicators - graphs;
        if (graphs > 0)
            return openreg_error_set(OPENREG_E_BUSY, call, "%lld live graph(s) on driver '%s'; destroy them first",
                                     graphs, driver->name);
        if (communicators > 0)
            return openreg_error_set(OPENREG_E_BUSY, call,
                                     "%lld live communicator(s) of collectives on driver '%s'; destroy them first",
                                     communicators, driver->name);
        if (events > 0)
            return openreg_error_set(OPENREG_E_BUSY, call,
                                     "%lld live allocation(s) and %lld live event(s) on driver '%s'; free them first",
                                     allocations, events, driver->name);
        if (allocations > 0)
            return openreg_error_set(OPENREG_E_BUSY, call, "%lld live allocation(s) on driver '%s'; free them first",
                                     allocations, driver->name);
    }
    return OPENREG_OK;
}

/* ---------------------------------------------------------------------------------------------------- publishing */

/* Publishes the table (NULL: none) in place of the one before. */
static void
exchange_table(openreg_device_table *table, const openreg_decision *decision)
{
    /* Before the table is published, so that observers get its first allocations. */
    openreg_observers_table(table != NULL);
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
    openreg_device_table_publish(table);
    openreg_candidates_unlock();
    openreg_device_count_note(table != NULL ? table->count : -1);
}

#define PATIENCE_NANOSECONDS 100000000u

/* Replaces the published table by `table` (NULL: none), unless it has live objects, or another thread is inside a call that may
 * use it: waits a tenth of a second for calls in flight; new calls wait during that time. */
static openreg_status
replace_table(const char *call, openreg_device_table *before, openreg_device_table *table,
              const openreg_decision *decision)
{
    OPENREG_RETURN_NOT_OK(reject_in_use(call, before));
    if (openreg_inside_is())
        return openreg_error_set(OPENREG_E_BUSY, call, "called inside a call that uses the devices");
    OPENREG_INSIDE;
    if (!openreg_inside_close(PATIENCE_NANOSECONDS))
        return openreg_error_set(OPENREG_E_BUSY, call, "another thread is inside a call that uses the devices");
    openreg_table_set_closed(before, true);
    const openreg_status status = reject_in_use(call, before); /* a call that has ended since may have made an object */
    if (status == OPENREG_OK)
        exchange_table(table, decision);
    else
        openreg_table_set_closed(before, false);
    openreg_inside_open();
    return status;
}

static int
is_set(const char *variable)
{
    const char *const text = openreg_variable(variable);
    return text != NULL && *text != '\0';
}

static openreg_status
publish(const char *call, openreg_device_table *table, const openreg_decision *decision)
{
    openreg_device_table *const before = openreg_device_table_peek();
    uint64_t caps = 0;
    for (int32_t i = 0; i < table->count; ++i)
        caps |= table->devices[i]->info.caps;
    if ((caps & OPENREG_CAP_FENCED) != 0)
        openreg_fence_signal_install();
    if (is_set("OPENREG_RACES") || is_set("OPENREG_SIM_RACES"))
        (void)openreg_lab_load_or_warn("OPENREG_RACES");
    if (before == NULL) {
        exchange_table(table, decision);
    } else {
        OPENREG_RETURN_NOT_OK(replace_table(call, before, table, decision));
        openreg_table_retire(before);
    }
    openreg_log(OPENREG_LOG_INFO, "%d device%s, first driver \"%s\"", table->count, table->count == 1 ? "" : "s",
                decision->drivers[0]->name);
    return OPENREG_OK;
}

/* Whether a device of the table is lost, which ends with the table. */
static int
has_lost_device(const openreg_device_table *table)
{
    for (int32_t i = 0; i < table->count; ++i)
        if (openreg_device_is_lost(table->devices[i]))
            return 1;
    return 0;
}

static int
is_standing(const openreg_decision *decision)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    return table != NULL && !has_lost_device(table) && decision->count == standing.count &&
           memcmp(decision->drivers, standing.drivers, (size_t)standing.count * sizeof standing.drivers[0]) == 0;
}

/* Publishes the decision's table. */
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
    OPENREG_RETURN_NOT_OK(openreg_table_build(call, drivers, decision->count, &table));
    const openreg_status status = publish(call, table, decision);
    if (status != OPENREG_OK)
        openreg_table_discard(table);
    return status;
}

typedef enum scope { CHOSEN, EVERY } scope;

/* Selects by `list` (NULL: by the other rules) and publishes, or leaves everything as it was. A table that is in use
 * stays; drivers are then only opened, and only in scope EVERY. */
static openreg_status
select_and_commit(const char *call, const char *list, scope wanted)
{
    const unsigned asked = atomic_load_explicit(&requests, memory_order_relaxed);
    const openreg_error_fields before = openreg_error_save();
    const int pinned = is_pinned();
    OPENREG_RETURN_NOT_OK(openreg_discovery_refresh(call, !pinned));
    openreg_decision decision;
    const int mark = openreg_driver_open_mark();
    openreg_status status = wanted == EVERY ? openreg_select_all(call, list, &decision)
                                            : openreg_select(call, list, openreg_candidate_open, &decision);
    if (status == OPENREG_OK && !pinned)
        status = commit(call, &decision);
    if (status == OPENREG_OK && !pinned)
        standing.requests = asked;
    if (status == OPENREG_OK)
        openreg_error_restore(&before); /* failed drivers have left their errors */
    else
        openreg_driver_open_close_back_to(call, mark);
    return status;
}

/* -------------------------------------------------------------------------------------------------- initialisation */

const char *
openreg_activation_list(void)
{
    return chosen_list;
}

openreg_status
openreg_activation_select(const char *call)
{
    return select_and_commit(call, chosen_list, CHOSEN);
}

static openreg_status
initialize(const char *call)
{
    if (openreg_device_table_peek() != NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = openreg_device_table_peek() != NULL ? OPENREG_OK : openreg_activation_select(call);
    openreg_driver_lock_release();
    return status;
}

__attribute__((constructor)) static void
handle_first_use(void)
{
    openreg_device_table_set_first_use(initialize);
}

openreg_status
openreg_init(void)
{
    return initialize("openreg_init");
}

openreg_status
openreg_drivers_reselect(void)
{
    static const char call[] = "openreg_drivers_reselect";
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = is_pinned() ? OPENREG_OK : select_and_commit(call, chosen_list, CHOSEN);
    openreg_driver_lock_release();
    return status;
}

openreg_status
openreg_drivers_open_all(void)
{
    static const char call[] = "openreg_drivers_open_all";
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
    (void)atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed);
}

/* Withdraws the choice; a published table that is not in use is selected anew. */
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
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the list of drivers");
    const openreg_device_table *const table = openreg_device_table_peek();
    openreg_status status;
    if (!is_pinned()) {
        status = select_and_commit(call, list, CHOSEN);
    } else if (!has_lost_device(table) && openreg_list_means(list, standing.drivers, standing.count)) {
        openreg_candidates_lock();
        standing.chosen_by = OPENREG_CHOSEN_BY_CALL;
        openreg_candidates_unlock();
        status = OPENREG_OK;
    } else {
        status = reject_in_use(call, table);
    }
    if (status != OPENREG_OK) {
        free(list);
        return status;
    }
    remember_list(list);
    return OPENREG_OK;
}

openreg_status
openreg_drivers_use(const char *names)
{
    static const char call[] = "openreg_drivers_use";
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = openreg_list_is_empty(names) ? use_none(call) : use_list(call, names);
    openreg_driver_lock_release();
    return status;
}

/* -------------------------------------------------------------------------------------------------- choosing a GPU */

static int
is_gpu_active(void)
{
    return openreg_device_table_peek() != NULL &&
           (standing.chosen_by != OPENREG_CHOSEN_AUTOMATICALLY || openreg_candidate_is_gpu(standing.drivers[0]));
}

static openreg_status
select_gpu(const char *call)
{
    const int is_settled = standing.requests == atomic_load_explicit(&requests, memory_order_relaxed);
    if ((is_gpu_active() && is_settled) || is_pinned())
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_discovery_refresh(call, 1));
    return openreg_would_find_gpu(call, chosen_list) ? select_and_commit(call, chosen_list, CHOSEN) : OPENREG_OK;
}

openreg_status
openreg_select_gpu(int32_t *found)
{
    static const char call[] = "openreg_select_gpu";
    if (found == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "found is NULL");
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = select_gpu(call);
    if (status == OPENREG_OK)
        *found = is_gpu_active();
    openreg_driver_lock_release();
    return status;
}

/* -------------------------------------------------------------------------------------------------------- the state */

openreg_status
openreg_selection_get(openreg_selection *out)
{
    if (!openreg_sized_is_valid(out, OPENREG_SELECTION_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, "openreg_selection_get", "out is NULL or its struct_size not set");
    openreg_selection now;
    memset(&now, 0, sizeof now);
    (void)openreg_preference_get(now.preference);
    now.requests = atomic_load_explicit(&requests, memory_order_relaxed);
    /* The table cannot be freed before the lock is released. */
    openreg_candidates_lock();
    const openreg_device_table *const table = openreg_device_table_peek();
    if (table != NULL) {
        now.chosen_by = standing.chosen_by;
        now.live_objects = openreg_table_live_objects(table);
        now.generation = table->generation;
        openreg_text_copy(now.default_driver, sizeof now.default_driver, standing.drivers[0]->name);
    }
    openreg_candidates_unlock();
    openreg_sized_write(out, &now, sizeof now);
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
        if (candidate->state != OPENREG_DRIVER_STATE_FAILED)
            continue;
        if (!candidate->is_absent) {
            openreg_candidate_reset(candidate);
            continue;
        }
        openreg_candidates_lock();
        candidate->was_tried = 0;
        openreg_candidates_unlock();
    }
}

openreg_status
openreg_reset_gpu(void)
{
    static const char call[] = "openreg_reset_gpu";
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire(call));
    const int is_automatic = is_gpu_active() && standing.chosen_by == OPENREG_CHOSEN_AUTOMATICALLY;
    const openreg_status status = is_automatic ? reject_in_use(call, openreg_device_table_peek()) : OPENREG_OK;
    openreg_driver_lock_release();
    if (status == OPENREG_OK)
        openreg_drivers_forget_failures();
    return status;
}

void
openreg_drivers_forget_failures(void)
{
    const openreg_error_fields before = openreg_error_save();
    (void)atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed);
    openreg_candidates_note_change();
    openreg_preference_forget_warnings();
    if (openreg_driver_lock_acquire("openreg_drivers_forget_failures") == OPENREG_OK) {
        reset_failures();
        openreg_driver_lock_release();
    } else {
        openreg_error_restore(&before);
    }
}

openreg_status
openreg_shutdown(void)
{
    static const char call[] = "openreg_shutdown";
    static const openreg_decision nothing = {.chosen_by = OPENREG_CHOSEN_NONE};
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire(call));
    openreg_device_table *const table = openreg_device_table_peek();
    const openreg_status status = table != NULL ? replace_table(call, table, NULL, &nothing) : OPENREG_OK;
    if (status == OPENREG_OK) {
        if (table != NULL)
            openreg_table_retire(table);
        openreg_driver_open_close_back_to(call, 0);
        reset_failures();
        openreg_candidates_note_change();
        remember_list(NULL);
    }
    openreg_driver_lock_release();
    return status;
}
