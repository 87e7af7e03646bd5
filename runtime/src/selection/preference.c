/* SPDX-License-Identifier: BSD-3-Clause */
/* preference.c: the preference and its warnings (preference.h). */
#define _GNU_SOURCE
#include "selection/preference.h"

#include <stdio.h>
#include <string.h>

#include <openreg/openreg.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "registry/candidates.h"
#include "selection/selection.h"

enum { UNKNOWN, NOT_LOADED, NOT_FUNCTIONAL, WARNINGS };

/* All under the lock of the list. */
static char preference[OPENREG_NAME_SIZE];
static unsigned changes;
static char warned[WARNINGS][OPENREG_NAME_SIZE]; /* the name that was warned of last */

unsigned
openreg_preference_get(char name[OPENREG_NAME_SIZE])
{
    openreg_candidates_lock();
    memcpy(name, preference, sizeof preference);
    const unsigned now = changes;
    openreg_candidates_unlock();
    return now;
}

openreg_status
openreg_driver_prefer(const char *name)
{
    char canonical[OPENREG_NAME_SIZE] = "";
    const int is_none = name == NULL || name[0] == '\0';
    const int is_good = is_none || openreg_driver_name_resolve(name, strlen(name), canonical);
    openreg_candidates_lock();
    if (strcmp(preference, canonical) != 0) {
        memcpy(preference, canonical, sizeof preference);
        ++changes;
    }
    openreg_candidates_unlock();
    if (!is_good)
        return openreg_error_set(OPENREG_E_INVALID, "openreg_driver_prefer",
                                 "the name \"%.40s\" is not 1 to 31 characters of [a-z0-9_]", name);
    return OPENREG_OK;
}

void
openreg_preference_forget_warnings(void)
{
    openreg_candidates_lock();
    memset(warned, 0, sizeof warned);
    openreg_candidates_unlock();
}

static int
is_first(int kind, const char *name)
{
    openreg_candidates_lock();
    const int first = strcmp(warned[kind], name) != 0;
    openreg_text_copy(warned[kind], sizeof warned[kind], name);
    openreg_candidates_unlock();
    return first;
}

void
openreg_preference_warn_unknown(const char *name)
{
    if (!is_first(UNKNOWN, name))
        return;
    char known[512];
    openreg_known_names(known, sizeof known);
    openreg_log(OPENREG_LOG_WARNING, "driver '%s' set via preferences is not a valid driver. Valid drivers are (%s)",
                name, known);
}

void
openreg_preference_warn_not_loaded(const char *name, const char *reason)
{
    if (is_first(NOT_LOADED, name))
        openreg_log(OPENREG_LOG_WARNING,
                    "Trying to use driver '%s' but its library is not loaded (%s). Ignoring the preference.", name,
                    reason);
}

void
openreg_preference_warn_not_functional(const char *name)
{
    if (is_first(NOT_FUNCTIONAL, name))
        openreg_log(OPENREG_LOG_WARNING,
                    "driver '%s' set via preferences is not functional. Defaulting to automatic driver selection.",
                    name);
}
