/* SPDX-License-Identifier: BSD-3-Clause */
/* observers.c: the list of observers, read without a lock (observers.h, openreg/observer.h). */
#define _GNU_SOURCE
#include "watch/observers.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include <openreg/trace.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"

typedef struct observer_entry {
    _Atomic(const openreg_observer *) observer;
    _Atomic uint32_t events;
    _Atomic uint32_t inside; /* calls of its functions */
    _Atomic uint32_t since;  /* `removals` when it came */
} observer_entry;

uint32_t openreg_watched_events;

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* serialises changes. A leaf */
static observer_entry entries[OPENREG_OBSERVERS_MAX];
static _Atomic uint32_t removals;
static uint32_t intercepted;         /* under the lock: what interceptors want */
static _Thread_local uint32_t depth; /* of observers' functions that this thread is in */

/* Threads of the parent that were in an observer's function don't exist here. */
static void
after_fork_in_child(void)
{
    for (int i = 0; depth == 0 && i < OPENREG_OBSERVERS_MAX; ++i)
        atomic_store(&entries[i].inside, 0);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_OBSERVERS, &lock);
    openreg_fork_handle(OPENREG_FORK_OBSERVERS, &(openreg_fork_handlers){.child = after_fork_in_child});
}

/* The lock is held. No fast path uses the event _TABLE. */
static void
publish_events(void)
{
    uint32_t all = intercepted;
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i)
        all |= atomic_load_explicit(&entries[i].events, memory_order_relaxed);
    __atomic_store_n(&openreg_watched_events, all & ~OPENREG_OBSERVE_TABLE, __ATOMIC_RELAXED);
}

void
openreg_observers_lock(void)
{
    openreg_lock_acquire(&lock);
}

void
openreg_observers_unlock(uint32_t events)
{
    intercepted = events;
    publish_events();
    openreg_lock_release(&lock);
}

const uint32_t *
openreg_observed_word(void)
{
    return &openreg_watched_events;
}

/* The observer's entry; the lock is held. Adds one if it wants events. NULL: too many, or unknown and without events. */
static observer_entry *
entry_of(const openreg_observer *observer, uint32_t events)
{
    observer_entry *unused = NULL;
    for (int i = OPENREG_OBSERVERS_MAX - 1; i >= 0; --i) {
        const openreg_observer *const known = atomic_load_explicit(&entries[i].observer, memory_order_relaxed);
        if (known == observer)
            return &entries[i];
        if (known == NULL)
            unused = &entries[i];
    }
    if (unused == NULL || events == 0)
        return NULL;
    atomic_store_explicit(&unused->since, atomic_load(&removals), memory_order_relaxed);
    atomic_store_explicit(&unused->observer, observer, memory_order_release);
    return unused;
}

openreg_status
openreg_observe(const openreg_observer *observer, uint32_t events)
{
    static const char call[] = "openreg_observe";
    if (observer == NULL || observer->struct_size < OPENREG_OBSERVER_SIZE_1)
        return openreg_error_set(OPENREG_E_INVALID, call, "observer is NULL, or its struct_size is not set");
    if ((events & ~OPENREG_OBSERVE_ALL) != 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "unknown events 0x%x", events & ~OPENREG_OBSERVE_ALL);
    openreg_lock_acquire(&lock);
    observer_entry *const entry = entry_of(observer, events);
    if (entry != NULL)
        atomic_store_explicit(&entry->events, events, memory_order_release);
    publish_events();
    openreg_lock_release(&lock);
    return entry != NULL || events == 0
               ? OPENREG_OK
               : openreg_error_set(OPENREG_E_NOMEM, call, "too many observers (limit %d)", OPENREG_OBSERVERS_MAX);
}

void
openreg_observer_remove(const openreg_observer *observer)
{
    openreg_lock_acquire(&lock);
    observer_entry *const entry = observer == NULL ? NULL : entry_of(observer, 0);
    if (entry != NULL) {
        atomic_store(&entry->events, 0);
        atomic_store(&entry->observer, NULL);
        atomic_fetch_add(&removals, 1);
        publish_events();
    }
    openreg_lock_release(&lock);
    while (entry != NULL && depth == 0 && atomic_load(&entry->inside) > 0)
        (void)sched_yield();
}

/* Begins a call of the observer at place i, if it wants one of the events (0: any). NULL: it doesn't, or has been removed;
 * a removal waits for calls in flight. */
static const openreg_observer *
enter(int i, uint32_t wanted)
{
    if (wanted != 0 && (atomic_load_explicit(&entries[i].events, memory_order_relaxed) & wanted) == 0)
        return NULL;
    atomic_fetch_add(&entries[i].inside, 1);
    const openreg_observer *const observer = atomic_load(&entries[i].observer);
    if (observer != NULL && (wanted == 0 || (atomic_load(&entries[i].events) & wanted) != 0)) {
        ++depth;
        return observer;
    }
    atomic_fetch_sub_explicit(&entries[i].inside, 1, memory_order_release);
    return NULL;
}

static void
leave(int i)
{
    --depth;
    atomic_fetch_sub_explicit(&entries[i].inside, 1, memory_order_release);
}

/* Calls the function of all observers that want the event. */
#define CALL(wanted, function, ...)                                                                                    \
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {                                                                  \
        const openreg_observer *const observer = enter(i, wanted);                                                     \
        if (observer != NULL) {                                                                                        \
            if (observer->function != NULL)                                                                            \
                observer->function(observer->ctx, __VA_ARGS__);                                                        \
            leave(i);                                                                                                  \
        }                                                                                                              \
    }

void
openreg_observers_memory(const openreg_memory_event *event)
{
    CALL(OPENREG_OBSERVE_MEMORY, memory, event);
}

void
openreg_observers_block(int32_t what, const void *address, uint64_t size, int32_t device, openreg_stream stream)
{
    CALL(OPENREG_OBSERVE_USES, block, what, address, size, device, stream);
}

void
openreg_observers_order(const openreg_order *order)
{
    CALL(OPENREG_OBSERVE_USES, order, order);
}

void
openreg_observers_lost(const char *call, int32_t device, openreg_stream stream, const char *first_call,
                       const char *first_place)
{
    CALL(OPENREG_OBSERVE_USES, lost, call, device, stream, first_call, first_place);
}

void
openreg_observers_span(int32_t step, const openreg_span *span, openreg_span_keepers *keepers)
{
    if (step == OPENREG_SPAN_BEGIN) {
        memset(keepers->kept, 0, sizeof keepers->kept);
        keepers->removals = atomic_load(&removals);
    }
    /* An observer that got the begin gets the end, whatever events it wants by then, unless it was removed. */
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        if (step != OPENREG_SPAN_BEGIN && keepers->kept[i] == NULL)
            continue;
        const openreg_observer *const observer = enter(i, step == OPENREG_SPAN_BEGIN ? OPENREG_OBSERVE_SPANS : 0);
        if (observer == NULL)
            continue;
        if (observer->span != NULL && (int32_t)(atomic_load(&entries[i].since) - keepers->removals) <= 0)
            observer->span(observer->ctx, step, span, &keepers->kept[i]);
        leave(i);
    }
}

void
openreg_observers_alarm(int32_t device, openreg_status status)
{
    CALL(OPENREG_OBSERVE_WORK, alarm, device, status);
}

void
openreg_observers_table(int32_t is_published)
{
    CALL(OPENREG_OBSERVE_TABLE, table, is_published);
}

/* Of spans. */
uint64_t
openreg_trace_clock(void)
{
    return openreg_clock_ns();
}
