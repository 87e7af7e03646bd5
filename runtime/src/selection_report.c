/* selection_report.c: the texts of a failed selection (selection.h, rule L6). The caller holds the gate. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "driver_calls.h"
#include "error.h"
#include "selection.h"
#include "text.h"

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

/* "Driver "x" provides no devices." is a sentence of its own; what a driver says gets its name in front. */
static int
is_sentence(const char *message)
{
    return strncmp(message, "Driver \"", 8) == 0;
}

static openreg_status
set(openreg_status code, const openreg_candidate *candidate, const report *r)
{
    (void)openreg_error_set(code, "%s", r->text);
    if (candidate != NULL) {
        openreg_error_record()->vendor_code = candidate->vendor_code;
        openreg_text_copy(openreg_error_record()->driver, sizeof openreg_error_record()->driver, candidate->name);
    }
    return code;
}

static void
append_place(report *r, const openreg_candidate *candidate)
{
    append(r, "\n  %s: ", openreg_source_name(candidate->source));
    const char *const path = candidate->path;
    /* The loader's texts name the path themselves. */
    if (path[0] != '\0' && strstr(candidate->message, path) == NULL)
        append(r, "%s: ", path);
    if (candidate->state == OPENREG_DRIVER_FAILED)
        append(r, "%s", candidate->message);
    else
        append(r, "not tried, another one replaces it");
}

/* "sim (built in, 2 devices)"; counts only where that opens nothing. */
static void
append_other(report *r, openreg_candidate *candidate, int *listed)
{
    int32_t count = candidate->device_count;
    openreg_options options = {NULL, 0};
    if (count < 0 && candidate->source == OPENREG_SOURCE_BUILT_IN &&
        openreg_candidate_load("", candidate) == OPENREG_OK &&
        openreg_options_read(openreg_registry_environment(), candidate->name, &options) == OPENREG_OK) {
        if (openreg_call_probe(&candidate->table, candidate->name, "", options.items, options.count, &count) !=
            OPENREG_OK)
            count = -1;
        openreg_options_free(&options);
    }
    append(r, "%s%s (%s", (*listed)++ == 0 ? "\n  other drivers: " : ", ", candidate->name,
           openreg_source_name(candidate->source));
    if (count >= 0)
        append(r, ", %d device%s", count, count == 1 ? "" : "s");
    append(r, ")");
}

openreg_status
openreg_report_asked_for(const char *call, const openreg_candidate *candidate, openreg_choice choice)
{
    static const char *const how[] = {
        [OPENREG_CHOICE_LISTED] = "was asked for by OPENREG_DRIVERS",
        [OPENREG_CHOICE_BY_PATH] = "was asked for by OPENREG_DRIVER_LIBRARIES",
        [OPENREG_CHOICE_BY_CALL] = "was registered",
        [OPENREG_CHOICE_DISCOVERED] = "was found",
    };
    const openreg_status code = candidate->code;
    report r = {0};
    append(&r, "%s: driver \"%s\" %s and cannot be used", call, candidate->name, how[choice]);

    openreg_candidate *all[OPENREG_REGISTRY_MAX];
    int count = openreg_registry_namesakes(candidate->name, all, OPENREG_REGISTRY_MAX);
    int by_variable = 0;
    for (int i = 0; i < count; ++i) {
        append_place(&r, all[i]);
        by_variable |= all[i]->source == OPENREG_SOURCE_LIBRARIES;
    }
    if (!by_variable) {
        const char *const value = openreg_environment_get(openreg_registry_environment(), "OPENREG_DRIVER_LIBRARIES");
        append(&r, "\n  OPENREG_DRIVER_LIBRARIES: %s", value == NULL || value[0] == '\0' ? "not set" : "no such name");
    }

    int listed = 0;
    count = openreg_registry_candidates(all, OPENREG_REGISTRY_MAX);
    for (int i = 0; i < count; ++i)
        if (strcmp(all[i]->name, candidate->name) != 0 && all[i]->state != OPENREG_DRIVER_FAILED)
            append_other(&r, all[i], &listed);
    append(&r, "%s%s", listed > 0 ? ". " : "\n  ",
           choice == OPENREG_CHOICE_LISTED ? "Unset OPENREG_DRIVERS to choose automatically."
                                           : "Set OPENREG_DRIVERS=sim to skip this driver.");
    return set(code, candidate, &r);
}

openreg_status
openreg_report_unknown(const char *call, const char *name)
{
    report r = {0};
    append(&r, "%s: OPENREG_DRIVERS names the unknown driver \"%s\"; known drivers: ", call, name);
    openreg_candidate *all[OPENREG_REGISTRY_MAX];
    const int count = openreg_registry_candidates(all, OPENREG_REGISTRY_MAX);
    for (int i = 0; i < count; ++i)
        append(&r, "%s%s", i == 0 ? "" : ", ", all[i]->name);
    return set(OPENREG_E_INVALID, NULL, &r);
}

openreg_status
openreg_report_none(const char *call)
{
    openreg_candidate *all[OPENREG_REGISTRY_MAX];
    const int count = openreg_registry_candidates(all, OPENREG_REGISTRY_MAX);
    /* The least preferred one is what everybody ends at; its reason decides. */
    const openreg_candidate *const last = count > 0 ? all[count - 1] : NULL;
    report r = {0};
    int others = 0;
    for (int i = 0; i < count - 1; ++i)
        others += all[i]->has_table || all[i]->code != OPENREG_E_NO_DEVICE;
    if (last == NULL) {
        append(&r, "%s: no driver is known", call);
        return set(OPENREG_E_NO_DEVICE, NULL, &r);
    }
    if (others == 0 && is_sentence(last->message)) {
        append(&r, "%s: %s", call, last->message);
    } else if (others == 0) {
        append(&r, "%s: driver \"%s\": %s", call, last->name, last->message);
    } else {
        append(&r, "%s: no driver can be used", call);
        for (int i = count - 1; i >= 0; --i)
            append(&r, "\n  %s (%s): %s", all[i]->name, openreg_source_name(all[i]->source), all[i]->message);
    }
    return set(last->code, last, &r);
}
