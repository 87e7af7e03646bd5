/* SPDX-License-Identifier: BSD-3-Clause */
/* imports.h: memory of other processes. Internal to this folder. */
#ifndef OPENREG_SHARING_IMPORTS_H
#define OPENREG_SHARING_IMPORTS_H

#include <openreg/sharing.h>

/* openreg_memory_import() and openreg_import_release(). */
openreg_status openreg_imports_add(const openreg_memory_handle *given, openreg_import *out, int32_t *device,
                                   void **ptr);
openreg_status openreg_imports_release(openreg_import import);

#endif
