/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_lock.c: the driver lock, the blocking hooks around it and the discovery callback before it (driver_lock.h). */
#define _GNU_SOURCE
#include "registry/driver_lock.h"

#include <openreg/embedding.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"

typedef struct wait_hooks {
    void *(*before)(void);
    void (*after)(void *token);
} wait_hooks;

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* guards everything below */
static pthread_cond_t driver_lock_released =
    PTHREAD_COND_INITIALIZER; /* not re-made with the lock: after_fork_in_child() */
static int is_held;
static pthread_t owner;
static wait_hooks hooks;
static void (*discover)(void *context);
static void *discover_context;

/* The hook of the lock's owner: called on release even if the hooks have changed since. */
static void (*owner_after)(void *token);
static void *owner_token;

static _Thread_local int is_discovering;

void
openreg_set_blocking_hooks(void *(*before)(void), void (*after)(void *token))
{
    openreg_lock_acquire(&lock);
    hooks = (wait_hooks){before, after};
    openreg_lock_release(&lock);
}

void
openreg_set_discovery_callback(void (*callback)(void *ctx), void *ctx)
{
    openreg_lock_acquire(&lock);
    discover = callback;
    discover_context = ctx;
    openreg_lock_release(&lock);
}

int
openreg_driver_lock_is_held(void)
{
    openreg_lock_acquire(&lock);
    const int held = is_held;
    openreg_lock_release(&lock);
    return held;
}

openreg_status
openreg_driver_lock_reject_reentry(const char *call)
{
    openreg_fork_watch();
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    openreg_lock_acquire(&lock);
    const int is_ours = is_held && pthread_equal(owner, pthread_self());
    openreg_lock_release(&lock);
    if (is_ours)
        return openreg_error_set(OPENREG_E_BUSY, call,
                                 "called by a driver while the runtime loads, opens or closes it");
    return OPENREG_OK;
}

openreg_status
openreg_driver_lock_acquire(const char *call)
{
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_reject_reentry(call));
    openreg_lock_acquire(&lock);
    const wait_hooks now = hooks;
    openreg_lock_release(&lock);
    void *const token = now.before != NULL ? now.before() : NULL;

    openreg_lock_acquire(&lock);
    while (is_held)
        (void)pthread_cond_wait(&driver_lock_released, &lock.mutex);
    is_held = 1;
    owner = pthread_self();
    owner_after = now.after;
    owner_token = token;
    openreg_lock_release(&lock);
    return OPENREG_OK;
}

void
openreg_driver_lock_release(void)
{
    openreg_lock_acquire(&lock);
    void (*const after)(void *) = owner_after;
    void *const token = owner_token;
    is_held = 0;
    (void)pthread_cond_broadcast(&driver_lock_released);
    openreg_lock_release(&lock);
    if (after != NULL)
        after(token);
}

void
openreg_run_discovery_callback(void)
{
    openreg_lock_acquire(&lock);
    void (*const callback)(void *) = is_discovering ? NULL : discover;
    void *const context = discover_context;
    openreg_lock_release(&lock);
    if (callback == NULL)
        return;
    is_discovering = 1;
    callback(context);
    is_discovering = 0;
}

openreg_status
openreg_driver_lock_acquire_discovering(const char *call)
{
    OPENREG_RETURN_NOT_OK(openreg_driver_lock_reject_reentry(call));
    openreg_run_discovery_callback();
    return openreg_driver_lock_acquire(call);
}

/* No thread holds it in the child. */
static void
after_fork_in_child(void)
{
    driver_lock_released = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    is_held = 0;
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_handle(OPENREG_FORK_DRIVER_LOCK, &(openreg_fork_handlers){.child = after_fork_in_child});
}
