/* SPDX-License-Identifier: BSD-3-Clause */
/* fork.c: the fork handlers (fork.h). */
#include "base/fork.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/lock.h"

static atomic_int bad_fork;
static atomic_int drivers_at_risk;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* Each is written once, while its library is loaded; its bit is set then. */
static openreg_fork_handlers handlers[OPENREG_FORK_STAGES];
static openreg_lock *held[OPENREG_FORK_STAGES];
static atomic_uint have_handlers, have_locks;
static_assert(OPENREG_FORK_STAGES <= 32, "a bit for each stage");

/* The stages prepared for this thread's current fork: the same ones are ended. */
static _Thread_local unsigned forks_handlers, forks_locks;
static _Thread_local unsigned own_locks; /* of stages: by openreg_fork_take() */

void
openreg_fork_handle(openreg_fork_stage stage, const openreg_fork_handlers *own)
{
    handlers[stage] = *own;
    (void)atomic_fetch_or_explicit(&have_handlers, 1u << stage, memory_order_release);
}

void
openreg_fork_hold(openreg_fork_stage stage, openreg_lock *lock)
{
    held[stage] = lock;
    (void)atomic_fetch_or_explicit(&have_locks, 1u << stage, memory_order_release);
}

void
openreg_fork_take(openreg_fork_stage stage)
{
    openreg_lock_acquire(held[stage]);
    own_locks |= 1u << stage;
}

void
openreg_fork_give(openreg_fork_stage stage)
{
    own_locks &= ~(1u << stage);
    openreg_lock_release(held[stage]);
}

static bool
has(unsigned stages, int stage)
{
    return (stages >> stage & 1u) != 0;
}

static void
before_fork(void)
{
    forks_handlers = forks_locks = 0;
    for (int stage = OPENREG_FORK_STAGES - 1; stage >= 0; --stage) {
        /* Read at each stage: an earlier stage may have waited for libopenreg_lab.so, which sets later ones. */
        forks_handlers |= atomic_load_explicit(&have_handlers, memory_order_acquire) & 1u << stage;
        forks_locks |= atomic_load_explicit(&have_locks, memory_order_acquire) & ~own_locks & 1u << stage;
        if (has(forks_handlers, stage) && handlers[stage].prepare != NULL)
            handlers[stage].prepare();
        if (has(forks_locks, stage))
            openreg_lock_acquire(held[stage]);
    }
}

static void
after_fork_in_parent(void)
{
    for (int stage = 0; stage < OPENREG_FORK_STAGES; ++stage) {
        if (has(forks_locks, stage))
            openreg_lock_release(held[stage]);
        if (has(forks_handlers, stage) && handlers[stage].parent != NULL)
            handlers[stage].parent();
    }
}

static void
after_fork_in_child(void)
{
    atomic_fetch_add_explicit(&openreg_fork_epoch, 1, memory_order_relaxed);
    if (atomic_load_explicit(&drivers_at_risk, memory_order_relaxed) > 0)
        atomic_store_explicit(&bad_fork, 1, memory_order_relaxed);
    for (int stage = 0; stage < OPENREG_FORK_STAGES; ++stage) {
        if (has(forks_locks, stage))
            openreg_lock_release(held[stage]);
        if (has(forks_handlers, stage) && handlers[stage].child != NULL)
            handlers[stage].child();
    }
}

static void
install_handlers(void)
{
    /* Fails only if memory is short; then children are not protected, but nothing else is lost. */
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void
openreg_fork_watch(void)
{
    (void)pthread_once(&watch_once, install_handlers);
}

void
openreg_fork_at_risk(int change)
{
    (void)atomic_fetch_add_explicit(&drivers_at_risk, change, memory_order_relaxed);
}

int
openreg_in_bad_fork(void)
{
    return atomic_load_explicit(&bad_fork, memory_order_relaxed);
}

openreg_status
openreg_fork_reject(const char *call)
{
    if (!openreg_in_bad_fork())
        return OPENREG_OK;
    return openreg_error_set(
        OPENREG_E_FORKED, call,
        "Cannot re-initialize %s in forked subprocess. To use %s with multiprocessing, you must use the "
        "'spawn' start method",
        openreg_device_title(), openreg_device_title());
}
