/* SPDX-License-Identifier: BSD-3-Clause */
/* log.c: writes log lines (log.h). Takes no lock: a line can be written in the child of a fork(), and a callback may
 * take locks of its own. */
#define _GNU_SOURCE
#include "base/log.h"
#include "base/device_name.h"
#include "base/text.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <openreg/openreg.h>

/* The two parts of the callback are published as one by a sequence number, odd while they change. All accesses are
 * sequentially consistent, so a reader that sees the same even number twice has a matching pair. */
static atomic_uint sequence;
static _Atomic(openreg_log_callback) current_callback;
static _Atomic(void *) current_context;

static atomic_int threshold;                      /* 0: OPENREG_LOG_LEVEL not read yet */
static atomic_int standard = OPENREG_LOG_WARNING; /* the threshold if that variable is not set */

static const struct {
    const char *name;
    int32_t level;
} level_names[] = {
    {"debug", OPENREG_LOG_DEBUG},
    {"info", OPENREG_LOG_INFO},
    {"warning", OPENREG_LOG_WARNING},
    {"error", OPENREG_LOG_ERROR},
};
#define LEVELS (sizeof level_names / sizeof level_names[0])

void
openreg_log_read_level(const char *text)
{
    int level = atomic_load_explicit(&standard, memory_order_relaxed);
    for (size_t i = 0; text != NULL && i < LEVELS; ++i)
        if (strcasecmp(text, level_names[i].name) == 0)
            level = level_names[i].level;
    atomic_store_explicit(&threshold, level, memory_order_relaxed);
}

void
openreg_log_set_level(int32_t level)
{
    atomic_store_explicit(&standard, level, memory_order_relaxed);
    atomic_store_explicit(&threshold, 0, memory_order_relaxed); /* the next line reads the variable again */
}

void
openreg_log_set_callback(openreg_log_callback callback, void *ctx)
{
    unsigned even = atomic_load(&sequence) & ~1u;
    while (!atomic_compare_exchange_weak(&sequence, &even, even + 1)) {
        even &= ~1u; /* another thread sets it at the same time */
        (void)sched_yield();
    }
    atomic_store(&current_callback, callback);
    atomic_store(&current_context, ctx);
    atomic_store(&sequence, even + 2);
}

static openreg_log_callback
read_callback(void **context)
{
    /* Bounded, because a fork() can leave the number odd for ever in the child. */
    for (int attempt = 0; attempt < 1000; ++attempt) {
        const unsigned before = atomic_load(&sequence);
        const openreg_log_callback callback = atomic_load(&current_callback);
        *context = atomic_load(&current_context);
        if ((before & 1u) == 0 && atomic_load(&sequence) == before)
            return callback;
        (void)sched_yield();
    }
    return NULL;
}

static const char *
name_of_level(int32_t level)
{
    const char *name = level_names[0].name;
    for (size_t i = 0; i < LEVELS; ++i)
        if (level >= level_names[i].level)
            name = level_names[i].name;
    return name;
}

static void
write_line(int32_t level, const char *text)
{
    char line[2304];
    int length = snprintf(line, sizeof line - 1, "%s: %s: %s", openreg_device_name(), name_of_level(level), text);
    if (length < 0)
        return;
    if ((size_t)length > sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';

    const int saved = errno;
    ssize_t written;
    do
        written = write(STDERR_FILENO, line, (size_t)length);
    while (written < 0 && errno == EINTR);
    errno = saved;
}

void
openreg_log(int32_t level, const char *format, ...)
{
    int least = atomic_load_explicit(&threshold, memory_order_relaxed);
    if (least == 0) {
        openreg_log_read_level(openreg_variable("OPENREG_LOG_LEVEL"));
        least = atomic_load_explicit(&threshold, memory_order_relaxed);
    }
    if (level < least)
        return;

    char text[2048], whole[sizeof text];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(whole, sizeof whole, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    openreg_text_copy_shown(text, sizeof text, whole, 0);

    void *context = NULL;
    const openreg_log_callback callback = read_callback(&context);
    if (callback != NULL)
        callback(context, level, text);
    else
        write_line(level, text);
}
