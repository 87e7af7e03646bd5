/* SPDX-License-Identifier: BSD-3-Clause */
/* environment.h: the variables OPENREG_*, read once per selection. Internal. */
#ifndef OPENREG_SRC_ENVIRONMENT_H
#define OPENREG_SRC_ENVIRONMENT_H

/* A copy of all variables OPENREG_* at one time. Empty in a process with raised privileges, as secure_getenv(). */
typedef struct openreg_environment openreg_environment;

#define OPENREG_VARIABLE_PREFIX "OPENREG_"

openreg_environment *openreg_environment_read(void); /* NULL: host memory is short */
void openreg_environment_free(openreg_environment *environment);
int openreg_environment_equal(const openreg_environment *a,
                              const openreg_environment *b); /* returns 1 or 0; NULL counts as empty */

/* The value of a variable, NULL if it is not set. Owned by the environment. */
const char *openreg_environment_get(const openreg_environment *environment, const char *name);
/* The same of OPENREG_<NAME>_<KEY>, `driver` and `key` in lower case. */
const char *openreg_environment_get_option(const openreg_environment *environment, const char *driver, const char *key);

/* Iterates over "NAME=value": starts with NULL, ends with NULL. */
const char *openreg_environment_next(const openreg_environment *environment, const char *variable);

/* "KEY=value" if the variable is "OPENREG_<NAME>_KEY=value" of the driver, with a non-empty KEY, else NULL. */
const char *openreg_environment_option(const char *variable, const char *driver);

#endif
