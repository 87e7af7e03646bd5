/* SPDX-License-Identifier: BSD-3-Clause */
/* graph_slots.c: captures and the functions of "openreg.graph" (openreg/graph.h), checked (validated.h).
 *
 * The books follow a capture by the calls of this layer: it has the stream on which it began, and those that wait for an
 * event of it. Calls of the vendor's own functions on a stream of stream_native() are not observed. */
#include <stdlib.h>

#include "base/error.h"
#include "validation/validated.h"

#define INNER(v) atomic_load(&(v)->inner_graph)

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

/* That began on a stream. The lock is held. */
static openreg_capture_state *
find_capture_on(openreg_instance v, const openreg_stream_state *state)
{
    openreg_capture_state *at = v->captures;
    while (at != NULL && at->state != state)
        at = at->next;
    return at;
}

static void
add_capture(openreg_instance v, openreg_capture_state *begun)
{
    openreg_lock_acquire(&v->lock);
    begun->number = ++v->last_capture;
    begun->next = v->captures;
    v->captures = begun;
    atomic_store(&begun->state->capture, begun->number);
    openreg_lock_release(&v->lock);
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
    for (int32_t i = 0; i < v->count; ++i)
        if (atomic_load(&v->devices[i].stream.capture) == capture->number)
            atomic_store(&v->devices[i].stream.capture, 0);
}

/* Removes and returns the capture that end() of this thread must end or, with `any`, one that began on the stream; else NULL.
 * *why: the reason for which end() must fail; NULL: none known. */
static openreg_capture_state *
take_capture(openreg_instance v, const openreg_stream_state *state, bool any, const char **why)
{
    openreg_lock_acquire(&v->lock);
    openreg_capture_state *found = find_capture_on(v, state);
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

void
openreg_validation_range_goes(openreg_instance v, const char *slot, uintptr_t start)
{
    bool was_used = false;
    openreg_lock_acquire(&v->lock);
    for (openreg_captured_range **at = &v->captured_ranges; *at != NULL;) {
        openreg_captured_range *const range = *at;
        if (range->start != start) {
            at = &range->next;
            continue;
        }
        was_used = was_used || is_used(v, range->capture);
        *at = range->next;
        free(range);
    }
    openreg_lock_release(&v->lock);
    if (was_used)
        openreg_validation_report(v, OPENREG_RULE_GRAPH_MEMORY, slot, "a captured graph uses what begins at %p",
                                  (void *)start);
}

/* Forgets ranges of captures that have ended and have no live graph. */
static void
forget_ranges(openreg_instance v)
{
    openreg_lock_acquire(&v->lock);
    for (openreg_captured_range **at = &v->captured_ranges; *at != NULL;) {
        openreg_captured_range *const range = *at;
        if (is_used(v, range->capture)) {
            at = &range->next;
            continue;
        }
        *at = range->next;
        free(range);
    }
    openreg_lock_release(&v->lock);
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

void
openreg_validation_report_captures(openreg_instance v)
{
    size_t count = 0;
    for (const openreg_capture_state *at = v->captures; at != NULL; at = at->next)
        ++count;
    if (count > 0)
        openreg_validation_report(v, OPENREG_RULE_FREED_BEFORE_CLOSE, "close", "%zu captures had not ended", count);
}

void
openreg_validation_free_captures(openreg_instance v)
{
    for (openreg_capture_state *at = v->captures, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
    for (openreg_captured_range *at = v->captured_ranges, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
}

/* --------------------------------------------------------------------------------------------------- begin and end */

static openreg_status
validated_begin(openreg_instance v, int32_t dev, openreg_driver_stream stream, int32_t mode)
{
    static const char slot[] = "begin";
    openreg_handle *on = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on, &state));
    openreg_capture_state *const begun = calloc(1, sizeof *begun);
    openreg_status status;
    if (begun == NULL) {
        openreg_handle_release(v, on);
        return openreg_validation_no_memory();
    }
    const unsigned long long before = atomic_load(&state->capture);
    OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->begin(v->instance, dev, stream, mode));
    const bool is_captured = before != 0 && before == atomic_load(&state->capture);
    if (status == OPENREG_OK && (stream == NULL || is_captured))
        openreg_validation_report(v, OPENREG_RULE_CAPTURE_BEGIN, slot, "it returned OPENREG_OK for %s",
                                  stream == NULL ? "the default stream" : "a stream that is captured");
    if (status != OPENREG_OK || stream == NULL || is_captured) {
        free(begun);
    } else {
        begun->dev = dev;
        begun->mode = mode;
        begun->stream = stream;
        begun->state = state;
        begun->thread = pthread_self();
        add_capture(v, begun);
    }
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_end(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_driver_graph *out)
{
    static const char slot[] = "end";
    openreg_handle *on = NULL;
    openreg_stream_state *state = NULL;
    const char *why = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on, &state));
    openreg_handle *const entry = openreg_handle_make(v, OPENREG_MADE_BY_GRAPH_END, dev);
    if (entry == NULL) {
        openreg_handle_release(v, on);
        return OPENREG_E_NOMEM;
    }
    openreg_capture_state *ended = take_capture(v, state, false, &why);
    openreg_driver_graph const poison = (openreg_driver_graph)(void *)entry;
    openreg_driver_graph made = poison;
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->end(v->instance, dev, stream, &made));
    openreg_validation_untouched(v, slot, status, &made, &poison, sizeof made);
    if (status == OPENREG_OK && why != NULL)
        openreg_validation_report(v, OPENREG_RULE_CAPTURE_END, slot, "it returned OPENREG_OK, and %s", why);
    else if (status != OPENREG_OK && ended != NULL && ask_status(v, dev, stream) != OPENREG_CAPTURE_NONE)
        openreg_validation_report(v, OPENREG_RULE_CAPTURE_ENDS, slot,
                                  "it returned %s, and the stream is still captured", openreg_status_name(status));
    if (status == OPENREG_OK) {
        if (ended == NULL)
            ended = take_capture(v, state, true, &why);
        atomic_store(&entry->capture, ended != NULL ? ended->number : 0);
    }
    status = openreg_handle_made(v, slot, OPENREG_RULE_GRAPH_HANDLE, status, made, entry);
    if (status == OPENREG_OK)
        *out = made;
    free(ended);
    forget_ranges(v);
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_status(openreg_instance v, int32_t dev, openreg_driver_stream stream, int32_t *out)
{
    static const char slot[] = "status";
    openreg_handle *on = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on, &state));
    const unsigned long long before = atomic_load(&state->capture);
    const int32_t poison = INT32_C(0x5a5a5a5a);
    int32_t answer = poison;
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->status(v->instance, dev, stream, &answer));
    openreg_validation_untouched(v, slot, status, &answer, &poison, sizeof answer);
    const bool is_known = !atomic_load(&state->is_shared) && before == atomic_load(&state->capture);
    openreg_handle_release(v, on);
    if (status != OPENREG_OK)
        return status;
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
    const int32_t before = *mode;
    int32_t exchanged = before;
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->exchange_mode(v->instance, &exchanged));
    openreg_validation_untouched(v, slot, status, &exchanged, &before, sizeof before);
    if (status == OPENREG_OK && (exchanged < OPENREG_CAPTURE_GLOBAL || exchanged > OPENREG_CAPTURE_RELAXED))
        return openreg_validation_refuse(v, OPENREG_RULE_CAPTURE_MODE, OPENREG_E_INTERNAL, slot, "it gave %d",
                                         exchanged);
    if (status == OPENREG_OK)
        *mode = exchanged;
    return status;
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
    if (entry == NULL) {
        openreg_handle_release(v, of);
        return OPENREG_E_NOMEM;
    }
    atomic_store(&entry->capture, atomic_load(&of->capture));
    openreg_driver_graph_exec const poison = (openreg_driver_graph_exec)(void *)entry;
    openreg_driver_graph_exec made = poison;
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->instantiate(v->instance, graph, flags, &made));
    openreg_validation_untouched(v, slot, status, &made, &poison, sizeof made);
    status = openreg_handle_made(v, slot, OPENREG_RULE_GRAPH_EXEC_HANDLE, status, made, entry);
    if (status == OPENREG_OK)
        *out = made;
    openreg_handle_release(v, of);
    return status;
}

static openreg_status
validated_launch(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_driver_graph_exec exec)
{
    static const char slot[] = "launch";
    openreg_handle *launched = NULL, *on = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, slot, OPENREG_MADE_BY_INSTANTIATE, exec, &launched));
    openreg_status status = openreg_validation_stream(v, slot, dev, stream, &on, &state);
    if (status == OPENREG_OK && launched->dev != dev)
        status = openreg_validation_refuse(v, OPENREG_RULE_GRAPH_DEVICE, OPENREG_E_INVALID, slot,
                                           "a graph of device %d was launched on device %d", launched->dev, dev);
    if (status == OPENREG_OK) {
        capture_ranges_of(v, launched, state);
        (void)atomic_fetch_add(&state->queued, 1);
        OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->launch(v->instance, dev, stream, exec));
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
    const int32_t poison = INT32_C(0x5a5a5a5a);
    int32_t answer = poison;
    openreg_status status = openreg_handle_use(v, slot, OPENREG_MADE_BY_GRAPH_END, graph, &from);
    if (status == OPENREG_OK) {
        OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->update(v->instance, exec, graph, &answer));
        openreg_validation_untouched(v, slot, status, &answer, &poison, sizeof answer);
    }
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
    openreg_status status;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, "dump", OPENREG_MADE_BY_GRAPH_END, graph, &entry));
    OPENREG_VALIDATED_FUNCTION(status, v, "dump", INNER(v)->dump(v->instance, graph, path));
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_destroy_graph(openreg_instance v, openreg_driver_graph graph)
{
    static const char slot[] = "destroy_graph";
    openreg_handle *entry = NULL;
    openreg_status status;
    OPENREG_RETURN_NOT_OK(openreg_handle_begin_destroy(v, slot, OPENREG_MADE_BY_GRAPH_END, graph, &entry));
    OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->destroy_graph(v->instance, graph));
    status = openreg_handle_end_destroy(v, status, graph, entry);
    forget_ranges(v);
    return status;
}

static openreg_status
validated_destroy_exec(openreg_instance v, openreg_driver_graph_exec exec)
{
    static const char slot[] = "destroy_exec";
    openreg_handle *entry = NULL;
    openreg_status status;
    OPENREG_RETURN_NOT_OK(openreg_handle_begin_destroy(v, slot, OPENREG_MADE_BY_INSTANTIATE, exec, &entry));
    OPENREG_VALIDATED_FUNCTION(status, v, slot, INNER(v)->destroy_exec(v->instance, exec));
    status = openreg_handle_end_destroy(v, status, exec, entry);
    forget_ranges(v);
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
        atomic_store(&v->inner_graph, inner);
    }
    openreg_lock_release(&v->lock);
    return &v->graph;
}
