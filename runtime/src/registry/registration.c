/* SPDX-License-Identifier: BSD-3-Clause */
/* registration.c: drivers that are added by a call (openreg/registry.h). */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/sized_struct.h"
#include "base/text.h"
#include "registry/candidates.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"

/* A checked registration, before it is in the list. */
typedef struct request {
    const char *call;
    openreg_registration asked;
    char name[OPENREG_NAME_SIZE]; /* "" until it is known */
    int has_table;
    openreg_driver table;
    const char *path;             /* NULL: no library */
    openreg_error_fields failure; /* of a library that could not be loaded, and is added all the same */
    int is_missing;
} request;

static openreg_status
read_name(request *r)
{
    const char *const *members;
    const char *const name = r->asked.name;
    if (name == NULL)
        return OPENREG_OK;
    if (!openreg_driver_name_resolve(name, strlen(name), r->name))
        return openreg_error_set(OPENREG_E_INVALID, r->call,
                                 "the name \"%.40s\" is not 1 to 31 characters of [a-z0-9_]", name);
    if (openreg_driver_group(r->name, &members) > 0)
        return openreg_error_set(OPENREG_E_INVALID, r->call, "'%s' is the name of a group of drivers", r->name);
    return OPENREG_OK;
}

static openreg_status
check(request *r)
{
    const openreg_registration *const asked = &r->asked;
    const int sources = (asked->table != NULL) + (asked->library_path != NULL) + (asked->factory != NULL);
    OPENREG_RETURN_NOT_OK(read_name(r));
    if (sources != 1)
        return openreg_error_set(OPENREG_E_INVALID, r->call,
                                 "driver '%s' needs one of table, library_path and factory, but has %d", r->name,
                                 sources);
    if (asked->factory != NULL && r->name[0] == '\0')
        return openreg_error_set(OPENREG_E_INVALID, r->call, "a driver that a factory makes needs a name");
    if (asked->library_path != NULL && asked->library_path[0] == '\0')
        return openreg_error_set(OPENREG_E_INVALID, r->call, "path is NULL or empty");
    for (size_t i = 0; i < asked->option_count; ++i)
        if (asked->options == NULL || asked->options[i].key == NULL || asked->options[i].value == NULL)
            return openreg_error_set(OPENREG_E_INVALID, r->call, "option %zu of driver '%s' has no key or no value", i,
                                     r->name);
    return OPENREG_OK;
}

static openreg_status
load_library(request *r)
{
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_acquire(r->call));
    const openreg_status status = openreg_loader_load(r->asked.library_path, r->name[0] != '\0' ? r->name : NULL,
                                                      &r->table, &r->path, &r->is_missing);
    openreg_driver_lock_release();
    if (status == OPENREG_OK)
        return OPENREG_OK;
    if ((r->asked.flags & OPENREG_REGISTER_KEEP_FAILED) == 0 || r->name[0] == '\0' || status == OPENREG_E_NOMEM)
        return openreg_error_set_call(r->call);
    r->failure = openreg_error_save();
    r->has_table = 0;
    openreg_clear_error();
    return OPENREG_OK;
}

/* Reads the table, if there is one, and its name if none was given. */
static openreg_status
read_table(request *r)
{
    if (r->asked.factory != NULL)
        return OPENREG_OK;
    r->has_table = 1;
    if (r->asked.library_path != NULL)
        OPENREG_RETURN_NOT_OK(load_library(r));
    else if (openreg_loader_accept(r->asked.table, &r->table) != OPENREG_OK)
        return openreg_error_set_call(r->call);
    if (r->name[0] != '\0')
        return OPENREG_OK;
    r->asked.name = r->table.name;
    return read_name(r);
}

static openreg_candidate *
make_candidate(const request *r)
{
    const openreg_registration *const asked = &r->asked;
    openreg_candidate *const candidate = openreg_candidate_create(r->name, OPENREG_SOURCE_REGISTERED,
                                                                  asked->source != NULL ? asked->source : "registered",
                                                                  asked->priority, r->asked.library_path);
    if (candidate == NULL)
        return NULL;
    candidate->flags = asked->flags;
    candidate->factory = asked->factory;
    candidate->factory_context = asked->ctx;
    candidate->table = r->table;
    candidate->has_table = r->has_table;
    candidate->state = r->has_table ? OPENREG_DRIVER_STATE_LOADED : OPENREG_DRIVER_STATE_FOUND;
    if (r->path != NULL)
        candidate->path = r->path;
    if (r->failure.code != OPENREG_OK) {
        candidate->state = OPENREG_DRIVER_STATE_FAILED;
        candidate->failure = openreg_candidate_failure(candidate, r->call, &r->failure);
        candidate->is_unloadable = candidate->was_tried = 1;
        candidate->is_missing = r->is_missing;
    }
    if (openreg_options_set_all(&candidate->options, asked->options, asked->option_count))
        return candidate;
    openreg_candidate_discard(candidate);
    return NULL;
}

/* Whether a candidate equals the new one, so that registering it adds nothing. */
static int
is_same(const openreg_candidate *a, const openreg_candidate *b)
{
    if (a->factory != NULL || b->factory != NULL)
        return a->factory == b->factory && a->factory_context == b->factory_context && a->priority == b->priority &&
               a->flags == b->flags && openreg_options_equal(&a->options, b->options.items, b->options.count);
    return a->priority == b->priority && a->flags == b->flags && strcmp(a->path, b->path) == 0 &&
           strcmp(a->origin, b->origin) == 0 && memcmp(&a->table, &b->table, sizeof a->table) == 0 &&
           openreg_options_equal(&a->options, b->options.items, b->options.count);
}

/* Puts the candidate into the list, unless a driver of its name is open, or nothing is new; *is_added says which. */
static openreg_status
add(const request *r, openreg_candidate *candidate, int *is_added)
{
    openreg_status status = OPENREG_OK;
    const openreg_candidate *latest = NULL;
    const openreg_candidate *other;
    openreg_candidates_lock();
    for (int i = 0; (other = openreg_candidates_at_locked(i)) != NULL; ++i) {
        if (strcmp(other->name, candidate->name) != 0)
            continue;
        if (other->state == OPENREG_DRIVER_STATE_OPEN)
            status = OPENREG_E_BUSY;
        if (other->source == OPENREG_SOURCE_REGISTERED)
            latest = other;
    }
    *is_added = status == OPENREG_OK && !(latest != NULL && is_same(latest, candidate));
    if (*is_added && !openreg_candidates_add_locked(candidate))
        status = OPENREG_E_NOMEM;
    openreg_candidates_unlock();
    *is_added = *is_added && status == OPENREG_OK;
    if (status == OPENREG_E_BUSY)
        return openreg_error_set(status, r->call, "Driver %s already initialized", r->name);
    if (status != OPENREG_OK)
        return openreg_error_set(status, r->call, "no room for driver '%s'", r->name);
    return OPENREG_OK;
}

static openreg_status
register_driver(request *r)
{
    /* A table is added without waiting for the driver lock: a constructor that dlopen() runs may do it, while the
     * holder of the driver lock waits for the dynamic loader. */
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_reject_reentry(r->call));
    OPENREG_RETURN_NOT_OK(check(r));
    OPENREG_RETURN_NOT_OK(read_table(r));
    OPENREG_RETURN_NOT_OK(openreg_discovery_ensure(r->call));
    openreg_candidate *const candidate = make_candidate(r);
    if (candidate == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, r->call, "no host memory for driver '%s'", r->name);
    int is_added = 0;
    const openreg_status status = add(r, candidate, &is_added);
    if (!is_added)
        openreg_candidate_discard(candidate);
    else
        openreg_candidates_note_change();
    OPENREG_RETURN_NOT_OK(status);
    openreg_log(OPENREG_LOG_DEBUG, "driver \"%s\" registered%s", r->name,
                openreg_device_table_peek() != NULL ? ": takes effect after reset" : "");
    return OPENREG_OK;
}

openreg_status
openreg_driver_register(const openreg_registration *registration)
{
    request r;
    memset(&r, 0, sizeof r);
    r.call = "openreg_driver_register";
    if (!openreg_sized_is_valid(registration, OPENREG_REGISTRATION_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, r.call, "registration is NULL or its struct_size not set");
    openreg_sized_read(&r.asked, sizeof r.asked, registration);
    return register_driver(&r);
}
