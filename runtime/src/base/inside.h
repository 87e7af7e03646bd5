/* SPDX-License-Identifier: BSD-3-Clause */
/* inside.h: which threads are inside a call that uses the device table, so that it isn't destroyed under them. Internal.
 *
 *   openreg_status
 *   openreg_device_synchronize(int32_t device)
 *   {
 *       OPENREG_INSIDE;             until the function returns
 *       ...                         peek at the table, use what it has
 *   }
 *
 * A thread sets its own mark, a plain store, and then checks whether the gate is closed: if so it waits before the call; calls in
 * flight go on. To change the table, a thread closes the gate, and orders the stores of all threads by membarrier(): a thread
 * that read the gate as open has a visible mark. */
#ifndef OPENREG_SRC_INSIDE_H
#define OPENREG_SRC_INSIDE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/internal_api.h"

typedef struct openreg_inside_mark {
    _Alignas(64) _Atomic uint32_t depth; /* depth of calls; written only by its thread, in a cache line of its own */
    bool is_used;                        /* in use by a thread */
    struct openreg_inside_mark *next;    /* list of all marks, never removed */
} openreg_inside_mark;

extern OPENREG_INTERNAL _Thread_local openreg_inside_mark *openreg_inside_own; /* NULL until openreg_inside_make() */
extern OPENREG_INTERNAL _Atomic bool openreg_inside_fences;                    /* the kernel lacks membarrier() */
extern OPENREG_INTERNAL _Atomic bool openreg_inside_gate;                      /* closed */

/* Gives the calling thread a mark. NULL: no memory for one; the call is counted instead, until openreg_inside_uncount(). */
OPENREG_INTERNAL openreg_inside_mark *openreg_inside_make(void);
OPENREG_INTERNAL void openreg_inside_uncount(void);
/* Clears the mark until the gate is open. */
OPENREG_INTERNAL void openreg_inside_wait(openreg_inside_mark *own);

/* Closes the gate and waits until no other thread is inside. The calling thread is inside, and may call any function. False: it
 * took longer than `nanoseconds`, and the gate is open. One thread at a time: the driver lock is held. */
bool openreg_inside_close(uint64_t nanoseconds);
void openreg_inside_open(void);

/* Whether the calling thread is inside. */
bool openreg_inside_is(void);

/* The thread has found no table, so it uses none, and may wait long for the thread that makes or ends one: counts as outside. */
uint32_t openreg_inside_pause(void);
void openreg_inside_resume(uint32_t paused);

static inline openreg_inside_mark *
openreg_inside_enter(void)
{
    openreg_inside_mark *own = openreg_inside_own;
    if (__builtin_expect(own == NULL, 0) && (own = openreg_inside_make()) == NULL)
        return NULL;
    const uint32_t depth = atomic_load_explicit(&own->depth, memory_order_relaxed);
    atomic_store_explicit(&own->depth, depth + 1, memory_order_relaxed);
    if (__builtin_expect(atomic_load_explicit(&openreg_inside_fences, memory_order_relaxed), 0))
        atomic_store(&own->depth, depth + 1);
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load(&openreg_inside_gate), 0) && depth == 0)
        openreg_inside_wait(own);
    return own;
}

static inline void
openreg_inside_leave(openreg_inside_mark *const *own)
{
    if (__builtin_expect(*own == NULL, 0))
        openreg_inside_uncount();
    else
        atomic_store_explicit(&(*own)->depth, atomic_load_explicit(&(*own)->depth, memory_order_relaxed) - 1,
                              memory_order_release);
}

#define OPENREG_INSIDE                                                                                                 \
    __attribute__((cleanup(openreg_inside_leave), unused))                                                             \
    openreg_inside_mark *const openreg_inside_here = openreg_inside_enter()

#endif
