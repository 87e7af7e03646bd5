/* SPDX-License-Identifier: BSD-3-Clause */
/* exports.h: blocks that other processes may hold. Internal to this folder. */
#ifndef OPENREG_SHARING_EXPORTS_H
#define OPENREG_SHARING_EXPORTS_H

#include <openreg/sharing.h>

#include "device/lab_access.h"

/* openreg_memory_export_to() and openreg_memory_collect_exports(). */
openreg_status openreg_exports_add(const void *ptr, const int32_t *processes, uint32_t count,
                                   openreg_memory_handle *inout);
int32_t openreg_exports_collect(void);
/* Called when the owner has freed an exported block, which is then OPENREG_BLOCK_SHARED. Frees it if no process holds it,
 * else later. */
void openreg_exports_free(void *ptr);

/* The driver's extension. E_UNSUPPORTED, with a text that names the driver, if it has none. */
openreg_status openreg_sharing_extension(const char *call, const openreg_opened_driver *driver,
                                         const openreg_ipc **out);
openreg_status openreg_sharing_handle_size(const char *call, openreg_device *device, const openreg_ipc *ipc,
                                           uint32_t *out);

#endif
