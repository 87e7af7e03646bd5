/* SPDX-License-Identifier: BSD-3-Clause */
/* device_name.c: the name of devices in texts (device_name.h). */
#define _GNU_SOURCE
#include "base/device_name.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "openreg/embedding.h"

#define LONGEST 31

static const char usual[] = "openreg";
static _Atomic(const char *) name = usual; /* or a copy of the name that was set, never freed */

const char *
openreg_device_name(void)
{
    return atomic_load_explicit(&name, memory_order_acquire);
}

const char *
openreg_device_title(void)
{
    const char *const now = openreg_device_name();
    return strcmp(now, usual) == 0 ? "OpenReg" : now;
}

openreg_status
openreg_set_device_name(const char *text)
{
    static const char call[] = "openreg_set_device_name";
    const size_t length = text != NULL ? strspn(text, "abcdefghijklmnopqrstuvwxyz_") : 0;
    if (length == 0 || length > LONGEST || text[length] != '\0')
        return openreg_error_set(OPENREG_E_INVALID, call, "a name has 1 to %d of a-z and _", LONGEST);
    char *const copy = strdup(text);
    if (copy == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the name");
    const char *now = usual;
    if (atomic_compare_exchange_strong_explicit(&name, &now, copy, memory_order_acq_rel, memory_order_acquire))
        return OPENREG_OK;
    free(copy);
    if (strcmp(now, text) == 0)
        return OPENREG_OK;
    return openreg_error_set(OPENREG_E_INVALID, call, "the devices are named \"%s\" already", now);
}
