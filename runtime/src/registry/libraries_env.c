/* SPDX-License-Identifier: BSD-3-Clause */
/* libraries_env.c: reads OPENREG_DRIVER_LIBRARIES (libraries_env.h). */
#define _GNU_SOURCE
#include "registry/libraries_env.h"

#include <string.h>

#include <openreg/embedding.h>
#include <openreg/openreg.h>

#include "base/error.h"
#include "base/parse.h"
#include "base/text.h"

static int
ends_in_json(const char *text, size_t length)
{
    return length >= 5 && memcmp(text + length - 5, ".json", 5) == 0;
}

/* A word without a path, or more than two parts: probably a list of another kind. */
static int
is_no_pair(const char *item, size_t length, const char *colon)
{
    if (colon == NULL)
        return memchr(item, '/', length) == NULL && memchr(item, '.', length) == NULL;
    return memchr(colon + 1, ':', (size_t)(item + length - colon - 1)) != NULL;
}

/* Why the item is unusable; NULL: it is usable, and *out has its parts. */
static const char *
read_item(const char *item, size_t length, const char *colon, openreg_library_item *out)
{
    if (colon == NULL)
        return "it has no name";
    const char *name = item;
    size_t name_length = (size_t)(colon - item);
    const char *path = colon + 1;
    size_t path_length = (size_t)(item + length - path);
    openreg_text_trim(&name, &name_length);
    openreg_text_trim(&path, &path_length);
    const char *const *members;
    if (name_length == 0)
        return "it has no name";
    if (!openreg_driver_name_resolve(name, name_length, out->name))
        return "its name is not 1 to 31 characters of [a-z0-9_]";
    if (openreg_driver_group(out->name, &members) > 0)
        return "its name is that of a group of drivers";
    if (path_length == 0)
        return "it has no path";
    if (path_length >= sizeof out->path)
        return "its path is too long";
    memcpy(out->path, path, path_length);
    out->path[path_length] = '\0';
    out->is_description = ends_in_json(path, path_length);
    return NULL;
}

int
openreg_library_item_next(const char **cursor, openreg_library_item *out)
{
    if (!openreg_list_next(cursor, &out->text, &out->length))
        return 0;
    const char *const colon = memchr(out->text, ':', out->length);
    out->is_pair = !is_no_pair(out->text, out->length, colon);
    out->problem = NULL;
    out->name[0] = out->path[0] = '\0';
    out->is_description = 0;
    if (out->is_pair)
        out->problem = read_item(out->text, out->length, colon, out);
    return 1;
}

openreg_status
openreg_get_driver_description(int32_t i, char name[32], char *path, size_t size)
{
    static const char call[] = "openreg_get_driver_description";
    if (i < 0 || name == NULL || path == NULL || size == 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "i is negative, or an argument is NULL");
    openreg_library_item item;
    int32_t count = 0;
    for (const char *cursor = openreg_variable(OPENREG_LIBRARIES_VARIABLE); openreg_library_item_next(&cursor, &item);)
        if (item.is_pair && item.problem == NULL && item.is_description && count++ == i) {
            if (strlen(item.path) >= size)
                return openreg_error_set(OPENREG_E_INVALID, call, "a path of %zu bytes needs more room",
                                         strlen(item.path));
            openreg_text_copy(name, OPENREG_NAME_SIZE, item.name);
            openreg_text_copy(path, size, item.path);
            return OPENREG_OK;
        }
    return openreg_error_set(OPENREG_E_INVALID, call, "the index is out of range. It must be in [0, %d), but got %d.",
                             count, i);
}
