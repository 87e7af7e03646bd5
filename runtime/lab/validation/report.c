/* SPDX-License-Identifier: BSD-3-Clause */
/* report.c: reports of broken rules, and the rules that hold for every call (validated.h). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "validation/validated.h"

static const char *const texts[] = {
#define OPENREG_RULE_TEXT(name, text) text,
    OPENREG_RULE_MAP(OPENREG_RULE_TEXT)
#undef OPENREG_RULE_TEXT
};

#define TEXT_SIZE 640

/* Logs it once for the rule and instance. */
static void
report(openreg_instance v, openreg_rule rule, const char *slot, const char *format, va_list arguments,
       char text[TEXT_SIZE])
{
    char seen[320];
    (void)vsnprintf(seen, sizeof seen, format, arguments);
    (void)snprintf(text, TEXT_SIZE, "%s%s() of driver \"%s\" breaks a rule of driver.h: %s. The rule: \"%s\".",
                   rule >= OPENREG_RULE_FIRST_OF_CALLER ? "a call of " : "", slot, v->name, seen, texts[rule]);
    if (atomic_exchange_explicit(&v->reported[rule], 1, memory_order_relaxed) == 0)
        openreg_log(OPENREG_LOG_ERROR, "OPENREG_VALIDATE: %s", text);
}

void
openreg_validation_report(openreg_instance v, openreg_rule rule, const char *slot, const char *format, ...)
{
    char text[TEXT_SIZE];
    va_list arguments;
    if (atomic_load_explicit(&v->reported[rule], memory_order_relaxed) != 0)
        return;
    va_start(arguments, format);
    report(v, rule, slot, format, arguments, text);
    va_end(arguments);
}

openreg_status
openreg_validation_refuse(openreg_instance v, openreg_rule rule, openreg_status code, const char *slot,
                          const char *format, ...)
{
    char text[TEXT_SIZE];
    va_list arguments;
    va_start(arguments, format);
    report(v, rule, slot, format, arguments, text);
    va_end(arguments);
    openreg_host_services.set_error(openreg_host_services.ctx, code, 0, text);
    return code;
}

openreg_status
openreg_validation_no_memory(void)
{
    openreg_host_services.set_error(openreg_host_services.ctx, OPENREG_E_NOMEM, 0,
                                    "no host memory for the books of OPENREG_VALIDATE");
    return OPENREG_E_NOMEM;
}

#define UNWRITTEN 0x5a

openreg_call_span
openreg_validation_begin(openreg_instance v, const char *slot, void *out, size_t size)
{
    openreg_status code = OPENREG_OK;
    const openreg_call_span span = {openreg_error_times_set(&code), out, size};
    if (openreg_validation_in_function())
        openreg_validation_report(v, OPENREG_RULE_FUNCTION_CALLS_NOTHING, slot, "a host function called it");
    if (size > 0)
        memset(out, UNWRITTEN, size);
    return span;
}

static void
judge_errors(openreg_instance v, const char *slot, uint32_t errors, openreg_status said, openreg_status status,
             int refuses)
{
    const openreg_rule rule = OPENREG_RULE_ERROR_ONCE;
    if (status == OPENREG_OK)
        openreg_validation_report(v, rule, slot, "it called set_error() and returned OPENREG_OK");
    else if (!openreg_error_is_known(status))
        openreg_validation_report(v, rule, slot, "it returned %d, which isn't a status code", status);
    else if (errors == 0 && !(refuses && (status == OPENREG_E_UNSUPPORTED || status == OPENREG_E_NOMEM)))
        openreg_validation_report(v, rule, slot, "it returned %s without set_error()", openreg_status_name(status));
    else if (errors > 1)
        openreg_validation_report(v, rule, slot, "it called set_error() %u times before it returned %s",
                                  (unsigned)errors, openreg_status_name(status));
    else if (errors == 1 && said != status)
        openreg_validation_report(v, rule, slot, "it gave set_error() %s and returned %s", openreg_status_name(said),
                                  openreg_status_name(status));
}

openreg_status
openreg_validation_end(openreg_instance v, const char *slot, openreg_call_span span, openreg_status status, int refuses)
{
    openreg_status said = OPENREG_OK;
    const uint32_t errors = openreg_error_times_set(&said) - span.errors;
    if (__builtin_expect(status == OPENREG_OK && errors == 0, 1))
        return status;
    judge_errors(v, slot, errors, said, status, refuses);
    if (status != OPENREG_OK && !openreg_validation_is_unwritten(span.out, span.size))
        openreg_validation_report_written(v, slot, status);
    return status;
}

void
openreg_validation_report_written(openreg_instance v, const char *slot, openreg_status status)
{
    openreg_validation_report(v, OPENREG_RULE_NO_OUTPUT_ON_FAILURE, slot, "it returned %s and wrote its out-parameter",
                              openreg_status_name(status));
}

bool
openreg_validation_is_unwritten(const void *bytes, size_t size)
{
    const unsigned char *const at = bytes;
    size_t i = 0;
    while (i < size && at[i] == UNWRITTEN)
        ++i;
    return i == size;
}

uintptr_t
openreg_written_address(const void *written)
{
    return openreg_validation_is_unwritten(&written, sizeof written) ? 0 : (uintptr_t)written;
}

openreg_status
openreg_validation_device(openreg_instance v, const char *slot, int32_t dev)
{
    if (dev >= 0 && dev < v->count)
        return OPENREG_OK;
    return openreg_validation_refuse(v, OPENREG_RULE_DEVICE_EXISTS, OPENREG_E_INVALID, slot,
                                     "device %d of %d was requested", dev, v->count);
}
