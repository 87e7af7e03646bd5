/* SPDX-License-Identifier: BSD-3-Clause */
/* trace.c: spans and their delivery to the listener (trace.h, openreg/trace.h).
 *
 * A span whose work was queued holds two markers, and waits in a list until both are complete. The driver only measures the
 * time between two of its events; so each device has one more marker whose time on the host's clock is known, the base.
 *
 * Locks, outermost first: `control_lock`, `settling_lock`, `bases_lock`; `waiting_lock` is a leaf. The driver is called
 * with any of them held except that one. */
#define _GNU_SOURCE
#include "trace/trace.h"

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/sized_struct.h"
#include "base/text.h"

#define NAME_SIZE 128
#define LOOK_EVERY 1024u /* number of waiting spans at which a thread checks for complete ones */
#define BASE_TRIES 5

/* A device as its driver knows it, whose events are measured. */
typedef struct timed_device {
    const openreg_driver *table;
    openreg_instance instance;
    int32_t ordinal;
} timed_device;

typedef struct trace_base {
    timed_device device;
    openreg_driver_event marker;
    uint64_t host_ns; /* when the marker completed */
    struct trace_base *next;
} trace_base;

/* Kept for the observer from the begin of a span to its end; measured ones wait in a list then. */
typedef struct trace_span {
    unsigned trace; /* number of the trace */
    timed_device device;
    openreg_driver_stream handle;
    const trace_base *base; /* set: measured by the two markers */
    openreg_driver_event first, last;
    openreg_trace_record record;
    char name[NAME_SIZE];
    struct trace_span *next;
} trace_span;

static atomic_uint trace_number; /* of the trace that is on, or 0 */

static openreg_lock control_lock = OPENREG_LOCK_INITIALIZER; /* held over start, flush and stop */
static unsigned last_number;
static openreg_tracer listener; /* written while trace_number and `tellers` are 0 */
static atomic_uint tellers;     /* threads that call the listener, or are about to check for one */

static openreg_lock bases_lock = OPENREG_LOCK_INITIALIZER;
static trace_base *bases;

static openreg_lock settling_lock =
    OPENREG_LOCK_INITIALIZER; /* held by the thread that has taken spans from the list */
static openreg_lock waiting_lock = OPENREG_LOCK_INITIALIZER;
static trace_span *waiting;
static unsigned waiting_count;

/* -------------------------------------------------------------------------------------------------- the listener */

/* Whether the listener of that trace may be called until leave_listener(). */
static int
enter_listener(unsigned trace)
{
    /* Sequentially consistent with openreg_trace_stop(): either that finds this teller, or this finds the end. */
    (void)atomic_fetch_add(&tellers, 1);
    if (trace != 0 && atomic_load(&trace_number) == trace)
        return 1;
    (void)atomic_fetch_sub(&tellers, 1);
    return 0;
}

static void
leave_listener(void)
{
    (void)atomic_fetch_sub(&tellers, 1);
}

static void
tell(unsigned trace, const openreg_trace_record *record)
{
    if (!enter_listener(trace))
        return;
    listener.record(listener.ctx, record);
    leave_listener();
}

/* ----------------------------------------------------------------------------------------------------- the bases */

static openreg_status
make_marker(const timed_device *device, openreg_driver_event *out)
{
    *out = NULL;
    const openreg_status status = device->table->event_create(device->instance, device->ordinal, OPENREG_EVENT_TIMING,
                                                              out);
    return status == OPENREG_OK && *out == NULL ? OPENREG_E_INTERNAL : status;
}

static void
drop_marker(const timed_device *device, openreg_driver_event marker)
{
    (void)device->table->event_destroy(device->instance, device->ordinal, marker);
}

static openreg_status
record_marker(const timed_device *device, openreg_driver_event marker, openreg_driver_stream handle)
{
    return device->table->event_record(device->instance, device->ordinal, handle, marker);
}

/* Records a marker and the host's time when it completed: of several tries the one that was detected fastest. */
static openreg_status
measure_base(trace_base *base, openreg_driver_stream handle)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < BASE_TRIES; ++i) {
        openreg_driver_event marker;
        OPENREG_RETURN_NOT_OK(make_marker(&base->device, &marker));
        const uint64_t before = openreg_clock_ns();
        openreg_status status = record_marker(&base->device, marker, handle);
        if (status == OPENREG_OK)
            status = base->device.table->event_sync(base->device.instance, base->device.ordinal, marker);
        const uint64_t taken = openreg_clock_ns() - before;
        if (status == OPENREG_OK && taken < best) {
            if (best != UINT64_MAX)
                drop_marker(&base->device, base->marker);
            best = taken;
            base->marker = marker;
            base->host_ns = before + taken / 2;
        } else {
            drop_marker(&base->device, marker);
        }
        if (status != OPENREG_OK && best == UINT64_MAX)
            return status;
    }
    return OPENREG_OK;
}

/* The base of a device, made if needed; NULL if that fails, or the trace is over: nothing would free it. */
static const trace_base *
base_of(unsigned trace, const timed_device *device, openreg_driver_stream handle)
{
    openreg_lock_acquire(&bases_lock);
    const int is_over = atomic_load(&trace_number) !=
                        trace; /* openreg_trace_stop() frees bases after the trace has ended */
    trace_base *base = is_over ? NULL : bases;
    while (base != NULL && (base->device.instance != device->instance || base->device.ordinal != device->ordinal))
        base = base->next;
    if (!is_over && base == NULL && (base = calloc(1, sizeof *base)) != NULL) {
        base->device = *device;
        if (measure_base(base, handle) == OPENREG_OK) {
            base->next = bases;
            bases = base;
        } else {
            free(base);
            base = NULL;
        }
    }
    openreg_lock_release(&bases_lock);
    return base;
}

static void
forget_bases(void)
{
    openreg_lock_acquire(&bases_lock);
    while (bases != NULL) {
        trace_base *const base = bases;
        bases = base->next;
        drop_marker(&base->device, base->marker);
        free(base);
    }
    openreg_lock_release(&bases_lock);
}

/* --------------------------------------------------------------------------------------------------------- spans */

/* If memory is short, only the record is lost. */
static void
begin_span(const openreg_span *told, void **kept)
{
    const unsigned trace = atomic_load_explicit(&trace_number, memory_order_relaxed);
    trace_span *const span = trace != 0 ? calloc(1, sizeof *span) : NULL;
    if (span == NULL || !enter_listener(trace)) {
        free(span);
        return;
    }
    span->trace = trace;
    span->record = (openreg_trace_record){
        .struct_size = sizeof span->record,
        .kind = told->kind,
        .timing = told->kind == OPENREG_TRACE_WAIT ? OPENREG_TIMING_NONE : OPENREG_TIMING_ASSUMED,
        .device = told->device,
        .source = told->source,
        .destination = told->destination,
        .stream = told->stream,
        .bytes = told->bytes,
        .tag = listener.begin != NULL ? listener.begin(listener.ctx) : 0,
        .call = told->call,
        .name = span->name,
    };
    leave_listener();
    openreg_text_copy(span->name, sizeof span->name, told->name);
    span->record.host_begin = openreg_clock_ns();
    *kept = span;
}

static openreg_status
mark(const trace_span *span, openreg_driver_event *marker)
{
    OPENREG_RETURN_NOT_OK(make_marker(&span->device, marker));
    const openreg_status status = record_marker(&span->device, *marker, span->handle);
    if (status != OPENREG_OK)
        drop_marker(&span->device, *marker);
    return status;
}

static void
queues_on(trace_span *span, const openreg_span *told)
{
    /* Timed markers that the runtime emulates wait for the stream when they are recorded. */
    if (told->table->event_create == NULL || told->table->event_elapsed == NULL)
        return;
    const openreg_error_fields saved = openreg_error_save();
    span->device = (timed_device){told->table, told->instance, told->ordinal};
    span->handle = told->handle;
    const trace_base *const base = base_of(span->trace, &span->device, told->handle);
    if (base != NULL && mark(span, &span->first) == OPENREG_OK)
        span->base = base;
    openreg_error_restore(&saved);
}

static void
drop_markers(trace_span *span, int both)
{
    drop_marker(&span->device, span->first);
    if (both)
        drop_marker(&span->device, span->last);
    span->base = NULL;
}

/* Nanoseconds between two of the device's markers. */
static openreg_status
measure(const timed_device *device, openreg_driver_event from, openreg_driver_event to, int64_t *out)
{
    return device->table->event_elapsed(device->instance, device->ordinal, from, to, out);
}

/* Times of a span whose last marker is complete. */
static openreg_status
read_times(trace_span *span)
{
    openreg_trace_record *const record = &span->record;
    int64_t since_base = 0;
    int64_t taken = 0;
    OPENREG_RETURN_NOT_OK(measure(&span->device, span->base->marker, span->first, &since_base));
    OPENREG_RETURN_NOT_OK(measure(&span->device, span->first, span->last, &taken));
    const uint64_t begin = span->base->host_ns + (uint64_t)(since_base > 0 ? since_base : 0);
    record->timing = OPENREG_TIMING_MEASURED;
    /* The base is accurate to a few microseconds; but work never begins before its call. */
    record->device_begin = begin > record->host_begin ? begin : record->host_begin;
    record->device_end = record->device_begin + (uint64_t)(taken > 0 ? taken : 0);
    return OPENREG_OK;
}

/* Delivers a waiting span and frees it. */
static void
settle(trace_span *span)
{
    if (span->device.table->event_sync(span->device.instance, span->device.ordinal, span->last) == OPENREG_OK &&
        read_times(span) == OPENREG_OK)
        tell(span->trace, &span->record);
    drop_markers(span, 1);
    free(span);
}

static trace_span *
take_waiting(void)
{
    openreg_lock_acquire(&waiting_lock);
    trace_span *const list = waiting;
    waiting = NULL;
    waiting_count = 0;
    openreg_lock_release(&waiting_lock);
    return list;
}

/* 1 if it is time to check for complete spans. */
static int
put_waiting(trace_span *item)
{
    openreg_lock_acquire(&waiting_lock);
    item->next = waiting;
    waiting = item;
    const int many = ++waiting_count % LOOK_EVERY == 0;
    openreg_lock_release(&waiting_lock);
    return many;
}

static bool
has_ended(const trace_span *span)
{
    int32_t done = 0;
    return span->device.table->event_query(span->device.instance, span->device.ordinal, span->last, &done) !=
               OPENREG_OK ||
           done;
}

/* Settles the waiting spans, or those that have ended, and gives the lock back. */
static void
settle_waiting(bool all)
{
    for (trace_span *item = take_waiting(), *next = NULL; item != NULL; item = next) {
        next = item->next;
        if (all || has_ended(item))
            settle(item);
        else
            (void)put_waiting(item);
    }
    openreg_lock_release(&settling_lock);
}

/* The thread's error stays as it is. `and_bases`: no span needs them any more. */
static void
settle_all(bool and_bases)
{
    const openreg_error_fields saved = openreg_error_save();
    openreg_lock_acquire(&settling_lock);
    settle_waiting(true);
    if (and_bases)
        forget_bases();
    openreg_error_restore(&saved);
}

/* Hands a measured span over to the list. */
static void
end_measured(trace_span *span)
{
    if (mark(span, &span->last) != OPENREG_OK) {
        drop_markers(span, 0);
        free(span);
    } else if (put_waiting(span) && openreg_lock_try(&settling_lock)) {
        settle_waiting(
            false); /* left to a thread that holds the lock: a flush waits for devices, but this call must not */
    }
}

static void
end_span(trace_span *span, openreg_status status)
{
    openreg_trace_record *const record = &span->record;
    record->host_end = openreg_clock_ns();
    if (span->base != NULL) {
        const openreg_error_fields saved = openreg_error_save();
        if (status == OPENREG_OK && enter_listener(span->trace)) {
            end_measured(span); /* in the listener, so that the base stays until the span is in the list */
            leave_listener();
        } else {
            drop_markers(span, 0);
            free(span);
        }
        openreg_error_restore(&saved);
        return;
    }
    if (status == OPENREG_OK) {
        if (record->timing == OPENREG_TIMING_ASSUMED)
            record->device_begin = record->host_begin;
        if (record->timing != OPENREG_TIMING_NONE)
            record->device_end = record->host_end;
        tell(span->trace, record);
    }
    free(span);
}

static void
see_span(void *ctx, int32_t step, const openreg_span *told, void **kept)
{
    (void)ctx;
    trace_span *const span = *kept;
    switch (step) {
    case OPENREG_SPAN_BEGIN:
        begin_span(told, kept);
        break;
    case OPENREG_SPAN_QUEUES:
        queues_on(span, told);
        break;
    case OPENREG_SPAN_WORKS:
        span->record.timing = OPENREG_TIMING_BY_HOST;
        span->record.device_begin = openreg_clock_ns();
        break;
    default:
        end_span(span, told->status);
        *kept = NULL;
        break;
    }
}

/* Spans and bases of devices are delivered and freed before their drivers are closed. */
static void
see_table(void *ctx, int32_t is_published)
{
    (void)ctx, (void)is_published;
    settle_all(true);
}

static const openreg_observer observer = {.struct_size = sizeof observer, .span = see_span, .table = see_table};

/* ---------------------------------------------------------------------------------------------------- public API */

openreg_status
openreg_lab_trace_start(const openreg_tracer *tracer)
{
    static const char call[] = "openreg_trace_start";
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    if (!openreg_sized_is_valid(tracer, OPENREG_TRACER_SIZE_1) || tracer->record == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "tracer is NULL, its struct_size not set, or it has no function record()");
    openreg_fork_watch(); /* a child inherits no trace */
    openreg_lock_acquire(&control_lock);
    const int is_free = atomic_load(&trace_number) == 0;
    if (is_free) {
        openreg_sized_read(&listener, sizeof listener, tracer);
        if (++last_number == 0)
            last_number = 1;
        atomic_store(&trace_number, last_number);
        (void)openreg_observe(&observer, OPENREG_OBSERVE_SPANS | OPENREG_OBSERVE_TABLE);
    }
    openreg_lock_release(&control_lock);
    return is_free ? OPENREG_OK : openreg_error_set(OPENREG_E_BUSY, call, "a trace is active already; stop it first");
}

/* Delivers the waiting spans of the trace; the control lock is held. */
static openreg_status
flush(const char *call)
{
    if (atomic_load(&trace_number) == 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "no trace is active; start one with openreg_trace_start()");
    settle_all(false);
    return OPENREG_OK;
}

openreg_status
openreg_lab_trace_flush(void)
{
    static const char call[] = "openreg_trace_flush";
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    openreg_lock_acquire(&control_lock);
    const openreg_status status = flush(call);
    openreg_lock_release(&control_lock);
    return status;
}

static openreg_status
stop(const char *call)
{
    OPENREG_RETURN_NOT_OK(flush(call));
    (void)openreg_observe(&observer, 0);
    atomic_store(&trace_number, 0);
    while (atomic_load(&tellers) != 0)
        (void)sched_yield(); /* a listener is running, which is quick */
    settle_all(true);        /* spans that have ended since are not reported */
    return OPENREG_OK;
}

openreg_status
openreg_lab_trace_stop(void)
{
    static const char call[] = "openreg_trace_stop";
    if (openreg_in_bad_fork())
        return OPENREG_OK;
    openreg_lock_acquire(&control_lock);
    const openreg_status status = stop(call);
    openreg_lock_release(&control_lock);
    return status;
}

/* The child inherits no trace. */
static void
after_fork_in_child(void)
{
    /* The child has none of the threads that called the listener, and its markers are the parent's. */
    atomic_store_explicit(&trace_number, 0, memory_order_relaxed);
    atomic_store_explicit(&tellers, 0, memory_order_relaxed);
    waiting = NULL;
    waiting_count = 0;
    bases = NULL;
    (void)openreg_observe(&observer, 0);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_handle(OPENREG_FORK_TRACE, &(openreg_fork_handlers){.child = after_fork_in_child});
}
