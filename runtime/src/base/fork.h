/* SPDX-License-Identifier: BSD-3-Clause */
/* fork.h: what a child made by fork() may do, and what the modules do around a fork(). Internal.
 *
 * In a child that may not use its parent's drivers the published table is cleared, so no fast path checks for a fork: without a
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

/* The order in which modules handle a fork, in the parent and in the child; before it, the reverse one. A lock that is taken
 * while another one is held comes before it here. Every lock that guards more than one word is held over the fork, so that the
 * child finds whole what it guards, whatever other threads of the parent were doing; but not those that are held while a
 * driver works on one object alone (an event, a stream that is made), of which the child finds the state before. */
typedef enum openreg_fork_stage {
    OPENREG_FORK_INSIDE,      /* the list of marks */
    OPENREG_FORK_TABLE,       /* withdraws the table from a poisoned child */
    OPENREG_FORK_OBSERVERS,   /* changes of the list */
    OPENREG_FORK_LAYERS,      /* changes of what is attached to open drivers */
    OPENREG_FORK_HOST_ERRORS, /* the list */
    OPENREG_FORK_RACES,       /* the detector's lock */
    OPENREG_FORK_FAULTS,      /* that of the plans */
    OPENREG_FORK_GRAPHS,      /* what is captured */
    OPENREG_FORK_ADDRESSES,   /* the address map's */
    OPENREG_FORK_SETTINGS,    /* the allocator's */
    OPENREG_FORK_EVENTS,      /* the list of unused events */
    OPENREG_FORK_PINNED,      /* the tree of pinned blocks */
    OPENREG_FORK_LEASES,      /* the words of shared memory */
    OPENREG_FORK_FUNCTIONS,   /* validation: host functions that are queued */
    OPENREG_FORK_BOOKS,       /* validation: all layers' */
    OPENREG_FORK_CACHES,      /* all caches */
    OPENREG_FORK_EXPORTS,     /* the list */
    OPENREG_FORK_IMPORTS,     /* the list */
    OPENREG_FORK_CANDIDATES,  /* the list */
    OPENREG_FORK_DRIVER_LOCK, /* nobody holds it in the child */
    OPENREG_FORK_TRACE,       /* the child inherits none */
    OPENREG_FORK_LAB,         /* loading of the libraries beside libopenreg.so */
    OPENREG_FORK_STAGES
} openreg_fork_stage;

/* As those of pthread_atfork(); each may be NULL. In the child openreg_in_bad_fork() is decided before the first. */
typedef struct openreg_fork_handlers {
    void (*prepare)(void);
    void (*parent)(void);
    void (*child)(void);
} openreg_fork_handlers;

/* Sets the handlers of a stage, once. Called by a constructor of the stage's module, so that this file needs to know none
 * of them. */
OPENREG_INTERNAL void openreg_fork_handle(openreg_fork_stage stage, const openreg_fork_handlers *own);

/* Has the lock of a stage held over the fork, and given back on both sides; in the child before the stage's handler, if it has one. */
struct openreg_lock;
OPENREG_INTERNAL void openreg_fork_hold(openreg_fork_stage stage, struct openreg_lock *lock);

/* Take and give back the lock of such a stage where a driver is called with it: a driver may fork() in a call, and the thread
 * doesn't wait for its own lock then. */
OPENREG_INTERNAL void openreg_fork_take(openreg_fork_stage stage);
OPENREG_INTERNAL void openreg_fork_give(openreg_fork_stage stage);

#endif
