/* SPDX-License-Identifier: BSD-3-Clause */
/* selection.c: the rules by which drivers are chosen (selection.h, openreg/registry.h). */
#define _GNU_SOURCE
#include "selection/selection.h"

#include <openreg/embedding.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/text.h"
#include "registry/discovery.h"
#include "selection/preference.h"

#define DRIVERS_VARIABLE "OPENREG_DRIVERS"

static const char *
variable(const char *name)
{
    return openreg_environment_get(openreg_discovery_environment(), name);
}

int
openreg_list_is_empty(const char *list)
{
    const char *item;
    size_t length;
    return !openreg_list_next(&list, &item, &length);
}

int
openreg_candidate_is_not_loaded(const openreg_candidate *candidate)
{
    return candidate->is_unloadable || candidate->is_absent ||
           (candidate->source == OPENREG_SOURCE_BUNDLED &&
            (candidate->failure.code == OPENREG_E_NO_DEVICE || candidate->failure.code == OPENREG_E_INCOMPATIBLE));
}

static int
is_required(const openreg_candidate *candidate)
{
    return (candidate->flags & OPENREG_REGISTER_REQUIRED) != 0;
}

/* Whether a driver that was not named for this run is left out because of its failure: it was registered without
 * OPENREG_REGISTER_REQUIRED, it has no device here, or its library or its vendor's is not on this machine. Any other
 * failure is an error. */
static int
is_left_out(const openreg_candidate *candidate)
{
    if (candidate->source == OPENREG_SOURCE_BUILT_IN || openreg_candidate_is_named(candidate))
        return 0;
    return !is_required(candidate) || candidate->failure.code == OPENREG_E_NO_DEVICE || candidate->is_missing;
}

/* ----------------------------------------------------------------------------------------------------- the decision */

static int
has(const openreg_decision *decision, const openreg_candidate *candidate)
{
    for (int i = 0; i < decision->count; ++i)
        if (decision->drivers[i] == candidate)
            return 1;
    return 0;
}

/* Adds a driver whose attempt found `devices`. One without a table can be queried, not used. */
static void
take(openreg_decision *decision, openreg_candidate *candidate, int64_t devices)
{
    if (candidate->is_described || has(decision, candidate))
        return;
    decision->drivers[decision->count++] = candidate;
    decision->must_open |= devices == OPENREG_MUST_OPEN;
    decision->devices += devices;
}

/* The first member of a group that works. */
static openreg_status
take_from_group(const char *call, const char *name, openreg_choice choice, openreg_attempt attempt,
                openreg_decision *decision)
{
    const char *const *members;
    const size_t count = openreg_driver_group(name, &members);
    for (size_t i = 0; i < count; ++i) {
        openreg_candidate *const candidate = openreg_candidates_find(members[i]);
        int64_t devices = 0;
        if (attempt(call, candidate, &devices) == OPENREG_OK) {
            take(decision, candidate, devices);
            return OPENREG_OK;
        }
        openreg_log(OPENREG_LOG_INFO, "driver \"%s\" (%s) is not used for '%s': %s", candidate->name, candidate->origin,
                    name, candidate->failure.text);
    }
    return openreg_report_group(call, name, choice);
}

static openreg_status
take_item(const char *call, const char *item, size_t length, openreg_choice choice, openreg_attempt attempt,
          openreg_decision *decision)
{
    char name[OPENREG_NAME_SIZE] = "";
    const char *const *members;
    const int is_name = openreg_driver_name_resolve(item, length, name);
    if (is_name && openreg_driver_group(name, &members) > 0)
        return take_from_group(call, name, choice, attempt, decision);
    openreg_candidate *const candidate = is_name ? openreg_candidates_find(name) : NULL;
    if (candidate == NULL) {
        char text[64];
        openreg_text_copy(text, length < sizeof text ? length + 1 : sizeof text, item);
        return openreg_report_unknown_in_list(call, is_name ? name : text, choice);
    }
    if (has(decision, candidate))
        return OPENREG_OK;
    int64_t devices = 0;
    if (attempt(call, candidate, &devices) != OPENREG_OK)
        return openreg_report_failure(call, candidate, choice);
    take(decision, candidate, devices);
    return OPENREG_OK;
}

static openreg_status
select_listed(const char *call, const char *list, openreg_choice choice, openreg_attempt attempt,
              openreg_decision *decision)
{
    const char *item;
    size_t length;
    for (const char *cursor = list; openreg_list_next(&cursor, &item, &length);)
        OPENREG_RETURN_NOT_OK(take_item(call, item, length, choice, attempt, decision));
    if (decision->count == 0)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call,
                                 "none of the drivers \"%.200s\" has a C table: they can be queried, not used", list);
    return OPENREG_OK;
}

/* Rule 3. *found = 1 if the preferred driver works. */
static openreg_status
select_preferred(const char *call, const char *name, openreg_attempt attempt, openreg_decision *decision, int *found)
{
    const char *const *members;
    const size_t count = openreg_driver_names_meant(&name, &members);
    const openreg_candidate *last = NULL;
    for (size_t i = 0; i < count && !*found; ++i) {
        openreg_candidate *const candidate = openreg_candidates_find(members[i]);
        int64_t devices = 0;
        if (candidate == NULL)
            continue;
        last = candidate;
        if (openreg_driver_open_try(call, candidate, attempt, &devices) == OPENREG_OK) {
            take(decision, candidate, devices);
            *found = decision->count > 0;
        }
    }
    if (*found)
        return OPENREG_OK;
    if (last == NULL)
        openreg_preference_warn_unknown(name);
    else if (openreg_candidate_is_not_loaded(last))
        openreg_preference_warn_not_loaded(name, last->failure.text);
    else
        openreg_preference_warn_not_functional(name);
    return OPENREG_OK;
}

/* A library that was named must load, whether it is chosen or not: a wrong path must not pass unnoticed. */
static openreg_status
load_named_libraries(const char *call, openreg_candidate *const *all, int count)
{
    for (int i = 0; i < count; ++i)
        if (openreg_candidate_is_named(all[i]) && openreg_candidate_load(call, all[i]) != OPENREG_OK)
            return openreg_report_failure(call, all[i], OPENREG_CHOICE_FOUND);
    return OPENREG_OK;
}

/* Tries a driver that no list names. OPENREG_OK also if it is left out: then *works = 0. A driver with an error is tried
 * each time, one that is left out only after something has changed. */
static openreg_status
try_found(const char *call, openreg_candidate *candidate, openreg_attempt attempt, int64_t *devices, int *works)
{
    *works = 0;
    if (openreg_candidate_failed_before(candidate) && is_left_out(candidate)) {
        openreg_candidate_note_tried(candidate);
        return OPENREG_OK;
    }
    *works = attempt(call, candidate, devices) == OPENREG_OK;
    if (*works)
        return OPENREG_OK;
    if (!is_left_out(candidate))
        return candidate->failure.code;
    openreg_driver_open_log_failure(candidate);
    return OPENREG_OK;
}

static atomic_int plugins_alone;

void
openreg_choose_plugins_alone(void)
{
    atomic_store(&plugins_alone, 1);
}

static int
is_left_to_names(const openreg_candidate *candidate)
{
    return atomic_load(&plugins_alone) && !openreg_candidate_is_plugin(candidate);
}

int
openreg_candidate_can_be_found(const openreg_candidate *candidate)
{
    return candidate->priority > OPENREG_PRIORITY_NEVER && !is_left_to_names(candidate);
}

/* Rule 4. */
static openreg_status
select_automatically(const char *call, openreg_attempt attempt, openreg_decision *decision)
{
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    const int count = openreg_candidates_sorted(all);
    const openreg_candidate *last = NULL;
    OPENREG_RETURN_NOT_OK(load_named_libraries(call, all, count));
    for (int i = 0; i < count && decision->count == 0; ++i) {
        openreg_candidate *const candidate = all[i];
        int64_t devices = 0;
        int works = 0;
        if (!openreg_candidate_can_be_found(candidate))
            continue;
        last = candidate;
        if (candidate->is_absent) { /* not installed: no message */
            openreg_candidate_note_tried(candidate);
            continue;
        }
        if (try_found(call, candidate, attempt, &devices, &works) != OPENREG_OK)
            return candidate->source == OPENREG_SOURCE_BUILT_IN
                       ? openreg_report_none(call, candidate)
                       : openreg_report_failure(call, candidate, OPENREG_CHOICE_FOUND);
        if (works)
            take(decision, candidate, devices);
    }
    return decision->count > 0 ? OPENREG_OK : openreg_report_none(call, last);
}

openreg_status
openreg_select(const char *call, const char *list, openreg_attempt attempt, openreg_decision *out)
{
    memset(out, 0, sizeof *out);
    OPENREG_RETURN_NOT_OK(openreg_discovery_check(call));
    if (list != NULL) {
        out->chosen_by = OPENREG_CHOSEN_BY_CALL;
        return select_listed(call, list, OPENREG_CHOICE_BY_CALL, attempt, out);
    }
    char preferred[OPENREG_NAME_SIZE];
    const char *const listed = variable(DRIVERS_VARIABLE);
    (void)openreg_preference_get(preferred);
    if (!openreg_list_is_empty(listed)) {
        if (preferred[0] != '\0')
            openreg_log(OPENREG_LOG_INFO, "the preference '%s' is ignored: %s is set", preferred, DRIVERS_VARIABLE);
        out->chosen_by = OPENREG_CHOSEN_BY_ENVIRONMENT;
        return select_listed(call, listed, OPENREG_CHOICE_BY_VARIABLE, attempt, out);
    }
    int found = 0;
    out->chosen_by = OPENREG_CHOSEN_BY_PREFERENCE;
    if (preferred[0] != '\0')
        OPENREG_RETURN_NOT_OK(select_preferred(call, preferred, attempt, out, &found));
    if (found)
        return OPENREG_OK;
    out->chosen_by = OPENREG_CHOSEN_AUTOMATICALLY;
    OPENREG_RETURN_NOT_OK(select_automatically(call, attempt, out));
    if (attempt == openreg_candidate_open && out->drivers[0]->source == OPENREG_SOURCE_BUILT_IN)
        openreg_suggest_missing_drivers();
    return OPENREG_OK;
}

openreg_status
openreg_select_all(const char *call, const char *list, openreg_decision *out)
{
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    OPENREG_RETURN_NOT_OK(openreg_discovery_check(call));
    const int is_listed = list != NULL || !openreg_list_is_empty(variable(DRIVERS_VARIABLE));
    const int count = is_listed ? 0 : openreg_candidates_sorted(all);
    for (int i = 0; i < count; ++i) {
        int64_t devices = 0;
        int works = 0;
        if (is_left_to_names(all[i]))
            continue;
        if (all[i]->is_absent)
            openreg_candidate_note_tried(all[i]);
        else if (try_found(call, all[i], openreg_candidate_open, &devices, &works) != OPENREG_OK)
            return openreg_report_failure(call, all[i], OPENREG_CHOICE_FOUND);
    }
    return openreg_select(call, list, openreg_candidate_open, out);
}

/* Opens the GPUs until one works. */
static int
opens_gpu(const char *call)
{
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    const int count = openreg_candidates_sorted(all);
    for (int i = 0; i < count; ++i) {
        int64_t devices = 0;
        if (openreg_candidate_is_gpu(all[i]) &&
            openreg_driver_open_try(call, all[i], openreg_candidate_open, &devices) == OPENREG_OK)
            return 1;
    }
    for (int i = 0; i < count; ++i)
        if (all[i]->state == OPENREG_DRIVER_STATE_FAILED && !is_left_out(all[i]))
            return 1;
    return 0;
}

int
openreg_would_find_gpu(const char *call, const char *list)
{
    char preferred[OPENREG_NAME_SIZE];
    openreg_decision ignored = {0};
    const openreg_error_fields before = openreg_error_save();
    int found = list != NULL || !openreg_list_is_empty(variable(DRIVERS_VARIABLE));
    (void)openreg_preference_get(preferred);
    if (!found && preferred[0] != '\0')
        (void)select_preferred(call, preferred, openreg_candidate_open, &ignored, &found);
    if (!found)
        found = opens_gpu(call);
    openreg_error_restore(&before);
    return found;
}

int
openreg_list_means(const char *list, openreg_candidate *const *drivers, int count)
{
    const char *item;
    size_t length;
    int at = 0;
    for (const char *cursor = list; openreg_list_next(&cursor, &item, &length);) {
        char name[OPENREG_NAME_SIZE];
        if (!openreg_driver_name_resolve(item, length, name))
            return 0;
        const char *own = name;
        const char *const *members;
        const size_t members_count = openreg_driver_names_meant(&own, &members);
        int is_here = 0;
        for (size_t m = 0; m < members_count; ++m)
            for (int i = 0; i <= at && i < count; ++i)
                if (strcmp(drivers[i]->name, members[m]) == 0) {
                    is_here = 1;
                    at += i == at;
                    break;
                }
        if (!is_here)
            return 0;
    }
    return at == count;
}
