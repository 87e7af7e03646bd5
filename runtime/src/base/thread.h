/* SPDX-License-Identifier: BSD-3-Clause */
/* thread.h: the runtime's own threads, and per-thread state of threads that had an error or have set a stream. Internal.
 *
 * Allocated on first need and freed when the thread ends. Only a pointer to it lives in static TLS, which is scarce in
 * a library that is loaded by dlopen(). */
#ifndef OPENREG_SRC_THREAD_H
#define OPENREG_SRC_THREAD_H

#include <pthread.h>

#include "base/error.h"

typedef struct openreg_thread {
    openreg_error_fields error;
    openreg_error shown; /* the message that openreg_last_error() made of it */
    /* The driver's arguments of set_error() during the current call of a slot; error.c. */
    uint32_t driver_errors_set; /* how often */
    openreg_status driver_code;
    int64_t driver_vendor_code;
    char driver_text[512];
    /* Current stream of each device, valid for the table of this generation; stream.c. */
    uint32_t streams_generation;
    openreg_stream streams[OPENREG_MAX_DEVICES];
} openreg_thread;

extern _Thread_local openreg_thread *openreg_thread_state; /* NULL until openreg_thread_get() */

/* The calling thread's state, made if needed. NULL if memory is short. */
openreg_thread *openreg_thread_get(void);

/* Starts a thread that blocks signals, which are the program's. As pthread_create(). */
int openreg_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument);

#endif
