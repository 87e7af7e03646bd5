/* SPDX-License-Identifier: BSD-3-Clause */
/* error.c: the thread's last error, and how a driver's error becomes one (error.h). */
#define _GNU_SOURCE
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"

/* Used by a thread for which not even its own record could be allocated. Several such threads share it: their texts
 * may mix, their codes are returned all the same. */
static openreg_error emergency_record;
static const openreg_error no_error;

openreg_error *
openreg_error_record(void)
{
    openreg_thread *const thread = openreg_thread_get();
    return thread != NULL ? &thread->error : &emergency_record;
}

const openreg_error *
openreg_last_error(void)
{
    return openreg_thread_state != NULL ? &openreg_thread_state->error : &no_error;
}

void
openreg_clear_error(void)
{
    if (openreg_thread_state != NULL)
        memset(&openreg_thread_state->error, 0, sizeof openreg_thread_state->error);
}

openreg_status
openreg_error_set(openreg_status code, const char *format, ...)
{
    char text[sizeof no_error.message + 4]; /* the arguments may point into the record */
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0)
        text[0] = '\0';
    va_end(arguments);

    openreg_error *const record = openreg_error_record();
    memset(record, 0, sizeof *record);
    record->code = code;
    openreg_text_copy(record->message, sizeof record->message, text);
    return code;
}

openreg_status
openreg_error_prefix(const char *prefix)
{
    const openreg_error before = *openreg_error_record();
    (void)openreg_error_set(before.code, "%s: %s", prefix, before.message);
    openreg_error *const record = openreg_error_record();
    record->vendor_code = before.vendor_code;
    memcpy(record->driver, before.driver, sizeof record->driver);
    return before.code;
}

void
openreg_error_begin_call(void)
{
    if (openreg_thread_state != NULL)
        openreg_thread_state->driver_error_is_set = 0;
}

static int
is_known(openreg_status code)
{
    switch (code) {
#define OPENREG_CASE(name, number, text) case number:
        OPENREG_STATUS_MAP(OPENREG_CASE)
#undef OPENREG_CASE
        return 1;
    default:
        return 0;
    }
}

openreg_status
openreg_error_end_call(const char *driver, const char *call, openreg_status code)
{
    if (code == OPENREG_OK)
        return code;

    const openreg_thread *const thread = openreg_thread_state;
    const int is_set = thread != NULL && thread->driver_error_is_set;
    const char *const text = is_set ? thread->driver_text : "failed and gave no reason";
    const int64_t vendor_code = is_set ? thread->driver_vendor_code : 0;
    if (is_known(code) && is_set && thread->driver_code != code) {
        (void)openreg_error_set(code, "%s: driver \"%s\": %s (%s; set_error() was given code %d)", call, driver, text,
                                openreg_status_name(code), thread->driver_code);
    } else if (is_known(code)) {
        (void)openreg_error_set(code, "%s: driver \"%s\": %s (%s)", call, driver, text, openreg_status_name(code));
    } else {
        const openreg_status unknown = code;
        code = OPENREG_E_INTERNAL;
        (void)openreg_error_set(code, "%s: driver \"%s\": %s (%s, for its unknown code %d)", call, driver, text,
                                openreg_status_name(code), unknown);
    }
    openreg_error *const record = openreg_error_record();
    record->vendor_code = vendor_code;
    openreg_text_copy(record->driver, sizeof record->driver, driver);
    return code;
}

static void
host_set_error(void *context, openreg_status code, int64_t vendor_code, const char *utf8)
{
    (void)context;
    openreg_thread *const thread = openreg_thread_get();
    if (thread == NULL)
        return;
    thread->driver_error_is_set = 1;
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
openreg_status_name(openreg_status code)
{
    switch (code) {
#define OPENREG_CASE(name, number, text)                                                                               \
    case number:                                                                                                       \
        return #name;
        OPENREG_STATUS_MAP(OPENREG_CASE)
#undef OPENREG_CASE
    default:
        return "OPENREG_E_INTERNAL";
    }
}

const char *
openreg_status_text(openreg_status code)
{
    switch (code) {
#define OPENREG_CASE(name, number, text)                                                                               \
    case number:                                                                                                       \
        return text;
        OPENREG_STATUS_MAP(OPENREG_CASE)
#undef OPENREG_CASE
    default:
        return openreg_status_text(OPENREG_E_INTERNAL);
    }
}

const char *
openreg_version(void)
{
    return OPENREG_VERSION_STRING;
}
