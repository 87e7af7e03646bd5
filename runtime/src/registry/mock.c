/* SPDX-License-Identifier: BSD-3-Clause */
/* mock.c: which GPU drivers are mocked, and how (mock.h). */
#define _GNU_SOURCE
#include "registry/mock.h"

#include <stdio.h>
#include <string.h>

#include <openreg/openreg.h>

#include "base/error.h"
#include "base/log.h"
#include "base/parse.h"

/* Whether an item names `name` as a mock; *is_good = 0 if it names nothing that can be mocked. */
static int
item_means(const char *item, size_t length, const char *name, int *is_good)
{
    char asked[OPENREG_NAME_SIZE];
    *is_good = 1;
    if (length == 1 && (*item == '0' || *item == '1'))
        return *item == '1' && strcmp(name, "cuda") == 0;
    const char *const *members;
    if (!openreg_driver_name_resolve(item, length, asked)) {
        *is_good = 0;
        return 0;
    }
    const int is_group = openreg_driver_group(asked, &members) > 0;
    *is_good = is_group || openreg_driver_is_gpu_name(asked);
    return *is_good && (is_group ? openreg_driver_is_gpu_name(name) : strcmp(asked, name) == 0);
}

int
openreg_mock_is_wanted(const char *value, const char *name)
{
    const char *item;
    size_t length;
    int is_good;
    for (const char *cursor = value; openreg_list_next(&cursor, &item, &length);)
        if (item_means(item, length, name, &is_good))
            return 1;
    return 0;
}

void
openreg_mock_warn_of_bad_items(const char *value)
{
    const char *item;
    size_t length;
    int is_good;
    for (const char *cursor = value; openreg_list_next(&cursor, &item, &length);) {
        (void)item_means(item, length, "", &is_good);
        if (!is_good)
            openreg_log(OPENREG_LOG_WARNING, "invalid value %.*s in env var %s %s", (int)length, item,
                        OPENREG_MOCK_VARIABLE, value);
    }
}

openreg_status
openreg_mock_set_options(const char *call, const char *name, const char *count, openreg_options *options)
{
    const char *text = count != NULL ? count : "1";
    size_t length = strlen(text);
    int64_t devices;
    openreg_text_trim(&text, &length);
    if (!openreg_integer_read(text, length, 1, OPENREG_MAX_DEVICES, &devices))
        return openreg_error_set(OPENREG_E_INVALID, call, "%s must be an integer from 1 to %d, but is \"%.64s\"",
                                 OPENREG_MOCK_COUNT_VARIABLE, OPENREG_MAX_DEVICES, count);
    char digits[8]; /* of a value without leading zeros */
    (void)snprintf(digits, sizeof digits, "%d", (int)devices);
    if (!openreg_options_set(options, "devices", digits) || !openreg_options_set(options, "mock", name))
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the options of driver '%s'", name);
    return OPENREG_OK;
}
