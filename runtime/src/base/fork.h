/* SPDX-License-Identifier: BSD-3-Clause */
/* fork.h: what a child made by fork() may do, and locks that survive fork(). Internal.
 *
 * The child handler only sets atomics and clears the published table, so no fast path checks for a fork: without a
 * table every call takes the slow path, and that one refuses. openreg_in_bad_fork() (openreg.h) is one atomic load. */
#ifndef OPENREG_SRC_FORK_H
#define OPENREG_SRC_FORK_H

#include <pthread.h>
#include <stdatomic.h>

#include <openreg/openreg.h>

/* OPENREG_OK, or OPENREG_E_FORKED with the standard text in a child whose parent had an open driver that is not
 * OPENREG_CAP_FORK_SAFE. Takes no lock. */
openreg_status openreg_fork_reject(const char *call);

/* Installs the handlers, once. Called by driver_lock.c before anything is loaded. */
void openreg_fork_watch(void);

/* Counts drivers that are being opened, or are open without OPENREG_CAP_FORK_SAFE: while there is one, a child is
 * poisoned. */
void openreg_fork_at_risk(int change);

/* Device count of the parent at the time of the fork; -1 if it was not known. For the child only. */
int32_t openreg_fork_parent_count(void);
void openreg_fork_note_count(int32_t count); /* the latest answer of openreg_device_count() */

/* A mutex that the child of a fork() re-makes on first use: another thread of the parent, which the child lacks, may
 * have held it. Initialise with OPENREG_LOCK_INITIALIZER or openreg_lock_init(). */
typedef struct openreg_lock {
    pthread_mutex_t mutex;
    atomic_uint epoch; /* fork epoch that the mutex belongs to; UINT_MAX while it is re-made */
} openreg_lock;

#define OPENREG_LOCK_INITIALIZER {PTHREAD_MUTEX_INITIALIZER, 0}

extern atomic_uint openreg_fork_epoch; /* forks between the process that was exec'ed and this one */
void openreg_lock_remake(openreg_lock *lock);

void openreg_lock_init(openreg_lock *lock);
void openreg_lock_destroy(openreg_lock *lock);

static inline void
openreg_lock_acquire(openreg_lock *lock)
{
    if (atomic_load_explicit(&lock->epoch, memory_order_acquire) !=
        atomic_load_explicit(&openreg_fork_epoch, memory_order_relaxed))
        openreg_lock_remake(lock);
    (void)pthread_mutex_lock(&lock->mutex);
}

static inline void
openreg_lock_release(openreg_lock *lock)
{
    (void)pthread_mutex_unlock(&lock->mutex);
}

#endif
