/* SPDX-License-Identifier: BSD-3-Clause */
/* fork.h: what a child made by fork() may do, and the fork handlers of the modules. Internal.
 *
 * In a child that may not use its parent's drivers the published table is withdrawn, so no fast path checks for a fork: without
 * a table every call takes the slow path, which refuses it. openreg_in_bad_fork() (openreg.h) is one atomic load. */
#ifndef OPENREG_SRC_FORK_H
#define OPENREG_SRC_FORK_H

#include <openreg/openreg.h>

#include "base/internal_api.h"

/* OPENREG_OK, or OPENREG_E_FORKED with the standard text in a child whose parent had an open driver that is not
 * OPENREG_CAP_FORK_SAFE. Takes no lock. */
OPENREG_INTERNAL openreg_status openreg_fork_reject(const char *call);

/* Installs the handlers, once. Called before anything is loaded or traced. */
OPENREG_INTERNAL void openreg_fork_watch(void);

/* Counts drivers that are being opened, or are open without OPENREG_CAP_FORK_SAFE: while there is one, a child may not use
 * devices. */
void openreg_fork_at_risk(int change);

/* The order in which modules handle a fork afterwards, in the parent and in the child; before it, the order is reversed. A lock
 * that is taken while another one is held comes before it here. Every lock that guards more than one word is held over the
 * fork, so that its data is consistent in the child, whatever other threads of the parent were doing. The exceptions are locks
 * held while a driver works on one object (an event, a new stream): the child finds the object's state before that. */
typedef enum openreg_fork_stage {
    OPENREG_FORK_INSIDE,      /* the list of marks */
    OPENREG_FORK_TABLE,       /* withdraws the table in a child that may not use devices */
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
    OPENREG_FORK_DRIVER_LOCK, /* no thread of the child holds it */
    OPENREG_FORK_TRACE,       /* not inherited by the child */
    OPENREG_FORK_LAB,         /* loading of the libraries beside libopenreg.so */
    OPENREG_FORK_STAGES
} openreg_fork_stage;

/* As those of pthread_atfork(); each may be NULL. openreg_in_bad_fork() is set before the first handler in the child. */
typedef struct openreg_fork_handlers {
    void (*prepare)(void);
    void (*parent)(void);
    void (*child)(void);
} openreg_fork_handlers;

/* Sets the handlers of a stage, once. Called by a constructor of the stage's module, so that this file needs to know none
 * of them. */
OPENREG_INTERNAL void openreg_fork_handle(openreg_fork_stage stage, const openreg_fork_handlers *own);

/* Lets a stage hold its lock over the fork. It is released on both sides; in the child before the stage's handler, if any. */
struct openreg_lock;
OPENREG_INTERNAL void openreg_fork_hold(openreg_fork_stage stage, struct openreg_lock *lock);

/* Take and release the lock of such a stage where a driver is called with it held: a driver may fork() in a call, and the
 * thread must not wait for its own lock then. */
OPENREG_INTERNAL void openreg_fork_take(openreg_fork_stage stage);
OPENREG_INTERNAL void openreg_fork_give(openreg_fork_stage stage);

#endif
