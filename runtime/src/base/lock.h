/* SPDX-License-Identifier: BSD-3-Clause */
/* lock.h: the runtime's two mutexes. Internal.
 *
 * openreg_lock survives fork(): the child re-makes it on first use, because another thread of the parent, which the
 * child lacks, may have held it. openreg_fast_lock is that of the caching allocator's fast path: three states and a
 * futex, after Drepper's "Futexes Are Tricky": taking and releasing a free lock is one inlined atomic instruction each,
 * which saves a quarter of the time of an allocation against pthread_mutex_t. Not recursive. Uses only acquire and
 * release operations, so thread sanitizers follow it. */
#ifndef OPENREG_SRC_LOCK_H
#define OPENREG_SRC_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/internal_api.h"

/* Initialise with OPENREG_LOCK_INITIALIZER or openreg_lock_init(). */
typedef struct openreg_lock {
    pthread_mutex_t mutex;
    atomic_uint epoch; /* fork epoch of the mutex; UINT_MAX while it is re-made */
} openreg_lock;

#define OPENREG_LOCK_INITIALIZER {PTHREAD_MUTEX_INITIALIZER, 0}

/* Forks between the process that was exec'ed and this one. Counted by fork.c, in the child. */
OPENREG_INTERNAL extern atomic_uint openreg_fork_epoch;

OPENREG_INTERNAL void openreg_lock_init(openreg_lock *lock);
OPENREG_INTERNAL void openreg_lock_destroy(openreg_lock *lock);
OPENREG_INTERNAL void openreg_lock_remake(openreg_lock *lock);

static inline void
openreg_lock_acquire(openreg_lock *lock)
{
    if (atomic_load_explicit(&lock->epoch, memory_order_acquire) !=
        atomic_load_explicit(&openreg_fork_epoch, memory_order_relaxed))
        openreg_lock_remake(lock);
    (void)pthread_mutex_lock(&lock->mutex);
}

/* Never waits. */
static inline bool
openreg_lock_try(openreg_lock *lock)
{
    if (atomic_load_explicit(&lock->epoch, memory_order_acquire) !=
        atomic_load_explicit(&openreg_fork_epoch, memory_order_relaxed))
        openreg_lock_remake(lock);
    return pthread_mutex_trylock(&lock->mutex) == 0;
}

static inline void
openreg_lock_release(openreg_lock *lock)
{
    (void)pthread_mutex_unlock(&lock->mutex);
}

typedef struct openreg_fast_lock {
    atomic_uint state; /* 0 free, 1 held, 2 held, perhaps with waiters. All zero is a free lock. */
} openreg_fast_lock;

void openreg_fast_lock_wait(openreg_fast_lock *lock); /* the slow paths, lock.c */
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
