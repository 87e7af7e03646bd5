/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_open.c: opens, counts and closes drivers (driver_open.h). */
#define _GNU_SOURCE
#include "registry/driver_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/text.h"
#include "driver/attached_layers.h"
#include "driver/driver_calls.h"
#include "driver/visible_devices.h"
#include "registry/discovery.h"
#include "registry/layer_stack.h"
#include "registry/mock.h"
#include "registry/open_watchdog.h"
#include "watch/interceptors.h"
#include "watch/lab.h"
#include "watch/observers.h"

#define OPENREG_FAULTS "faults" /* the option with a fault plan */

/* The open drivers, in the order in which they were opened. */
static openreg_candidate *open_candidates[OPENREG_CANDIDATES_MAX];
static int open_count;
static uint32_t attempts; /* to open one */

static int
at_risk(const openreg_driver *table)
{
    return (table->caps & OPENREG_CAP_FORK_SAFE) == 0;
}

/* -------------------------------------------------------------------------------------------------------- settings */

void
openreg_settings_free(openreg_settings *settings)
{
    openreg_options_free(&settings->options);
    openreg_option_free(settings->visible);
    openreg_option_free(settings->faults);
    settings->visible = settings->faults = (openreg_option){NULL, NULL};
}

/* Drivers whose names begin with this one and "_". Names stay as long as their candidates, which are never freed. */
static size_t
longer_names(const char *name, const char *out[OPENREG_CANDIDATES_MAX])
{
    const size_t length = strlen(name);
    size_t count = 0;
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    const int known = openreg_candidates_sorted(all);
    for (int i = 0; i < known; ++i)
        if (strncmp(all[i]->name, name, length) == 0 && all[i]->name[length] == '_')
            out[count++] = all[i]->name;
    return count;
}

static openreg_status
collect(const char *call, const openreg_candidate *candidate, openreg_options *options)
{
    const openreg_environment *const environment = openreg_discovery_environment();
    if (!openreg_options_set_process(options))
        return OPENREG_E_NOMEM;
    if (candidate->source == OPENREG_SOURCE_MOCK)
        OPENREG_RETURN_NOT_OK(openreg_mock_set_options(
            call, candidate->name, openreg_environment_get(environment, OPENREG_MOCK_COUNT_VARIABLE), options));
    const char *others[OPENREG_CANDIDATES_MAX];
    const size_t other_count = longer_names(candidate->name, others);
    return openreg_options_set_all(options, candidate->options.items, candidate->options.count) &&
                   openreg_options_set_from(options, environment, candidate->name, others, other_count)
               ? OPENREG_OK
               : OPENREG_E_NOMEM;
}

openreg_status
openreg_settings_read(const char *call, const openreg_candidate *candidate, openreg_settings *out)
{
    openreg_settings settings = {{NULL, 0}, {NULL, NULL}, {NULL, NULL}};
    const openreg_status status = collect(call, candidate, &settings.options);
    if (status != OPENREG_OK) {
        openreg_settings_free(&settings);
        if (status == OPENREG_E_NOMEM)
            (void)openreg_error_set(status, call, "no host memory for the options of driver '%s'", candidate->name);
        return status;
    }
    settings.visible = openreg_options_remove(&settings.options, OPENREG_VISIBLE_DEVICES);
    settings.faults = openreg_options_remove(&settings.options, OPENREG_FAULTS);
    *out = settings;
    return OPENREG_OK;
}

static openreg_status
read_visible(const char *call, const openreg_candidate *candidate, const openreg_settings *settings, int32_t found,
             openreg_visible_devices *out)
{
    char upper[OPENREG_NAME_SIZE], variable[64];
    openreg_driver_name_upper(candidate->name, upper, sizeof upper);
    (void)snprintf(variable, sizeof variable, "%s%s_VISIBLE_DEVICES", OPENREG_VARIABLE_PREFIX, upper);
    const int is_variable = openreg_environment_get_option(openreg_discovery_environment(), candidate->name,
                                                           OPENREG_VISIBLE_DEVICES) != NULL;
    return openreg_visible_devices_read(call, candidate->name, is_variable ? variable : "option visible_devices",
                                        settings->visible.value, found, out);
}

/* --------------------------------------------------------------------------------------------------------- opening */

/* Reads a driver's devices right after open(). */
static openreg_status
inspect(const char *call, const openreg_candidate *candidate, const openreg_settings *settings,
        openreg_opened_driver *driver)
{
    int32_t found = 0;
    OPENREG_RETURN_NOT_OK(openreg_call_device_count(&driver->own, driver->name, call, driver->instance, &found));
    OPENREG_RETURN_NOT_OK(read_visible(call, candidate, settings, found, &driver->visible));
    driver->infos = calloc((size_t)driver->visible.count, sizeof *driver->infos);
    if (driver->infos == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the devices of driver '%s'", driver->name);
    for (int32_t i = 0; i < driver->visible.count; ++i)
        OPENREG_RETURN_NOT_OK(openreg_call_device_info(driver, call, driver->visible.ordinals[i], &driver->infos[i]));
    return OPENREG_OK;
}

static openreg_status
call_open(const char *call, openreg_opened_driver *driver, const openreg_options *options)
{
    const openreg_environment *const environment = openreg_discovery_environment();
    const openreg_status status = openreg_layer_stack_open(
        call, driver, openreg_environment_get(environment, OPENREG_LAYERS_VARIABLE),
        openreg_environment_get(environment, OPENREG_VALIDATE_VARIABLE), options);
    if (status == OPENREG_OK)
        openreg_layers_add(driver);
    return status;
}

static openreg_status
call_close(const char *call, openreg_opened_driver *driver)
{
    openreg_layers_remove(driver);
    const openreg_status status = openreg_call_close(&driver->own, driver->name, call, driver->instance);
    openreg_layer_stack_free(driver);
    return status;
}

/* Begins its fault plan, which is active once the driver is open. */
static openreg_status
begin_faults(const char *call, openreg_opened_driver *driver, const openreg_settings *settings)
{
    char upper[OPENREG_NAME_SIZE], what[64 + OPENREG_NAME_SIZE];
    if (settings->faults.value == NULL)
        return OPENREG_OK;
    openreg_driver_name_upper(driver->name, upper, sizeof upper);
    (void)snprintf(what, sizeof what, "%s%s_FAULTS", OPENREG_VARIABLE_PREFIX, upper);
    const openreg_lab_parts *const lab = openreg_lab_load();
    return lab != NULL ? lab->begin_faults(call, what, settings->faults.value, driver, &driver->faults)
                       : openreg_error_set_call(call);
}

static openreg_status
open_instance(const char *call, const openreg_candidate *candidate, openreg_opened_driver *driver)
{
    openreg_settings settings;
    OPENREG_RETURN_NOT_OK(openreg_settings_read(call, candidate, &settings));
    openreg_fork_at_risk(1);
    openreg_status status = call_open(call, driver, &settings.options);
    if (status == OPENREG_OK) {
        status = inspect(call, candidate, &settings, driver);
        if (status == OPENREG_OK)
            status = begin_faults(call, driver, &settings);
        if (status != OPENREG_OK) {
            const openreg_error_fields first = openreg_error_save();
            (void)call_close(call, driver);
            openreg_error_restore(&first);
        }
    }
    if (status != OPENREG_OK || !at_risk(&driver->own))
        openreg_fork_at_risk(-1);
    openreg_settings_free(&settings);
    return status;
}

static void
free_driver(openreg_opened_driver *driver)
{
    free(driver->infos);
    free(driver);
}

/* The candidate has a table. */
static openreg_status
open_table(const char *call, openreg_candidate *candidate)
{
    openreg_opened_driver *const driver = calloc(1, sizeof *driver);
    openreg_status status;
    if (driver == NULL) {
        status = openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for driver '%s'", candidate->name);
    } else {
        driver->own = candidate->table;
        atomic_store_explicit(&driver->table, &driver->own, memory_order_relaxed);
        openreg_text_copy(driver->name, sizeof driver->name, candidate->name);
        status = open_instance(call, candidate, driver);
    }
    if (status != OPENREG_OK) {
        if (driver != NULL)
            free_driver(driver);
        openreg_candidate_fail(candidate, call);
        return status;
    }
    openreg_candidate_set_open(candidate, driver, driver->visible.count);
    return OPENREG_OK;
}

static void
announce(openreg_candidate *candidate)
{
    if (candidate->source == OPENREG_SOURCE_MOCK && !candidate->was_announced) {
        candidate->was_announced = 1;
        openreg_log(OPENREG_LOG_WARNING, "Driver '%s' is a mock: its devices are simulated (%s)", candidate->name,
                    OPENREG_MOCK_VARIABLE);
    }
    if ((candidate->flags & OPENREG_REGISTER_EXPERIMENTAL) != 0)
        openreg_log(OPENREG_LOG_WARNING,
                    "Driver '%s' is experimental and not all %s functionality may be correctly supported!",
                    candidate->name, openreg_device_title());
    openreg_log(OPENREG_LOG_DEBUG, "Initializing driver '%s'", candidate->name);
}

typedef struct opened_candidate {
    const char *call;
    openreg_candidate *candidate;
} opened_candidate;

static openreg_status
open_watched(void *argument)
{
    const opened_candidate *const opened = argument;
    OPENREG_RETURN_NOT_OK(openreg_candidate_load(opened->call, opened->candidate));
    if (opened->candidate->has_table)
        return open_table(opened->call, opened->candidate);
    openreg_candidate_set_open(opened->candidate, NULL, opened->candidate->device_count);
    return OPENREG_OK;
}

static void
start_recorder(void)
{
    static const char variable[] = "OPENREG_FLIGHT_RECORDER";
    const char *const text = openreg_environment_get(openreg_discovery_environment(), variable);
    if (text == NULL || *text == '\0')
        return;
    const openreg_lab_parts *const lab = openreg_lab_load_or_warn(variable);
    if (lab != NULL)
        lab->read_recorder(text);
}

openreg_status
openreg_candidate_open(const char *call, openreg_candidate *candidate, int64_t *devices)
{
    if (candidate->state != OPENREG_DRIVER_STATE_OPEN) {
        ++attempts;
        announce(candidate);
        start_recorder();
        openreg_open_watchdog watch;
        const char *const limit = openreg_environment_get(openreg_discovery_environment(), OPENREG_INIT_WARN_VARIABLE);
        openreg_open_watchdog_begin(&watch, candidate->name, openreg_open_watchdog_limit(limit));
        opened_candidate opened = {call, candidate};
        const openreg_work work = {call, candidate->name, OPENREG_HOST, NULL, &openreg_host_services};
        const openreg_status status = openreg_intercepted_run(&work, open_watched, &opened);
        openreg_open_watchdog_end(&watch);
        OPENREG_RETURN_NOT_OK(status);
        open_candidates[open_count++] = candidate;
        openreg_log(OPENREG_LOG_DEBUG,
                    "Initialized driver: driver=%s process_index=%d device_count=%d local_devices=%d", candidate->name,
                    openreg_process_index(), candidate->device_count, candidate->device_count);
        openreg_log(OPENREG_LOG_DEBUG, "Driver '%s' initialized", candidate->name);
    }
    *devices = candidate->device_count;
    return OPENREG_OK;
}

uint32_t
openreg_driver_open_attempts(void)
{
    return attempts;
}

int
openreg_driver_open_mark(void)
{
    return open_count;
}

static void
close_candidate(const char *call, openreg_candidate *candidate)
{
    openreg_opened_driver *const driver = candidate->opened;
    openreg_candidate_reset(candidate); /* no longer used from here on */
    if (driver == NULL)
        return;
    if (driver->faults != NULL)
        openreg_lab_peek()->faults_end(driver->faults);
    driver->faults = NULL;
    if (call_close(call, driver) != OPENREG_OK)
        openreg_log(OPENREG_LOG_WARNING, "%s", openreg_last_error()->message);
    if (at_risk(&driver->own))
        openreg_fork_at_risk(-1);
    driver->instance = NULL;
    if (!driver->was_published) { /* late readers of a retired table may still use it */
        free_driver(driver);
        return;
    }
    free(driver->infos);
    driver->infos = NULL;
}

void
openreg_driver_open_close_back_to(const char *call, int mark)
{
    const openreg_error_fields before = openreg_error_save();
    while (open_count > mark)
        close_candidate(call, open_candidates[--open_count]);
    openreg_error_restore(&before);
}

/* -------------------------------------------------------------------------------------------------------- counting */

static openreg_status
count_unopened(const char *call, const openreg_candidate *candidate, int64_t *devices)
{
    openreg_settings settings;
    OPENREG_RETURN_NOT_OK(openreg_settings_read(call, candidate, &settings));
    int32_t found = 0;
    openreg_visible_devices visible;
    openreg_status status = openreg_call_count(&candidate->table, candidate->name, call, &settings.options, &found);
    if (status == OPENREG_OK)
        status = read_visible(call, candidate, &settings, found, &visible);
    if (status == OPENREG_OK)
        *devices = visible.count;
    openreg_settings_free(&settings);
    return status;
}

openreg_status
openreg_driver_open_count(const char *call, openreg_candidate *candidate, int64_t *devices)
{
    if (candidate->state == OPENREG_DRIVER_STATE_OPEN) {
        *devices = candidate->device_count;
        return OPENREG_OK;
    }
    if (openreg_candidate_failed_before(candidate)) { /* opening counts too, and knows more than describe() */
        openreg_candidate_note_tried(candidate);
        return candidate->failure.code;
    }
    OPENREG_RETURN_NOT_OK(openreg_candidate_load(call, candidate));
    if (candidate->is_described) {
        *devices = candidate->device_count;
        return OPENREG_OK;
    }
    const openreg_error_fields before = openreg_error_save();
    const openreg_status status = candidate->table.describe != NULL ? count_unopened(call, candidate, devices)
                                                                    : OPENREG_E_UNSUPPORTED;
    if (status == OPENREG_E_UNSUPPORTED) {
        openreg_error_restore(&before);
        *devices = OPENREG_MUST_OPEN;
        return OPENREG_OK;
    }
    if (status != OPENREG_OK) {
        openreg_candidate_fail(candidate, call);
        return status;
    }
    openreg_candidate_set_state(candidate, OPENREG_DRIVER_STATE_LOADED, (int32_t)*devices);
    return OPENREG_OK;
}

openreg_status
openreg_driver_open_try(const char *call, openreg_candidate *candidate, openreg_attempt attempt, int64_t *devices)
{
    if (openreg_candidate_failed_before(candidate)) {
        openreg_candidate_note_tried(candidate);
        return candidate->failure.code;
    }
    const openreg_status status = attempt(call, candidate, devices);
    if (status != OPENREG_OK)
        openreg_driver_open_log_failure(candidate);
    return status;
}

void
openreg_driver_open_log_failure(const openreg_candidate *candidate)
{
    /* Found, not requested: logged as information, unless it was installed as a plugin, or its library exists but could not
     * be loaded. */
    const int is_broken = candidate->source == OPENREG_SOURCE_BUNDLED && candidate->is_unloadable;
    const int is_installed = (candidate->flags & OPENREG_REGISTER_REQUIRED) != 0;
    openreg_log(is_broken || is_installed ? OPENREG_LOG_WARNING : OPENREG_LOG_INFO,
                "driver \"%s\" (%s) is not used: %s", candidate->name, candidate->origin, candidate->failure.text);
}
