/* SPDX-License-Identifier: BSD-3-Clause */
/* context.c: a check's process: the driver in it, the errors that it sets, and how the check ends (check.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/driver_slots.h"
#include "fixtures.h"
#include "processor.h"
#include "runner.h"

static int report_file = -1;
static check_trail *trail;

/* Errors that this thread's current call has set, and its place in the trail. */
static _Thread_local struct {
    int count, place;
    openreg_status code;
    char text[512];
} errors;

void
check_begin(int file, check_trail *shared)
{
    report_file = file;
    trail = shared;
}

/* The first report counts; a second thread or process of the check that has one waits for the end. */
static _Noreturn void
end_with(int status, const char *format, va_list arguments)
{
    static int none;
    while (__atomic_exchange_n(trail != NULL ? &trail->is_reported : &none, 1, __ATOMIC_RELAXED) != 0)
        (void)pause();
    char text[CHECK_MESSAGE_SIZE] = "";
    (void)vsnprintf(text, sizeof text, format, arguments);
    while (write(report_file, text, strlen(text)) < 0 && errno == EINTR) {
    }
    _exit(status);
}

_Noreturn void
check_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    end_with(CHECK_EXIT_FAIL, format, arguments);
}

_Noreturn void
check_skip(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    end_with(CHECK_EXIT_SKIP, format, arguments);
}

void
check_skip_if(bool condition, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (condition)
        end_with(CHECK_EXIT_SKIP, format, arguments);
    va_end(arguments);
}

_Noreturn void
check_pass(void)
{
    _exit(CHECK_EXIT_PASS);
}

static void
set_error(void *ctx, openreg_status code, int64_t vendor_code, const char *utf8)
{
    (void)ctx;
    (void)vendor_code;
    ++errors.count;
    errors.code = code;
    (void)snprintf(errors.text, sizeof errors.text, "%s", utf8 != NULL ? utf8 : "");
}

static void
ignore_log(void *ctx, int32_t level, const char *utf8)
{
    (void)ctx;
    (void)level;
    (void)utf8;
}

const openreg_host *
check_host(void)
{
    static const openreg_host host = {
        .struct_size = sizeof host, .abi_minor = OPENREG_ABI_MINOR, .set_error = set_error, .log = ignore_log};
    return &host;
}

const char *
check_error_text(void)
{
    return errors.text;
}

void
check_append(char *text, size_t size, const char *format, ...)
{
    const size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + length, size - length, format, arguments);
    va_end(arguments);
}

void
check_append_item(char *list, size_t size, const char *item)
{
    check_append(list, size, "%s%s", list[0] == '\0' ? "" : ", ", item);
}

const char *
check_status_name(openreg_status status)
{
    switch (status) {
#define STATUS_CASE(name, number, text)                                                                                \
    case name:                                                                                                         \
        return #name;
        OPENREG_STATUS_MAP(STATUS_CASE)
    default:
        return "a code that status.h does not have";
    }
}

double
check_own_time(void)
{
    if (trail == NULL)
        return check_now();
    /* The runner writes looked_at first: who reads between its two writes has a clock that is behind, never one ahead. */
    const double own = (double)__atomic_load_n(&trail->own_time, __ATOMIC_ACQUIRE) * 1e-6;
    const double since = check_now() - (double)__atomic_load_n(&trail->looked_at, __ATOMIC_RELAXED) * 1e-6;
    return own + (since < CHECK_LOOK_EACH ? since : CHECK_LOOK_EACH); /* the parent, too, may have no processor */
}

void
check_begin_call(const char *slot)
{
    errors.count = 0;
    errors.text[0] = '\0';
    if (trail == NULL)
        return;
    errors.place = (int)(__atomic_fetch_add(&trail->count, 1, __ATOMIC_RELAXED) % CHECK_CALLS);
    check_call *const call = &trail->calls[errors.place];
    *call = (check_call){.thread = (int)syscall(SYS_gettid), .begin = check_now()};
    (void)snprintf(call->slot, sizeof call->slot, "%.*s", (int)strcspn(slot, "("), slot);
    __atomic_store_n(&trail->current, errors.place + 1, __ATOMIC_RELAXED); /* of any thread: the last one is reported */
}

openreg_status
check_end_call(openreg_status status)
{
    if (trail == NULL)
        return status;
    __atomic_store_n(&trail->current, 0, __ATOMIC_RELAXED);
    check_call *const call = &trail->calls[errors.place];
    call->end = check_now();
    call->status = status;
    call->has_ended = true;
    return status;
}

openreg_status
check_ended(const char *slot, openreg_status status)
{
    (void)check_end_call(status);
    if (status == OPENREG_OK) {
        REQUIRE(errors.count == 0, "%s() returned OPENREG_OK and had called set_error() with \"%s\"", slot,
                errors.text);
        return status;
    }
    REQUIRE(errors.count != 0, "%s() returned %s without a call of set_error()", slot, check_status_name(status));
    REQUIRE(errors.count == 1, "%s() returned %s and called set_error() %d times", slot, check_status_name(status),
            errors.count);
    REQUIRE(errors.code == status, "%s() returned %s, but set_error() was given %s", slot, check_status_name(status),
            check_status_name(errors.code));
    return status;
}

void
check_succeeded(const char *slot, openreg_status status)
{
    (void)check_ended(slot, status);
    REQUIRE(status == OPENREG_OK, "%s() returned %s: %s", slot, check_status_name(status), errors.text);
}

void
check_failed_with(const char *slot, openreg_status wanted, openreg_status status)
{
    (void)check_ended(slot, status);
    REQUIRE(status == wanted, "%s() returned %s where %s is the answer", slot, check_status_name(status),
            check_status_name(wanted));
}

bool
check_has_slot(const openreg_driver *table, int slot)
{
    void (*function)(void);
    memcpy(&function, (const char *)table + openreg_slots[slot].offset, sizeof function);
    return function != NULL;
}

bool
check_has_slots(const openreg_driver *table, const char *slots, const char **missing)
{
    for (int i = 0; i < OPENREG_SLOT_COUNT; ++i) {
        const size_t length = strlen(openreg_slots[i].name);
        for (const char *at = slots; (at = strstr(at, openreg_slots[i].name)) != NULL; at += length)
            if ((at == slots || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0') &&
                !check_has_slot(table, i)) {
                *missing = openreg_slots[i].name;
                return false;
            }
    }
    return true;
}

void
check_load(check_context *c, const check_target *target)
{
    memset(c, 0, sizeof *c);
    c->target = target;
    c->host = check_host();
    c->random = target->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    const openreg_driver_query_fn query = check_target_entry(target);
    check_begin_call("query");
    const openreg_status status = query(c->host, &c->given);
    check_succeeded("openreg_driver_query_v1", status);
    REQUIRE(c->given != NULL, "openreg_driver_query_v1() gave no table");
    const uint32_t size = c->given->struct_size;
    REQUIRE(size >= OPENREG_DRIVER_SIZE_1, "the table says that it has %u bytes; version 1.0 has %u", (unsigned)size,
            (unsigned)OPENREG_DRIVER_SIZE_1);
    memcpy(&c->table, c->given, size < sizeof c->table ? size : sizeof c->table);
    c->target = check_target_with_variables(target, c->table.name);
    for (int i = 0; i < OPENREG_SLOT_COUNT; ++i)
        REQUIRE(strcmp(openreg_slots[i].group, OPENREG_SLOT_REQUIRED) != 0 || check_has_slot(&c->table, i),
                "the table lacks the required slot %s", openreg_slots[i].name);
}

openreg_status
check_open_with(check_context *c, const openreg_option *options, uint32_t count, openreg_instance *out)
{
    return MAY(c, open, c->host, options, count, out);
}

void
check_open(check_context *c)
{
    const openreg_status status = check_open_with(c, c->target->options, c->target->option_count, &c->instance);
    check_skip_if(status == OPENREG_E_NO_DEVICE, "open() found no device: %s", check_error_text());
    check_succeeded("open", status);
    MUST(c, device_count, c->instance, &c->devices);
    check_skip_if(c->devices == 0, "the driver has no device");
    REQUIRE(c->devices > 0, "device_count() said %d", c->devices);
}

void
check_close(check_context *c)
{
    openreg_instance const instance = c->instance;
    c->instance = NULL;
    MUST(c, close, instance);
}

uint64_t
check_random(check_context *c)
{
    uint64_t z = c->random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t
check_random_below(check_context *c, uint64_t below)
{
    return check_random(c) % below;
}
