/* SPDX-License-Identifier: BSD-3-Clause */
/* trace.c: spans and their delivery to the listener (trace.h, openreg/trace.h).
 *
 * A span whose work was queued holds two markers, and waits in a list until the driver has passed both. The driver only
 * measures the time between two of its events; so for each device one more is kept whose time on the host's clock is
 * known, the base.
 *
 * Locks, outermost first: `control_lock`, `settling_lock`, `bases_lock`; `waiting_lock` is a leaf. The driver is called
 * with any of them but that one. */
#define _GNU_SOURCE
#include "device/trace.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/sized_struct.h"
#include "base/text.h"

#define NAME_SIZE 128
#define LOOK_EVERY 1024u /* waiting spans, after which a thread looks for those that have ended */
#define BASE_TRIES 5

struct openreg_trace_base {
    openreg_device *device;
    openreg_backend_event marker;
    uint64_t host_ns; /* when the marker was passed */
    openreg_trace_base *next;
};

typedef struct waiting_span {
    openreg_trace_span span;
    char name[NAME_SIZE];
    struct waiting_span *next;
} waiting_span;

atomic_uint openreg_trace_number;

static openreg_lock control_lock = OPENREG_LOCK_INITIALIZER; /* held over start, flush and stop */
static unsigned last_number;
static openreg_tracer listener; /* written while openreg_trace_number and `tellers` are 0 */
static atomic_uint tellers;     /* threads that call the listener, or are about to look whether there is one */

static openreg_lock bases_lock = OPENREG_LOCK_INITIALIZER;
static openreg_trace_base *bases;

static openreg_lock settling_lock = OPENREG_LOCK_INITIALIZER; /* by who has taken spans out of the list */
static openreg_lock waiting_lock = OPENREG_LOCK_INITIALIZER;
static waiting_span *waiting;
static unsigned waiting_count;

/* -------------------------------------------------------------------------------------------------- the listener */

/* Whether the listener of that trace may be called until leave_listener(). */
static int
enter_listener(unsigned trace)
{
    /* Sequentially consistent with openreg_trace_stop(): either it sees this teller, or this sees the end. */
    (void)atomic_fetch_add(&tellers, 1);
    if (trace != 0 && atomic_load(&openreg_trace_number) == trace)
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

/* Notes a marker and the host's time when it was passed: of several tries the one that was seen the soonest. */
static openreg_status
measure_base(openreg_trace_base *base, const char *call, openreg_driver_stream handle)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < BASE_TRIES; ++i) {
        openreg_backend_event marker;
        OPENREG_RETURN_NOT_OK(openreg_call_marker_create(base->device, call, OPENREG_EVENT_TIMING, &marker));
        const uint64_t before = openreg_clock_ns();
        openreg_status status = openreg_call_marker_record(base->device, call, &marker, handle);
        if (status == OPENREG_OK)
            status = openreg_call_marker_sync(base->device, call, &marker);
        const uint64_t taken = openreg_clock_ns() - before;
        if (status == OPENREG_OK && taken < best) {
            if (best != UINT64_MAX)
                (void)openreg_call_marker_destroy(base->device, call, &base->marker);
            best = taken;
            base->marker = marker;
            base->host_ns = before + taken / 2;
        } else {
            (void)openreg_call_marker_destroy(base->device, call, &marker);
        }
        if (status != OPENREG_OK && best == UINT64_MAX)
            return status;
    }
    return OPENREG_OK;
}

/* The base of a device, made if needed; NULL if that fails. */
static const openreg_trace_base *
base_of(openreg_device *device, const char *call, openreg_driver_stream handle)
{
    openreg_lock_acquire(&bases_lock);
    openreg_trace_base *base = bases;
    while (base != NULL && base->device != device)
        base = base->next;
    if (base == NULL && (base = calloc(1, sizeof *base)) != NULL) {
        base->device = device;
        if (measure_base(base, call, handle) == OPENREG_OK) {
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
forget_bases(const char *call)
{
    openreg_lock_acquire(&bases_lock);
    while (bases != NULL) {
        openreg_trace_base *const base = bases;
        bases = base->next;
        (void)openreg_call_marker_destroy(base->device, call, &base->marker);
        free(base);
    }
    openreg_lock_release(&bases_lock);
}

/* --------------------------------------------------------------------------------------------------------- spans */

void
openreg_trace_begin_on(openreg_trace_span *span, unsigned trace, int32_t kind, const char *call, openreg_device *device,
                       openreg_stream stream)
{
    memset(span, 0, sizeof *span);
    if (!enter_listener(trace))
        return;
    span->trace = trace;
    span->device = device;
    span->record = (openreg_trace_record){
        .struct_size = sizeof span->record,
        .kind = kind,
        .timing = kind == OPENREG_TRACE_WAIT ? OPENREG_TIMING_NONE : OPENREG_TIMING_ASSUMED,
        .device = device != NULL ? device->index : OPENREG_HOST,
        .source = OPENREG_HOST,
        .destination = OPENREG_HOST,
        .stream = stream,
        .tag = listener.begin != NULL ? listener.begin(listener.ctx) : 0,
        .call = call,
        .name = "",
    };
    leave_listener();
    span->record.host_begin = openreg_clock_ns();
}

void
openreg_trace_works_on(openreg_trace_span *span)
{
    span->record.timing = OPENREG_TIMING_BY_HOST;
    span->record.device_begin = openreg_clock_ns();
}

static openreg_status
mark(openreg_trace_span *span, openreg_backend_event *marker)
{
    const char *const call = span->record.call;
    OPENREG_RETURN_NOT_OK(openreg_call_marker_create(span->device, call, OPENREG_EVENT_TIMING, marker));
    const openreg_status status = openreg_call_marker_record(span->device, call, marker, span->handle);
    if (status != OPENREG_OK)
        (void)openreg_call_marker_destroy(span->device, call, marker);
    return status;
}

void
openreg_trace_queues_on(openreg_trace_span *span, openreg_driver_stream handle)
{
    if (span->base != NULL || !openreg_backend_event_is_measured(span->device))
        return;
    const openreg_error_fields saved = openreg_error_save();
    span->handle = handle;
    const openreg_trace_base *const base = base_of(span->device, span->record.call, handle);
    if (base != NULL && mark(span, &span->first) == OPENREG_OK)
        span->base = base;
    openreg_error_restore(&saved);
}

static void
drop_markers(openreg_trace_span *span, int both)
{
    (void)openreg_call_marker_destroy(span->device, span->record.call, &span->first);
    if (both)
        (void)openreg_call_marker_destroy(span->device, span->record.call, &span->last);
    span->base = NULL;
}

/* Times of a span whose last marker has been passed. */
static openreg_status
read_times(openreg_trace_span *span)
{
    openreg_trace_record *const record = &span->record;
    openreg_backend_event first = span->base->marker;
    double since_base = 0;
    double taken = 0;
    OPENREG_RETURN_NOT_OK(openreg_call_marker_elapsed(span->device, record->call, &first, &span->first, &since_base));
    OPENREG_RETURN_NOT_OK(openreg_call_marker_elapsed(span->device, record->call, &span->first, &span->last, &taken));
    const uint64_t begin = span->base->host_ns + (uint64_t)(since_base > 0 ? since_base * 1e6 : 0);
    record->timing = OPENREG_TIMING_MEASURED;
    /* The base is known to a few microseconds; work does not begin before it was asked for. */
    record->device_begin = begin > record->host_begin ? begin : record->host_begin;
    record->device_end = record->device_begin + (uint64_t)(taken > 0 ? taken * 1e6 : 0);
    return OPENREG_OK;
}

/* Delivers a waiting span and frees it. */
static void
settle(waiting_span *item)
{
    item->span.record.name = item->name;
    if (openreg_call_marker_sync(item->span.device, item->span.record.call, &item->span.last) == OPENREG_OK &&
        read_times(&item->span) == OPENREG_OK)
        tell(item->span.trace, &item->span.record);
    drop_markers(&item->span, 1);
    free(item);
}

static waiting_span *
take_waiting(void)
{
    openreg_lock_acquire(&waiting_lock);
    waiting_span *const list = waiting;
    waiting = NULL;
    waiting_count = 0;
    openreg_lock_release(&waiting_lock);
    return list;
}

/* 1 if it is time to look for spans that have ended. */
static int
put_waiting(waiting_span *item)
{
    openreg_lock_acquire(&waiting_lock);
    item->next = waiting;
    waiting = item;
    const int many = ++waiting_count % LOOK_EVERY == 0;
    openreg_lock_release(&waiting_lock);
    return many;
}

/* Leaves it to whoever is at it: a flush waits for devices, and the call that looks must not. */
static void
settle_ended(void)
{
    if (!openreg_lock_try(&settling_lock))
        return;
    for (waiting_span *item = take_waiting(), *next = NULL; item != NULL; item = next) {
        int32_t done = 0;
        next = item->next;
        if (openreg_call_marker_query(item->span.device, item->span.record.call, &item->span.last, &done) ==
                OPENREG_OK &&
            !done)
            (void)put_waiting(item);
        else
            settle(item);
    }
    openreg_lock_release(&settling_lock);
}

static void
settle_all(void)
{
    openreg_lock_acquire(&settling_lock);
    for (waiting_span *item = take_waiting(), *next = NULL; item != NULL; item = next) {
        next = item->next;
        settle(item);
    }
    openreg_lock_release(&settling_lock);
}

/* Hands a measured span over to the list. Without memory for it the record is lost, and nothing else. */
static void
end_measured(openreg_trace_span *span)
{
    waiting_span *const item = malloc(sizeof *item);
    if (item == NULL || mark(span, &span->last) != OPENREG_OK) {
        drop_markers(span, 0);
        free(item);
        return;
    }
    item->span = *span;
    openreg_text_copy(item->name, sizeof item->name, span->record.name);
    if (put_waiting(item))
        settle_ended();
}

void
openreg_trace_end_on(openreg_trace_span *span, openreg_status status)
{
    openreg_trace_record *const record = &span->record;
    record->host_end = openreg_clock_ns();
    const openreg_error_fields saved = openreg_error_save();
    if (span->base != NULL) {
        if (status == OPENREG_OK && enter_listener(span->trace)) { /* so the base stays until the span is in the list */
            end_measured(span);
            leave_listener();
        } else {
            drop_markers(span, 0);
        }
    } else if (status == OPENREG_OK) {
        if (record->timing == OPENREG_TIMING_ASSUMED)
            record->device_begin = record->host_begin;
        if (record->timing != OPENREG_TIMING_NONE)
            record->device_end = record->host_end;
        tell(span->trace, record);
    }
    openreg_error_restore(&saved);
}

/* ---------------------------------------------------------------------------------------------------- public API */

openreg_status
openreg_trace_start(const openreg_tracer *tracer)
{
    static const char call[] = "openreg_trace_start";
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    if (!openreg_sized_is_valid(tracer, OPENREG_TRACER_SIZE_1) || tracer->record == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "tracer is NULL, its struct_size not set, or it has no function record()");
    openreg_fork_watch(); /* a child inherits no trace */
    openreg_lock_acquire(&control_lock);
    const int is_free = atomic_load(&openreg_trace_number) == 0;
    if (is_free) {
        openreg_sized_read(&listener, sizeof listener, tracer);
        if (++last_number == 0)
            last_number = 1;
        atomic_store(&openreg_trace_number, last_number);
    }
    openreg_lock_release(&control_lock);
    return is_free ? OPENREG_OK : openreg_error_set(OPENREG_E_BUSY, call, "a trace is active already; stop it first");
}

/* What is known to be in a trace; the control lock is held. */
static openreg_status
flush(const char *call)
{
    if (atomic_load(&openreg_trace_number) == 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "no trace is active; start one with openreg_trace_start()");
    const openreg_error_fields saved = openreg_error_save();
    settle_all();
    openreg_error_restore(&saved);
    return OPENREG_OK;
}

openreg_status
openreg_trace_flush(void)
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
    atomic_store(&openreg_trace_number, 0);
    while (atomic_load(&tellers) != 0)
        (void)sched_yield(); /* a listener is running, which takes no time to speak of */
    const openreg_error_fields saved = openreg_error_save();
    settle_all(); /* spans that ended meanwhile: nobody is told */
    forget_bases(call);
    openreg_error_restore(&saved);
    return OPENREG_OK;
}

openreg_status
openreg_trace_stop(void)
{
    static const char call[] = "openreg_trace_stop";
    if (openreg_in_bad_fork())
        return OPENREG_OK;
    openreg_lock_acquire(&control_lock);
    const openreg_status status = stop(call);
    openreg_lock_release(&control_lock);
    return status;
}

void
openreg_trace_leave_devices(void)
{
    const openreg_error_fields saved = openreg_error_save();
    settle_all();
    forget_bases("openreg_shutdown");
    openreg_error_restore(&saved);
}

/* The child inherits no trace. */
static void
after_fork_in_child(void)
{
    /* Threads that were telling are not in the child, and its markers are the parent's. */
    atomic_store_explicit(&openreg_trace_number, 0, memory_order_relaxed);
    atomic_store_explicit(&tellers, 0, memory_order_relaxed);
    waiting = NULL;
    waiting_count = 0;
    bases = NULL;
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_handle(OPENREG_FORK_TRACE, &(openreg_fork_handlers){.child = after_fork_in_child});
}

uint64_t
openreg_trace_clock(void)
{
    return openreg_clock_ns();
}
