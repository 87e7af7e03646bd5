/* SPDX-License-Identifier: BSD-3-Clause */
/* options.h: key=value options, as open() and describe() get them. Internal. */
#ifndef OPENREG_SRC_OPTIONS_H
#define OPENREG_SRC_OPTIONS_H

#include <stddef.h>

#include <openreg/driver.h>

#include "base/environment.h"

/* Owned copies; keys are unique. All zero means no options. */
typedef struct openreg_options {
    openreg_option *items;
    uint32_t count;
} openreg_options;

/* Adds an option, or replaces that of the same key. 0 if host memory is short; nothing is changed then. */
int openreg_options_set(openreg_options *options, const char *key, const char *value);
int openreg_options_set_all(openreg_options *options, const openreg_option *items,
                            uint32_t count); /* stops if host memory is short */
int openreg_options_equal(const openreg_options *options, const openreg_option *items, uint32_t count);
void openreg_options_free(openreg_options *options);

/* Removes the option of this key and returns it, for openreg_option_free(); {NULL, NULL} if there is none. */
openreg_option openreg_options_remove(openreg_options *options, const char *key);
void openreg_option_free(openreg_option option);

/* Adds a driver's options from the environment: OPENREG_<NAME>_<KEY>=value as key=value with the key in lower case; not
 * OPENREG_<NAME>_LIBRARY_PATH, nor variables of one of `others`, drivers whose names begin with this one's: the longest
 * name counts. 0 if host memory is short. */
int openreg_options_set_from(openreg_options *options, const openreg_environment *environment, const char *driver,
                             const char *const *others, size_t other_count);

/* Adds node_id and num_nodes of openreg_set_process(). 0 if host memory is short. */
int openreg_options_set_process(openreg_options *options);
int32_t openreg_process_index(void);

#endif
