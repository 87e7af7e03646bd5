/* SPDX-License-Identifier: BSD-3-Clause */
/* error.c: the thread's last error, and how a driver's error becomes one (error.h). */
#define _GNU_SOURCE
#include "base/error.h"

#include <openreg/embedding.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"

/* Used by a thread for which not even its own record could be allocated. Several such threads share it: their texts
 * may mix, but the returned codes are right. */
static openreg_error_fields emergency_record;
static const openreg_error no_error;

static openreg_error_fields *
record_of_thread(void)
{
    openreg_thread *const thread = openreg_thread_get();
    return thread != NULL ? &thread->error : &emergency_record;
}

/* ------------------------------------------------------------------------------------------------------ the message */

void
openreg_show_text(char *shown, size_t size, const char *text)
{
    openreg_text_copy_shown(shown, size, text, 0);
}

/* The only place where an error's parts are joined to a message. */
static void
compose(const openreg_error_fields *error, int with_call, int with_driver, char *out, size_t size)
{
    char whole[sizeof error->call + sizeof error->driver + sizeof error->text + sizeof error->note + 64];
    size_t length = 0;
    if (with_call && error->call[0] != '\0')
        length += (size_t)snprintf(whole, sizeof whole, "%s: ", error->call);
    if (with_driver && error->is_drivers)
        length += (size_t)snprintf(whole + length, sizeof whole - length, "driver \"%s\": ", error->driver);
    length += (size_t)snprintf(whole + length, sizeof whole - length, "%s", error->text);
    if (error->is_drivers)
        (void)snprintf(whole + length, sizeof whole - length, " (%s%s)", openreg_status_name(error->code), error->note);
    openreg_text_copy_shown(out, size, whole, 1);
}

void
openreg_error_reason(const openreg_error_fields *error, const char *call, const char *driver, char *out, size_t size)
{
    const int is_known = strcmp(error->call, call) == 0;
    compose(error, !is_known, !is_known || strcmp(error->driver, driver) != 0, out, size);
}

const openreg_error *
openreg_last_error(void)
{
    openreg_thread *const thread = openreg_thread_state;
    if (thread == NULL)
        return &no_error;
    const openreg_error_fields *const error = &thread->error;
    openreg_error *const shown = &thread->shown;
    shown->code = error->code;
    shown->names_code = error->is_drivers || error->names_code;
    shown->vendor_code = error->vendor_code;
    memcpy(shown->driver, error->driver, sizeof shown->driver);
    compose(error, 1, 1, shown->message, sizeof shown->message);
    return shown;
}

void
openreg_clear_error(void)
{
    if (openreg_thread_state != NULL)
        memset(&openreg_thread_state->error, 0, sizeof openreg_thread_state->error);
}

/* -------------------------------------------------------------------------------------------------------- the parts */

static void
store(openreg_status code, const char *call, const char *driver, int is_drivers, const char *text)
{
    openreg_error_fields now; /* the arguments may point into the record */
    memset(&now, 0, sizeof now);
    now.code = code;
    now.is_drivers = is_drivers;
    if (call != NULL)
        openreg_text_copy(now.call, sizeof now.call, call);
    if (driver != NULL)
        openreg_text_copy(now.driver, sizeof now.driver, driver);
    openreg_text_copy(now.text, sizeof now.text, text);
    *record_of_thread() = now;
}

__attribute__((format(printf, 5, 0))) static void
store_formatted(openreg_status code, const char *call, const char *driver, int is_drivers, const char *format,
                va_list arguments)
{
    char text[sizeof emergency_record.text + 4];
    if (vsnprintf(text, sizeof text, format, arguments) < 0)
        text[0] = '\0';
    store(code, call, driver, is_drivers, text);
}

openreg_status
openreg_error_set(openreg_status code, const char *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    store_formatted(code, call, NULL, 0, format, arguments);
    va_end(arguments);
    return code;
}

openreg_status
openreg_error_set_driver(openreg_status code, const char *call, const char *driver, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    store_formatted(code, call, driver, 1, format, arguments);
    va_end(arguments);
    return code;
}

openreg_status
openreg_error_names_driver(const char *driver, int64_t vendor_code)
{
    openreg_error_fields *const record = record_of_thread();
    record->names_driver = 1;
    record->vendor_code = vendor_code;
    openreg_text_copy(record->driver, sizeof record->driver, driver);
    return record->code;
}

void
openreg_error_names_code(int it_does)
{
    record_of_thread()->names_code = it_does;
}

openreg_status
openreg_error_names_path(void)
{
    openreg_error_fields *const record = record_of_thread();
    record->names_path = 1;
    return record->code;
}

openreg_status
openreg_error_set_call(const char *call)
{
    openreg_error_fields *const record = record_of_thread();
    openreg_text_copy(record->call, sizeof record->call, call);
    return record->code;
}

openreg_status
openreg_error_prefix(const char *prefix)
{
    const openreg_error_fields before = openreg_error_save();
    char message[sizeof before.text];
    compose(&before, 1, 1, message, sizeof message);
    (void)openreg_error_set(before.code, NULL, "%s: %s", prefix, message);
    openreg_error_fields *const record = record_of_thread();
    record->vendor_code = before.vendor_code;
    record->names_driver = before.is_drivers || before.names_driver;
    record->names_code = before.is_drivers || before.names_code;
    record->names_path = before.names_path;
    memcpy(record->driver, before.driver, sizeof record->driver);
    return before.code;
}

openreg_error_fields
openreg_error_save(void)
{
    static const openreg_error_fields none;
    return openreg_thread_state != NULL ? openreg_thread_state->error : none;
}

void
openreg_error_restore(const openreg_error_fields *saved)
{
    if (openreg_thread_state != NULL || saved->code != OPENREG_OK)
        *record_of_thread() = *saved;
}

/* -------------------------------------------------------------------------------------------------- drivers' errors */

void
openreg_error_begin_call(void)
{
    if (openreg_thread_state != NULL)
        openreg_thread_state->driver_errors_set = 0;
}

uint32_t
openreg_error_times_set(openreg_status *code)
{
    const openreg_thread *const thread = openreg_thread_state;
    *code = thread != NULL ? thread->driver_code : OPENREG_OK;
    return thread != NULL ? thread->driver_errors_set : 0;
}

/* A code of status.h. */
typedef struct known_code {
    openreg_status code;
    const char *name, *text;
} known_code;

static const known_code known_codes[] = {
#define OPENREG_ROW(name, number, text) {number, #name, text},
    OPENREG_STATUS_MAP(OPENREG_ROW)
#undef OPENREG_ROW
};

/* NULL: status.h has none of that number. */
static const known_code *
find_code(openreg_status code)
{
    for (size_t i = 0; i < sizeof known_codes / sizeof known_codes[0]; ++i)
        if (known_codes[i].code == code)
            return &known_codes[i];
    return NULL;
}

int
openreg_error_is_known(openreg_status code)
{
    return find_code(code) != NULL;
}

const char *
openreg_status_name(openreg_status code)
{
    const known_code *const known = find_code(code);
    return known != NULL ? known->name : "OPENREG_E_INTERNAL";
}

const char *
openreg_status_text(openreg_status code)
{
    const known_code *const known = find_code(code);
    return known != NULL ? known->text : openreg_status_text(OPENREG_E_INTERNAL);
}

openreg_status
openreg_error_end_call(const char *driver, const char *call, openreg_status code)
{
    if (code == OPENREG_OK)
        return code;

    const openreg_thread *const thread = openreg_thread_state;
    const int is_set = thread != NULL && thread->driver_errors_set > 0;
    const openreg_status given = code;
    if (!openreg_error_is_known(code))
        code = OPENREG_E_INTERNAL;
    store(code, call, driver, 1, is_set ? thread->driver_text : "failed without a reason");
    openreg_error_fields *const record = record_of_thread();
    record->vendor_code = is_set ? thread->driver_vendor_code : 0;
    if (given != code)
        (void)snprintf(record->note, sizeof record->note, ", for its unknown code %d", given);
    else if (is_set && thread->driver_code != code)
        (void)snprintf(record->note, sizeof record->note, "; set_error() was given code %d", thread->driver_code);
    return code;
}

static void
host_set_error(void *context, openreg_status code, int64_t vendor_code, const char *utf8)
{
    (void)context;
    openreg_thread *const thread = openreg_thread_get();
    if (thread == NULL)
        return;
    ++thread->driver_errors_set;
    thread->driver_code = code;
    thread->driver_vendor_code = vendor_code;
    openreg_text_copy(thread->driver_text, sizeof thread->driver_text, utf8);
}

static void
host_log(void *context, int32_t level, const char *utf8)
{
    (void)context;
    openreg_log(level, "%s", utf8 != NULL ? utf8 : "");
}

const openreg_host openreg_host_services = {
    .struct_size = sizeof(openreg_host),
    .abi_minor = OPENREG_ABI_MINOR,
    .ctx = NULL,
    .set_error = host_set_error,
    .log = host_log,
};

const char *
openreg_version(void)
{
    return OPENREG_VERSION_STRING;
}
