/* SPDX-License-Identifier: BSD-3-Clause */
/* capture.c: captures by recording (capture.h): their streams and events, and which calls are refused. */
#include "capture.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"

/* A stream that is captured; the first of a capture is the one that began it. */
typedef struct captured_stream {
    struct captured_stream *next;
    int32_t device;
    openreg_stream stream;
    openreg_indices tail; /* predecessors of the next node */
} captured_stream;

typedef struct captured_event {
    struct captured_event *next;
    openreg_event event;
    openreg_indices tail;
} captured_event;

typedef struct capture {
    struct capture *next;
    openreg_nodes *nodes;
    captured_stream *streams, **last;
    captured_event *events;
    pthread_t thread;
    int32_t mode;
    openreg_status failure; /* OPENREG_OK: it is valid */
    char why[512];
} capture;

/* A stream that is held for a capture above this library. */
typedef struct held_stream {
    struct held_stream *next;
    int32_t device;
    openreg_stream stream;
    openreg_hold_fn judge;
} held_stream;

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* guards all captures and held streams. A leaf */
static capture *captures;
static held_stream *held;
static _Thread_local int32_t thread_mode = OPENREG_CAPTURE_GLOBAL;
static _Thread_local int32_t thread_passes;
static _Thread_local int32_t thread_did_more; /* than queue work on held streams */

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_GRAPHS, &lock);
}

/* ------------------------------------------------------------------------------------------------------- finding */

static captured_stream *
stream_of(const capture *c, int32_t device, openreg_stream stream)
{
    captured_stream *at = c->streams;
    while (at != NULL && (at->device != device || at->stream != stream))
        at = at->next;
    return at;
}

static capture *
capture_of(int32_t device, openreg_stream stream, captured_stream **out)
{
    for (capture *c = captures; c != NULL; c = c->next)
        if ((*out = stream_of(c, device, stream)) != NULL)
            return c;
    return NULL;
}

static capture *
capture_of_event(openreg_event event, captured_event **out)
{
    for (capture *c = captures; c != NULL; c = c->next)
        for (captured_event *at = c->events; at != NULL; at = at->next)
            if (at->event == event) {
                *out = at;
                return c;
            }
    return NULL;
}

static void
forget_event(capture *c, openreg_event event)
{
    for (captured_event **at = &c->events; *at != NULL; at = &(*at)->next)
        if ((*at)->event == event) {
            captured_event *const found = *at;
            *at = found->next;
            free(found->tail.items);
            free(found);
            return;
        }
}

static void
free_capture(capture *c)
{
    while (c->events != NULL)
        forget_event(c, c->events->event);
    while (c->streams != NULL) {
        captured_stream *const next = c->streams->next;
        free(c->streams->tail.items);
        free(c->streams);
        c->streams = next;
    }
    openreg_nodes_release(c->nodes);
    free(c);
}

/* ------------------------------------------------------------------------------------------------------- refusing */

/* Invalidates the capture; end() reports the first reason. */
__attribute__((format(printf, 4, 5))) static openreg_status
fail(capture *c, openreg_status status, const char *call, const char *format, ...)
{
    char why[400];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    if (c->failure == OPENREG_OK) {
        c->failure = status;
        (void)snprintf(c->why, sizeof c->why, "%s: %s", call, why);
    }
    return openreg_error_set(status, call, "%s", why);
}

static openreg_status
refuse_invalid(const capture *c, const char *call)
{
    return openreg_error_set(OPENREG_E_CAPTURE, call, "the capture of this stream is invalid since %s", c->why);
}

static openreg_status
note_memory(capture *c, const char *call)
{
    return fail(c, OPENREG_E_NOMEM, call, "no host memory for the captured graph");
}

/* ------------------------------------------------------------------------------------------------------ recording */

static bool
add_stream(capture *c, int32_t device, openreg_stream stream, captured_stream **out)
{
    captured_stream *const added = calloc(1, sizeof *added);
    if (added == NULL)
        return false;
    added->device = device;
    added->stream = stream;
    *c->last = added;
    c->last = &added->next;
    *out = added;
    return true;
}

static bool
is_pageable(int32_t device, const void *address)
{
    openreg_pointer_info info = {.struct_size = sizeof info};
    return device == OPENREG_HOST &&
           (openreg_pointer_get_info(address, &info) != OPENREG_OK || info.kind == OPENREG_POINTER_UNKNOWN);
}

static openreg_status
record_event(capture *c, const captured_stream *on, const openreg_captured_call *call)
{
    forget_event(c, call->event);
    captured_event *const event = calloc(1, sizeof *event);
    if (event == NULL || !openreg_indices_add(&event->tail, &on->tail)) {
        free(event);
        return note_memory(c, call->call);
    }
    event->event = call->event;
    event->next = c->events;
    c->events = event;
    return OPENREG_OK;
}

/* Stream `on` of capture `c` (NULL: it is not captured) waits for an event of capture `from` (NULL: of none). */
static int
record_wait(capture *c, captured_stream *on, capture *from, const captured_event *event,
            const openreg_captured_call *call, openreg_status *status)
{
    if (from == NULL && (c == NULL || !call->has_record))
        return c != NULL; /* never recorded: nothing to wait for */
    if (c != NULL && c->failure != OPENREG_OK)
        *status = refuse_invalid(c, call->call);
    else if (from == NULL)
        *status = fail(c, OPENREG_E_CAPTURE, call->call,
                       "a captured stream can't wait for an event that was recorded outside of its capture");
    else if (from->failure != OPENREG_OK)
        *status = refuse_invalid(from, call->call);
    else if (c != NULL && c != from) {
        (void)fail(from, OPENREG_E_CAPTURE, call->call, "two captures can't be joined");
        *status = fail(c, OPENREG_E_CAPTURE, call->call, "two captures can't be joined");
    } else if (c == NULL && call->stream == OPENREG_STREAM_DEFAULT)
        *status = fail(from, OPENREG_E_CAPTURE, call->call, "the default stream can't join a capture");
    else if ((c == NULL && !add_stream(from, call->device, call->stream, &on)) ||
             !openreg_indices_add(&on->tail, &event->tail))
        *status = note_memory(from, call->call);
    return 1;
}

static bool
uses_device(const capture *c, int32_t device)
{
    for (const captured_stream *at = c->streams; at != NULL; at = at->next)
        if (at->device == device)
            return true;
    return false;
}

/* Calls that concern a whole device. */
static int
judge_device(const openreg_captured_call *call, openreg_status *status)
{
    int is_refused = 0;
    for (capture *c = captures; c != NULL; c = c->next) {
        const bool is_own = pthread_equal(c->thread, pthread_self()) != 0;
        const bool is_free = call->kind == OPENREG_CAPTURED_FREE;
        if (!uses_device(c, call->device) || (!is_own && c->mode != OPENREG_CAPTURE_GLOBAL) ||
            (is_free && (c->mode == OPENREG_CAPTURE_RELAXED || thread_mode == OPENREG_CAPTURE_RELAXED)))
            continue;
        is_refused = 1;
        *status = fail(c, OPENREG_E_CAPTURE, call->call,
                       is_free ? "memory can't be released to the driver while a stream of the device is captured"
                               : "a device can't be waited for while a stream of it is captured");
    }
    return is_refused;
}

static int
judge_locked(const openreg_captured_call *call, bool pageable, openreg_status *status)
{
    captured_stream *on = NULL;
    captured_event *event = NULL;
    capture *from;
    if (call->kind >= OPENREG_CAPTURED_DEVICE)
        return judge_device(call, status);
    if (call->kind == OPENREG_CAPTURED_EVENT) {
        if ((from = capture_of_event(call->event, &event)) == NULL)
            return 0;
        *status = fail(from, OPENREG_E_CAPTURE, call->call, "an event that was recorded in a capture can't be queried");
        return 1;
    }
    capture *const c = capture_of(call->device, call->stream, &on);
    if (call->kind == OPENREG_CAPTURED_WAIT) {
        from = capture_of_event(call->event, &event);
        return record_wait(c, on, from, event, call, status);
    }
    if (c == NULL) {
        if (call->kind == OPENREG_CAPTURED_RECORD && (from = capture_of_event(call->event, &event)) != NULL)
            forget_event(from, call->event); /* a new record, outside */
        return 0;
    }
    if (c->failure != OPENREG_OK)
        *status = refuse_invalid(c, call->call);
    else if (call->kind == OPENREG_CAPTURED_STREAM)
        *status = fail(c, OPENREG_E_CAPTURE, call->call, "a captured stream can't be waited for or queried");
    else if (call->kind == OPENREG_CAPTURED_RECORD)
        *status = record_event(c, on, call);
    else if (pageable)
        *status = fail(c, OPENREG_E_CAPTURE, call->call,
                       "a copy of host memory that is not pinned can't be captured: use openreg_host_alloc()");
    else
        *status = openreg_nodes_add(c->nodes, call, &on->tail) ? OPENREG_OK : note_memory(c, call->call);
    return 1;
}

/* The link to the held stream, or the end of the list if it is not held. The lock is held. */
static held_stream **
held_of(int32_t device, openreg_stream stream)
{
    held_stream **at = &held;
    while (*at != NULL && ((*at)->device != device || (*at)->stream != stream))
        at = &(*at)->next;
    return at;
}

static bool
is_of_stream(const openreg_captured_call *call)
{
    return call->kind <= OPENREG_CAPTURED_STREAM;
}

/* A call of a thread that passes. */
static void
note_call(const openreg_captured_call *call)
{
    openreg_lock_acquire(&lock);
    const bool only_queues = is_of_stream(call) && call->kind != OPENREG_CAPTURED_STREAM &&
                             *held_of(call->device, call->stream) != NULL;
    openreg_lock_release(&lock);
    if (!only_queues && call->kind != OPENREG_CAPTURED_FREE)
        thread_did_more = 1;
}

static int
judge(const openreg_captured_call *call, openreg_status *status)
{
    if (thread_passes > 0) {
        note_call(call);
        return 0;
    }
    const bool pageable = call->kind == OPENREG_CAPTURED_COPY &&
                          (is_pageable(call->dst_device, call->dst) || is_pageable(call->src_device, call->src));
    openreg_lock_acquire(&lock);
    const int is_taken = judge_locked(call, pageable, status);
    const held_stream *const at = is_of_stream(call) ? *held_of(call->device, call->stream) : NULL;
    const openreg_hold_fn judge_of_holder = at != NULL ? at->judge : NULL;
    openreg_lock_release(&lock);
    if (is_taken || judge_of_holder == NULL || !judge_of_holder(call->device, call->stream, call->call))
        return is_taken;
    *status = openreg_error_set(OPENREG_E_CAPTURE, call->call,
                                "the stream is being captured, and this call is not part of the capture");
    return 1;
}

/* Switches judging on while there are captures or held streams. The lock is held. */
static void
switch_judge(void)
{
    const bool on = captures != NULL || held != NULL;
    atomic_store_explicit(&openreg_recorder, on ? judge : (openreg_recorder_fn)NULL, memory_order_release);
}

/* ------------------------------------------------------------------------------------------------- begin and end */

openreg_status
openreg_capture_begin(const char *call, int32_t device, openreg_stream stream, int32_t mode)
{
    captured_stream *on = NULL;
    if (stream == OPENREG_STREAM_DEFAULT)
        return openreg_error_set(OPENREG_E_CAPTURE, call, "the default stream can't be captured");
    capture *const begun = calloc(1, sizeof *begun);
    openreg_status status = OPENREG_E_NOMEM;
    if (begun != NULL) {
        begun->nodes = openreg_nodes_create(device, stream);
        begun->last = &begun->streams;
        begun->thread = pthread_self();
        begun->mode = mode;
        status = begun->nodes != NULL && add_stream(begun, device, stream, &on) ? OPENREG_OK : OPENREG_E_NOMEM;
    }
    openreg_lock_acquire(&lock);
    if (status == OPENREG_OK && (capture_of(device, stream, &on) != NULL || *held_of(device, stream) != NULL))
        status = OPENREG_E_CAPTURE;
    if (status == OPENREG_OK) {
        begun->next = captures;
        captures = begun;
        switch_judge();
    }
    openreg_lock_release(&lock);
    if (status == OPENREG_OK)
        return status;
    if (begun != NULL)
        free_capture(begun);
    return openreg_error_set(status, call, "%s",
                             status == OPENREG_E_CAPTURE ? "the stream is being captured already"
                                                         : "no host memory for a capture");
}

/* Whether the first stream has waited for all work of joined streams. */
static bool
is_joined(const capture *c, bool *joined)
{
    const openreg_nodes *const nodes = c->nodes;
    unsigned char *const seen = calloc((size_t)nodes->count + 1, 1);
    if (seen == NULL)
        return false;
    for (uint32_t i = 0; i < c->streams->tail.count; ++i)
        seen[c->streams->tail.items[i]] = 1;
    for (uint32_t i = nodes->count; i-- > 0;)
        for (uint32_t k = 0; seen[i] && k < nodes->list[i].after.count; ++k)
            seen[nodes->list[i].after.items[k]] = 1;
    *joined = true;
    for (const captured_stream *at = c->streams->next; at != NULL; at = at->next)
        for (uint32_t i = 0; i < at->tail.count; ++i)
            *joined = *joined && seen[at->tail.items[i]];
    free(seen);
    return true;
}

openreg_status
openreg_capture_end(const char *call, int32_t device, openreg_stream stream, openreg_nodes **out, bool *ended)
{
    captured_stream *on = NULL;
    bool joined = false;
    *ended = false;
    openreg_lock_acquire(&lock);
    capture *const c = capture_of(device, stream, &on);
    const char *refusal = NULL;
    if (c == NULL)
        refusal = "the stream is not being captured";
    else if (c->mode != OPENREG_CAPTURE_RELAXED && pthread_equal(c->thread, pthread_self()) == 0)
        refusal = "the capture was begun by another thread, and its mode is not relaxed";
    if (refusal != NULL) {
        openreg_lock_release(&lock);
        return openreg_error_set(OPENREG_E_CAPTURE, call, "%s", refusal);
    }
    openreg_status status = c->failure;
    if (on != c->streams)
        status = fail(c, OPENREG_E_CAPTURE, call, "the capture was begun on another stream, which this one has joined");
    else if (status != OPENREG_OK)
        status = openreg_error_set(OPENREG_E_CAPTURE, call, "the capture is invalid: %s", c->why);
    else if (!is_joined(c, &joined))
        status = note_memory(c, call);
    else if (!joined)
        status = fail(c, OPENREG_E_CAPTURE, call,
                      "a stream that has joined the capture is not waited for by the stream that began it");
    if (on == c->streams) {
        capture **at = &captures;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        switch_judge();
        *ended = true;
    }
    openreg_lock_release(&lock);
    if (!*ended)
        return status;
    if (status == OPENREG_OK)
        *out = openreg_nodes_share(c->nodes);
    free_capture(c);
    return status;
}

int32_t
openreg_capture_status(int32_t device, openreg_stream stream)
{
    captured_stream *on = NULL;
    openreg_lock_acquire(&lock);
    const capture *const c = capture_of(device, stream, &on);
    const int32_t found = c == NULL                  ? OPENREG_CAPTURE_NONE
                          : c->failure == OPENREG_OK ? OPENREG_CAPTURE_ACTIVE
                                                     : OPENREG_CAPTURE_INVALIDATED;
    openreg_lock_release(&lock);
    return found;
}

openreg_status
openreg_capture_hold(const char *call, int32_t device, openreg_stream stream, openreg_hold_fn holder)
{
    captured_stream *on = NULL;
    held_stream *const made = holder != NULL ? calloc(1, sizeof *made) : NULL;
    if (holder != NULL && made == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a capture");
    openreg_lock_acquire(&lock);
    held_stream **const at = held_of(device, stream);
    held_stream *gone = made;
    const bool is_taken = *at != NULL || capture_of(device, stream, &on) != NULL;
    if (made != NULL && !is_taken) {
        *made = (held_stream){held, device, stream, holder};
        held = made;
        gone = NULL;
    } else if (made == NULL && (gone = *at) != NULL) {
        *at = gone->next;
    }
    const bool is_refused = made != NULL && is_taken;
    switch_judge();
    openreg_lock_release(&lock);
    free(gone);
    return is_refused ? openreg_error_set(OPENREG_E_CAPTURE, call, "the stream is being captured already") : OPENREG_OK;
}

int32_t
openreg_capture_pass(int32_t change)
{
    const int32_t did_more = thread_did_more;
    thread_passes += change;
    thread_did_more = 0;
    return did_more;
}

int32_t
openreg_capture_exchange_mode(int32_t mode)
{
    const int32_t before = thread_mode;
    thread_mode = mode;
    return before;
}
