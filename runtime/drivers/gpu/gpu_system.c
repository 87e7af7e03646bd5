/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_system.c: libraries, files and the vendor's variables of this machine (gpu_system.h). */
#define _GNU_SOURCE
#include "gpu_system.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *
openreg_gpu_system_open(const char *soname, char *reason, size_t size)
{
    (void)dlerror();
    void *const library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *const text = dlerror(); /* valid until the next dl call: used at once */
        (void)snprintf(reason, size, "%s", text != NULL ? text : "unknown reason");
    }
    return library;
}

void *
openreg_gpu_system_opened(const char *soname)
{
    void *const library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
    if (library == NULL)
        (void)dlerror();
    return library;
}

bool
openreg_gpu_system_find(void *library, const char *name, void *out)
{
    void *const symbol = dlsym(library, name);
    if (symbol == NULL)
        return false;
    memcpy(out, &symbol, sizeof symbol); /* ISO C has no cast from an object to a function */
    return true;
}

bool
openreg_gpu_system_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool
openreg_gpu_system_path(const char *path, char *out, size_t size)
{
    const int length = snprintf(out, size, "%s", path);
    return length >= 0 && (size_t)length < size;
}

const char *
openreg_gpu_system_vendor_variable(const char *name)
{
    return getenv(name);
}
