/* SPDX-License-Identifier: BSD-3-Clause */
/* lab.c: loads libopenreg_lab.so from the folder of libopenreg.so, once (lab.h). */
#define _GNU_SOURCE
#include "watch/lab.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/log.h"

#define LIBRARY "libopenreg_lab.so"

openreg_lab_query_fn openreg_lab_linked;

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* of loading: the dynamic loader and constructors run in it */
static _Atomic(const openreg_lab_parts *) loaded;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_LAB, &lock);
}

/* The path of the library, beside the one that this function is in. */
static void
find_path(char path[PATH_MAX])
{
    Dl_info info;
    char real[PATH_MAX] = "";
    if (dladdr((const void *)&openreg_lab_linked, &info) == 0 || realpath(info.dli_fname, real) == NULL)
        real[0] = '\0';
    const char *const slash = strrchr(real, '/');
    const int folder = slash != NULL ? (int)(slash + 1 - real) : 0;
    if (snprintf(path, PATH_MAX, "%.*s" LIBRARY, folder, real) >= PATH_MAX)
        (void)snprintf(path, PATH_MAX, LIBRARY);
}

/* The lock is held. */
static const openreg_lab_parts *
load(const char *call)
{
    char path[PATH_MAX] = LIBRARY;
    openreg_lab_query_fn query = openreg_lab_linked;
    if (query == NULL) {
        find_path(path);
        (void)dlerror();
        void *const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        void *const symbol = handle != NULL ? dlsym(handle, OPENREG_LAB_ENTRY_NAME) : NULL;
        memcpy(&query, &symbol, sizeof query);
        if (query == NULL) {
            const char *const reason = dlerror();
            (void)openreg_error_set(OPENREG_E_INCOMPATIBLE, call, "%s can't be loaded: %s", path,
                                    reason != NULL ? reason : "unknown reason");
            return NULL;
        }
    }
    const openreg_lab_parts *const parts = query();
    if (strcmp(parts->version, OPENREG_VERSION_STRING) != 0) {
        (void)openreg_error_set(OPENREG_E_INCOMPATIBLE, call, "%s is of version %s, and libopenreg of %s", path,
                                parts->version, OPENREG_VERSION_STRING);
        return NULL;
    }
    return parts;
}

const openreg_lab_parts *
openreg_lab_load(void)
{
    const openreg_lab_parts *parts = atomic_load_explicit(&loaded, memory_order_acquire);
    if (parts != NULL)
        return parts;
    openreg_lock_acquire(&lock);
    parts = atomic_load_explicit(&loaded, memory_order_relaxed);
    if (parts == NULL) {
        parts = load("openreg_lab_get");
        atomic_store_explicit(&loaded, parts, memory_order_release);
    }
    openreg_lock_release(&lock);
    return parts;
}

const openreg_lab_parts *
openreg_lab_load_or_warn(const char *variable)
{
    const openreg_error_fields before = openreg_error_save();
    const openreg_lab_parts *const parts = openreg_lab_load();
    if (parts == NULL) {
        openreg_log(OPENREG_LOG_WARNING, "env var %s has no effect: %s", variable, openreg_last_error()->message);
        openreg_error_restore(&before);
    }
    return parts;
}

const openreg_lab *
openreg_lab_get(void)
{
    const openreg_lab_parts *const parts = openreg_lab_load();
    return parts != NULL ? parts->functions : NULL;
}

const openreg_lab *
openreg_lab_peek(void)
{
    const openreg_lab_parts *const parts = atomic_load_explicit(&loaded, memory_order_acquire);
    return parts != NULL ? parts->functions : NULL;
}
