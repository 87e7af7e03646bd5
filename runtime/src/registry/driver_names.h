/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_names.h: names of drivers, their synonyms and groups. Internal. */
#ifndef OPENREG_SRC_DRIVER_NAMES_H
#define OPENREG_SRC_DRIVER_NAMES_H

#include <stddef.h>

#define OPENREG_NAME_SIZE 32 /* including the NUL */

/* Copies a name, lower-cased. 0 if it is not 1 to 31 characters of [a-z0-9_]; `name` is then unchanged. */
int openreg_driver_name_read(const char *text, size_t length, char name[OPENREG_NAME_SIZE]);

/* openreg_driver_name_read() of the trimmed text, and synonyms resolved: " ROCm" gives "hip". */
int openreg_driver_name_resolve(const char *text, size_t length, char name[OPENREG_NAME_SIZE]);

/* Upper case, for the names of variables; `size` bytes at most. */
void openreg_driver_name_upper(const char *name, char *out, size_t size);

/* The runtime's own variable that begins with OPENREG_<NAME>_, such as OPENREG_LOG_LEVEL for "log": no driver may have that
 * name, as the variable would be its option. NULL: there is none. */
const char *openreg_driver_name_reserved(const char *name);

/* Members of the group of a canonical name, in order of preference; 0 if it is not a group. Static. */
size_t openreg_driver_group(const char *name, const char *const **members);

/* The canonical names of *name: the members of a group, else the name itself. At least one. */
size_t openreg_driver_names_meant(const char *const *name, const char *const **names);

/* 1 for the members of the group "gpu". */
int openreg_driver_is_gpu_name(const char *name);

#endif
