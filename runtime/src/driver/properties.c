/* SPDX-License-Identifier: BSD-3-Clause */
/* properties.c: device properties from a driver's description (properties.h). */
#define _GNU_SOURCE
#include "driver/properties.h"

#include <string.h>

#include "base/sized_struct.h"
#include "base/text.h"

void
openreg_properties_fill(const openreg_driver *table, const char *driver, int32_t ordinal,
                        const openreg_device_info *info, openreg_device_properties *inout)
{
    openreg_device_properties properties;
    memset(&properties, 0, sizeof properties);
    properties.ordinal = ordinal;
    properties.total_memory = info->total_bytes;
    properties.max_allocation = info->max_allocation;
    properties.caps = table->caps | info->caps;
    properties.priority_low = info->priority_low;
    properties.priority_high = info->priority_high;
    properties.multi_processor_count = info->multi_processor_count;
    properties.capability_major = info->capability_major;
    properties.capability_minor = info->capability_minor;
    memcpy(properties.uuid, info->uuid, sizeof properties.uuid);
    openreg_text_copy(properties.name, sizeof properties.name, info->name);
    openreg_text_copy(properties.driver, sizeof properties.driver, driver);
    openreg_text_copy(properties.driver_version, sizeof properties.driver_version, table->version);
    openreg_text_copy(properties.torch_device_type, sizeof properties.torch_device_type, info->torch_device_type);
    openreg_sized_write(inout, &properties, sizeof properties);
}
