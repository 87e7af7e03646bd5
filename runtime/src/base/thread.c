/* SPDX-License-Identifier: BSD-3-Clause */
/* thread.c: life of the per-thread state, and threads (thread.h). */
#define _GNU_SOURCE
#include "base/thread.h"

#include <signal.h>
#include <stdlib.h>

_Thread_local openreg_thread *openreg_thread_state;

static pthread_key_t key;
static int key_is_made;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

static void
free_state(void *state)
{
    openreg_thread_state = NULL; /* if a later destructor of this thread fails, it gets a new one */
    free(state);
}

static void
make_key(void)
{
    key_is_made = pthread_key_create(&key, free_state) == 0;
}

openreg_thread *
openreg_thread_get(void)
{
    if (openreg_thread_state != NULL)
        return openreg_thread_state;
    (void)pthread_once(&key_once, make_key);
    if (!key_is_made)
        return NULL;
    openreg_thread *const state = calloc(1, sizeof *state);
    if (state != NULL && pthread_setspecific(key, state) != 0) {
        free(state);
        return NULL;
    }
    openreg_thread_state = state;
    return state;
}

int
openreg_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, function, argument);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
