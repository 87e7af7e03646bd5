/* SPDX-License-Identifier: BSD-3-Clause */
/* inside.c: the marks of threads, and the gate (inside.h). */
#define _GNU_SOURCE
#include "base/inside.h"

#include <linux/membarrier.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "base/lock.h"

_Thread_local openreg_inside_mark *openreg_inside_own;
_Atomic bool openreg_inside_fences;
_Atomic bool openreg_inside_gate;

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* guards the list and the gate. A leaf */
static pthread_cond_t is_open = PTHREAD_COND_INITIALIZER;
static openreg_inside_mark *marks;
static pthread_key_t key;
static bool is_prepared, has_key;

static _Atomic uint32_t unmarked; /* calls in flight of threads without a mark (no memory) */

/* Runs at the end of a thread, perhaps inside a call (from a callback that has not returned). */
static void
give_back(void *mark)
{
    openreg_inside_own = NULL; /* a later destructor of this thread gets a new one */
    openreg_lock_acquire(&lock);
    atomic_store_explicit(&((openreg_inside_mark *)mark)->depth, 0, memory_order_release);
    ((openreg_inside_mark *)mark)->is_used = false;
    openreg_lock_release(&lock);
}

/* The child has no other threads, and so none that has closed the gate. */
static void
after_fork_in_child(void)
{
    for (openreg_inside_mark *mark = marks; mark != NULL; mark = mark->next) {
        if (mark == openreg_inside_own)
            continue;
        atomic_store_explicit(&mark->depth, 0, memory_order_relaxed);
        mark->is_used = false;
    }
    atomic_store(&unmarked, 0);
    is_open = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    atomic_store(&openreg_inside_gate, false);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_INSIDE, &lock);
    openreg_fork_handle(OPENREG_FORK_INSIDE, &(openreg_fork_handlers){.child = after_fork_in_child});
}

/* Called with the lock held. */
static void
prepare(void)
{
    if (is_prepared)
        return;
    is_prepared = true;
    has_key = pthread_key_create(&key, give_back) == 0;
    atomic_store(&openreg_inside_fences, syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0);
}

openreg_inside_mark *
openreg_inside_make(void)
{
    openreg_lock_acquire(&lock);
    prepare();
    openreg_inside_mark *mark = marks;
    while (mark != NULL && mark->is_used)
        mark = mark->next;
    if (mark == NULL && (mark = aligned_alloc(_Alignof(openreg_inside_mark), sizeof *mark)) != NULL) {
        *mark = (openreg_inside_mark){.next = marks};
        marks = mark;
    }
    if (mark != NULL && (!has_key || pthread_setspecific(key, mark) != 0))
        mark = NULL; /* nothing would free it */
    if (mark != NULL)
        mark->is_used = true;
    openreg_lock_release(&lock);
    openreg_inside_own = mark;
    while (mark == NULL) {
        (void)atomic_fetch_add(&unmarked, 1);
        if (!atomic_load(&openreg_inside_gate))
            break;
        openreg_inside_wait(NULL);
    }
    return mark;
}

void
openreg_inside_uncount(void)
{
    (void)atomic_fetch_sub(&unmarked, 1);
}

void
openreg_inside_wait(openreg_inside_mark *own)
{
    do {
        if (own != NULL)
            atomic_store_explicit(&own->depth, 0, memory_order_release);
        else
            openreg_inside_uncount();
        openreg_lock_acquire(&lock);
        while (atomic_load_explicit(&openreg_inside_gate, memory_order_relaxed))
            (void)pthread_cond_wait(&is_open, &lock.mutex);
        openreg_lock_release(&lock);
        if (own == NULL)
            return;
        atomic_store(&own->depth, 1);
    } while (atomic_load(&openreg_inside_gate));
}

/* Whether another thread is inside, or this one more than once. */
static bool
are_others_inside(void)
{
    bool found = atomic_load(&unmarked) > (openreg_inside_own == NULL ? 1u : 0u);
    openreg_lock_acquire(&lock);
    for (const openreg_inside_mark *mark = marks; mark != NULL && !found; mark = mark->next)
        found = atomic_load(&mark->depth) > (mark == openreg_inside_own ? 1u : 0u);
    openreg_lock_release(&lock);
    return found;
}

static void
set_gate(bool is_closed)
{
    openreg_lock_acquire(&lock);
    prepare();
    atomic_store(&openreg_inside_gate, is_closed);
    (void)pthread_cond_broadcast(&is_open);
    openreg_lock_release(&lock);
}

bool
openreg_inside_close(uint64_t nanoseconds)
{
    const struct timespec moment = {0, 100000};
    const uint64_t begun = openreg_clock_ns();
    set_gate(true);
    const bool is_ordered = atomic_load(&openreg_inside_fences) ||
                            syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
    while (is_ordered && openreg_clock_ns() - begun < nanoseconds) {
        if (!are_others_inside())
            return true;
        (void)nanosleep(&moment, NULL);
    }
    set_gate(false);
    return false;
}

void
openreg_inside_open(void)
{
    set_gate(false);
}

bool
openreg_inside_is(void)
{
    const openreg_inside_mark *const own = openreg_inside_own;
    return own != NULL && atomic_load_explicit(&own->depth, memory_order_relaxed) > 0;
}

uint32_t
openreg_inside_pause(void)
{
    openreg_inside_mark *const own = openreg_inside_own;
    if (own == NULL)
        return 0;
    const uint32_t depth = atomic_load_explicit(&own->depth, memory_order_relaxed);
    atomic_store_explicit(&own->depth, 0, memory_order_release);
    return depth;
}

void
openreg_inside_resume(uint32_t paused)
{
    openreg_inside_mark *const own = openreg_inside_own;
    if (paused == 0 || own == NULL)
        return;
    (void)openreg_inside_enter();
    atomic_store_explicit(&own->depth, paused, memory_order_relaxed);
}
