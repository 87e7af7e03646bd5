/* SPDX-License-Identifier: BSD-3-Clause */
/* libraries_env.c: reads OPENREG_DRIVER_LIBRARIES (libraries_env.h). */
#define _GNU_SOURCE
#include "registry/libraries_env.h"

#include <string.h>

#include <openreg/openreg.h>

#include "base/log.h"
#include "base/parse.h"

static int
ends_in_json(const char *text, size_t length)
{
    return length >= 5 && memcmp(text + length - 5, ".json", 5) == 0;
}

static int
read_item(const char *item, size_t length, openreg_library_item *out)
{
    const char *const colon = memchr(item, ':', length);
    if (colon == NULL)
        return 0;
    const char *path = colon + 1;
    size_t path_length = (size_t)(item + length - path);
    openreg_text_trim(&path, &path_length);
    const char *const *members;
    if (path_length == 0 || path_length >= sizeof out->path ||
        !openreg_driver_name_resolve(item, (size_t)(colon - item), out->name) ||
        openreg_driver_group(out->name, &members) > 0)
        return 0;
    memcpy(out->path, path, path_length);
    out->path[path_length] = '\0';
    out->is_description = ends_in_json(path, path_length);
    return 1;
}

int
openreg_library_item_next(const char *value, const char **cursor, openreg_library_item *out)
{
    const char *item;
    size_t length;
    while (openreg_list_next(cursor, &item, &length)) {
        if (read_item(item, length, out))
            return 1;
        openreg_log(OPENREG_LOG_WARNING, "invalid value %.*s in env var %s %s", (int)length, item,
                    OPENREG_LIBRARIES_VARIABLE, value);
    }
    return 0;
}
