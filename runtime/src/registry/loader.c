/* SPDX-License-Identifier: BSD-3-Clause */
/* loader.c: driver tables from libraries (loader.h). */
#define _GNU_SOURCE
#include "registry/loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "driver/driver_slots.h"
#include "registry/driver_names.h"

/* A library whose table was accepted. Never unloaded, so never freed. */
typedef struct loaded_library {
    struct loaded_library *next;
    dev_t device;
    ino_t inode;
    openreg_driver table;
} loaded_library;

static loaded_library *libraries;

/* Records of drivers point to these, even after a library was found elsewhere. */
typedef struct kept_path {
    struct kept_path *next;
    char text[];
} kept_path;

static _Atomic(kept_path *) kept_paths;

const char *
openreg_loader_keep_path(const char *path)
{
    if (path == NULL || path[0] == '\0')
        return "";
    kept_path *first = atomic_load_explicit(&kept_paths, memory_order_acquire);
    for (const kept_path *kept = first; kept != NULL; kept = kept->next)
        if (strcmp(kept->text, path) == 0)
            return kept->text;
    const size_t size = strlen(path) + 1;
    kept_path *const made = malloc(sizeof *made + size);
    if (made == NULL)
        return "";
    memcpy(made->text, path, size);
    do
        made->next = first; /* two threads may keep one text twice */
    while (
        !atomic_compare_exchange_weak_explicit(&kept_paths, &first, made, memory_order_acq_rel, memory_order_acquire));
    return made->text;
}

static int
slot_is_set(const openreg_driver *table, const openreg_slot *slot)
{
    void (*function)(void);
    memcpy(&function, (const char *)table + slot->offset, sizeof function);
    return function != NULL;
}

static openreg_status
check_slots(const openreg_driver *table)
{
    for (int i = 0; i < OPENREG_SLOT_COUNT; ++i) {
        const openreg_slot *const slot = &openreg_slots[i];
        if (slot_is_set(table, slot))
            continue;
        if (strcmp(slot->group, OPENREG_SLOT_REQUIRED) == 0)
            return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL, "the driver lacks the required function %s",
                                     slot->name);
        for (int k = 0; slot->group[0] != '\0' && k < OPENREG_SLOT_COUNT; ++k)
            if (strcmp(openreg_slots[k].group, slot->group) == 0 && slot_is_set(table, &openreg_slots[k]))
                return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL,
                                         "the driver has %s but lacks %s: the %s functions come together",
                                         openreg_slots[k].name, slot->name, slot->group);
    }
    return OPENREG_OK;
}

openreg_status
openreg_loader_accept(const openreg_driver *given, openreg_driver *out)
{
    if (given == NULL)
        return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL, "the driver returned no table");
    const uint32_t size = given->struct_size; /* the only field that may be read before the size is checked */
    if (size < OPENREG_DRIVER_SIZE_1)
        return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL,
                                 "the driver's table has %u bytes, ABI %u.0 needs at least %u", (unsigned)size,
                                 OPENREG_ABI_MAJOR, (unsigned)OPENREG_DRIVER_SIZE_1);

    openreg_driver table;
    memset(&table, 0, sizeof table);
    memcpy(&table, given, size < sizeof table ? size : sizeof table);
    if (table.version == NULL)
        table.version = "";

    char name[32];
    const size_t length = table.name == NULL ? 0 : strnlen(table.name, sizeof name);
    if (!openreg_driver_name_read(table.name, length, name) || strcmp(name, table.name) != 0)
        return openreg_error_set(OPENREG_E_INVALID, NULL,
                                 "the driver's name \"%.40s\" is not 1 to 31 characters of [a-z0-9_]",
                                 table.name == NULL ? "" : table.name);
    const char *const variable = openreg_driver_name_reserved(name);
    if (variable != NULL)
        return openreg_error_set(OPENREG_E_INVALID, NULL,
                                 "the driver's name \"%s\" is reserved: %s would be an option of the driver", name,
                                 variable);
    OPENREG_RETURN_NOT_OK(check_slots(&table));
    *out = table;
    return OPENREG_OK;
}

openreg_status
openreg_loader_query(openreg_driver_query_fn query, const char *name, openreg_driver *out)
{
    const openreg_driver *given = NULL;
    openreg_error_begin_call();
    const openreg_status status = query(&openreg_host_services, &given);
    if (status != OPENREG_OK)
        return openreg_error_end_call(name != NULL ? name : "?", OPENREG_DRIVER_ENTRY_NAME, status);
    return openreg_loader_accept(given, out);
}

/* dlsym() for a function, without the object-to-function cast that ISO C lacks. */
static openreg_driver_query_fn
find_entry(void *handle, const char *name)
{
    openreg_driver_query_fn entry = NULL;
    void *const symbol = dlsym(handle, name);
    memcpy(&entry, &symbol, sizeof entry);
    return entry;
}

static openreg_status
reject_without_entry(void *handle, const char *path)
{
    /* Room for any number: without optimization gcc does not see the bound. */
    char entry[sizeof OPENREG_DRIVER_ENTRY_NAME + 10];
    const int stem = (int)sizeof OPENREG_DRIVER_ENTRY_NAME - 2; /* without the major version */
    for (unsigned major = OPENREG_ABI_MAJOR + 1; major < 100; ++major) {
        (void)snprintf(entry, sizeof entry, "%.*s%u", stem, OPENREG_DRIVER_ENTRY_NAME, major);
        if (find_entry(handle, entry) != NULL)
            return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL,
                                     "%s: the driver implements ABI %u, this runtime ABI %u", path, major,
                                     OPENREG_ABI_MAJOR);
    }
    return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL, "%s: not a driver: it does not export %s", path,
                             OPENREG_DRIVER_ENTRY_NAME);
}

/* Whether dlopen() has failed because a library that this one needs is missing. The dynamic loader has no error codes,
 * but ends its text with that of errno, in the process's language. */
static int
lacks_a_library(const char *reason)
{
    char buffer[128];
    return strstr(reason, strerror_r(ENOENT, buffer, sizeof buffer)) != NULL;
}

/* `path` is for texts, as requested; the dynamic loader's own texts name the real path. */
static openreg_status
load_new(const char *real, const char *path, const char *name, const struct stat *file, openreg_driver *out,
         int *is_missing)
{
    loaded_library *const library = calloc(1, sizeof *library);
    if (library == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, NULL, "%s: no host memory to load it", path);

    (void)dlerror();
    void *const handle = dlopen(real, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        const char *const reason = dlerror(); /* valid until the next dl call: used at once */
        free(library);
        *is_missing = reason != NULL && lacks_a_library(reason);
        return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL, "cannot load %s: %s", path,
                                 reason != NULL ? reason : "unknown reason");
    }
    const openreg_driver_query_fn query = find_entry(handle, OPENREG_DRIVER_ENTRY_NAME);
    openreg_status status;
    if (query == NULL) {
        status = reject_without_entry(handle, path);
    } else {
        status = openreg_loader_query(query, name, &library->table);
        if (status != OPENREG_OK)
            status = openreg_error_prefix(path);
    }
    if (status != OPENREG_OK) {
        (void)dlclose(handle);
        free(library);
        return status;
    }
    openreg_log(OPENREG_LOG_INFO, "loaded driver \"%s\" from %s", library->table.name, real);
    library->device = file->st_dev;
    library->inode = file->st_ino;
    library->next = libraries;
    libraries = library;
    *out = library->table;
    return OPENREG_OK;
}

/* Every error's text names the path. */
static openreg_status
load(const char *path, const char *name, openreg_driver *out, const char **resolved, int *is_missing)
{
    *is_missing = 0;
    /* dlopen() would search for a bare name in directories that nobody named. */
    if (strchr(path, '/') == NULL)
        return openreg_error_set(OPENREG_E_INVALID, NULL,
                                 "\"%s\" is not a path to a library: give an absolute path or one with a '/'", path);
    char real[PATH_MAX];
    struct stat file;
    if (realpath(path, real) == NULL || stat(real, &file) != 0) {
        char buffer[128];
        *is_missing = errno == ENOENT || errno == ENOTDIR;
        return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL, "cannot load %s: %s", path,
                                 strerror_r(errno, buffer, sizeof buffer));
    }
    *resolved = openreg_loader_keep_path(real);
    if (!S_ISREG(file.st_mode))
        return openreg_error_set(OPENREG_E_INCOMPATIBLE, NULL, "cannot load %s: it is not a regular file", path);

    for (const loaded_library *library = libraries; library != NULL; library = library->next)
        if (library->device == file.st_dev && library->inode == file.st_ino) {
            *out = library->table;
            return OPENREG_OK;
        }
    return load_new(real, path, name, &file, out, is_missing);
}

openreg_status
openreg_loader_load(const char *path, const char *name, openreg_driver *out, const char **resolved, int *is_missing)
{
    const openreg_status status = load(path, name, out, resolved, is_missing);
    return status == OPENREG_OK ? OPENREG_OK : openreg_error_names_path();
}
