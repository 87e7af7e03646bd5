/* SPDX-License-Identifier: BSD-3-Clause */
/* host_func_slot.c: host functions, checked (validated.h).
 *
 * The driver gets a function of the layer, and a number as its argument. The number leaves the list when the function
 * runs, so a second run finds nothing. */
#include <stdlib.h>

#include "base/error.h"
#include "base/fork.h"
#include "validation/validated.h"

typedef struct queued_function {
    struct queued_function *next;
    uintptr_t number;
    void (*function)(void *argument);
    void *argument;
    openreg_instance v;
    int32_t dev;
    openreg_stream_state *stream;
} queued_function;

#define BUCKETS 64u

static openreg_lock lock =
    OPENREG_LOCK_INITIALIZER; /* guards the variables below, and the number of functions that an instance runs */
static queued_function *queued[BUCKETS];
static uintptr_t last_number;
/* The last instance that queued a function, to report one that ran too often, whose own instance is forgotten. */
static openreg_instance last_instance;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_FUNCTIONS, &lock);
}

/* This thread's state: 1 inside a driver's host_func(), 2 running a host function. */
static _Thread_local int thread_is_calling, thread_is_running;

int
openreg_validation_in_function(void)
{
    return thread_is_running;
}

/* The lock is held. */
static queued_function *
remove_entry(uintptr_t number)
{
    queued_function **at = &queued[number % BUCKETS];
    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    queued_function *const entry = *at;
    if (entry != NULL)
        *at = entry->next;
    return entry;
}

/* Removes it to run it: the instance stays until stop_running(), even if its driver is closed before. Without an
 * entry *v is the instance to report, or NULL. */
static queued_function *
start_running(uintptr_t number, openreg_instance *v)
{
    openreg_lock_acquire(&lock);
    queued_function *const entry = remove_entry(number);
    *v = entry != NULL ? entry->v : last_instance;
    if (*v != NULL)
        (*v)->functions_running++;
    openreg_lock_release(&lock);
    return entry;
}

static void
stop_running(openreg_instance v)
{
    openreg_lock_acquire(&lock);
    const bool is_last = --v->functions_running == 0 && v->is_closed;
    openreg_lock_release(&lock);
    if (is_last)
        openreg_validation_free(v);
}

static void
run(void *argument)
{
    static const char slot[] = "host_func";
    openreg_instance v = NULL;
    queued_function *const entry = start_running((uintptr_t)argument, &v);
    if (v == NULL)
        return;
    if (entry == NULL) {
        openreg_validation_report(v, OPENREG_RULE_FUNCTION_ONCE, slot, "a function was called a second time");
        stop_running(v);
        return;
    }
    if (thread_is_calling)
        openreg_validation_report(v, OPENREG_RULE_FUNCTION_THREAD, slot,
                                  "the function ran on the thread that queued it");
    const int was_running = thread_is_running;
    thread_is_running = 1;
    entry->function(entry->argument);
    thread_is_running = was_running;
    atomic_fetch_add(&v->devices[entry->dev].functions_ended, 1);
    atomic_fetch_add(&entry->stream->functions_ended, 1);
    free(entry);
    stop_running(v);
}

static openreg_status
queue(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_stream_state *state,
      void (*function)(void *argument), void *argument)
{
    queued_function *const entry = malloc(sizeof *entry);
    if (entry == NULL)
        return openreg_validation_no_memory();
    *entry = (queued_function){NULL, 0, function, argument, v, dev, state};
    openreg_lock_acquire(&lock);
    const uintptr_t number = ++last_number; /* the entry may be freed when host_func() returns */
    last_instance = v;
    entry->number = number;
    entry->next = queued[number % BUCKETS];
    queued[number % BUCKETS] = entry;
    openreg_lock_release(&lock);
    atomic_fetch_add(&state->queued, 1);
    thread_is_calling = 1;
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, host_func, dev, stream, run, (void *)number);
    thread_is_calling = 0;
    if (status == OPENREG_OK) {
        atomic_fetch_add(&state->functions, 1);
        atomic_fetch_add(&v->devices[dev].functions, 1);
    } else {
        openreg_lock_acquire(&lock);
        free(remove_entry(number));
        openreg_lock_release(&lock);
    }
    return status;
}

static openreg_status
validated_host_func(openreg_instance v, int32_t dev, openreg_driver_stream stream, void (*function)(void *argument),
                    void *argument)
{
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, "host_func", dev, stream, &on));
    const bool is_captured = atomic_load(&on->stream->capture) != 0;
    const openreg_status status = is_captured /* each launch runs it: it is passed to the graph unchanged */
                                      ? OPENREG_VALIDATED(v, &v->inner, host_func, dev, stream, function, argument)
                                      : queue(v, dev, stream, on->stream, function, argument);
    openreg_handle_release(v, on);
    return status;
}

bool
openreg_validation_forget_functions(openreg_instance v)
{
    openreg_lock_acquire(&lock);
    if (last_instance == v)
        last_instance = NULL;
    v->is_closed = true;
    const bool is_unused = v->functions_running == 0;
    for (size_t i = 0; i < BUCKETS; ++i)
        for (queued_function **at = &queued[i]; *at != NULL;) {
            queued_function *const entry = *at;
            if (entry->v != v) {
                at = &entry->next;
                continue;
            }
            *at = entry->next;
            free(entry);
        }
    openreg_lock_release(&lock);
    return is_unused;
}

void
openreg_validation_wrap_host_func(openreg_driver *table)
{
    OPENREG_VALIDATED_SLOT(table, host_func);
}
