/* SPDX-License-Identifier: BSD-3-Clause */
/* fork.h: what a child made by fork() may do, and what the modules do around a fork(). Internal.
 *
 * The handlers in the child only set atomics and clear the published table, so no fast path checks for a fork: without a
 * table every call takes the slow path, and that one refuses. openreg_in_bad_fork() (openreg.h) is one atomic load. */
#ifndef OPENREG_SRC_FORK_H
#define OPENREG_SRC_FORK_H

#include <openreg/openreg.h>

#include "base/internal_api.h"

/* OPENREG_OK, or OPENREG_E_FORKED with the standard text in a child whose parent had an open driver that is not
 * OPENREG_CAP_FORK_SAFE. Takes no lock. */
OPENREG_INTERNAL openreg_status openreg_fork_reject(const char *call);

/* Installs the handlers, once. Called before anything is loaded or traced. */
OPENREG_INTERNAL void openreg_fork_watch(void);

/* Counts drivers that are being opened, or are open without OPENREG_CAP_FORK_SAFE: while there is one, a child is
 * poisoned. */
void openreg_fork_at_risk(int change);

/* The order in which modules handle a fork, in the parent and in the child; before it, the reverse one. */
typedef enum openreg_fork_stage {
    OPENREG_FORK_TABLE,       /* withdraws the table from a poisoned child: the next stages find none */
    OPENREG_FORK_CACHES,      /* of the devices in the table */
    OPENREG_FORK_RACES,       /* the detector's lock is held over the fork */
    OPENREG_FORK_PINNED,      /* the lock of the pinned blocks is held over the fork */
    OPENREG_FORK_CANDIDATES,  /* the lock of the list is held over the fork */
    OPENREG_FORK_DRIVER_LOCK, /* nobody holds it in the child */
    OPENREG_FORK_TRACE,       /* the child inherits none */
    OPENREG_FORK_STAGES
} openreg_fork_stage;

/* As those of pthread_atfork(); each may be NULL. In the child openreg_in_bad_fork() is decided before the first. */
typedef struct openreg_fork_handlers {
    void (*prepare)(void);
    void (*parent)(void);
    void (*child)(void);
} openreg_fork_handlers;

/* Sets the handlers of a stage. Called by a constructor of the stage's module, so that all are there before
 * openreg_fork_watch() and this file needs to know none of them. */
OPENREG_INTERNAL void openreg_fork_handle(openreg_fork_stage stage, const openreg_fork_handlers *own);

#endif
