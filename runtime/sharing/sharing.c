/* SPDX-License-Identifier: BSD-3-Clause */
/* sharing.c: the functions of openreg/sharing.h, and the library's entry. */
#include <openreg/sharing.h>

#include "base/internal_api.h"
#include "exports.h"
#include "imports.h"
#include "watch/lab.h"

static const openreg_sharing functions = {
    .struct_size = sizeof functions,
    .export_to = openreg_exports_add,
    .import_from = openreg_imports_add,
    .release = openreg_imports_release,
};

OPENREG_INTERNAL const openreg_sharing_parts *openreg_sharing_query(void);

const openreg_sharing_parts *
openreg_sharing_query(void)
{
    static const openreg_sharing_parts parts = {OPENREG_VERSION_STRING, &functions, openreg_exports_free,
                                                openreg_exports_collect};
    return &parts;
}
