/* SPDX-License-Identifier: BSD-3-Clause */
/* options.c: options of drivers (options.h), and which process of a distributed program this is. */
#define _GNU_SOURCE
#include "driver/options.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openreg/embedding.h>
#include <openreg/openreg.h>

#include "base/error.h"

/* count << 32 | index, so that both are read at once; 0: not set. */
static atomic_uint_least64_t process;

/* Key and value in one block, which begins with the key. */
static int
make_option(const char *key, size_t key_length, const char *value, openreg_option *out)
{
    const size_t value_size = strlen(value) + 1;
    char *const block = malloc(key_length + 1 + value_size);
    if (block == NULL)
        return 0;
    memcpy(block, key, key_length);
    block[key_length] = '\0';
    memcpy(block + key_length + 1, value, value_size);
    *out = (openreg_option){block, block + key_length + 1};
    return 1;
}

void
openreg_option_free(openreg_option option)
{
    free((void *)(uintptr_t)option.key);
}

static size_t
place_of(const openreg_options *options, const char *key)
{
    size_t at = 0;
    while (at < options->count && strcmp(options->items[at].key, key) != 0)
        ++at;
    return at;
}

/* Takes ownership of `option`. */
static int
put(openreg_options *options, openreg_option option)
{
    const size_t at = place_of(options, option.key);
    if (at < options->count) {
        openreg_option_free(options->items[at]);
        options->items[at] = option;
        return 1;
    }
    openreg_option *const items = realloc(options->items, (options->count + 1) * sizeof *items);
    if (items == NULL) {
        openreg_option_free(option);
        return 0;
    }
    items[options->count++] = option;
    options->items = items;
    return 1;
}

int
openreg_options_set(openreg_options *options, const char *key, const char *value)
{
    openreg_option option;
    return make_option(key, strlen(key), value, &option) && put(options, option);
}

int
openreg_options_set_all(openreg_options *options, const openreg_option *items, uint32_t count)
{
    for (size_t i = 0; i < count; ++i)
        if (!openreg_options_set(options, items[i].key, items[i].value))
            return 0;
    return 1;
}

int
openreg_options_equal(const openreg_options *options, const openreg_option *items, uint32_t count)
{
    if (options->count != count)
        return 0;
    for (size_t i = 0; i < count; ++i) {
        const size_t at = place_of(options, items[i].key);
        if (at == options->count || strcmp(options->items[at].value, items[i].value) != 0)
            return 0;
    }
    return 1;
}

void
openreg_options_free(openreg_options *options)
{
    for (size_t i = 0; i < options->count; ++i)
        openreg_option_free(options->items[i]);
    free(options->items);
    *options = (openreg_options){NULL, 0};
}

openreg_option
openreg_options_remove(openreg_options *options, const char *key)
{
    const size_t at = place_of(options, key);
    if (at == options->count)
        return (openreg_option){NULL, NULL};
    const openreg_option found = options->items[at];
    --options->count;
    memmove(&options->items[at], &options->items[at + 1], (options->count - at) * sizeof found);
    return found;
}

static int
is_of_another(const char *variable, const char *const *others, size_t count)
{
    for (size_t i = 0; i < count; ++i)
        if (openreg_environment_option(variable, others[i]) != NULL)
            return 1;
    return 0;
}

int
openreg_options_set_from(openreg_options *options, const openreg_environment *environment, const char *driver,
                         const char *const *others, size_t other_count)
{
    const char *variable = NULL;
    while ((variable = openreg_environment_next(environment, variable)) != NULL) {
        const char *const key = openreg_environment_option(variable, driver);
        if (key == NULL || is_of_another(variable, others, other_count) || strncmp(key, "LIBRARY_PATH=", 13) == 0)
            continue;
        const char *const equals = strchr(key, '=');
        openreg_option option;
        if (!make_option(key, (size_t)(equals - key), equals + 1, &option))
            return 0;
        for (char *c = (char *)(uintptr_t)option.key; *c != '\0'; ++c) /* not shared yet */
            *c = (char)tolower((unsigned char)*c);
        if (!put(options, option))
            return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------------ the process */

openreg_status
openreg_set_process(int32_t index, int32_t count)
{
    if (index < 0 || index >= count)
        return openreg_error_set(OPENREG_E_INVALID, "openreg_set_process",
                                 "process %d of %d: the index must be in [0, %d)", index, count, count);
    atomic_store_explicit(&process, (uint64_t)(uint32_t)count << 32 | (uint32_t)index, memory_order_relaxed);
    return OPENREG_OK;
}

static int32_t
process_count(void)
{
    const int32_t count = (int32_t)(atomic_load_explicit(&process, memory_order_relaxed) >> 32);
    return count > 0 ? count : 1;
}

int32_t
openreg_process_index(void)
{
    return (int32_t)(atomic_load_explicit(&process, memory_order_relaxed) & UINT32_MAX);
}

int
openreg_options_set_process(openreg_options *options)
{
    char index[16], count[16];
    (void)snprintf(index, sizeof index, "%d", openreg_process_index());
    (void)snprintf(count, sizeof count, "%d", process_count());
    return openreg_options_set(options, "node_id", index) && openreg_options_set(options, "num_nodes", count);
}
