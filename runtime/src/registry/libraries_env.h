/* SPDX-License-Identifier: BSD-3-Clause */
/* libraries_env.h: OPENREG_DRIVER_LIBRARIES=name:path,... Internal. */
#ifndef OPENREG_SRC_LIBRARIES_VARIABLE_H
#define OPENREG_SRC_LIBRARIES_VARIABLE_H

#include <limits.h>

#include "registry/driver_names.h"

#define OPENREG_LIBRARIES_VARIABLE "OPENREG_DRIVER_LIBRARIES"

typedef struct openreg_library_item {
    char name[OPENREG_NAME_SIZE];
    char path[PATH_MAX];
    int is_description; /* a .json file, which is for the embedding language to read */
} openreg_library_item;

/* The next good item; 0 at the end. A bad one is skipped with a warning. `value` is the whole value, where `*cursor`
 * starts; NULL is an empty one. */
int openreg_library_item_next(const char *value, const char **cursor, openreg_library_item *out);

#endif
