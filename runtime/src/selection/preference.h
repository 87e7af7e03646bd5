/* SPDX-License-Identifier: BSD-3-Clause */
/* preference.h: the preference of openreg_driver_prefer(), and the warnings when it cannot be followed. Internal. */
#ifndef OPENREG_SRC_PREFERENCE_H
#define OPENREG_SRC_PREFERENCE_H

#include "registry/driver_names.h"

/* Copies the canonical name, "" for none; returns a number that differs after each change. */
unsigned openreg_preference_get(char name[OPENREG_NAME_SIZE]);

/* Each warns once per name, and once more after openreg_preference_forget_warnings(). */
void openreg_preference_warn_unknown(const char *name);
void openreg_preference_warn_not_loaded(const char *name, const char *reason);
void openreg_preference_warn_not_functional(const char *name);
void openreg_preference_forget_warnings(void);

#endif
