/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_libraries.c: loads layers (layer_stack.h). */
#define _GNU_SOURCE
#include "registry/layer_stack.h"

#include <dlfcn.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/sized_struct.h"
#include "registry/libraries_env.h"

/* dlopen() returns the same handle for a loaded library. */
static openreg_status
load(const char *call, const openreg_library_item *item, const openreg_layer **out)
{
    (void)dlerror();
    void *const handle = dlopen(item->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        const char *const reason = dlerror();
        return openreg_error_set(OPENREG_E_INCOMPATIBLE, call, "%s: layer \"%s\" can't be loaded from %s: %s",
                                 OPENREG_LAYERS_VARIABLE, item->name, item->path,
                                 reason != NULL ? reason : "unknown reason");
    }
    openreg_layer_query_fn query = NULL;
    void *const symbol = dlsym(handle, OPENREG_LAYER_ENTRY_NAME);
    memcpy(&query, &symbol, sizeof query);
    if (query == NULL)
        return openreg_error_set(OPENREG_E_INCOMPATIBLE, call, "%s: %s is not a layer: it does not export %s",
                                 OPENREG_LAYERS_VARIABLE, item->path, OPENREG_LAYER_ENTRY_NAME);
    const openreg_layer *layer = NULL;
    openreg_error_begin_call();
    const openreg_status status = openreg_error_end_call(item->name, call, query(&openreg_host_services, &layer));
    if (status != OPENREG_OK)
        return status;
    if (layer == NULL || !openreg_sized_is_valid(layer, OPENREG_LAYER_SIZE_1) || layer->open == NULL ||
        layer->table_size < offsetof(openreg_driver, device_info)) /* the required functions are before that */
        return openreg_error_set(OPENREG_E_INCOMPATIBLE, call, "%s: the layer of %s is NULL or incomplete",
                                 OPENREG_LAYERS_VARIABLE, item->path);
    *out = layer;
    return OPENREG_OK;
}

openreg_status
openreg_layer_libraries_find(const char *call, const char *text, const openreg_layer *out[OPENREG_LAYERS_MAX],
                             int *count)
{
    openreg_library_item item;
    *count = 0;
    for (const char *cursor = text; openreg_library_item_next(&cursor, &item);) {
        if (!item.is_pair || item.problem != NULL)
            return openreg_error_set(OPENREG_E_INVALID, call, "\"%.*s\" in env var %s is not name:path: %s",
                                     (int)item.length, item.text, OPENREG_LAYERS_VARIABLE,
                                     item.problem != NULL ? item.problem : "it has no path");
        if (*count == OPENREG_LAYERS_MAX)
            return openreg_error_set(OPENREG_E_INVALID, call, "env var %s names more than %d layers",
                                     OPENREG_LAYERS_VARIABLE, OPENREG_LAYERS_MAX);
        OPENREG_RETURN_NOT_OK(load(call, &item, &out[*count]));
        ++*count;
    }
    return OPENREG_OK;
}
