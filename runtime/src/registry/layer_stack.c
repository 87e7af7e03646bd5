/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_stack.c: the layers of one driver, each of which opens the one below it (layer_stack.h). */
#define _GNU_SOURCE
#include "registry/layer_stack.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "driver/driver_calls.h"
#include "watch/lab.h"

#define LEVELS (OPENREG_LAYERS_MAX + 1) /* + 1 for the layer of OPENREG_VALIDATE */

/* The driver, or a layer with everything below it. */
typedef struct level {
    const openreg_layer *layer; /* NULL: the driver */
    openreg_layer_site site;
    openreg_driver table; /* complete once it is open */
    openreg_instance instance;
} level;

struct openreg_layer_level {
    int count;
    level levels[LEVELS + 1]; /* the driver first */
};

/* The layers being opened, and the current depth, for which open() has no argument. The driver lock is held. */
static struct openreg_layer_level *opening;
static int depth;

static int
is_wanted(const char *text)
{
    if (text == NULL || *text == '\0' || strcmp(text, "0") == 0)
        return 0;
    if (strcmp(text, "1") == 0)
        return 1;
    openreg_log(OPENREG_LOG_WARNING, "invalid value %s in env var %s: it is 0 or 1, calls are not checked", text,
                OPENREG_VALIDATE_VARIABLE);
    return 0;
}

/* A function that an older layer doesn't know is that below it, if they share the instance; else NULL. */
static void
complete(level *at, const level *below)
{
    const size_t known = at->layer->table_size < sizeof at->table ? at->layer->table_size : sizeof at->table;
    if (at->instance == below->instance)
        memcpy((char *)&at->table + known, (const char *)&below->table + known, sizeof at->table - known);
    else
        memset((char *)&at->table + known, 0, sizeof at->table - known);
    at->table.struct_size = below->table.struct_size;
}

/* open() of the table that a layer gets as the one below. */
static openreg_status
open_below(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    level *const at = &opening->levels[--depth];
    openreg_status status;
    if (at->layer == NULL) {
        openreg_status (*const driver_open)(const openreg_host *, const openreg_option *, uint32_t,
                                            openreg_instance *) = at->site.below->open;
        status = driver_open(host, options, n, &at->instance);
        at->table.open = driver_open;
    } else {
        at->site.options = options;
        at->site.option_count = n;
        memset(&at->table, 0, sizeof at->table);
        status = at->layer->open(&at->site, &at->table, &at->instance);
        if (status == OPENREG_OK)
            complete(at, at - 1);
    }
    ++depth;
    if (status == OPENREG_OK)
        *out = at->instance;
    return status;
}

static openreg_status
find_layers(const char *call, const char *layers, const char *validate, struct openreg_layer_level *stack)
{
    if (is_wanted(validate)) {
        const openreg_lab_parts *const lab = openreg_lab_load();
        if (lab == NULL)
            return openreg_error_set_call(call);
        stack->levels[++stack->count].layer = lab->validation;
    }
    const openreg_layer *found[OPENREG_LAYERS_MAX];
    int count = 0;
    OPENREG_RETURN_NOT_OK(openreg_layer_libraries_find(call, layers, found, &count));
    while (count > 0)
        stack->levels[++stack->count].layer = found[--count];
    return OPENREG_OK;
}

openreg_status
openreg_layer_stack_open(const char *call, openreg_opened_driver *driver, const char *layers, const char *validate,
                         const openreg_options *options)
{
    struct openreg_layer_level *const stack = calloc(1, sizeof *stack);
    if (stack == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the layers of driver '%s'", driver->name);
    openreg_status status = find_layers(call, layers, validate, stack);
    if (status != OPENREG_OK || stack->count == 0) {
        free(stack);
        return status != OPENREG_OK ? status
                                    : openreg_call_open(&driver->own, driver->name, call, options->items,
                                                        options->count, &driver->instance);
    }
    stack->levels[0].table = driver->own;
    for (int i = 0; i <= stack->count; ++i) {
        level *const at = &stack->levels[i];
        at->site = (openreg_layer_site){.struct_size = sizeof at->site,
                                        .host = &openreg_host_services,
                                        .driver = driver->name,
                                        .below = i == 0 ? &driver->own : &at[-1].table};
        if (i < stack->count)
            at->table.open = open_below;
    }
    opening = stack;
    depth = stack->count + 1;
    const openreg_driver outermost = {.open = open_below};
    status = openreg_call_open(&outermost, driver->name, call, options->items, options->count, &driver->instance);
    opening = NULL;
    if (status != OPENREG_OK) {
        free(stack);
        return status;
    }
    driver->own = stack->levels[stack->count].table;
    driver->levels = stack;
    return OPENREG_OK;
}

void
openreg_layer_stack_free(openreg_opened_driver *driver)
{
    free(driver->levels);
    driver->levels = NULL;
}
