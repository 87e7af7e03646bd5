/* SPDX-License-Identifier: BSD-3-Clause */
/* libraries_env.h: OPENREG_DRIVER_LIBRARIES=name:path,... Internal. */
#ifndef OPENREG_SRC_LIBRARIES_VARIABLE_H
#define OPENREG_SRC_LIBRARIES_VARIABLE_H

#include <limits.h>

#include "registry/driver_names.h"

#define OPENREG_LIBRARIES_VARIABLE "OPENREG_DRIVER_LIBRARIES"

typedef struct openreg_library_item {
    const char *text; /* the item itself, in the value */
    size_t length;
    int is_pair;         /* else it is a single word, or has more than two parts, and the rest is not set */
    const char *problem; /* why it is unusable, or NULL; if set, name and path are not */
    char name[OPENREG_NAME_SIZE];
    char path[PATH_MAX];
    int is_description; /* a .json file, which the embedding language reads */
} openreg_library_item;

/* The next item; 0 at the end. `*cursor` starts at the value; NULL is an empty one. */
int openreg_library_item_next(const char **cursor, openreg_library_item *out);

#endif
