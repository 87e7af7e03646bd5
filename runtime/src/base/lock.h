/* SPDX-License-Identifier: BSD-3-Clause */
/* lock.h: the mutex of the caching allocator's fast path. Internal.
 *
 * Three states and a futex, after Drepper's "Futexes Are Tricky": taking and giving back a free lock is one atomic
 * instruction each, inlined, which saves a quarter of the time of an allocation against pthread_mutex_t. Not recursive.
 * Written with acquire and release operations alone, so thread sanitizers follow it. */
#ifndef OPENREG_SRC_LOCK_H
#define OPENREG_SRC_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>

typedef struct openreg_fast_lock {
    atomic_uint state; /* 0 free, 1 held, 2 held and perhaps waited for. All zero is a free lock. */
} openreg_fast_lock;

void openreg_fast_lock_wait(openreg_fast_lock *lock); /* the slow halves, lock.c */
void openreg_fast_lock_wake(openreg_fast_lock *lock);

/* Never waits: for signal handlers too. */
static inline bool
openreg_fast_lock_try(openreg_fast_lock *lock)
{
    unsigned expected = 0;
    return atomic_compare_exchange_strong_explicit(&lock->state, &expected, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void
openreg_fast_lock_acquire(openreg_fast_lock *lock)
{
    if (__builtin_expect(!openreg_fast_lock_try(lock), 0))
        openreg_fast_lock_wait(lock);
}

static inline void
openreg_fast_lock_release(openreg_fast_lock *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->state, 0, memory_order_release) != 1, 0))
        openreg_fast_lock_wake(lock);
}

#endif
