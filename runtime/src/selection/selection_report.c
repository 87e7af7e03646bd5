/* SPDX-License-Identifier: BSD-3-Clause */
/* selection_report.c: the texts of a failed selection (selection.h). */
#define _GNU_SOURCE
#include <openreg/embedding.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "driver/driver_calls.h"
#include "registry/discovery.h"
#include "registry/libraries_env.h"
#include "selection/selection.h"

typedef struct report {
    size_t length;
    char text[1024];
} report;

static void __attribute__((format(printf, 2, 3)))
append(report *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(r->text + r->length, sizeof r->text - r->length, format, arguments);
    va_end(arguments);
    if (length > 0)
        r->length += (size_t)length;
    if (r->length >= sizeof r->text)
        r->length = sizeof r->text - 1;
}

/* The report as the thread's error; `candidate` is the driver that it is about, or NULL. */
static openreg_status
set(openreg_status code, const char *call, const openreg_candidate *candidate, const report *r)
{
    (void)openreg_error_set(code, call, "%s", r->text);
    if (candidate != NULL) {
        (void)openreg_error_names_driver(candidate->name, candidate->failure.vendor_code);
        openreg_error_names_code(candidate->failure.names_code);
    }
    return code;
}

void
openreg_known_names(char *out, size_t size)
{
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    const int count = openreg_candidates_sorted(all);
    report r = {0};
    for (int i = 0; i < count; ++i)
        append(&r, "%s'%s'", i == 0 ? "" : ", ", all[i]->name);
    openreg_text_copy(out, size, r.text);
}

static char plugin_failures[512]; /* under the lock of the list */

void
openreg_note_plugin_failure(const char *plugin, const char *reason)
{
    if (plugin == NULL || reason == NULL)
        return;
    openreg_candidates_lock();
    const size_t length = strlen(plugin_failures);
    (void)snprintf(plugin_failures + length, sizeof plugin_failures - length, "%s%s (%s)", length == 0 ? "" : ", ",
                   plugin, reason);
    openreg_candidates_unlock();
}

/* The arguments of openreg_note_plugin_failure(). */
static void
append_plugin_failures(report *r)
{
    openreg_candidates_lock();
    if (plugin_failures[0] != '\0')
        append(r, "; plugins that failed: %s", plugin_failures);
    openreg_candidates_unlock();
}

/* Edit distance of two names: letters to insert, remove, replace or swap with the next one. */
static int
distance(const char *a, const char *b)
{
    enum { most = OPENREG_NAME_SIZE };
    int rows[3][most + 1];
    const int width = (int)strnlen(b, most);
    for (int k = 0; k <= width; ++k)
        rows[0][k] = k;
    int i = 0;
    for (; a[i] != '\0' && i < most; ++i) {
        const int *const above = rows[i % 3];
        const int *const two_above = rows[(i + 2) % 3];
        int *const row = rows[(i + 1) % 3];
        row[0] = i + 1;
        for (int k = 0; k < width; ++k) {
            row[k + 1] = above[k] + (a[i] != b[k]);
            if (above[k + 1] + 1 < row[k + 1])
                row[k + 1] = above[k + 1] + 1;
            if (row[k] + 1 < row[k + 1])
                row[k + 1] = row[k] + 1;
            if (i > 0 && k > 0 && a[i] == b[k - 1] && a[i - 1] == b[k] && two_above[k - 1] + 1 < row[k + 1])
                row[k + 1] = two_above[k - 1] + 1;
        }
    }
    return rows[i % 3][width];
}

/* A known name to suggest for a wrong one: the simulator for names of the host, else one that differs in a letter (two
 * in a long name). NULL: none. */
static const char *
similar_name(const char *name)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "simulator") == 0)
        return "sim";
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    const int count = openreg_candidates_sorted(all);
    const char *best = NULL;
    int least = strlen(name) > 5 ? 3 : 2;
    for (int i = 0; i < count && strlen(name) > 2; ++i) {
        const int other = distance(name, all[i]->name);
        if (other < least) {
            least = other;
            best = all[i]->name;
        }
    }
    return best;
}

static void
append_unknown(report *r, const char *name)
{
    char known[512];
    openreg_known_names(known, sizeof known);
    append(r, "Driver '%s' is not in the list of known drivers: [%s]", name, known);
    const char *const similar = similar_name(name);
    if (similar != NULL)
        append(r, "; did you mean '%s'?", similar);
    append_plugin_failures(r);
}

/* -------------------------------------------------------------------------------------- places and other drivers */

/* Whether OPENREG_DRIVER_LIBRARIES names it: its library, or a file describing one, which Python registers. */
static bool
is_by_variable(const openreg_candidate *candidate)
{
    return candidate->source == OPENREG_SOURCE_LIBRARIES || strcmp(candidate->origin, OPENREG_LIBRARIES_VARIABLE) == 0;
}

/* `told`: the candidate whose error begins the report. */
static void
append_place(report *r, const openreg_candidate *candidate, const openreg_candidate *told)
{
    append(r, "\n  %s: ", candidate->origin);
    if (candidate->path[0] != '\0' && !candidate->failure.names_path)
        append(r, "%s: ", candidate->path);
    if (candidate->state == OPENREG_DRIVER_STATE_FAILED)
        append(r, "%s", candidate == told ? "the error above" : candidate->failure.text);
    else
        append(r, "not tried, another one replaces it");
}

static void
append_places(report *r, const openreg_candidate *told)
{
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    const int count = openreg_candidates_namesakes(told->name, all);
    int by_variable = 0;
    for (int i = 0; i < count; ++i) {
        append_place(r, all[i], told);
        by_variable |= is_by_variable(all[i]);
    }
    if (by_variable)
        return;
    const char *const value = openreg_environment_get(openreg_discovery_environment(), OPENREG_LIBRARIES_VARIABLE);
    append(r, "\n  %s: %s", OPENREG_LIBRARIES_VARIABLE, value == NULL || value[0] == '\0' ? "not set" : "no such name");
}

/* "sim (built in, 2 devices)"; counts devices only if that opens nothing. */
static void
append_other(report *r, openreg_candidate *candidate, int *listed)
{
    int64_t count = candidate->device_count;
    if (count < 0 && candidate->source == OPENREG_SOURCE_BUILT_IN &&
        openreg_driver_open_count("", candidate, &count) != OPENREG_OK)
        return; /* no remedy */
    append(r, "%s%s (%s", (*listed)++ == 0 ? "\n  other drivers: " : ", ", candidate->name, candidate->origin);
    if (count >= 0)
        append(r, ", %lld device%s", (long long)count, count == 1 ? "" : "s");
    append(r, ")");
}

static void
append_others(report *r, const char *name)
{
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    const char *const *members;
    const int count = openreg_candidates_sorted(all);
    const int is_group = openreg_driver_group(name, &members) > 0;
    int listed = 0;
    for (int i = 0; i < count; ++i)
        if (strcmp(all[i]->name, name) != 0 && all[i]->state != OPENREG_DRIVER_STATE_FAILED &&
            (openreg_candidate_can_be_found(all[i]) || all[i]->source == OPENREG_SOURCE_BUILT_IN) &&
            !(is_group && openreg_driver_is_gpu_name(all[i]->name)))
            append_other(r, all[i], &listed);
}

/* ---------------------------------------------------------------------------------------------------------- texts */

static const char *
way_out(const openreg_candidate *candidate, openreg_choice choice)
{
    switch (choice) {
    case OPENREG_CHOICE_BY_VARIABLE:
        return "set OPENREG_DRIVERS='' to automatically choose an available driver";
    case OPENREG_CHOICE_BY_CALL:
        return "name other drivers, or none to automatically choose an available driver";
    case OPENREG_CHOICE_FOUND:
        break;
    }
    if (candidate->source == OPENREG_SOURCE_BUILT_IN)
        return "set OPENREG_DRIVERS to the drivers to use without this one.";
    if (is_by_variable(candidate))
        return "correct " OPENREG_LIBRARIES_VARIABLE ", or set OPENREG_DRIVERS=sim to skip this driver.";
    return "you may need to uninstall the failing plugin package, or set OPENREG_DRIVERS=sim to skip this driver.";
}

openreg_status
openreg_report_failure(const char *call, const openreg_candidate *candidate, openreg_choice choice)
{
    report r = {0};
    const openreg_status code = candidate->failure.code;
    append(&r, "Unable to initialize driver '%s': %s (%s)", candidate->name, candidate->failure.text,
           way_out(candidate, choice));
    append_places(&r, candidate);
    append_others(&r, candidate->name);
    return set(code, call, candidate, &r);
}

openreg_status
openreg_report_group(const char *call, const char *name, openreg_choice choice)
{
    report r = {0};
    const openreg_candidate *first = NULL;
    const char *const *members;
    const size_t count = openreg_driver_group(name, &members);
    append(&r, "Unable to initialize driver '%s': ", name);
    for (size_t i = 0; i < count; ++i) {
        const openreg_candidate *const member = openreg_candidates_find(members[i]);
        append(&r, "%s%s: %.300s", i == 0 ? "" : "; ", member->name, member->failure.text);
        if (first == NULL)
            first = member;
    }
    append(&r, " (%s)", way_out(first, choice));
    append_others(&r, name);
    return set(first->failure.code, call, first, &r);
}

openreg_status
openreg_report_unknown_in_list(const char *call, const char *name, openreg_choice choice)
{
    report r = {0};
    append(&r, "Unable to initialize driver '%s': ", name);
    append_unknown(&r, name);
    append(&r, " (%s)", way_out(NULL, choice));
    return set(OPENREG_E_INVALID, call, NULL, &r);
}

openreg_status
openreg_report_unknown(const char *call, const char *name)
{
    report r = {0};
    append_unknown(&r, name);
    return set(OPENREG_E_INVALID, call, NULL, &r);
}

openreg_status
openreg_report_not_open(const char *call, const openreg_candidate *candidate)
{
    report r = {0};
    append(&r, "Unable to initialize driver '%s': %s", candidate->name, candidate->failure.text);
    return set(candidate->failure.code, call, candidate, &r);
}

/* Whether the report that none was found mentions this driver. */
static int
has_failed(const openreg_candidate *candidate)
{
    return candidate->state == OPENREG_DRIVER_STATE_FAILED && openreg_candidate_can_be_found(candidate);
}

openreg_status
openreg_report_none(const char *call, const openreg_candidate *last)
{
    report r = {0};
    openreg_candidate *all[OPENREG_CANDIDATES_MAX];
    const int count = openreg_candidates_sorted(all);
    int others = 0;
    for (int i = 0; i < count; ++i)
        others += all[i] != last && has_failed(all[i]) && !all[i]->is_absent;
    if (last == NULL) {
        append(&r, "no driver is left to choose from");
        append_plugin_failures(&r);
    } else if (others == 0) {
        if (!last->failure.names_driver)
            append(&r, "driver \"%s\": ", last->name);
        append(&r, "%s", last->failure.text);
    } else {
        append(&r, "no driver can be used");
        for (int i = count - 1; i >= 0; --i)
            if (has_failed(all[i]))
                append(&r, "\n  %s (%s): %s", all[i]->name, all[i]->origin, all[i]->failure.text);
    }
    const openreg_candidate *const sim = openreg_candidates_find("sim");
    if (sim->priority > OPENREG_PRIORITY_NEVER &&
        !openreg_candidate_can_be_found(sim)) /* openreg_choose_plugins_alone() */
        append(&r, "\n  OPENREG_DRIVERS=sim uses simulated devices");
    return set(last == NULL ? OPENREG_E_NO_DEVICE : last->failure.code, call, last, &r);
}
