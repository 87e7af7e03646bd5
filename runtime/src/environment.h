/* environment.h: the variables OPENREG_*, read once per initialisation. Internal. */
#ifndef OPENREG_SRC_ENVIRONMENT_H
#define OPENREG_SRC_ENVIRONMENT_H

#include <stddef.h>

#include <openreg/driver.h>

/* A copy of all variables OPENREG_* of one moment. Empty in a process with raised privileges, as secure_getenv(). */
typedef struct openreg_environment openreg_environment;

openreg_environment *openreg_environment_read(void); /* NULL: host memory is short */
void openreg_environment_free(openreg_environment *environment);
int openreg_environment_equal(const openreg_environment *a, const openreg_environment *b); /* 1 or 0; NULL is empty */

/* The value of a variable, NULL if it is not set. Owned by the environment. */
const char *openreg_environment_get(const openreg_environment *environment, const char *name);

/* OPENREG_<NAME>_<KEY>=value as the option key=value of driver `name`, with the key in lower case; never
 * OPENREG_<NAME>_LIBRARY_PATH. */
typedef struct openreg_options {
    openreg_option *items;
    size_t count;
} openreg_options;

openreg_status openreg_options_read(const openreg_environment *environment, const char *driver, openreg_options *out);
void openreg_options_free(openreg_options *options);

/* Walks a list separated by commas: 1 and the next item, trimmed and not empty, in (*item, *length), or 0 at the end.
 * `*cursor` starts at the text; NULL is an empty list. */
int openreg_list_next(const char **cursor, const char **item, size_t *length);

/* Copies a driver's name, lower-cased. 0 if it is not 1 to 31 characters of [a-z0-9_]; `name` is then unchanged. */
int openreg_driver_name_read(const char *text, size_t length, char name[32]);

#endif
