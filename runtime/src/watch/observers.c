/* SPDX-License-Identifier: BSD-3-Clause */
/* observers.c: the list of those who watch, read without a lock (observers.h, openreg/observer.h). */
#define _GNU_SOURCE
#include "watch/observers.h"

#include <stdatomic.h>

#include <openreg/trace.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"

typedef struct observer_entry {
    _Atomic(const openreg_observer *) observer; /* never taken out */
    _Atomic uint32_t events;
} observer_entry;

uint32_t openreg_observed_events, openreg_watched_events;

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* of changes. A leaf */
static observer_entry entries[OPENREG_OBSERVERS_MAX];

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_OBSERVERS, &lock);
}

/* The lock is held. A place is taken by who wants events. NULL: there are too many, or it isn't there and wants nothing. */
static observer_entry *
entry_of(const openreg_observer *observer, uint32_t events)
{
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const known = atomic_load_explicit(&entries[i].observer, memory_order_relaxed);
        if (known == observer)
            return &entries[i];
        if (known == NULL && events == 0)
            return NULL;
        if (known == NULL) {
            atomic_store_explicit(&entries[i].observer, observer, memory_order_release);
            return &entries[i];
        }
    }
    return NULL;
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
    uint32_t all = 0;
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i)
        all |= atomic_load_explicit(&entries[i].events, memory_order_relaxed);
    all &= ~(OPENREG_OBSERVE_TABLE | OPENREG_OBSERVE_PLACES); /* nothing on a fast path asks for these */
    __atomic_store_n(&openreg_observed_events, all, __ATOMIC_RELAXED);
    __atomic_store_n(&openreg_watched_events, all, __ATOMIC_RELAXED);
    openreg_lock_release(&lock);
    return entry != NULL || events == 0
               ? OPENREG_OK
               : openreg_error_set(OPENREG_E_NOMEM, call, "there are %d observers already", OPENREG_OBSERVERS_MAX);
}

/* The observer at place i that has this function and wants one of the events (0: whatever it wants), or NULL. */
#define OBSERVER(i, wanted, function)                                                                                  \
    ((wanted) == 0 || (atomic_load_explicit(&entries[i].events, memory_order_acquire) & (wanted)) != 0                 \
         ? with_##function(atomic_load_explicit(&entries[i].observer, memory_order_acquire))                           \
         : NULL)
#define WITH(function)                                                                                                 \
    static const openreg_observer *with_##function(const openreg_observer *observer)                                   \
    {                                                                                                                  \
        return observer != NULL && observer->function != NULL ? observer : NULL;                                       \
    }
WITH(memory)
WITH(allocate)
WITH(block)
WITH(use)
WITH(kernel)
WITH(order)
WITH(lost)
WITH(span)
WITH(run)
WITH(alarm)
WITH(table)
WITH(place)
WITH(here)
WITH(here_text)
WITH(here_stack)

/* Calls the function of all that want the event. */
#define TELL(wanted, function, ...)                                                                                    \
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {                                                                  \
        const openreg_observer *const observer = OBSERVER(i, wanted, function);                                        \
        if (observer != NULL)                                                                                          \
            observer->function(observer->ctx, __VA_ARGS__);                                                            \
    }

void
openreg_observers_memory(const openreg_memory_event *event)
{
    TELL(OPENREG_OBSERVE_MEMORY, memory, event)
}

int
openreg_observers_allocate(int32_t device, uint64_t size, char *text, size_t text_size)
{
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const observer = OBSERVER(i, OPENREG_OBSERVE_ALLOCATIONS, allocate);
        if (observer != NULL && observer->allocate(observer->ctx, device, size, text, text_size))
            return 1;
    }
    return 0;
}

void
openreg_observers_block(int32_t what, const void *address, uint64_t size, int32_t device,
                        openreg_stream stream){TELL(OPENREG_OBSERVE_USES, block, what, address, size, device, stream)}

openreg_status openreg_observers_use(const char *call, int32_t device, openreg_stream stream,
                                     const openreg_used_range *ranges, size_t count)
{
    char text[sizeof((openreg_error_fields *)NULL)->text];
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const observer = OBSERVER(i, OPENREG_OBSERVE_USES, use);
        if (observer != NULL && observer->use(observer->ctx, call, device, stream, ranges, count, text, sizeof text))
            return openreg_error_set(OPENREG_E_INVALID, NULL, "%s", text);
    }
    return OPENREG_OK;
}

openreg_status
openreg_observers_kernel(int32_t device, openreg_stream stream, const openreg_kernel_call *call)
{
    char text[sizeof((openreg_error_fields *)NULL)->text];
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const observer = OBSERVER(i, OPENREG_OBSERVE_USES, kernel);
        if (observer != NULL && observer->kernel(observer->ctx, device, stream, call, text, sizeof text))
            return openreg_error_set(OPENREG_E_INVALID, NULL, "%s", text);
    }
    return OPENREG_OK;
}

void
openreg_observers_order(const openreg_order *order)
{
    TELL(OPENREG_OBSERVE_USES, order, order)
}

void
openreg_observers_lost(const char *call, int32_t device, openreg_stream stream, const char *first_call,
                       const char *first_place)
{
    TELL(OPENREG_OBSERVE_USES, lost, call, device, stream, first_call, first_place)
}

void
openreg_observers_span(int32_t step, const openreg_span *span, void *kept[OPENREG_OBSERVERS_MAX])
{
    /* Who has seen the begin sees the end, whatever it wants by then. */
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const uint32_t wanted = step == OPENREG_SPAN_BEGIN ? OPENREG_OBSERVE_SPANS : 0;
        const openreg_observer *const observer = OBSERVER(i, wanted, span);
        if (observer != NULL && (step == OPENREG_SPAN_BEGIN || kept[i] != NULL))
            observer->span(observer->ctx, step, span, &kept[i]);
    }
}

/* The rest of the observers around the work. */
typedef struct work_behind {
    const openreg_work *work;
    openreg_status (*next)(void *argument);
    void *argument;
    int from;
} work_behind;

static openreg_status
run_behind(void *argument)
{
    const work_behind *const rest = argument;
    for (int i = rest->from; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const observer = OBSERVER(i, OPENREG_OBSERVE_WORK, run);
        if (observer != NULL) {
            work_behind behind = {rest->work, rest->next, rest->argument, i + 1};
            return observer->run(observer->ctx, rest->work, run_behind, &behind);
        }
    }
    return rest->next(rest->argument);
}

openreg_status
openreg_observers_run(const openreg_work *work, openreg_status (*next)(void *argument), void *argument)
{
    work_behind all = {work, next, argument, 0};
    return run_behind(&all);
}

void
openreg_observers_alarm(int32_t device, openreg_status status)
{
    TELL(OPENREG_OBSERVE_WORK, alarm, device, status)
}

void
openreg_observers_table(int32_t is_published)
{
    TELL(OPENREG_OBSERVE_TABLE, table, is_published)
}

/* --------------------------------------------------------------------------------------------------------- answers */

void
openreg_observers_place(char *out, size_t size)
{
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const observer = OBSERVER(i, OPENREG_OBSERVE_PLACES, place);
        if (observer != NULL && observer->place(observer->ctx, out, size)) {
            out[size - 1] = '\0';
            return;
        }
    }
    out[0] = '\0';
}

uint32_t
openreg_observers_here(int32_t wants_stack)
{
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const observer = OBSERVER(i, OPENREG_OBSERVE_PLACES, here);
        const uint32_t here = observer == NULL ? 0 : observer->here(observer->ctx, wants_stack);
        if (here != 0)
            return here;
    }
    return 0;
}

const char *
openreg_observers_here_text(uint32_t here, int32_t *allowed)
{
    *allowed = 0;
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const observer = OBSERVER(i, OPENREG_OBSERVE_PLACES, here_text);
        if (observer != NULL)
            return observer->here_text(observer->ctx, here, allowed);
    }
    return NULL;
}

const char *
openreg_observers_here_stack(uint32_t here)
{
    for (int i = 0; i < OPENREG_OBSERVERS_MAX; ++i) {
        const openreg_observer *const observer = OBSERVER(i, OPENREG_OBSERVE_PLACES, here_stack);
        if (observer != NULL)
            return observer->here_stack(observer->ctx, here);
    }
    return NULL;
}

/* Of spans. */
uint64_t
openreg_trace_clock(void)
{
    return openreg_clock_ns();
}
