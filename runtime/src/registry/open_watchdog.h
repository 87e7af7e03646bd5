/* SPDX-License-Identifier: BSD-3-Clause */
/* open_watchdog.h: a warning about a driver that takes long to open, logged during open(). Internal. */
#ifndef OPENREG_SRC_SLOW_OPEN_H
#define OPENREG_SRC_SLOW_OPEN_H

#include <pthread.h>
#include <stdint.h>

#define OPENREG_INIT_WARN_VARIABLE "OPENREG_INIT_WARN_SECS"

typedef struct openreg_open_watchdog {
    const char *driver; /* its name, valid until the end */
    int64_t milliseconds;
    int is_watching;
    int has_ended; /* under `lock` */
    pthread_t watcher;
    pthread_mutex_t lock;
    pthread_cond_t ended;
} openreg_open_watchdog;

/* Reads a value of OPENREG_INIT_WARN_SECS: milliseconds, 0: no warning. NULL and, with a warning, a bad value: the
 * default of 60 s. */
int64_t openreg_open_watchdog_limit(const char *value);

/* Starts a thread that logs one warning after `milliseconds`, unless openreg_open_watchdog_end() is called before; that
 * function returns when the thread has ended. No thread with 0, or if none can be made. */
void openreg_open_watchdog_begin(openreg_open_watchdog *watch, const char *driver, int64_t milliseconds);
void openreg_open_watchdog_end(openreg_open_watchdog *watch);

#endif
