/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_graph.c: captured graphs of the simulated devices (openreg/graph.h), and their defects (mutants.h). The slots around
 * those of the table record what is given to a captured stream; each stream of a capture counts its nodes, and knows how
 * many of each stream's are before its next one. */
#define _GNU_SOURCE
#include "mutant.h"

#include <stdlib.h>
#include <string.h>

#include <openreg/graph.h>

#define MOST 16 /* streams of a capture */
#define MOST_EVENTS 64

enum { COPY, FILL, FUNCTION };

typedef struct node {
    int kind, stream;
    void *dst;
    const void *src;
    int32_t dst_dev, src_dev;
    uint64_t size;
    uint8_t value;
    void (*function)(void *argument);
    void *argument;
    bool has_run;
} node;

typedef struct openreg_driver_graph_s {
    int users;
    int32_t dev;
    openreg_driver_stream began;
    size_t count;
    node *list;
} graph;

typedef struct openreg_driver_graph_exec_s {
    graph *nodes;
    openreg_driver_stream last;
    openreg_driver_event event;
    bool was_launched;
} exec;

typedef struct place {
    const void *of; /* a stream, or an event */
    uint32_t clock[MOST];
} place;

typedef struct capture {
    struct capture *next;
    graph *nodes;
    place streams[MOST], events[MOST_EVENTS]; /* the first stream began it */
    int stream_count, event_count;
    pthread_t thread;
    int32_t mode;
    bool is_invalid;
} capture;

static openreg_driver inner;                             /* what the slots here stand around */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static capture *captures;
static const void *recorded[256]; /* events that were recorded outside of captures */
static exec *delayed;             /* of graph_destroy_drops */
static openreg_driver_stream delayed_stream;

static place *
find(place *list, int count, const void *of)
{
    for (int i = 0; i < count; ++i)
        if (list[i].of == of)
            return &list[i];
    return NULL;
}

static capture *
capture_of(const void *stream, place **out)
{
    capture *c = captures;
    while (c != NULL && (*out = find(c->streams, c->stream_count, stream)) == NULL)
        c = c->next;
    return c;
}

static capture *
capture_of_event(const void *event, place **out)
{
    capture *c = captures;
    while (c != NULL && (*out = find(c->events, c->event_count, event)) == NULL)
        c = c->next;
    return c;
}

static openreg_status
refuse(openreg_instance instance, capture *c, const char *text)
{
    if (c != NULL && !IS(graph_refusal_valid))
        c->is_invalid = true;
    return openreg_fail(instance->host, OPENREG_E_CAPTURE, 0, "%s", text);
}

static void
release(graph *g)
{
    if (--g->users > 0 || IS(graph_leaks))
        return;
    free(g->list);
    free(g);
}

static void
drop(capture *c)
{
    capture **at = &captures;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    release(c->nodes);
    free(c);
}

/* --------------------------------------------------------------------------------------------------------- launches */

static openreg_status
run(openreg_instance instance, node *n, int32_t dev, openreg_driver_stream stream)
{
    const bool again = n->has_run;
    n->has_run = true;
    switch (n->kind) {
    case COPY:
        return inner.copy(instance, dev, stream, n->dst, n->dst_dev, n->src, n->src_dev, n->size);
    case FILL:
        return inner.fill(instance, dev, stream, n->dst, n->value, n->size);
    default:
        return again && IS(graph_func_once) ? OPENREG_OK
                                            : inner.host_func(instance, dev, stream, n->function, n->argument);
    }
}

static openreg_status
replay(openreg_instance instance, exec *e, int32_t dev, openreg_driver_stream stream)
{
    openreg_status status = OPENREG_OK;
    if (e->was_launched && e->last != stream && !IS(graph_launches_overlap))
        status = inner.stream_wait(instance, dev, stream, e->event);
    const size_t count = e->nodes->count;
    for (size_t i = 0; i < count && status == OPENREG_OK; ++i)
        status = run(instance, &e->nodes->list[IS(graph_reversed) ? count - 1 - i : i], dev, stream);
    e->last = stream;
    e->was_launched = true;
    return status == OPENREG_OK ? inner.event_record(instance, dev, stream, e->event) : status;
}

/* What a driver that queues late still has to do. */
static void
flush(openreg_instance instance)
{
    exec *const e = delayed;
    delayed = NULL;
    if (e != NULL)
        (void)replay(instance, e, e->nodes->dev, delayed_stream);
}

/* --------------------------------------------------------------------------------------------------- what is recorded */

/* 1: taken, and *status is the call's. */
static int
take(openreg_instance instance, openreg_driver_stream stream, node what, openreg_status *status)
{
    place *on = NULL;
    (void)pthread_mutex_lock(&lock);
    flush(instance);
    capture *const c = capture_of(stream, &on);
    if (c != NULL && c->is_invalid) {
        *status = refuse(instance, c, "the capture is invalid");
    } else if (c != NULL) {
        if (what.kind == COPY && what.src_dev < 0 && IS(graph_copies_contents))
            what.src = memcpy(malloc(what.size), what.src, what.size); /* never freed: the process ends */
        what.stream = (int)(on - c->streams);
        c->nodes->list = realloc(c->nodes->list, (c->nodes->count + 1) * sizeof what);
        c->nodes->list[c->nodes->count++] = what;
        ++on->clock[what.stream];
        *status = OPENREG_OK;
    }
    const bool runs = c != NULL && (IS(graph_runs_at_once) || (what.kind == FUNCTION && IS(graph_func_at_capture)));
    (void)pthread_mutex_unlock(&lock);
    return c != NULL && !runs;
}

static openreg_status
graph_copy(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
           const void *src, int32_t src_dev, uint64_t size)
{
    openreg_status status;
    const node what = {.kind = COPY, .dst = dst, .dst_dev = dst_dev, .src = src, .src_dev = src_dev, .size = size};
    return size > 0 && take(instance, stream, what, &status)
               ? status
               : inner.copy(instance, dev, stream, dst, dst_dev, src, src_dev, size);
}

static openreg_status
graph_fill(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value,
           uint64_t size)
{
    openreg_status status;
    const node what = {.kind = FILL, .dst = dst, .value = value, .size = size};
    return size > 0 && take(instance, stream, what, &status) ? status
                                                             : inner.fill(instance, dev, stream, dst, value, size);
}

static openreg_status
graph_host_func(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void (*function)(void *argument),
                void *argument)
{
    openreg_status status;
    const node what = {.kind = FUNCTION, .function = function, .argument = argument};
    return take(instance, stream, what, &status) ? status : inner.host_func(instance, dev, stream, function, argument);
}

static openreg_status
graph_event_record(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    place *on = NULL, *at = NULL;
    (void)pthread_mutex_lock(&lock);
    flush(instance);
    capture *const c = capture_of(stream, &on), *const of = capture_of_event(event, &at);
    if (of != NULL && of != c)
        *at = of->events[--of->event_count];
    if (c == NULL) {
        for (int i = 0; i < 256 && recorded[i] != event; ++i)
            if (recorded[i] == NULL) {
                recorded[i] = event;
                break;
            }
    } else {
        at = of == c ? at : &c->events[c->event_count++ % MOST_EVENTS];
        at->of = event;
        memcpy(at->clock, on->clock, sizeof at->clock);
    }
    (void)pthread_mutex_unlock(&lock);
    return c == NULL ? inner.event_record(instance, dev, stream, event) : OPENREG_OK;
}

static bool
has_record(const void *event)
{
    for (int i = 0; i < 256; ++i)
        if (recorded[i] == event)
            return true;
    return false;
}

/* The lock is held; one of the two is there. */
static openreg_status
join(openreg_instance instance, capture *c, place *on, capture *from, const place *event, const void *stream,
     const void *event_handle)
{
    if (from == NULL)
        return !has_record(event_handle) || IS(graph_isolation_any) ? OPENREG_OK
                                                                    : refuse(instance, c, "an event from outside");
    if (c != NULL && c != from) {
        if (IS(graph_merge_any))
            return OPENREG_OK;
        (void)refuse(instance, from, "two captures can't be joined");
        c->is_invalid = from->is_invalid;
        return OPENREG_E_CAPTURE;
    }
    if (c == NULL) {
        on = &from->streams[from->stream_count++ % MOST];
        on->of = stream;
        memset(on->clock, 0, sizeof on->clock);
    }
    for (int i = 0; i < MOST; ++i)
        on->clock[i] = on->clock[i] > event->clock[i] ? on->clock[i] : event->clock[i];
    return OPENREG_OK;
}

static openreg_status
graph_stream_wait(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    place *on = NULL, *at = NULL;
    openreg_status status = OPENREG_OK;
    (void)pthread_mutex_lock(&lock);
    flush(instance);
    capture *const c = capture_of(stream, &on), *const from = capture_of_event(event, &at);
    const bool is_one = c != NULL || (from != NULL && !IS(graph_fork_apart));
    if (is_one)
        status = join(instance, c, on, from, at, stream, event);
    (void)pthread_mutex_unlock(&lock);
    return is_one ? status : inner.stream_wait(instance, dev, stream, event);
}

/* ---------------------------------------------------------------------------------------------------- what is refused */

/* The host asks about a stream, or an event. */
static openreg_status
judge(openreg_instance instance, const void *stream, const void *event, bool is_allowed)
{
    place *at = NULL;
    openreg_status status = OPENREG_OK;
    (void)pthread_mutex_lock(&lock);
    flush(instance);
    capture *const c = stream != NULL ? capture_of(stream, &at) : capture_of_event(event, &at);
    if (c != NULL && !is_allowed)
        status = refuse(instance, c, "a stream is captured");
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static openreg_status
graph_stream_query(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    const openreg_status status = stream != NULL ? judge(instance, stream, NULL, IS(graph_query_any)) : OPENREG_OK;
    return status == OPENREG_OK ? inner.stream_query(instance, dev, stream, done) : status;
}

static openreg_status
graph_stream_sync(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    const openreg_status status = stream != NULL ? judge(instance, stream, NULL, IS(graph_sync_any)) : OPENREG_OK;
    return status == OPENREG_OK ? inner.stream_sync(instance, dev, stream) : status;
}

static openreg_status
graph_event_query(openreg_instance instance, int32_t dev, openreg_driver_event event, int32_t *done)
{
    const openreg_status status = judge(instance, NULL, event, IS(graph_event_any));
    return status == OPENREG_OK ? inner.event_query(instance, dev, event, done) : status;
}

static openreg_status
graph_event_sync(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    const openreg_status status = judge(instance, NULL, event, IS(graph_event_any));
    return status == OPENREG_OK ? inner.event_sync(instance, dev, event) : status;
}

static openreg_status
graph_device_sync(openreg_instance instance, int32_t dev)
{
    openreg_status status = OPENREG_OK;
    (void)pthread_mutex_lock(&lock);
    flush(instance);
    for (capture *c = captures; c != NULL && !IS(graph_device_any); c = c->next)
        if (c->nodes->dev == dev)
            status = status == OPENREG_OK ? refuse(instance, c, "a stream of the device is captured") : status;
    (void)pthread_mutex_unlock(&lock);
    return status == OPENREG_OK ? inner.device_sync(instance, dev) : status;
}

static openreg_status
graph_mem_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    if (captures != NULL && IS(graph_no_memory))
        return openreg_fail(instance->host, OPENREG_E_CAPTURE, 0, "no memory during a capture");
    return inner.mem_alloc(instance, dev, info, out);
}

/* -------------------------------------------------------------------------------------------------- the extension */

static openreg_status
begin(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t mode)
{
    place *on = NULL;
    if (stream == NULL)
        return IS(graph_begin_default) ? OPENREG_OK : refuse(instance, NULL, "the default stream can't be captured");
    (void)pthread_mutex_lock(&lock);
    capture *const there = capture_of(stream, &on);
    if (there == NULL) {
        capture *const c = calloc(1, sizeof *c);
        *c = (capture){.next = captures, .stream_count = 1, .thread = pthread_self(), .mode = mode};
        c->nodes = calloc(1, sizeof *c->nodes);
        c->nodes->users = 1;
        c->nodes->dev = dev;
        c->nodes->began = stream;
        c->streams[0].of = stream;
        captures = c;
    }
    (void)pthread_mutex_unlock(&lock);
    return there == NULL || IS(graph_begin_twice)
               ? OPENREG_OK
               : openreg_fail(instance->host, OPENREG_E_CAPTURE, 0, "captured already");
}

static bool
is_joined(const capture *c)
{
    for (int i = 1; i < c->stream_count; ++i)
        if (c->streams[0].clock[i] < c->streams[i].clock[i])
            return IS(graph_unjoined_any);
    return true;
}

static openreg_status
end(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_graph *out)
{
    (void)dev;
    place *on = NULL;
    openreg_status status = OPENREG_OK;
    (void)pthread_mutex_lock(&lock);
    capture *const c = capture_of(stream, &on);
    if (c == NULL) {
        status = refuse(instance, NULL, "the stream is not captured");
    } else if (c->mode != OPENREG_CAPTURE_RELAXED && !pthread_equal(c->thread, pthread_self()) &&
               !IS(graph_thread_any)) {
        status = openreg_fail(instance->host, OPENREG_E_CAPTURE, 0, "another thread began the capture");
    } else if (on != c->streams || c->is_invalid || !is_joined(c)) {
        status = refuse(instance, c, "the capture is invalid");
        if (on == c->streams && !IS(graph_stuck))
            drop(c);
    } else {
        ++c->nodes->users;
        *out = c->nodes;
        drop(c);
    }
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static openreg_status
status_of(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *out)
{
    (void)instance, (void)dev;
    place *on = NULL;
    (void)pthread_mutex_lock(&lock);
    const capture *const c = capture_of(stream, &on);
    *out = c == NULL ? OPENREG_CAPTURE_NONE : c->is_invalid ? OPENREG_CAPTURE_INVALIDATED : OPENREG_CAPTURE_ACTIVE;
    (void)pthread_mutex_unlock(&lock);
    return OPENREG_OK;
}

static openreg_status
instantiate(openreg_instance instance, openreg_driver_graph g, uint32_t flags, openreg_driver_graph_exec *out)
{
    (void)flags;
    static graph *shared;
    if (g->count == 0 && IS(graph_empty_refused))
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "an empty graph");
    exec *const made = calloc(1, sizeof *made);
    const openreg_status status = inner.event_create(instance, g->dev, 0, &made->event);
    if (status != OPENREG_OK) {
        free(made);
        return status;
    }
    (void)pthread_mutex_lock(&lock);
    ++g->users;
    if (IS(graph_one_for_all)) {
        shared = shared == NULL ? g : shared;
        ++shared->users;
        g = shared;
    }
    made->nodes = g;
    (void)pthread_mutex_unlock(&lock);
    *out = made;
    return OPENREG_OK;
}

static openreg_status
launch(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_graph_exec e)
{
    openreg_status status = OPENREG_OK;
    (void)pthread_mutex_lock(&lock);
    flush(instance);
    if (IS(graph_own_stream))
        stream = e->nodes->began;
    if (IS(graph_destroy_drops)) {
        delayed = e;
        delayed_stream = stream;
    } else {
        status = replay(instance, e, dev, stream);
    }
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static openreg_status
update(openreg_instance instance, openreg_driver_graph_exec e, openreg_driver_graph g, int32_t *fits)
{
    (void)instance;
    (void)pthread_mutex_lock(&lock);
    bool same = e->nodes->count == g->count;
    for (size_t i = 0; same && i < g->count; ++i)
        same = e->nodes->list[i].kind == g->list[i].kind && e->nodes->list[i].stream == g->list[i].stream;
    *fits = same;
    if ((same && !IS(graph_update_ignored)) || IS(graph_update_any)) {
        ++g->users;
        release(e->nodes);
        e->nodes = g;
    }
    (void)pthread_mutex_unlock(&lock);
    return OPENREG_OK;
}

static openreg_status
destroy_graph(openreg_instance instance, openreg_driver_graph g)
{
    (void)instance;
    (void)pthread_mutex_lock(&lock);
    if (g != NULL)
        release(g);
    (void)pthread_mutex_unlock(&lock);
    return OPENREG_OK;
}

static openreg_status
destroy_exec(openreg_instance instance, openreg_driver_graph_exec e)
{
    if (e == NULL)
        return OPENREG_OK;
    (void)pthread_mutex_lock(&lock);
    delayed = delayed == e ? NULL : delayed;
    const int32_t dev = e->nodes->dev;
    release(e->nodes);
    (void)pthread_mutex_unlock(&lock);
    const openreg_status status = inner.event_destroy(instance, dev, e->event);
    free(e);
    return status;
}

const void *
mutant_graph(uint32_t version)
{
    static const openreg_graph_table table = {
        .struct_size = sizeof table,
        .version = OPENREG_GRAPH_VERSION,
        .begin = begin,
        .end = end,
        .status = status_of,
        .instantiate = instantiate,
        .launch = launch,
        .update = update,
        .destroy_graph = destroy_graph,
        .destroy_exec = destroy_exec,
    };
    return mutant_has_graphs() && version <= OPENREG_GRAPH_VERSION ? &table : NULL;
}

bool
mutant_has_graphs(void)
{
    return mutant_current == mutant_none ||
           (mutant_current >= mutant_graph_runs_at_once && mutant_current <= mutant_graph_leaks);
}

void
mutant_wrap_graphs(openreg_driver *table)
{
    if (!mutant_has_graphs())
        return;
    inner = *table;
    table->copy = graph_copy;
    table->fill = graph_fill;
    table->host_func = graph_host_func;
    table->event_record = graph_event_record;
    table->stream_wait = graph_stream_wait;
    table->stream_query = graph_stream_query;
    table->stream_sync = graph_stream_sync;
    table->event_query = graph_event_query;
    table->event_sync = graph_event_sync;
    table->device_sync = graph_device_sync;
    table->mem_alloc = graph_mem_alloc;
}
