/* SPDX-License-Identifier: BSD-3-Clause */
/* visible_devices.c: reads OPENREG_<NAME>_VISIBLE_DEVICES (visible_devices.h). */
#define _GNU_SOURCE
#include "driver/visible_devices.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/parse.h"

typedef struct reading {
    const char *call, *driver, *variable, *value;
    int32_t found;
} reading;

static openreg_status
refuse(const reading *r, const char *item, size_t length, const char *why)
{
    char ids[48] = "device 0";
    if (r->found > 1)
        (void)snprintf(ids, sizeof ids, "devices 0 to %d", r->found - 1);
    return openreg_error_set(OPENREG_E_INVALID, r->call, "%s=\"%.160s\": '%.*s' %s; driver '%s' has %s", r->variable,
                             r->value, (int)(length < 40 ? length : 40), item, why, r->driver, ids);
}

static openreg_status
too_many(const reading *r, long long count)
{
    return openreg_error_set(OPENREG_E_NO_DEVICE, r->call, "Driver '%s' provides %lld devices; PyTorch can count to %d",
                             r->driver, count, OPENREG_MAX_DEVICES);
}

static openreg_status
add(const reading *r, const char *item, size_t length, openreg_visible_devices *out)
{
    int64_t ordinal = -1;
    if (!openreg_integer_read(item, length, 0, INT32_MAX, &ordinal))
        return refuse(r, item, length, "is not a device id");
    if (ordinal >= r->found)
        return refuse(r, item, length, "does not exist");
    for (int32_t i = 0; i < out->count; ++i)
        if (out->ordinals[i] == ordinal)
            return refuse(r, item, length, "is given twice");
    if (out->count == OPENREG_MAX_DEVICES)
        return too_many(r, out->count + 1);
    out->ordinals[out->count++] = (int32_t)ordinal;
    return OPENREG_OK;
}

static openreg_status
read_all(const reading *r, openreg_visible_devices *out)
{
    if (r->found > OPENREG_MAX_DEVICES)
        return too_many(r, r->found);
    while (out->count < r->found) {
        out->ordinals[out->count] = out->count;
        ++out->count;
    }
    return OPENREG_OK;
}

openreg_status
openreg_visible_devices_read(const char *call, const char *driver, const char *variable, const char *value,
                             int32_t found, openreg_visible_devices *out)
{
    const reading r = {call, driver, variable, value, found};
    out->count = 0;
    if (value == NULL)
        return read_all(&r, out);
    const char *item = value;
    size_t length = strlen(value);
    openreg_text_trim(&item, &length);
    if (length == 3 && strncasecmp(item, "all", 3) == 0)
        return read_all(&r, out);
    /* Not openreg_list_next(), which skips empty items: here they are errors. */
    for (const char *start = value;;) {
        const size_t span = strcspn(start, ",");
        item = start;
        length = span;
        openreg_text_trim(&item, &length);
        OPENREG_RETURN_NOT_OK(add(&r, item, length, out));
        if (start[span] == '\0')
            return OPENREG_OK;
        start += span + 1;
    }
}
