/* selection.c: chooses and opens drivers, publishes the device table and takes it back (selection.h).
 *
 * What is chosen, in this order: the drivers that OPENREG_DRIVERS lists, all of them; else the driver of highest
 * priority that can be opened and has a device. Everything is opened before anything is published, and closed again if
 * one step fails. */
#define _GNU_SOURCE
#include "selection.h"

#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "driver_calls.h"
#include "error.h"
#include "fault.h"
#include "fork.h"
#include "host_memory.h"
#include "log.h"
#include "text.h"

/* Drivers opened by one initialisation, before they are published. */
typedef struct opening {
    int count;
    openreg_open_driver *drivers[OPENREG_REGISTRY_MAX];
    openreg_candidate *candidates[OPENREG_REGISTRY_MAX];
} opening;

/* The answer of openreg_device_count() without a table. Of the holder of the gate. */
static struct {
    int is_valid;
    int32_t count;
    openreg_error error; /* why it is 0 */
} counted;

/* The open drivers of the published table. Of the holder of the gate. */
static opening published;

/* --------------------------------------------------------------------------------------------- opening and closing */

static int
at_risk(const openreg_driver *table)
{
    return (table->caps & OPENREG_CAP_FORK_SAFE) == 0;
}

static openreg_status
open_instance(const char *call, const openreg_candidate *candidate, openreg_open_driver *driver)
{
    const openreg_driver *const table = &candidate->table;
    openreg_options options;
    OPENREG_RETURN_NOT_OK(openreg_options_read(openreg_registry_environment(), candidate->name, &options));

    openreg_fork_at_risk(1);
    openreg_status status =
        openreg_call_open(table, candidate->name, call, options.items, options.count, &driver->instance);
    openreg_options_free(&options);
    if (status == OPENREG_OK) {
        status = openreg_call_device_count(table, candidate->name, call, driver->instance, &driver->device_count);
        if (status != OPENREG_OK) {
            const openreg_error first = *openreg_error_record();
            (void)openreg_call_close(table, candidate->name, call, driver->instance);
            *openreg_error_record() = first;
        }
    }
    if (status != OPENREG_OK || !at_risk(table))
        openreg_fork_at_risk(-1);
    return status;
}

/* Loads and opens a candidate and adds it to `all`. A failure is remembered by the candidate. */
static openreg_status
open_candidate(const char *call, openreg_candidate *candidate, opening *all)
{
    OPENREG_RETURN_NOT_OK(openreg_candidate_load(call, candidate));
    openreg_log(OPENREG_LOG_DEBUG, "Initializing driver \"%s\"", candidate->name);
    openreg_open_driver *const driver = calloc(1, sizeof *driver);
    openreg_status status;
    if (driver == NULL) {
        status = openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for driver \"%s\"", call, candidate->name);
    } else {
        driver->table = candidate->table;
        openreg_text_copy(driver->name, sizeof driver->name, candidate->name);
        status = open_instance(call, candidate, driver);
    }
    if (status != OPENREG_OK) {
        free(driver);
        openreg_candidate_fail(candidate, call);
        return status;
    }
    all->drivers[all->count] = driver;
    all->candidates[all->count++] = candidate;
    openreg_log(OPENREG_LOG_DEBUG, "Driver \"%s\" initialized, %d devices", candidate->name, driver->device_count);
    return OPENREG_OK;
}

/* Closes all drivers, the last one first. `retire`: keeps their entries for late readers of a retired table. Leaves the
 * thread's last error alone: a driver that cannot be closed is logged. */
static void
close_all(const char *call, opening *all, int retire)
{
    const openreg_error before = *openreg_last_error();
    while (all->count > 0) {
        openreg_open_driver *const driver = all->drivers[--all->count];
        if (openreg_call_close(&driver->table, driver->name, call, driver->instance) != OPENREG_OK)
            openreg_log(OPENREG_LOG_WARNING, "%s", openreg_last_error()->message);
        if (at_risk(&driver->table))
            openreg_fork_at_risk(-1);
        driver->instance = NULL;
        if (!retire)
            free(driver);
    }
    *openreg_error_record() = before;
}

/* ------------------------------------------------------------------------------------------------------- selection */

static openreg_choice
choice_of(const openreg_candidate *candidate)
{
    switch (candidate->source) {
    case OPENREG_SOURCE_LIBRARIES:
        return OPENREG_CHOICE_BY_PATH;
    case OPENREG_SOURCE_REGISTERED:
        return OPENREG_CHOICE_BY_CALL;
    default:
        return OPENREG_CHOICE_DISCOVERED;
    }
}

/* What to do with each driver of a selection: open it, or count its devices. `all` collects what was opened; *count
 * the devices. */
typedef openreg_status (*try_driver)(const char *call, openreg_candidate *candidate, opening *all, int64_t *count);

static openreg_status
try_open(const char *call, openreg_candidate *candidate, opening *all, int64_t *count)
{
    OPENREG_RETURN_NOT_OK(open_candidate(call, candidate, all));
    *count += all->drivers[all->count - 1]->device_count;
    return OPENREG_OK;
}

#define MUST_OPEN (-1) /* *count of try_probe: only opening will tell */

static openreg_status
try_probe(const char *call, openreg_candidate *candidate, opening *all, int64_t *count)
{
    (void)all;
    OPENREG_RETURN_NOT_OK(openreg_candidate_load(call, candidate));
    if (candidate->table.probe == NULL || *count == MUST_OPEN) {
        *count = MUST_OPEN;
        return OPENREG_OK;
    }
    openreg_options options = {NULL, 0};
    int32_t devices = 0;
    openreg_status status = openreg_options_read(openreg_registry_environment(), candidate->name, &options);
    if (status == OPENREG_OK)
        status = openreg_call_probe(&candidate->table, candidate->name, call, options.items, options.count, &devices);
    openreg_options_free(&options);
    if (status != OPENREG_OK) {
        openreg_candidate_fail(candidate, call);
        return status;
    }
    openreg_candidate_set_state(candidate, OPENREG_DRIVER_LOADED, devices, -1);
    *count += devices;
    return OPENREG_OK;
}

static int
is_repeated(const char *list, const char *before, const char *name)
{
    const char *item;
    size_t length;
    char earlier[32];
    for (const char *cursor = list; openreg_list_next(&cursor, &item, &length) && item < before;)
        if (openreg_driver_name_read(item, length, earlier) && strcmp(earlier, name) == 0)
            return 1;
    return 0;
}

static openreg_status
select_listed(const char *call, const char *list, try_driver attempt, opening *all, int64_t *count)
{
    const char *item;
    size_t length;
    for (const char *cursor = list; openreg_list_next(&cursor, &item, &length);) {
        char name[32] = "";
        const int is_name = openreg_driver_name_read(item, length, name);
        openreg_candidate *const candidate = is_name ? openreg_registry_find(name) : NULL;
        if (candidate == NULL) {
            char text[64];
            openreg_text_copy(text, length < sizeof text ? length + 1 : sizeof text, item);
            return openreg_report_unknown(call, is_name ? name : text);
        }
        if (is_repeated(list, item, name))
            continue;
        if (attempt(call, candidate, all, count) != OPENREG_OK)
            return openreg_report_asked_for(call, candidate, OPENREG_CHOICE_LISTED);
    }
    return OPENREG_OK;
}

/* A library that somebody named must load, whether it is chosen or not: a wrong path is no reason to be silent. */
static openreg_status
load_named_libraries(const char *call, openreg_candidate *const *all, int count)
{
    for (int i = 0; i < count; ++i)
        if (all[i]->source == OPENREG_SOURCE_LIBRARIES && openreg_candidate_load(call, all[i]) != OPENREG_OK)
            return openreg_report_asked_for(call, all[i], OPENREG_CHOICE_BY_PATH);
    return OPENREG_OK;
}

static openreg_status
select_automatically(const char *call, try_driver attempt, opening *opened, int64_t *count)
{
    openreg_candidate *all[OPENREG_REGISTRY_MAX];
    const int candidates = openreg_registry_candidates(all, OPENREG_REGISTRY_MAX);
    OPENREG_RETURN_NOT_OK(load_named_libraries(call, all, candidates));
    for (int i = 0; i < candidates; ++i) {
        openreg_candidate *const candidate = all[i];
        const openreg_choice choice = choice_of(candidate);
        /* Not installed: known by openreg_registry_refresh(), and nothing to talk about. */
        if (candidate->source == OPENREG_SOURCE_BESIDE && !candidate->has_table &&
            candidate->state == OPENREG_DRIVER_FAILED && candidate->code == OPENREG_E_NO_DEVICE)
            continue;
        if (attempt(call, candidate, opened, count) == OPENREG_OK)
            return OPENREG_OK;
        if (choice != OPENREG_CHOICE_DISCOVERED)
            return openreg_report_asked_for(call, candidate, choice);
        /* Found, not asked for: quiet, unless a library is there and could not even be loaded. */
        const int is_broken = candidate->source == OPENREG_SOURCE_BESIDE && !candidate->has_table;
        openreg_log(is_broken ? OPENREG_LOG_WARNING : OPENREG_LOG_INFO, "driver \"%s\" (%s) is not used: %s",
                    candidate->name, openreg_source_name(candidate->source), candidate->message);
    }
    return openreg_report_none(call);
}

static openreg_status
select_drivers(const char *call, try_driver attempt, opening *all, int64_t *count)
{
    const char *const list = openreg_environment_get(openreg_registry_environment(), "OPENREG_DRIVERS");
    const char *item;
    size_t length;
    const char *cursor = list;
    if (openreg_list_next(&cursor, &item, &length))
        return select_listed(call, list, attempt, all, count);
    return select_automatically(call, attempt, all, count);
}

/* -------------------------------------------------------------------------------------------------- initialisation */

static void
publish(openreg_device_table *table, const opening *all)
{
    int is_fenced = 0;
    for (int i = 0; i < all->count; ++i) {
        openreg_candidate_set_state(all->candidates[i], OPENREG_DRIVER_OPEN, all->drivers[i]->device_count,
                                    all->drivers[i]->first_device);
        is_fenced |= (all->drivers[i]->table.caps & OPENREG_CAP_FENCED) != 0;
    }
    published = *all;
    counted.is_valid = 0;
    openreg_fork_note_count(table->count);
    if (is_fenced)
        openreg_fault_handler_install();
    atomic_store_explicit(&openreg_device_table_published, table, memory_order_release);
    openreg_log(OPENREG_LOG_INFO, "%d device%s, first driver \"%s\"", table->count, table->count == 1 ? "" : "s",
                all->drivers[0]->name);
}

static openreg_status
initialize_gated(const char *call)
{
    const openreg_error before = *openreg_last_error();
    OPENREG_RETURN_NOT_OK(openreg_registry_refresh(call, NULL));
    opening *const all = calloc(1, sizeof *all);
    if (all == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory to open drivers", call);
    int64_t count = 0;
    openreg_device_table *table = NULL;
    openreg_status status = select_drivers(call, try_open, all, &count);
    if (status == OPENREG_OK)
        status = openreg_device_table_build(call, all->drivers, all->count, &table);
    if (status == OPENREG_OK) {
        publish(table, all);
        *openreg_error_record() = before; /* drivers that were tried in vain have left their errors */
    } else {
        close_all(call, all, 0);
    }
    free(all);
    return status;
}

openreg_status
openreg_initialize(const char *call)
{
    if (openreg_device_table_peek() != NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_registry_enter(call));
    const openreg_status status = openreg_device_table_peek() != NULL ? OPENREG_OK : initialize_gated(call);
    openreg_registry_leave();
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

/* -------------------------------------------------------------------------------------------------------- shutdown */

static openreg_status
refuse_if_in_use(const char *call, const openreg_device_table *table)
{
    for (int i = 0; i < published.count; ++i) {
        const openreg_open_driver *const driver = published.drivers[i];
        long long allocations = 0;
        long long events = 0;
        for (int32_t k = 0; k < driver->device_count; ++k) {
            const openreg_device *const device = table->devices[driver->first_device + k];
            const long long here = atomic_load_explicit(&device->live_events, memory_order_relaxed);
            allocations += openreg_device_live_objects(device) - here;
            events += here;
        }
        if (allocations + events > 0)
            return openreg_error_set(OPENREG_E_BUSY,
                                     "%s: %lld live allocation(s) and %lld live event(s) on driver '%s'; free them "
                                     "first",
                                     call, allocations, events, driver->name);
    }
    return OPENREG_OK;
}

openreg_status
openreg_shutdown(void)
{
    static const char call[] = "openreg_shutdown";
    OPENREG_RETURN_NOT_OK(openreg_registry_enter(call));
    openreg_device_table *const table = openreg_device_table_peek();
    openreg_status status = OPENREG_OK;
    if (table != NULL)
        status = refuse_if_in_use(call, table);
    if (table != NULL && status == OPENREG_OK) {
        atomic_store_explicit(&openreg_device_table_published, NULL, memory_order_release);
        openreg_device_table_dismantle(table, 1);
        for (int i = 0; i < published.count; ++i)
            openreg_candidate_set_state(published.candidates[i], OPENREG_DRIVER_LOADED, -1, -1);
        close_all(call, &published, 1);
        counted.is_valid = 0;
        openreg_fork_note_count(-1);
    }
    openreg_registry_leave();
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- count */

static int32_t
remember_count(openreg_status status, int64_t count, const openreg_error *before)
{
    counted.is_valid = status != OPENREG_E_NOMEM; /* that may be gone the next time */
    counted.count = status == OPENREG_OK ? (int32_t)count : 0;
    openreg_fork_note_count(counted.count);
    if (status != OPENREG_OK) {
        counted.error = *openreg_error_record();
        openreg_log(OPENREG_LOG_WARNING, "Device initialization: %s", counted.error.message);
    } else {
        *openreg_error_record() = *before;
    }
    return counted.count;
}

static int32_t
count_gated(const char *call)
{
    const openreg_error before = *openreg_last_error();
    int changed = 1;
    openreg_status status = openreg_registry_refresh(call, &changed);
    if (status == OPENREG_OK && counted.is_valid && !changed) {
        if (counted.count == 0)
            *openreg_error_record() = counted.error;
        return counted.count;
    }
    int64_t count = 0;
    if (status == OPENREG_OK)
        status = select_drivers(call, try_probe, NULL, &count);
    if (status == OPENREG_OK && count == MUST_OPEN) {
        status = initialize_gated(call);
        if (status == OPENREG_OK)
            return openreg_device_table_peek()->count;
    }
    if (status == OPENREG_OK && count > OPENREG_MAX_DEVICES)
        status = openreg_error_set(OPENREG_E_NO_DEVICE,
                                   "%s: the drivers have %lld devices together; PyTorch can count to %d", call,
                                   (long long)count, OPENREG_MAX_DEVICES);
    return remember_count(status, count, &before);
}

int32_t
openreg_device_count(void)
{
    static const char call[] = "openreg_device_count";
    const openreg_device_table *const table = openreg_device_table_peek();
    if (table != NULL)
        return table->count;
    if (openreg_in_bad_fork()) {
        const int32_t known = openreg_fork_parent_count();
        return known > 0 ? known : 0;
    }
    if (openreg_registry_enter(call) != OPENREG_OK)
        return 0;
    const openreg_device_table *const raced = openreg_device_table_peek();
    const int32_t count = raced != NULL ? raced->count : count_gated(call);
    openreg_registry_leave();
    return count;
}
