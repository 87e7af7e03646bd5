/* SPDX-License-Identifier: BSD-3-Clause */
/* environment.h: the variables OPENREG_*, read once per selection. Internal. */
#ifndef OPENREG_SRC_ENVIRONMENT_H
#define OPENREG_SRC_ENVIRONMENT_H

/* A copy of all variables OPENREG_* of one moment. Empty in a process with raised privileges, as secure_getenv(). */
typedef struct openreg_environment openreg_environment;

#define OPENREG_VARIABLE_PREFIX "OPENREG_"

openreg_environment *openreg_environment_read(void); /* NULL: host memory is short */
void openreg_environment_free(openreg_environment *environment);
int openreg_environment_equal(const openreg_environment *a, const openreg_environment *b); /* 1 or 0; NULL is empty */

/* The value of a variable, NULL if it is not set. Owned by the environment. */
const char *openreg_environment_get(const openreg_environment *environment, const char *name);
/* The same of OPENREG_<NAME>_<KEY>, `driver` and `key` in lower case. */
const char *openreg_environment_get_option(const openreg_environment *environment, const char *driver, const char *key);

/* Walks through "NAME=value", from NULL until NULL. */
const char *openreg_environment_next(const openreg_environment *environment, const char *variable);

/* "KEY=value" of a variable "OPENREG_<NAME>_KEY=value" of the driver, with a KEY that is not empty, else NULL. */
const char *openreg_environment_option(const char *variable, const char *driver);

#endif
