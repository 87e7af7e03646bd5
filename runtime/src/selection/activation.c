/* SPDX-License-Identifier: BSD-3-Clause */
/* activation.c: builds, publishes, changes and withdraws the device table, and counts devices before there is one, opening
 * as little as possible.
 *
 * A table is published once all its drivers are open and it is complete; on failure the newly opened drivers are closed.
 * Drivers that are no longer active stay open until openreg_shutdown(). */
#define _GNU_SOURCE
#include <openreg/embedding.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "base/log.h"
#include "base/sized_struct.h"
#include "base/text.h"
#include "device/stream.h"
#include "memory/cache.h"
#include "memory/host_memory.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"
#include "selection/preference.h"
#include "selection/selection.h"
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

/* The count without a table. Written by the holder of the driver lock. */
static struct {
    int is_valid;
    int32_t count;
    openreg_error_fields error; /* why it is 0 */
    uint32_t of;                /* changes() at that time */
} counted;

/* Differs after each change of the inputs of a selection. Takes the lock of the list. */
static uint32_t
changes(void)
{
    char preferred[OPENREG_NAME_SIZE];
    /* Each of these only grows, so their sum differs too. */
    return openreg_device_table_publications() + openreg_candidates_changes() + openreg_preference_get(preferred) +
           openreg_driver_open_attempts() + atomic_load_explicit(&requests, memory_order_relaxed);
}

/* The latest result of openreg_device_count(), for the child of a fork(); -1: not known. */
static atomic_int last_known_count = -1;

static void
note_count(int32_t count)
{
    atomic_store_explicit(&last_known_count, count, memory_order_relaxed);
}

/* -------------------------------------------------------------------------------------------------- building a table */

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

/* Frees a table that was never published. */
static void
discard(openreg_device_table *table)
{
    for (int32_t i = 0; i < table->count; ++i)
        discard_device(table->devices[i]);
    free(table);
}

/* Empties caches and destroys streams of a table that was published; keeps the entries for late readers. */
static void
retire(openreg_device_table *table)
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

/* An unpublished table of the visible devices of `count` open drivers, in that order, with caches and streams. Errors:
 * OPENREG_E_NO_DEVICE (more than OPENREG_MAX_DEVICES), OPENREG_E_NOMEM. On failure nothing is left. */
static openreg_status
build(const char *call, openreg_opened_driver *const *drivers, int count, openreg_device_table **out)
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
                discard(table);
                return status;
            }
        }
    }
    *out = table;
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------- in use or not */

/* Objects that pin the table: allocations, pinned blocks, events, imports and communicators. */
static int64_t
live_objects_of(const openreg_device *device)
{
    return openreg_cache_live_blocks(device->cache) + openreg_host_memory_live_blocks(device) +
           atomic_load_explicit(&device->live_events, memory_order_relaxed) +
           atomic_load_explicit(&device->live_imports, memory_order_relaxed) +
           atomic_load_explicit(&device->live_communicators, memory_order_relaxed) +
           atomic_load_explicit(&device->live_graphs, memory_order_relaxed);
}

static int64_t
live_objects(const openreg_device_table *table)
{
    int64_t live = 0;
    for (int32_t i = 0; i < table->count; ++i)
        live += live_objects_of(table->devices[i]);
    return live;
}

static int
is_pinned(void)
{
    const openreg_device_table *const table = openreg_device_table_peek();
    return table != NULL && live_objects(table) > 0;
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
            all += live_objects_of(device);
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
    note_count(table != NULL ? table->count : -1);
}

static void
set_closed(const openreg_device_table *table, bool are_closed)
{
    for (int32_t i = 0; i < table->count; ++i)
        openreg_cache_set_closed(table->devices[i]->cache, are_closed);
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
    set_closed(before, true);
    const openreg_status status = reject_in_use(call, before); /* a call that has ended since may have made an object */
    if (status == OPENREG_OK)
        exchange_table(table, decision);
    else
        set_closed(before, false);
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
        retire(before);
    }
    openreg_log(OPENREG_LOG_INFO, "%d device%s, first driver \"%s\"", table->count, table->count == 1 ? "" : "s",
                decision->drivers[0]->name);
    return OPENREG_OK;
}

static int
is_standing(const openreg_decision *decision)
{
    return openreg_device_table_peek() != NULL && decision->count == standing.count &&
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
    OPENREG_RETURN_NOT_OK(build(call, drivers, decision->count, &table));
    const openreg_status status = publish(call, table, decision);
    if (status != OPENREG_OK)
        discard(table);
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

/* Selects, opens and publishes. Keeps the thread's error on success. */
static openreg_status
initialize_locked(const char *call)
{
    return select_and_commit(call, chosen_list, CHOSEN);
}

static openreg_status
initialize(const char *call)
{
    if (openreg_device_table_peek() != NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire_discovering(call));
    const openreg_status status = openreg_device_table_peek() != NULL ? OPENREG_OK : initialize_locked(call);
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

/* -------------------------------------------------------------------------------------------------- counting devices */

static int32_t
remember(openreg_status status, int64_t count, const openreg_error_fields *before)
{
    counted.is_valid = status != OPENREG_E_NOMEM; /* which may not hold the next time */
    counted.of = changes();
    counted.count = status == OPENREG_OK ? (int32_t)count : 0;
    note_count(counted.count);
    if (status != OPENREG_OK) {
        counted.error = openreg_error_save();
        openreg_log(OPENREG_LOG_WARNING, "Device initialization: %s", openreg_last_error()->message);
    } else {
        openreg_error_restore(before);
    }
    return counted.count;
}

static openreg_status
count_selected(const char *call, openreg_decision *decision)
{
    OPENREG_RETURN_NOT_OK(openreg_select(call, chosen_list, openreg_driver_open_count, decision));
    if (!decision->must_open && decision->devices > OPENREG_MAX_DEVICES)
        return openreg_error_set(OPENREG_E_NO_DEVICE, call,
                                 "the drivers have %lld devices together; PyTorch can count to %d",
                                 (long long)decision->devices, OPENREG_MAX_DEVICES);
    return OPENREG_OK;
}

static int32_t
count_locked(const char *call)
{
    const openreg_error_fields before = openreg_error_save();
    openreg_status status = openreg_discovery_refresh(call, 0);
    if (status == OPENREG_OK && counted.is_valid && counted.of == changes()) {
        if (counted.count == 0)
            openreg_error_restore(&counted.error);
        return counted.count;
    }
    int64_t count = 0;
    openreg_decision decision;
    if (status == OPENREG_OK)
        status = count_selected(call, &decision);
    if (status == OPENREG_OK && decision.must_open) {
        status = initialize_locked(call);
        count = status == OPENREG_OK ? openreg_device_table_peek()->count : 0;
    } else if (status == OPENREG_OK) {
        count = decision.devices;
    }
    return remember(status, count, &before);
}

int32_t
openreg_device_count(void)
{
    static const char call[] = "openreg_device_count";
    const openreg_device_table *const table = openreg_device_table_peek();
    if (table != NULL)
        return table->count;
    if (openreg_in_bad_fork()) {
        const int32_t known = atomic_load_explicit(&last_known_count, memory_order_relaxed);
        return known > 0 ? known : 0;
    }
    if (openreg_driver_lock_acquire_discovering(call) != OPENREG_OK)
        return 0;
    const openreg_device_table *const raced = openreg_device_table_peek();
    const int32_t count = raced != NULL ? raced->count : count_locked(call);
    openreg_driver_lock_release();
    return count;
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
        now.live_objects = live_objects(table);
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
            retire(table);
        openreg_driver_open_close_back_to(call, 0);
        reset_failures();
        openreg_candidates_note_change();
        remember_list(NULL);
    }
    openreg_driver_lock_release();
    return status;
}
