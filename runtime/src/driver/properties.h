/* SPDX-License-Identifier: BSD-3-Clause */
/* properties.h: device properties for the public functions. Internal. */
#ifndef OPENREG_SRC_PROPERTIES_H
#define OPENREG_SRC_PROPERTIES_H

#include <openreg/driver.h>
#include <openreg/openreg.h>

/* Fills as much of *inout as its struct_size allows. */
void openreg_properties_fill(const openreg_driver *table, const char *driver, int32_t ordinal,
                             const openreg_device_info *info, openreg_device_properties *inout);

#endif
