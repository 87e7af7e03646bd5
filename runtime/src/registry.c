/* registry.c: the candidate drivers (registry.h), and the public functions that read and extend the list.
 * Which of them are opened is decided in selection.c. */
#define _GNU_SOURCE
#include "registry.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_calls.h"
#include "error.h"
#include "fork.h"
#include "log.h"
#include "text.h"

#include "../drivers/sim/sim.h"

#define PRIORITY_PLUGIN 400
#define PRIORITY_GPU 200
#define PRIORITY_SIM 0

/* Names of the libraries that are looked for beside the runtime. */
static const char *const beside_names[] = {"cuda", "hip"};
#define BESIDE_COUNT (sizeof beside_names / sizeof beside_names[0])

static openreg_lock lock = OPENREG_LOCK_INITIALIZER;
static openreg_candidate *candidates[OPENREG_REGISTRY_MAX];
static int candidate_count;
static unsigned registrations; /* changes of the list by calls */

/* The gate. Its condition is not re-made with the lock, see openreg_registry_after_fork(). */
static pthread_cond_t gate_opened = PTHREAD_COND_INITIALIZER;
static int gate_held;
static pthread_t gate_owner;

/* Of the holder of the gate. */
static openreg_environment *environment;
static int was_refreshed;
static unsigned refreshed_registrations;

void
openreg_registry_lock(void)
{
    openreg_lock_acquire(&lock);
}

void
openreg_registry_unlock(void)
{
    openreg_lock_release(&lock);
}

void
openreg_registry_after_fork(void)
{
    gate_opened = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    gate_held = 0;
}

openreg_status
openreg_registry_enter(const char *call)
{
    openreg_fork_watch();
    OPENREG_RETURN_NOT_OK(openreg_fork_refuse(call));
    openreg_registry_lock();
    while (gate_held) {
        if (pthread_equal(gate_owner, pthread_self())) {
            openreg_registry_unlock();
            return openreg_error_set(OPENREG_E_BUSY,
                                     "%s: called by a driver while the runtime loads, opens or closes it", call);
        }
        (void)pthread_cond_wait(&gate_opened, &lock.mutex);
    }
    gate_held = 1;
    gate_owner = pthread_self();
    openreg_registry_unlock();
    return OPENREG_OK;
}

void
openreg_registry_leave(void)
{
    openreg_registry_lock();
    gate_held = 0;
    (void)pthread_cond_broadcast(&gate_opened);
    openreg_registry_unlock();
}

const char *
openreg_source_name(openreg_source source)
{
    switch (source) {
    case OPENREG_SOURCE_BUILT_IN:
        return "built in";
    case OPENREG_SOURCE_BESIDE:
        return "beside the runtime";
    case OPENREG_SOURCE_REGISTERED:
        return "registered";
    case OPENREG_SOURCE_LIBRARIES:
        return "OPENREG_DRIVER_LIBRARIES";
    }
    return "";
}

/* ---------------------------------------------------------------------------------------------- the list, locked */

static openreg_candidate *
add_locked(const char *name, openreg_source source, int32_t priority, const char *path)
{
    if (candidate_count == OPENREG_REGISTRY_MAX)
        return NULL;
    openreg_candidate *const candidate = calloc(1, sizeof *candidate);
    char *const wanted = path == NULL ? NULL : strdup(path);
    if (candidate == NULL || (path != NULL && wanted == NULL)) {
        free(candidate);
        free(wanted);
        return NULL;
    }
    openreg_text_copy(candidate->name, sizeof candidate->name, name);
    openreg_text_copy(candidate->path, sizeof candidate->path, path);
    candidate->source = source;
    candidate->priority = priority;
    candidate->wanted_path = wanted;
    candidate->device_count = candidate->first_device = -1;
    candidates[candidate_count++] = candidate;
    return candidate;
}

static openreg_candidate *
find_locked(const char *name)
{
    openreg_candidate *best = NULL;
    for (int i = 0; i < candidate_count; ++i) {
        openreg_candidate *const candidate = candidates[i];
        if (!candidate->hidden && strcmp(candidate->name, name) == 0 &&
            (best == NULL || candidate->source >= best->source))
            best = candidate;
    }
    return best;
}

openreg_candidate *
openreg_registry_find(const char *name)
{
    openreg_registry_lock();
    openreg_candidate *const found = find_locked(name);
    openreg_registry_unlock();
    return found;
}

int
openreg_registry_candidates(openreg_candidate **out, int capacity)
{
    int count = 0;
    openreg_registry_lock();
    for (int i = 0; i < candidate_count && count < capacity; ++i) {
        openreg_candidate *const candidate = candidates[i];
        if (find_locked(candidate->name) != candidate)
            continue;
        int at = count++; /* a stable insertion: equal priorities stay in order of age */
        for (; at > 0 && out[at - 1]->priority < candidate->priority; --at)
            out[at] = out[at - 1];
        out[at] = candidate;
    }
    openreg_registry_unlock();
    return count;
}

int
openreg_registry_namesakes(const char *name, openreg_candidate **out, int capacity)
{
    int count = 0;
    openreg_registry_lock();
    for (int i = 0; i < candidate_count && count < capacity; ++i)
        if (!candidates[i]->hidden && strcmp(candidates[i]->name, name) == 0)
            out[count++] = candidates[i];
    openreg_registry_unlock();
    return count;
}

/* --------------------------------------------------------------------------------------------------- candidates */

void
openreg_candidate_fail_with(openreg_candidate *candidate, openreg_status code, const char *message)
{
    openreg_registry_lock();
    candidate->state = OPENREG_DRIVER_FAILED;
    candidate->code = code;
    candidate->vendor_code = 0;
    openreg_text_copy(candidate->message, sizeof candidate->message, message);
    openreg_registry_unlock();
}

void
openreg_candidate_fail(openreg_candidate *candidate, const char *call)
{
    const openreg_error *const error = openreg_last_error();
    const char *text = error->message;
    char prefix[192];
    /* As openreg_error_end_call() writes it. */
    const int length = snprintf(prefix, sizeof prefix, "%s: driver \"%s\": ", call, candidate->name);
    if (length > 0 && strncmp(text, prefix, (size_t)length) == 0)
        text += length;
    else if (strncmp(text, call, strlen(call)) == 0 && strncmp(text + strlen(call), ": ", 2) == 0)
        text += strlen(call) + 2;
    openreg_candidate_fail_with(candidate, error->code, text);
    candidate->vendor_code = error->vendor_code;
}

void
openreg_candidate_set_state(openreg_candidate *candidate, int32_t state, int32_t count, int32_t first)
{
    openreg_registry_lock();
    candidate->state = state;
    candidate->code = OPENREG_OK;
    candidate->vendor_code = 0;
    candidate->message[0] = '\0';
    candidate->device_count = count;
    candidate->first_device = first;
    openreg_registry_unlock();
}

openreg_status
openreg_candidate_load(const char *call, openreg_candidate *candidate)
{
    if (candidate->has_table)
        return OPENREG_OK;

    openreg_driver table;
    char path[OPENREG_LOADER_PATH_MAX] = "";
    openreg_status status;
    if (candidate->query != NULL)
        status = openreg_loader_query(candidate->query, candidate->name, &table);
    else
        status = openreg_loader_load(candidate->wanted_path, candidate->name, &table, path);
    if (status != OPENREG_OK) {
        openreg_candidate_fail(candidate, call);
        return status;
    }
    openreg_registry_lock();
    candidate->table = table;
    candidate->has_table = 1;
    openreg_text_copy(candidate->path, sizeof candidate->path, path);
    openreg_registry_unlock();
    openreg_candidate_set_state(candidate, OPENREG_DRIVER_LOADED, -1, -1);
    return OPENREG_OK;
}

/* ---------------------------------------------------------------------------------------------------- discovery */

/* <directory of this library>/libopenreg_<name>.so; "" if the directory is not known. */
static void
path_beside(const char *name, char path[PATH_MAX])
{
    Dl_info info;
    char real[PATH_MAX];
    path[0] = '\0';
    if (dladdr(&candidates, &info) == 0 || info.dli_fname == NULL || realpath(info.dli_fname, real) == NULL)
        return;
    char *const slash = strrchr(real, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    if (snprintf(path, PATH_MAX, "%s/libopenreg_%s.so", real, name) >= PATH_MAX)
        path[0] = '\0';
}

/* Makes the candidates that every process has; they are older than any registered one. */
static openreg_status
ensure_builtin(const char *call)
{
    openreg_registry_lock();
    const int is_made = candidate_count > 0;
    openreg_registry_unlock();
    if (is_made)
        return OPENREG_OK;
    /* Asked for before the lock is taken: a constructor that dlopen() runs may register a driver, so the dynamic
     * loader's lock comes before ours. */
    char paths[BESIDE_COUNT][PATH_MAX];
    for (size_t i = 0; i < BESIDE_COUNT; ++i)
        path_beside(beside_names[i], paths[i]);

    int complete = 1;
    openreg_registry_lock();
    if (candidate_count == 0) {
        openreg_candidate *const sim = add_locked("sim", OPENREG_SOURCE_BUILT_IN, PRIORITY_SIM, NULL);
        complete = sim != NULL;
        if (sim != NULL)
            sim->query = openreg_sim_query;
        for (size_t i = 0; i < BESIDE_COUNT && complete; ++i)
            complete = add_locked(beside_names[i], OPENREG_SOURCE_BESIDE, PRIORITY_GPU, paths[i]) != NULL;
        if (!complete)
            while (candidate_count > 0) {
                free(candidates[--candidate_count]->wanted_path);
                free(candidates[candidate_count]);
            }
    }
    openreg_registry_unlock();
    if (!complete)
        return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for the list of drivers", call);
    return OPENREG_OK;
}

/* A library that is not installed is a candidate all the same, so that its name is known and openreg-info shows where
 * it was looked for. */
static void
look_beside(void)
{
    for (size_t i = 0; i < BESIDE_COUNT; ++i) {
        openreg_candidate *known[OPENREG_REGISTRY_MAX];
        const int count = openreg_registry_namesakes(beside_names[i], known, OPENREG_REGISTRY_MAX);
        for (int k = 0; k < count; ++k) {
            if (known[k]->source != OPENREG_SOURCE_BESIDE || known[k]->has_table)
                continue;
            if (access(known[k]->wanted_path, F_OK) != 0)
                openreg_candidate_fail_with(known[k], OPENREG_E_NO_DEVICE, "the library is not there");
            else if (known[k]->code == OPENREG_E_NO_DEVICE)
                openreg_candidate_set_state(known[k], OPENREG_DRIVER_FOUND, -1, -1);
        }
    }
}

/* The candidate that a variable's item means: that of the same name and path, or a new one. */
static openreg_candidate *
library_candidate_locked(const char *name, const char *path)
{
    for (int i = 0; i < candidate_count; ++i) {
        openreg_candidate *const candidate = candidates[i];
        if (candidate->source == OPENREG_SOURCE_LIBRARIES && strcmp(candidate->name, name) == 0 &&
            strcmp(candidate->wanted_path, path) == 0)
            return candidate;
    }
    return add_locked(name, OPENREG_SOURCE_LIBRARIES, PRIORITY_PLUGIN, path);
}

/* Makes candidates of OPENREG_DRIVER_LIBRARIES=name:path,... */
static openreg_status
read_libraries(const char *value)
{
    openreg_registry_lock();
    for (int i = 0; i < candidate_count; ++i)
        if (candidates[i]->source == OPENREG_SOURCE_LIBRARIES)
            candidates[i]->hidden = 1;
    openreg_registry_unlock();

    const char *cursor = value;
    const char *item;
    size_t length;
    while (openreg_list_next(&cursor, &item, &length)) {
        char name[32];
        char path[PATH_MAX];
        const char *const colon = memchr(item, ':', length);
        const size_t name_length = colon == NULL ? 0 : (size_t)(colon - item);
        const char *start = colon == NULL ? item + length : colon + 1;
        size_t spaces = name_length;
        while (spaces > 0 && (item[spaces - 1] == ' ' || item[spaces - 1] == '\t'))
            --spaces;
        while (start < item + length && (*start == ' ' || *start == '\t'))
            ++start;
        const size_t path_length = (size_t)(item + length - start);
        if (path_length == 0 || path_length >= sizeof path || !openreg_driver_name_read(item, spaces, name)) {
            openreg_log(OPENREG_LOG_WARNING, "invalid value %.*s in env var OPENREG_DRIVER_LIBRARIES %s", (int)length,
                        item, value);
            continue;
        }
        memcpy(path, start, path_length);
        path[path_length] = '\0';

        openreg_registry_lock();
        openreg_candidate *const candidate = library_candidate_locked(name, path);
        if (candidate != NULL) {
            candidate->hidden = 0;
            /* The last item of a name wins: only it stays visible. */
            for (int i = 0; i < candidate_count; ++i)
                if (candidates[i] != candidate && candidates[i]->source == OPENREG_SOURCE_LIBRARIES &&
                    strcmp(candidates[i]->name, name) == 0)
                    candidates[i]->hidden = 1;
        }
        openreg_registry_unlock();
        if (candidate == NULL)
            return OPENREG_E_NOMEM;
    }
    return OPENREG_OK;
}

openreg_status
openreg_registry_refresh(const char *call, int *changed)
{
    if (changed != NULL)
        *changed = 0;
    if (openreg_device_table_peek() != NULL)
        return OPENREG_OK;

    OPENREG_RETURN_NOT_OK(ensure_builtin(call));
    openreg_registry_lock();
    const unsigned known_registrations = registrations;
    openreg_registry_unlock();
    openreg_environment *const now = openreg_environment_read();
    if (now == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, "%s: no host memory for the environment", call);
    if (changed != NULL)
        *changed = !was_refreshed || known_registrations != refreshed_registrations ||
                   !openreg_environment_equal(environment, now);
    if (was_refreshed && openreg_environment_equal(environment, now)) {
        openreg_environment_free(now);
    } else {
        openreg_environment_free(environment);
        environment = now;
        openreg_log_set_level(openreg_environment_get(now, "OPENREG_LOG_LEVEL"));
        if (read_libraries(openreg_environment_get(now, "OPENREG_DRIVER_LIBRARIES")) != OPENREG_OK) {
            was_refreshed = 0;
            return openreg_error_set(OPENREG_E_NOMEM, "%s: no room for the drivers of OPENREG_DRIVER_LIBRARIES", call);
        }
    }
    look_beside();
    was_refreshed = 1;
    refreshed_registrations = known_registrations;
    return OPENREG_OK;
}

const openreg_environment *
openreg_registry_environment(void)
{
    return environment;
}

/* ------------------------------------------------------------------------------------------------ public: records */

/* Brings the list up to date if nobody else is at it. Leaves the last error alone. */
static void
refresh_if_idle(const char *call)
{
    const openreg_error before = *openreg_last_error();
    openreg_status status = ensure_builtin(call);
    openreg_registry_lock();
    const int idle = !gate_held;
    openreg_registry_unlock();
    if (status == OPENREG_OK && idle && !openreg_in_bad_fork()) {
        status = openreg_registry_enter(call);
        if (status == OPENREG_OK) {
            status = openreg_registry_refresh(call, NULL);
            openreg_registry_leave();
        }
    }
    if (status != OPENREG_OK)
        *openreg_error_record() = before;
}

int32_t
openreg_driver_count(void)
{
    refresh_if_idle("openreg_driver_count");
    int32_t count = 0;
    openreg_registry_lock();
    for (int i = 0; i < candidate_count; ++i)
        count += !candidates[i]->hidden;
    openreg_registry_unlock();
    return count;
}

static void
fill_record_locked(const openreg_candidate *candidate, openreg_driver_record *record)
{
    record->state = candidate->state;
    if (candidate->state != OPENREG_DRIVER_OPEN && find_locked(candidate->name) != candidate)
        record->state = OPENREG_DRIVER_SHADOWED;
    record->code = candidate->code;
    record->priority = candidate->priority;
    record->device_count = candidate->device_count;
    record->first_device = candidate->first_device;
    openreg_text_copy(record->name, sizeof record->name, candidate->name);
    openreg_text_copy(record->source, sizeof record->source, openreg_source_name(candidate->source));
    openreg_text_copy(record->path, sizeof record->path, candidate->path);
    openreg_text_copy(record->message, sizeof record->message, candidate->message);
    if (candidate->has_table) {
        record->caps = candidate->table.caps;
        record->slots = openreg_driver_slots(&candidate->table);
        openreg_text_copy(record->version, sizeof record->version, candidate->table.version);
    }
}

openreg_status
openreg_driver_record_get(int32_t i, openreg_driver_record *out)
{
    if (out == NULL || out->struct_size < sizeof out->struct_size)
        return openreg_error_set(OPENREG_E_INVALID, "openreg_driver_record_get: out is NULL or its struct_size not set");
    openreg_driver_record record;
    memset(&record, 0, sizeof record);
    int32_t visible = 0;
    int found = 0;
    openreg_registry_lock();
    for (int k = 0; k < candidate_count && !found; ++k)
        if (!candidates[k]->hidden && visible++ == i) {
            fill_record_locked(candidates[k], &record);
            found = 1;
        }
    openreg_registry_unlock();
    if (!found)
        return openreg_error_set(OPENREG_E_INVALID,
                                 "openreg_driver_record_get: the index is out of range. It must be in [0, %d), but got "
                                 "%d.",
                                 visible, i);
    record.struct_size = out->struct_size;
    memcpy(out, &record, out->struct_size < sizeof record ? out->struct_size : sizeof record);
    return OPENREG_OK;
}

/* --------------------------------------------------------------------------------------------- public: registration */

static openreg_status
register_table(const char *call, const char *name, const openreg_driver *table, const char *path)
{
    openreg_status status = OPENREG_OK;
    const openreg_candidate *latest = NULL;
    openreg_registry_lock();
    for (int i = 0; i < candidate_count; ++i) {
        if (strcmp(candidates[i]->name, name) != 0)
            continue;
        if (candidates[i]->state == OPENREG_DRIVER_OPEN)
            status = OPENREG_E_BUSY;
        if (candidates[i]->source == OPENREG_SOURCE_REGISTERED)
            latest = candidates[i];
    }
    const int is_known =
        latest != NULL && strcmp(latest->path, path) == 0 && memcmp(&latest->table, table, sizeof *table) == 0;
    if (status == OPENREG_OK && !is_known) {
        openreg_candidate *const candidate = add_locked(name, OPENREG_SOURCE_REGISTERED, PRIORITY_PLUGIN, path);
        if (candidate == NULL) {
            status = OPENREG_E_NOMEM;
        } else {
            candidate->table = *table;
            candidate->has_table = 1;
            candidate->state = OPENREG_DRIVER_LOADED;
            ++registrations;
        }
    }
    openreg_registry_unlock();
    if (status == OPENREG_E_BUSY)
        return openreg_error_set(status, "%s: Driver \"%s\" already initialized", call, name);
    if (status != OPENREG_OK)
        return openreg_error_set(status, "%s: no room for driver \"%s\"", call, name);
    openreg_log(OPENREG_LOG_DEBUG, "driver \"%s\" registered%s", name,
                openreg_device_table_peek() != NULL ? ": takes effect after openreg_shutdown()" : "");
    return OPENREG_OK;
}

openreg_status
openreg_register_driver(const struct openreg_driver *table)
{
    static const char call[] = "openreg_register_driver";
    openreg_driver accepted;
    OPENREG_RETURN_NOT_OK(openreg_fork_refuse(call));
    const openreg_status status = openreg_loader_accept(table, &accepted);
    if (status != OPENREG_OK)
        return openreg_error_prefix(call);
    openreg_fork_watch();
    OPENREG_RETURN_NOT_OK(ensure_builtin(call));
    return register_table(call, accepted.name, &accepted, "");
}

openreg_status
openreg_load_driver(const char *name, const char *path)
{
    static const char call[] = "openreg_load_driver";
    char checked[32] = "";
    if (path == NULL || path[0] == '\0')
        return openreg_error_set(OPENREG_E_INVALID, "%s: path is NULL or empty", call);
    if (name != NULL && !openreg_driver_name_read(name, strnlen(name, sizeof checked), checked))
        return openreg_error_set(OPENREG_E_INVALID,
                                 "%s: the name \"%.40s\" is not 1 to 31 characters of [a-z0-9_]", call, name);

    openreg_driver table;
    char resolved[OPENREG_LOADER_PATH_MAX] = "";
    OPENREG_RETURN_NOT_OK(openreg_registry_enter(call));
    openreg_status status = openreg_loader_load(path, name != NULL ? checked : NULL, &table, resolved);
    openreg_registry_leave();
    if (status != OPENREG_OK)
        return openreg_error_prefix(call);
    OPENREG_RETURN_NOT_OK(ensure_builtin(call));
    return register_table(call, name != NULL ? checked : table.name, &table, resolved);
}
