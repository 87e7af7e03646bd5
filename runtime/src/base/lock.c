/* SPDX-License-Identifier: BSD-3-Clause */
/* lock.c: waiting for a fast lock (lock.h). */
#define _GNU_SOURCE
#include "base/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 100 /* about as long as the lock is held on the fast path, several times over */

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
