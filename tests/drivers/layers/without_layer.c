// SPDX-License-Identifier: BSD-3-Clause
// A layer that takes optional slots away from the driver below it: the option "without" has names of slots or of groups
// (driver_slots.h), separated by commas.
#include <openreg/layer.h>
#include <string.h>

#include "driver/driver_slots.h"

static int
is_listed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; length > 0 && (at = strstr(at, name)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return 1;
    return 0;
}

static const openreg_driver *below; // one driver at a time is enough

// Without host_alias() no device may say that the host sees its memory.
static openreg_status
hidden_device_info(openreg_instance instance, int32_t dev, openreg_device_info *inout)
{
    const openreg_status status = below->device_info(instance, dev, inout);
    inout->caps &= ~OPENREG_CAP_HOST_VISIBLE;
    return status;
}

static openreg_status
layer_open(const openreg_layer_site *at, openreg_driver *table, openreg_instance *out)
{
    const char *list = "";
    for (uint64_t i = 0; i < at->option_count; ++i)
        if (strcmp(at->options[i].key, "without") == 0)
            list = at->options[i].value;
    const openreg_status status = at->below->open(at->host, at->options, at->option_count, out);
    if (status != OPENREG_OK)
        return status;
    *table = *at->below;
    for (int i = 0; i < OPENREG_SLOT_COUNT; ++i)
        if (is_listed(list, openreg_slots[i].name) || is_listed(list, openreg_slots[i].group))
            memset((char *)table + openreg_slots[i].offset, 0, sizeof(void (*)(void)));
    below = at->below;
    if (table->host_alias == NULL && table->device_info != NULL)
        table->device_info = hidden_device_info;
    return OPENREG_OK;
}

static const openreg_layer layer = {
    .struct_size = OPENREG_LAYER_SIZE_1,
    .abi_minor = OPENREG_ABI_MINOR,
    .table_size = sizeof(openreg_driver),
    .name = "without",
    .open = layer_open,
};

openreg_status openreg_layer_query_v1(const openreg_host *host, const openreg_layer **out);

__attribute__((visibility("default"))) openreg_status
openreg_layer_query_v1(const openreg_host *host, const openreg_layer **out)
{
    (void)host;
    *out = &layer;
    return OPENREG_OK;
}
