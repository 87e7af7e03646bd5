/* SPDX-License-Identifier: BSD-3-Clause */
/* graph_slots.c: captures and the functions of "openreg.graph" (openreg/graph.h), checked (validated.h).
 *
 * The books follow a capture by the calls of this layer: it has the stream on which it began, and those that wait for an
 * event of it. Calls of the vendor's own functions on a stream of stream_native() are not observed. */
#include <stdlib.h>

#include "base/error.h"
#include "validation/validated.h"

#define INNER(v) ((const openreg_graph_table *)atomic_load(&(v)->extensions[OPENREG_WRAPPED_GRAPH]))

/* -------------------------------------------------------------------------------------------------------- captures */

/* The lock is held. */
static openreg_capture_state *
find_capture(openreg_instance v, unsigned long long number)
{
    openreg_capture_state *at = v->captures;
    while (at != NULL && at->number != number)
        at = at->next;
    return at;
}

/* Removes it and its streams; the lock is held. */
static void
remove_capture(openreg_instance v, openreg_capture_state *capture)
{
    openreg_capture_state **at = &v->captures;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    for (openreg_stream_state *stream = v->streams; stream != NULL; stream = stream->next)
        if (atomic_load(&stream->capture) == capture->number)
            atomic_store(&stream->capture, 0);
}

/* Removes and returns the capture that end() of this thread must end or, with `any`, one that began on the stream; else NULL.
 * *why: the reason for which end() must fail; NULL: none known. */
static openreg_capture_state *
take_capture(openreg_instance v, const openreg_stream_state *state, bool any, const char **why)
{
    openreg_lock_acquire(&v->lock);
    openreg_capture_state *found = v->captures;
    while (found != NULL && found->state != state)
        found = found->next;
    *why = NULL;
    if (found == NULL) {
        *why = atomic_load(&state->capture) != 0 ? "the stream has joined a capture that began on another"
                                                 : "no capture has begun on the stream";
    } else if (found->mode != OPENREG_CAPTURE_RELAXED && pthread_equal(found->thread, pthread_self()) == 0) {
        *why = "another thread has begun the capture";
        found = any ? found : NULL;
    } else if (found->is_invalid) {
        *why = "the capture is invalid";
    }
    if (found != NULL)
        remove_capture(v, found);
    openreg_lock_release(&v->lock);
    return found;
}

void
openreg_validation_join(openreg_instance v, openreg_stream_state *state, const openreg_handle *event)
{
    const unsigned long long number = atomic_load(&event->capture);
    if (number == 0)
        return;
    openreg_lock_acquire(&v->lock);
    if (find_capture(v, number) != NULL)
        atomic_store(&state->capture, number);
    openreg_lock_release(&v->lock);
}

/* The driver's status of a stream; OPENREG_CAPTURE_NONE if it fails. Keeps the thread's error. */
static int32_t
ask_status(openreg_instance v, int32_t dev, openreg_driver_stream stream)
{
    const openreg_error_fields before = openreg_error_save();
    int32_t status = OPENREG_CAPTURE_NONE;
    if (INNER(v)->status(v->instance, dev, stream, &status) != OPENREG_OK)
        status = OPENREG_CAPTURE_NONE;
    openreg_error_restore(&before);
    return status;
}

void
openreg_validation_judge_refusal(openreg_instance v, const char *slot, unsigned long long capture,
                                 openreg_status status)
{
    if (status != OPENREG_E_CAPTURE || capture == 0)
        return;
    openreg_lock_acquire(&v->lock);
    openreg_capture_state *const found = find_capture(v, capture);
    const openreg_capture_state seen = found != NULL ? *found : (openreg_capture_state){0};
    if (found != NULL)
        found->is_invalid = true;
    openreg_lock_release(&v->lock);
    if (found != NULL && ask_status(v, seen.dev, seen.stream) == OPENREG_CAPTURE_ACTIVE)
        openreg_validation_report(v, OPENREG_RULE_CAPTURE_INVALID, slot,
                                  "it returned OPENREG_E_CAPTURE, and the capture is still active");
}

/* -------------------------------------------------------------------------------------------------- memory in use */

/* Whether the capture is active, or has live graphs. The lock is held. */
static bool
is_used(openreg_instance v, unsigned long long capture)
{
    if (find_capture(v, capture) != NULL)
        return true;
    for (size_t i = 0; i < OPENREG_HANDLE_BUCKETS; ++i)
        for (const openreg_handle *at = v->handles[i]; at != NULL; at = at->next)
            if ((at->kind == OPENREG_MADE_BY_GRAPH_END || at->kind == OPENREG_MADE_BY_INSTANTIATE) &&
                atomic_load(&at->capture) == capture)
                return true;
    return false;
}

/* The lock is held. If host memory is short the range is not checked. */
static void
add_range(openreg_instance v, unsigned long long capture, uintptr_t start)
{
    openreg_captured_range *at = v->captured_ranges;
    while (at != NULL && (at->capture != capture || at->start != start))
        at = at->next;
    if (at != NULL || (at = malloc(sizeof *at)) == NULL)
        return;
    *at = (openreg_captured_range){v->captured_ranges, capture, start};
    v->captured_ranges = at;
}

void
openreg_validation_capture_range(openreg_instance v, const openreg_stream_state *state, const void *ptr)
{
    openreg_ledger_range range;
    const unsigned long long capture = atomic_load(&state->capture);
    if (capture == 0 || !openreg_ledger_find(v, ptr, &range))
        return;
    openreg_lock_acquire(&v->lock);
    add_range(v, capture, range.start);
    openreg_lock_release(&v->lock);
}

/* Forgets ranges that begin at `start` or, if it is 0, those of captures that have ended and have no live graph.
 * Whether one was in use. */
static bool
forget_ranges(openreg_instance v, uintptr_t start)
{
    bool was_used = false;
    openreg_lock_acquire(&v->lock);
    for (openreg_captured_range **at = &v->captured_ranges; *at != NULL;) {
        openreg_captured_range *const range = *at;
        if (start != 0 ? range->start != start : is_used(v, range->capture)) {
            at = &range->next;
            continue;
        }
        was_used = was_used || is_used(v, range->capture);
        *at = range->next;
        free(range);
    }
    openreg_lock_release(&v->lock);
    return was_used;
}

void
openreg_validation_range_goes(openreg_instance v, const char *slot, uintptr_t start)
{
    if (forget_ranges(v, start))
        openreg_validation_report(v, OPENREG_RULE_GRAPH_MEMORY, slot, "a captured graph uses what begins at %p",
                                  (void *)start);
}

/* A launch on a captured stream: that capture uses the ranges of the graph. */
static void
capture_ranges_of(openreg_instance v, const openreg_handle *exec, const openreg_stream_state *state)
{
    const unsigned long long capture = atomic_load(&state->capture), from = atomic_load(&exec->capture);
    if (capture == 0)
        return;
    openreg_lock_acquire(&v->lock);
    for (const openreg_captured_range *at = v->captured_ranges; at != NULL; at = at->next)
        if (at->capture == from)
            add_range(v, capture, at->start);
    openreg_lock_release(&v->lock);
}

/* --------------------------------------------------------------------------------------------------- begin and end */

static openreg_status
validated_begin(openreg_instance v, int32_t dev, openreg_driver_stream stream, int32_t mode)
{
    static const char slot[] = "begin";
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on));
    openreg_stream_state *const state = on->stream;
    openreg_capture_state *const begun = malloc(sizeof *begun);
    if (begun == NULL) {
        openreg_handle_release(v, on);
        return openreg_validation_no_memory();
    }
    const unsigned long long before = atomic_load(&state->capture);
    const openreg_status status = OPENREG_VALIDATED(v, INNER(v), begin, dev, stream, mode);
    const bool is_captured = before != 0 && before == atomic_load(&state->capture);
    if (status == OPENREG_OK && (stream == NULL || is_captured))
        openreg_validation_report(v, OPENREG_RULE_CAPTURE_BEGIN, slot, "it returned OPENREG_OK for %s",
                                  stream == NULL ? "the default stream" : "a stream that is captured");
    if (status != OPENREG_OK || stream == NULL || is_captured) {
        free(begun);
    } else {
        openreg_lock_acquire(&v->lock);
        *begun = (openreg_capture_state){.next = v->captures,
                                         .number = ++v->last_capture,
                                         .dev = dev,
                                         .mode = mode,
                                         .stream = stream,
                                         .state = state,
                                         .thread = pthread_self()};
        v->captures = begun;
        atomic_store(&state->capture, begun->number);
        openreg_lock_release(&v->lock);
    }
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_end(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_driver_graph *out)
{
    static const char slot[] = "end";
    openreg_handle *on = NULL;
    const char *why = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on));
    openreg_handle *const entry = openreg_handle_make(v, OPENREG_MADE_BY_GRAPH_END, dev);
    if (entry == NULL) {
        openreg_handle_release(v, on);
        return OPENREG_E_NOMEM;
    }
    openreg_capture_state *ended = take_capture(v, on->stream, false, &why);
    openreg_driver_graph made;
    openreg_status status = OPENREG_VALIDATED_OUT(v, INNER(v), end, made, dev, stream, &made);
    if (status == OPENREG_OK && why != NULL)
        openreg_validation_report(v, OPENREG_RULE_CAPTURE_END, slot, "it returned OPENREG_OK, and %s", why);
    else if (status != OPENREG_OK && ended != NULL && ask_status(v, dev, stream) != OPENREG_CAPTURE_NONE)
        openreg_validation_report(v, OPENREG_RULE_CAPTURE_ENDS, slot,
                                  "it returned %s, and the stream is still captured", openreg_status_name(status));
    if (status == OPENREG_OK) {
        if (ended == NULL)
            ended = take_capture(v, on->stream, true, &why);
        atomic_store(&entry->capture, ended != NULL ? ended->number : 0);
    }
    status = openreg_handle_made(v, slot, status, made, entry, out);
    free(ended);
    (void)forget_ranges(v, 0);
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_status(openreg_instance v, int32_t dev, openreg_driver_stream stream, int32_t *out)
{
    static const char slot[] = "status";
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on));
    openreg_stream_state *const state = on->stream;
    const unsigned long long before = atomic_load(&state->capture);
    int32_t answer;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, INNER(v), status, answer, dev, stream, &answer);
    const bool is_known = !atomic_load(&state->is_shared) && before == atomic_load(&state->capture);
    openreg_handle_release(v, on);
    OPENREG_RETURN_NOT_OK(status);
    if (answer < OPENREG_CAPTURE_NONE || answer > OPENREG_CAPTURE_INVALIDATED)
        return openreg_validation_refuse(v, OPENREG_RULE_CAPTURE_STATUS, OPENREG_E_INTERNAL, slot, "it gave %d",
                                         answer);
    if (is_known && (answer == OPENREG_CAPTURE_NONE) != (before == 0))
        openreg_validation_report(v, OPENREG_RULE_CAPTURE_STATUS, slot, "it gave %d for a stream that %s", answer,
                                  before != 0 ? "is part of a capture" : "is part of none");
    *out = answer;
    return OPENREG_OK;
}

static openreg_status
validated_exchange_mode(openreg_instance v, int32_t *mode)
{
    static const char slot[] = "exchange_mode";
    int32_t exchanged = *mode;
    const openreg_status status = OPENREG_VALIDATED(v, INNER(v), exchange_mode, &exchanged);
    if (status != OPENREG_OK && exchanged != *mode)
        openreg_validation_report_written(v, slot, status);
    OPENREG_RETURN_NOT_OK(status);
    if (exchanged < OPENREG_CAPTURE_GLOBAL || exchanged > OPENREG_CAPTURE_RELAXED)
        return openreg_validation_refuse(v, OPENREG_RULE_CAPTURE_MODE, OPENREG_E_INTERNAL, slot, "it gave %d",
                                         exchanged);
    *mode = exchanged;
    return OPENREG_OK;
}

/* ---------------------------------------------------------------------------------------------------------- graphs */

static openreg_status
validated_instantiate(openreg_instance v, openreg_driver_graph graph, uint32_t flags, openreg_driver_graph_exec *out)
{
    static const char slot[] = "instantiate";
    openreg_handle *of = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, slot, OPENREG_MADE_BY_GRAPH_END, graph, &of));
    if (flags != 0)
        openreg_validation_report(v, OPENREG_RULE_GRAPH_FLAGS, slot, "flags are %u", flags);
    openreg_handle *const entry = openreg_handle_make(v, OPENREG_MADE_BY_INSTANTIATE, of->dev);
    openreg_status status = OPENREG_E_NOMEM;
    if (entry != NULL) {
        atomic_store(&entry->capture, atomic_load(&of->capture));
        openreg_driver_graph_exec made;
        status = OPENREG_VALIDATED_OUT(v, INNER(v), instantiate, made, graph, flags, &made);
        status = openreg_handle_made(v, slot, status, made, entry, out);
    }
    openreg_handle_release(v, of);
    return status;
}

static openreg_status
validated_launch(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_driver_graph_exec exec)
{
    static const char slot[] = "launch";
    openreg_handle *launched = NULL, *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, slot, OPENREG_MADE_BY_INSTANTIATE, exec, &launched));
    openreg_status status = openreg_validation_stream(v, slot, dev, stream, &on);
    if (status == OPENREG_OK && launched->dev != dev)
        status = openreg_validation_refuse(v, OPENREG_RULE_GRAPH_DEVICE, OPENREG_E_INVALID, slot,
                                           "a graph of device %d was launched on device %d", launched->dev, dev);
    if (status == OPENREG_OK) {
        capture_ranges_of(v, launched, on->stream);
        (void)atomic_fetch_add(&on->stream->queued, 1);
        status = OPENREG_VALIDATED(v, INNER(v), launch, dev, stream, exec);
    }
    openreg_handle_release(v, launched);
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_update(openreg_instance v, openreg_driver_graph_exec exec, openreg_driver_graph graph, int32_t *fits)
{
    static const char slot[] = "update";
    openreg_handle *updated = NULL, *from = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, slot, OPENREG_MADE_BY_INSTANTIATE, exec, &updated));
    int32_t answer = 0;
    openreg_status status = openreg_handle_use(v, slot, OPENREG_MADE_BY_GRAPH_END, graph, &from);
    if (status == OPENREG_OK)
        status = OPENREG_VALIDATED_OUT(v, INNER(v), update, answer, exec, graph, &answer);
    if (status == OPENREG_OK && answer != 0 && answer != 1)
        status = openreg_validation_refuse(v, OPENREG_RULE_GRAPH_FITS, OPENREG_E_INTERNAL, slot, "it gave %d", answer);
    if (status == OPENREG_OK) {
        if (answer == 1)
            atomic_store(&updated->capture, atomic_load(&from->capture));
        *fits = answer;
    }
    openreg_handle_release(v, updated);
    openreg_handle_release(v, from);
    return status;
}

static openreg_status
validated_dump(openreg_instance v, openreg_driver_graph graph, const char *path)
{
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, "dump", OPENREG_MADE_BY_GRAPH_END, graph, &entry));
    const openreg_status status = OPENREG_VALIDATED(v, INNER(v), dump, graph, path);
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_destroy_graph(openreg_instance v, openreg_driver_graph graph)
{
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_begin_destroy(v, "destroy_graph", OPENREG_MADE_BY_GRAPH_END, graph, &entry));
    openreg_status status = OPENREG_VALIDATED(v, INNER(v), destroy_graph, graph);
    status = openreg_handle_end_destroy(v, status, graph, entry);
    (void)forget_ranges(v, 0);
    return status;
}

static openreg_status
validated_destroy_exec(openreg_instance v, openreg_driver_graph_exec exec)
{
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_begin_destroy(v, "destroy_exec", OPENREG_MADE_BY_INSTANTIATE, exec, &entry));
    openreg_status status = OPENREG_VALIDATED(v, INNER(v), destroy_exec, exec);
    status = openreg_handle_end_destroy(v, status, exec, entry);
    (void)forget_ranges(v, 0);
    return status;
}

const openreg_graph_table *
openreg_validation_graph(openreg_instance v, const openreg_graph_table *inner)
{
    openreg_lock_acquire(&v->lock);
    if (INNER(v) == NULL) {
        v->graph = (openreg_graph_table){
            .struct_size = sizeof(openreg_graph_table),
            .version = OPENREG_GRAPH_VERSION,
            .begin = validated_begin,
            .end = validated_end,
            .status = validated_status,
            .instantiate = validated_instantiate,
            .launch = validated_launch,
            .update = inner->update != NULL ? validated_update : NULL,
            .destroy_graph = validated_destroy_graph,
            .destroy_exec = validated_destroy_exec,
            .dump = inner->dump != NULL ? validated_dump : NULL,
            .exchange_mode = inner->exchange_mode != NULL ? validated_exchange_mode : NULL,
        };
        atomic_store(&v->extensions[OPENREG_WRAPPED_GRAPH], inner);
    }
    openreg_lock_release(&v->lock);
    return &v->graph;
}
