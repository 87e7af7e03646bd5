/* SPDX-License-Identifier: BSD-3-Clause */
/* open_watchdog.c: logs a warning when open() takes long (open_watchdog.h). */
#define _GNU_SOURCE
#include "registry/open_watchdog.h"

#include <time.h>

#include <openreg/status.h>

#include "base/log.h"
#include "base/parse.h"
#include "base/thread.h"
#include "watch/observers.h"

#define DEFAULT_MILLISECONDS INT64_C(60000)

int64_t
openreg_open_watchdog_limit(const char *value)
{
    int64_t milliseconds = DEFAULT_MILLISECONDS;
    if (value != NULL && !openreg_seconds_read(value, &milliseconds))
        openreg_log(OPENREG_LOG_WARNING, "invalid value %s in env var %s: the limit is %lld seconds", value,
                    OPENREG_INIT_WARN_VARIABLE, (long long)(DEFAULT_MILLISECONDS / 1000));
    return milliseconds;
}

static struct timespec
deadline_of(int64_t milliseconds)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    const int64_t nanoseconds = at.tv_nsec + milliseconds % 1000 * 1000000;
    at.tv_sec += (time_t)(milliseconds / 1000 + nanoseconds / 1000000000);
    at.tv_nsec = (long)(nanoseconds % 1000000000);
    return at;
}

static void *
wait_and_warn(void *argument)
{
    openreg_open_watchdog *const watch = argument;
    const struct timespec deadline = deadline_of(watch->milliseconds);
    int timed_out = 0;
    (void)pthread_mutex_lock(&watch->lock);
    while (!watch->has_ended && !timed_out)
        timed_out = pthread_cond_timedwait(&watch->ended, &watch->lock, &deadline) != 0;
    const int is_slow = !watch->has_ended;
    (void)pthread_mutex_unlock(&watch->lock);
    if (is_slow) {
        openreg_observers_alarm(OPENREG_HOST, OPENREG_OK); /* shows what it waits for */
        openreg_log(OPENREG_LOG_WARNING,
                    "Driver '%s' initialization is taking more than %.10g seconds. It may be waiting for a device that "
                    "another process holds; set OPENREG_DRIVERS to leave it out.",
                    watch->driver, (double)watch->milliseconds / 1000.0);
    }
    return NULL;
}

void
openreg_open_watchdog_begin(openreg_open_watchdog *watch, const char *driver, int64_t milliseconds)
{
    watch->driver = driver;
    watch->milliseconds = milliseconds;
    watch->is_watching = watch->has_ended = 0;
    if (milliseconds == 0)
        return;
    pthread_condattr_t monotonic;
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&watch->ended, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    watch->is_watching = openreg_thread_start(&watch->watcher, wait_and_warn, watch) == 0;
    if (!watch->is_watching) {
        (void)pthread_cond_destroy(&watch->ended);
        (void)pthread_mutex_destroy(&watch->lock);
    }
}

void
openreg_open_watchdog_end(openreg_open_watchdog *watch)
{
    if (!watch->is_watching)
        return;
    (void)pthread_mutex_lock(&watch->lock);
    watch->has_ended = 1;
    (void)pthread_cond_signal(&watch->ended);
    (void)pthread_mutex_unlock(&watch->lock);
    (void)pthread_join(watch->watcher, NULL);
    (void)pthread_cond_destroy(&watch->ended);
    (void)pthread_mutex_destroy(&watch->lock);
}
