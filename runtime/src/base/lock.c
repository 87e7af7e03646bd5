/* SPDX-License-Identifier: BSD-3-Clause */
/* lock.c: locks after a fork(), and waiting for a fast lock (lock.h). */
#define _GNU_SOURCE
#include "base/lock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

atomic_uint openreg_fork_epoch;

void
openreg_lock_init(openreg_lock *lock)
{
    (void)pthread_mutex_init(&lock->mutex, NULL);
    atomic_init(&lock->epoch, atomic_load_explicit(&openreg_fork_epoch, memory_order_relaxed));
}

void
openreg_lock_destroy(openreg_lock *lock)
{
    /* A mutex held by a thread that doesn't exist in the child may not be destroyed; leaving it costs nothing. */
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
        if (seen == UINT_MAX) { /* another thread of this child re-makes it */
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

#define SPINS 100 /* several times as long as the lock is held on the fast path */

void
openreg_fast_lock_wait(openreg_fast_lock *lock)
{
    for (int i = 0; i < SPINS; i++)
        if (atomic_load_explicit(&lock->state, memory_order_relaxed) == 0 && openreg_fast_lock_try(lock))
            return;
    /* From here on the lock is taken in state 2: whether others wait as well is not known, so release() wakes one. */
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0)
        (void)syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void
openreg_fast_lock_wake(openreg_fast_lock *lock)
{
    (void)syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
