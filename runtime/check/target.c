/* SPDX-License-Identifier: BSD-3-Clause */
/* target.c: where the driver that is checked comes from (check.h). */
#define _GNU_SOURCE
#include "check.h"

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <openreg/openreg.h>

/* The simulated devices are inside libopenreg.so, which does not show their table; this program has a copy of its own. */
openreg_status openreg_sim_query(const openreg_host *host, const openreg_driver **out);

const char *
check_target_find(const char *name, check_target *target)
{
    static char path[PATH_MAX];
    static openreg_driver_record record = {.struct_size = sizeof record};
    target->name = name;
    target->path = NULL;
    if (strcmp(name, "sim") == 0)
        return NULL;
    if (strchr(name, '/') != NULL || access(name, R_OK) == 0) {
        target->path = realpath(name, path);
        return target->path == NULL ? "there is no such file" : NULL;
    }
    if (openreg_driver_find(name, &record) != OPENREG_OK)
        return openreg_last_error()->message;
    if (record.path[0] == '\0' || access(record.path, R_OK) != 0)
        return "this driver is known, but its library is not installed";
    target->path = record.path;
    return NULL;
}

static bool
has_option(const check_target *target, const char *key)
{
    for (size_t i = 0; i < target->option_count; ++i)
        if (strcasecmp(target->options[i].key, key) == 0)
            return true;
    return false;
}

const check_target *
check_target_with_variables(const check_target *target, const char *driver)
{
    static openreg_option options[2 * CHECK_OPTIONS];
    static check_target own;
    extern char **environ;
    own = *target;
    own.options = options;
    for (size_t i = 0; i < target->option_count; ++i)
        options[i] = target->options[i];
    const size_t length = driver != NULL ? strlen(driver) : 0;
    for (char **at = environ; length > 0 && *at != NULL && own.option_count < 2 * CHECK_OPTIONS; ++at) {
        if (strncmp(*at, "OPENREG_", 8) != 0 || strncasecmp(*at + 8, driver, length) != 0 || (*at)[8 + length] != '_')
            continue;
        char *const key = strdup(*at + 8 + length + 1);
        char *const sign = key != NULL ? strchr(key, '=') : NULL;
        if (sign == NULL || sign == key)
            continue;
        *sign = '\0';
        for (char *letter = key; *letter != '\0'; ++letter)
            *letter = (char)tolower((unsigned char)*letter);
        if (!has_option(target, key))
            options[own.option_count++] = (openreg_option){key, sign + 1};
    }
    return &own;
}

openreg_driver_query_fn
check_target_entry(const check_target *target)
{
    if (target->path == NULL)
        return openreg_sim_query;
    void *const handle = dlopen(target->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        const char *const reason = dlerror();
        check_fail("cannot load %s: %s", target->path, reason != NULL ? reason : "unknown reason");
    }
    void *const symbol = dlsym(handle, OPENREG_DRIVER_ENTRY_NAME);
    REQUIRE(symbol != NULL, "%s does not export %s", target->path, OPENREG_DRIVER_ENTRY_NAME);
    openreg_driver_query_fn entry;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from object to function */
    return entry;
}
