/* SPDX-License-Identifier: BSD-3-Clause */
/* fork.c: the fork handlers (fork.h). */
#include "base/fork.h"

#include <limits.h>
#include <sched.h>

#include "base/error.h"
#include "device/trace.h"
#include "driver/device_table.h"
#include "memory/cache.h"
#include "registry/candidates.h"
#include "registry/driver_lock.h"

atomic_uint openreg_fork_epoch;

static atomic_int bad_fork;
static atomic_int drivers_at_risk;
static atomic_int last_known_count = -1;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* The lock of the list of drivers is held over fork(), so the child sees no half-made list. It is only ever held briefly, and
 * never while foreign code runs. */
static void
before_fork(void)
{
    openreg_candidates_lock();
}

static void
after_fork_in_parent(void)
{
    openreg_candidates_unlock();
}

static void
after_fork_in_child(void)
{
    atomic_fetch_add_explicit(&openreg_fork_epoch, 1, memory_order_relaxed);
    if (atomic_load_explicit(&drivers_at_risk, memory_order_relaxed) > 0)
        atomic_store_explicit(&bad_fork, 1, memory_order_relaxed);
    if (atomic_load_explicit(&bad_fork, memory_order_relaxed))
        atomic_store_explicit(&openreg_device_table_published, NULL, memory_order_relaxed);
    const openreg_device_table *const table = openreg_device_table_peek();
    for (int32_t i = 0; table != NULL && i < table->count; ++i)
        openreg_cache_after_fork(table->devices[i]->cache);
    openreg_driver_lock_after_fork();
    openreg_trace_after_fork();
}

static void
install_handlers(void)
{
    /* Fails only without memory; then a child is not protected, and nothing else is lost. */
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

int32_t
openreg_fork_parent_count(void)
{
    return atomic_load_explicit(&last_known_count, memory_order_relaxed);
}

void
openreg_fork_note_count(int32_t count)
{
    atomic_store_explicit(&last_known_count, count, memory_order_relaxed);
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
    return openreg_error_set(OPENREG_E_FORKED,
                             "%s: Cannot re-initialize OpenReg in forked subprocess. To use OpenReg with "
                             "multiprocessing, you must use the 'spawn' start method",
                             call);
}

void
openreg_lock_init(openreg_lock *lock)
{
    (void)pthread_mutex_init(&lock->mutex, NULL);
    atomic_init(&lock->epoch, atomic_load_explicit(&openreg_fork_epoch, memory_order_relaxed));
}

void
openreg_lock_destroy(openreg_lock *lock)
{
    /* A mutex that a vanished thread holds may not be destroyed; nothing is lost by leaving it. */
    if (atomic_load_explicit(&lock->epoch, memory_order_relaxed) ==
        atomic_load_explicit(&openreg_fork_epoch, memory_order_relaxed))
        (void)pthread_mutex_destroy(&lock->mutex);
}

void
openreg_lock_remake(openreg_lock *lock)
{
    const unsigned epoch = atomic_load_explicit(&openreg_fork_epoch, memory_order_relaxed);
    unsigned seen = atomic_load_explicit(&lock->epoch, memory_order_acquire);
    while (seen != epoch) {
        if (seen == UINT_MAX) { /* another thread of this child is at it */
            (void)sched_yield();
            seen = atomic_load_explicit(&lock->epoch, memory_order_acquire);
        } else if (atomic_compare_exchange_weak_explicit(&lock->epoch, &seen, UINT_MAX, memory_order_acquire,
                                                         memory_order_acquire)) {
            (void)pthread_mutex_init(&lock->mutex, NULL);
            atomic_store_explicit(&lock->epoch, epoch, memory_order_release);
            return;
        }
    }
}
