/* SPDX-License-Identifier: BSD-3-Clause */
/* discovery.c: candidates without a registration: the simulator, bundled libraries and those that variables name
 * (discovery.h). */
#define _GNU_SOURCE
#include "registry/discovery.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "registry/libraries_env.h"
#include "registry/mock.h"

/* The simulated devices' entry point (drivers/sim), which is not exported. */
openreg_status openreg_sim_query(const openreg_host *host, const openreg_driver **out);

#define BESIDE_MAX 4 /* at least as many as the group has members */

/* Guarded by the driver lock. */
static openreg_environment *environment;
static int was_read;
static char unusable_item[256];      /* the first item of OPENREG_DRIVER_LIBRARIES that can't be used, or "" */
static const char *unusable_because; /* why */

const openreg_environment *
openreg_discovery_environment(void)
{
    return environment;
}

/* -------------------------------------------------------------------------------------- those of every process */

/* <directory of this library>/libopenreg_<name>.so; "" if the directory is not known. */
static void
path_beside(const char *name, char path[PATH_MAX])
{
    Dl_info info;
    char real[PATH_MAX];
    path[0] = '\0';
    if (dladdr(&environment, &info) == 0 || info.dli_fname == NULL || realpath(info.dli_fname, real) == NULL)
        return;
    char *const slash = strrchr(real, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    if (snprintf(path, PATH_MAX, "%s/libopenreg_%s.so", real, name) >= PATH_MAX)
        path[0] = '\0';
}

static size_t
gpu_names(const char *const **names)
{
    return openreg_driver_group("gpu", names);
}

openreg_status
openreg_discovery_ensure(const char *call)
{
    openreg_candidates_lock();
    const int is_made = openreg_candidates_at_locked(0) != NULL;
    openreg_candidates_unlock();
    if (is_made)
        return OPENREG_OK;

    /* Made before the lock is taken: a constructor that dlopen() runs may register a driver, so the dynamic loader's
     * lock comes before this one. */
    const char *const *names;
    const size_t beside = gpu_names(&names);
    openreg_candidate *made[1 + BESIDE_MAX] = {NULL};
    int complete = 1;
    made[0] = openreg_candidate_create("sim", OPENREG_SOURCE_BUILT_IN, "built in", OPENREG_PRIORITY_SIM, NULL);
    if (made[0] != NULL) {
        made[0]->query = openreg_sim_query;
        made[0]->flags = OPENREG_REGISTER_REQUIRED;
    }
    for (size_t i = 0; i < beside; ++i) {
        char path[PATH_MAX];
        path_beside(names[i], path);
        made[1 + i] = openreg_candidate_create(names[i], OPENREG_SOURCE_BUNDLED, "bundled", OPENREG_PRIORITY_GPU, path);
    }
    for (size_t i = 0; i <= beside; ++i)
        complete &= made[i] != NULL;

    openreg_candidates_lock();
    if (complete && openreg_candidates_at_locked(0) == NULL)
        for (size_t i = 0; i <= beside; ++i) {
            (void)openreg_candidates_add_locked(made[i]); /* into an empty list */
            made[i] = NULL;
        }
    openreg_candidates_unlock();
    for (size_t i = 0; i <= beside; ++i)
        openreg_candidate_discard(made[i]);
    if (!complete)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the list of drivers");
    return OPENREG_OK;
}

/* --------------------------------------------------------------------------------------- those that variables name */

/* Hides (or shows) the candidates of a source and a name; NULL: of all names. */
static void
hide_locked(openreg_source source, const char *name, int hidden)
{
    openreg_candidate *candidate;
    for (int i = 0; (candidate = openreg_candidates_at_locked(i)) != NULL; ++i)
        if (candidate->source == source && (name == NULL || strcmp(candidate->name, name) == 0))
            candidate->hidden = hidden;
}

static openreg_candidate *
find_same_locked(openreg_source source, const char *name, const char *path)
{
    openreg_candidate *candidate;
    for (int i = 0; (candidate = openreg_candidates_at_locked(i)) != NULL; ++i)
        if (candidate->source == source && strcmp(candidate->name, name) == 0 &&
            (path == NULL || strcmp(candidate->wanted_path, path) == 0))
            return candidate;
    return NULL;
}

/* Makes the candidate of this name and path the only one of its source that is not hidden; makes it, if need be. */
static openreg_status
show_only(openreg_source source, const char *name, const char *origin, int32_t priority, const char *path)
{
    openreg_candidate *fresh = NULL;
    openreg_candidates_lock();
    openreg_candidate *candidate = find_same_locked(source, name, path);
    openreg_candidates_unlock();
    if (candidate == NULL) {
        candidate = fresh = openreg_candidate_create(name, source, origin, priority, path);
        if (fresh == NULL)
            return OPENREG_E_NOMEM;
        if (source == OPENREG_SOURCE_LIBRARIES)
            fresh->flags = OPENREG_REGISTER_REQUIRED;
        if (source == OPENREG_SOURCE_MOCK)
            fresh->query = openreg_sim_query;
    }
    openreg_candidates_lock();
    const int is_listed = fresh == NULL || openreg_candidates_add_locked(fresh);
    if (is_listed) {
        hide_locked(source, name, 1);
        candidate->hidden = 0;
    }
    openreg_candidates_unlock();
    if (!is_listed)
        openreg_candidate_discard(fresh);
    return is_listed ? OPENREG_OK : OPENREG_E_NOMEM;
}

/* An item that is not a pair is skipped with a warning. A bad item with a path makes every selection fail. */
static void
note_bad_item(const openreg_library_item *item, const char *value)
{
    if (!item->is_pair) {
        openreg_log(OPENREG_LOG_WARNING, "invalid value %.*s in env var %s %s", (int)item->length, item->text,
                    OPENREG_LIBRARIES_VARIABLE, value);
    } else if (unusable_item[0] == '\0') {
        const size_t room = sizeof unusable_item;
        openreg_text_copy(unusable_item, item->length < room ? item->length + 1 : room, item->text);
        unusable_because = item->problem;
    }
}

static openreg_status
read_libraries(void)
{
    openreg_candidates_lock();
    hide_locked(OPENREG_SOURCE_LIBRARIES, NULL, 1);
    openreg_candidates_unlock();

    const char *const value = openreg_environment_get(environment, OPENREG_LIBRARIES_VARIABLE);
    openreg_library_item item;
    unusable_item[0] = '\0';
    for (const char *cursor = value; openreg_library_item_next(&cursor, &item);) {
        if (!item.is_pair || item.problem != NULL) {
            note_bad_item(&item, value);
            continue;
        }
        if (!item.is_description) {
            OPENREG_RETURN_NOT_OK(show_only(OPENREG_SOURCE_LIBRARIES, item.name, OPENREG_LIBRARIES_VARIABLE,
                                            OPENREG_PRIORITY_PLUGIN, item.path));
            continue;
        }
        openreg_log(OPENREG_LOG_DEBUG, "%s: %s is skipped: the C library does not read JSON",
                    OPENREG_LIBRARIES_VARIABLE, item.path);
        openreg_candidates_lock(); /* the last item of a name wins */
        hide_locked(OPENREG_SOURCE_LIBRARIES, item.name, 1);
        openreg_candidates_unlock();
    }
    return OPENREG_OK;
}

static openreg_status
read_mocks(void)
{
    const char *const value = openreg_environment_get(environment, OPENREG_MOCK_VARIABLE);
    openreg_mock_warn_of_bad_items(value);
    openreg_candidates_lock();
    hide_locked(OPENREG_SOURCE_MOCK, NULL, 1);
    openreg_candidates_unlock();
    const char *const *names;
    const size_t count = gpu_names(&names);
    for (size_t i = 0; i < count; ++i)
        if (openreg_mock_is_wanted(value, names[i]))
            OPENREG_RETURN_NOT_OK(show_only(OPENREG_SOURCE_MOCK, names[i], "mock", OPENREG_PRIORITY_GPU, NULL));
    return OPENREG_OK;
}

/* OPENREG_<NAME>_LIBRARY_PATH: a path instead of the bundled one. */
static openreg_status
read_library_paths(void)
{
    const char *const *names;
    const size_t count = gpu_names(&names);
    for (size_t i = 0; i < count; ++i) {
        const char *const path = openreg_environment_get_option(environment, names[i], "library_path");
        const int is_set = path != NULL && path[0] != '\0';
        char upper[OPENREG_NAME_SIZE], origin[64], beside[PATH_MAX];
        openreg_driver_name_upper(names[i], upper, sizeof upper);
        (void)snprintf(origin, sizeof origin, "%s%s_LIBRARY_PATH", OPENREG_VARIABLE_PREFIX, upper);
        path_beside(names[i], beside);
        OPENREG_RETURN_NOT_OK(show_only(OPENREG_SOURCE_BUNDLED, names[i], is_set ? origin : "bundled",
                                        OPENREG_PRIORITY_GPU, is_set ? path : beside));
    }
    return OPENREG_OK;
}

static void
fail_absent(openreg_candidate *candidate)
{
    char upper[OPENREG_NAME_SIZE], message[96];
    openreg_driver_name_upper(candidate->name, upper, sizeof upper);
    (void)snprintf(message, sizeof message, "the library is not there: built without %s", upper);
    const int is_own = strcmp(candidate->origin, "bundled") == 0; /* else a variable names its path */
    openreg_candidate_fail_with(candidate, OPENREG_E_NO_DEVICE, is_own ? message : "the library is not there");
}

/* A library that is not installed is a candidate all the same, so that its name is known and openreg-info shows where
 * it was searched for. */
static void
look_for_files(void)
{
    const char *const *names;
    const size_t count = gpu_names(&names);
    for (size_t i = 0; i < count; ++i) {
        openreg_candidate *known[OPENREG_CANDIDATES_MAX];
        const int known_count = openreg_candidates_namesakes(names[i], known);
        for (int k = 0; k < known_count; ++k) {
            if (known[k]->source != OPENREG_SOURCE_BUNDLED || known[k]->has_table)
                continue;
            const int is_absent = access(known[k]->wanted_path, F_OK) != 0;
            if (!is_absent && known[k]->is_absent)
                openreg_candidate_reset(known[k]);
            else if (is_absent)
                fail_absent(known[k]);
            openreg_candidates_lock();
            known[k]->is_absent = is_absent;
            openreg_candidates_unlock();
        }
    }
}

static openreg_status
read_variables(const char *call)
{
    openreg_log_read_level(openreg_environment_get(environment, "OPENREG_LOG_LEVEL"));
    openreg_status status = read_library_paths();
    if (status == OPENREG_OK)
        status = read_mocks();
    if (status == OPENREG_OK)
        status = read_libraries();
    if (status != OPENREG_OK)
        return openreg_error_set(status, call, "no room for the drivers that variables name");
    return OPENREG_OK;
}

openreg_status
openreg_discovery_refresh(const char *call, int again)
{
    if (openreg_device_table_peek() != NULL && !again)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_discovery_ensure(call));
    openreg_environment *const now = openreg_environment_read();
    if (now == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the environment");
    if (was_read && openreg_environment_equal(environment, now)) {
        openreg_environment_free(now);
    } else {
        openreg_environment_free(environment);
        environment = now;
        was_read = 0; /* until the whole environment was read */
        openreg_candidates_note_change();
        OPENREG_RETURN_NOT_OK(read_variables(call));
        was_read = 1;
    }
    look_for_files();
    return OPENREG_OK;
}

openreg_status
openreg_discovery_check(const char *call)
{
    const char *const target = openreg_environment_get(environment, "OPENREG_TARGET");
    if (target != NULL && target[0] != '\0' && strcmp(target, "local") != 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "OPENREG_TARGET=%.200s: only 'local' is supported", target);
    if (unusable_item[0] != '\0')
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "\"%s\" in the variable %s can't be used: %s. Write name:/path/driver.so or "
                                 "name:/path/driver.json, separated by commas",
                                 unusable_item, OPENREG_LIBRARIES_VARIABLE, unusable_because);
    return OPENREG_OK;
}
