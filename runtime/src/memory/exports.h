/* SPDX-License-Identifier: BSD-3-Clause */
/* exports.h: blocks that other processes may hold. Internal; the public half is sharing.h. */
#ifndef OPENREG_SRC_EXPORTS_H
#define OPENREG_SRC_EXPORTS_H

#include <openreg/sharing.h>

/* For openreg_free(): the owner has freed an exported block, which is shared now (OPENREG_BLOCK_SHARED). Frees it if
 * nobody holds it, else later. */
void openreg_exports_free(void *ptr);

/* The driver's extension. E_UNSUPPORTED, with a text that names the driver, if it has none. */
struct openreg_opened_driver;
openreg_status openreg_sharing_extension(const char *call, const struct openreg_opened_driver *driver,
                                         const openreg_ipc **out);
struct openreg_device;
openreg_status openreg_sharing_handle_size(const char *call, struct openreg_device *device, const openreg_ipc *ipc,
                                           uint32_t *out);

#endif
