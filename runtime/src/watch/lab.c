/* SPDX-License-Identifier: BSD-3-Clause */
/* lab.c: loads the libraries beside libopenreg.so from its folder, once each (lab.h). */
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
#include "watch/capture.h"

openreg_lab_query_fn openreg_lab_linked;

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* held while loading, in the dynamic loader and constructors */
static _Atomic(const void *) loaded_lab, loaded_graph, loaded_sharing;

_Atomic(openreg_recorder_fn) openreg_recorder;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_LAB, &lock);
}

/* The path of a library beside the one that this function is in. */
static void
find_path(const char *library, char path[PATH_MAX])
{
    Dl_info info;
    char real[PATH_MAX] = "";
    if (dladdr((const void *)&openreg_lab_linked, &info) == 0 || realpath(info.dli_fname, real) == NULL)
        real[0] = '\0';
    const char *const slash = strrchr(real, '/');
    const int folder = slash != NULL ? (int)(slash + 1 - real) : 0;
    if (snprintf(path, PATH_MAX, "%.*s%s", folder, real, library) >= PATH_MAX)
        (void)snprintf(path, PATH_MAX, "%s", library);
}

/* The result of a library's entry: a structure that begins with the version. NULL with an error. The lock is held. */
static const void *
open_library(const char *call, const char *library, const char *entry)
{
    char path[PATH_MAX];
    const void *(*query)(void) = NULL;
    find_path(library, path);
    (void)dlerror();
    void *const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *const symbol = handle != NULL ? dlsym(handle, entry) : NULL;
    memcpy(&query, &symbol, sizeof query);
    if (query == NULL) {
        const char *const reason = dlerror();
        (void)openreg_error_set(OPENREG_E_INCOMPATIBLE, call, "%s can't be loaded: %s", path,
                                reason != NULL ? reason : "unknown reason");
        return NULL;
    }
    const void *const parts = query();
    const char *version;
    memcpy(&version, parts, sizeof version);
    if (strcmp(version, OPENREG_VERSION_STRING) != 0) {
        (void)openreg_error_set(OPENREG_E_INCOMPATIBLE, call, "%s has version %s, but libopenreg has version %s", path,
                                version, OPENREG_VERSION_STRING);
        return NULL;
    }
    return parts;
}

/* The same, once a process. */
static const void *
load(_Atomic(const void *) *loaded, const char *call, const char *library, const char *entry)
{
    const void *parts = atomic_load_explicit(loaded, memory_order_acquire);
    if (parts != NULL)
        return parts;
    openreg_lock_acquire(&lock);
    parts = atomic_load_explicit(loaded, memory_order_relaxed);
    if (parts == NULL) {
        parts = loaded == &loaded_lab && openreg_lab_linked != NULL ? openreg_lab_linked()
                                                                    : open_library(call, library, entry);
        atomic_store_explicit(loaded, parts, memory_order_release);
    }
    openreg_lock_release(&lock);
    return parts;
}

const openreg_lab_parts *
openreg_lab_load(void)
{
    return load(&loaded_lab, "openreg_lab_get", "libopenreg_lab.so", OPENREG_LAB_ENTRY_NAME);
}

const openreg_graphs *
openreg_graphs_get(void)
{
    const openreg_graph_parts *const parts = load(&loaded_graph, "openreg_graphs_get", "libopenreg_graph.so",
                                                  OPENREG_GRAPH_ENTRY_NAME);
    return parts != NULL ? parts->functions : NULL;
}

const openreg_sharing *
openreg_sharing_get(void)
{
    const openreg_sharing_parts *const parts = load(&loaded_sharing, "openreg_sharing_get", "libopenreg_sharing.so",
                                                    OPENREG_SHARING_ENTRY_NAME);
    return parts != NULL ? parts->functions : NULL;
}

const openreg_sharing_parts *
openreg_sharing_peek(void)
{
    return atomic_load_explicit(&loaded_sharing, memory_order_acquire);
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
    const openreg_lab_parts *const parts = atomic_load_explicit(&loaded_lab, memory_order_acquire);
    return parts != NULL ? parts->functions : NULL;
}
