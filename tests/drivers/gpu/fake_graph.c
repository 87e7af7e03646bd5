/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_graph.c: the fake vendor's captures and graphs (fake_gpu.h). A captured stream's tasks become nodes, in the order in
 * which they came; each stream of a capture counts its nodes, and knows how many of each stream's are before its next one,
 * which is how a fork that isn't joined is found. A launch queues the nodes on one stream. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STREAMS 16
#define MOST_EVENTS 64

typedef struct node {
    fake_task task;
    const char *addresses[2]; /* of its blocks, as the device names them */
    int stream;               /* number in the capture */
    uint32_t before[MOST_STREAMS];
} node;

typedef struct nodes {
    int users, device;
    size_t count, room;
    node *list;
} nodes;

typedef struct captured_stream {
    const fake_stream *stream;
    uint32_t clock[MOST_STREAMS]; /* nodes of each stream that are before its next one */
} captured_stream;

typedef struct captured_event {
    const fake_event *event;
    uint32_t clock[MOST_STREAMS];
} captured_event;

typedef struct capture {
    struct capture *next;
    nodes *nodes;
    int device, stream_count, event_count;
    captured_stream streams[MOST_STREAMS]; /* the first began it */
    captured_event events[MOST_EVENTS];
    pthread_t thread;
    openreg_gpu_capture_mode mode;
    bool is_invalid;
} capture;

typedef struct exec {
    nodes *nodes;
    fake_stream *last; /* of the latest launch */
    fake_event *event;
} exec;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all of it */
static capture *captures;

/* ------------------------------------------------------------------------------------------------------- captures */

static void
release_nodes(nodes *n)
{
    if (n == NULL || --n->users > 0)
        return;
    free(n->list);
    free(n);
}

static capture *
capture_of(const fake_stream *stream, int *number)
{
    for (capture *c = captures; c != NULL; c = c->next)
        for (int i = 0; i < c->stream_count; ++i)
            if (c->streams[i].stream == stream) {
                *number = i;
                return c;
            }
    return NULL;
}

static captured_event *
event_of(const fake_event *event, capture **of)
{
    for (capture *c = captures; c != NULL; c = c->next)
        for (int i = 0; i < c->event_count; ++i)
            if (c->events[i].event == event) {
                *of = c;
                return &c->events[i];
            }
    *of = NULL;
    return NULL;
}

static void
merge(uint32_t *to, const uint32_t *from)
{
    for (int i = 0; i < MOST_STREAMS; ++i)
        to[i] = to[i] > from[i] ? to[i] : from[i];
}

static void
end_capture(capture *c)
{
    capture **at = &captures;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    release_nodes(c->nodes);
    free(c);
}

static void
add_node(capture *c, int number, const fake_task *task)
{
    nodes *const n = c->nodes;
    if (n->count == n->room) {
        n->room = n->room == 0 ? 16 : 2 * n->room;
        n->list = realloc(n->list, n->room * sizeof *n->list);
    }
    node *const added = &n->list[n->count++];
    memset(added, 0, sizeof *added);
    added->task = *task;
    added->stream = number;
    memcpy(added->before, c->streams[number].clock, sizeof added->before);
    for (int i = 0; i < 2; ++i) {
        const fake_block *const block = task->blocks[i];
        const char *const at = i == 0 ? task->target : task->source;
        added->addresses[i] = block != NULL ? block->address + (at - block->alias) : NULL;
        added->task.blocks[i] = NULL;
    }
    ++c->streams[number].clock[number];
}

bool
fake_graph_take(fake_stream *stream, const fake_task *task)
{
    int number;
    (void)pthread_mutex_lock(&lock);
    capture *const c = capture_of(stream, &number);
    const bool is_node = task->kind == FAKE_COPY || task->kind == FAKE_FILL || task->kind == FAKE_HOST_FUNC;
    if (c != NULL && !is_node)
        c->is_invalid = true; /* collectives can't be captured here */
    if (c != NULL && !c->is_invalid)
        add_node(c, number, task);
    (void)pthread_mutex_unlock(&lock);
    if (c == NULL)
        return false;
    for (int i = 0; i < 2; ++i)
        if (task->blocks[i] != NULL)
            fake_block_release(task->blocks[i]);
    if (task->release != NULL)
        task->release(task->argument);
    free(task->owned);
    return true;
}

fake_code
fake_graph_state(const fake_stream *stream)
{
    int number;
    (void)pthread_mutex_lock(&lock);
    const capture *const c = capture_of(stream, &number);
    const bool is_invalid = c != NULL && c->is_invalid;
    (void)pthread_mutex_unlock(&lock);
    return is_invalid ? GPU(ErrorStreamCaptureInvalidated) : GPU(Success);
}

fake_code
fake_graph_host_waits(const fake_stream *stream, int dev)
{
    fake_code code = GPU(Success);
    (void)pthread_mutex_lock(&lock);
    for (capture *c = captures; c != NULL; c = c->next)
        for (int i = 0; i < c->stream_count; ++i)
            if (stream != NULL ? c->streams[i].stream == stream : c->device == dev) {
                c->is_invalid = true;
                code = GPU(ErrorStreamCaptureUnsupported);
            }
    (void)pthread_mutex_unlock(&lock);
    return code;
}

fake_code
fake_graph_host_asks(const fake_event *event)
{
    capture *c;
    (void)pthread_mutex_lock(&lock);
    if (event_of(event, &c) != NULL)
        c->is_invalid = true;
    (void)pthread_mutex_unlock(&lock);
    return c != NULL ? GPU(ErrorCapturedEvent) : GPU(Success);
}

bool
fake_graph_forbids(void)
{
    bool is_forbidden = false;
    (void)pthread_mutex_lock(&lock);
    for (capture *c = captures; c != NULL; c = c->next)
        if (c->mode == GPU(StreamCaptureModeGlobal) ||
            (c->mode == GPU(StreamCaptureModeThreadLocal) && pthread_equal(c->thread, pthread_self())))
            is_forbidden = c->is_invalid = true;
    (void)pthread_mutex_unlock(&lock);
    return is_forbidden;
}

/* The lock is held. */
static fake_code
record(capture *c, int number, fake_event *event)
{
    if (c->is_invalid)
        return GPU(ErrorStreamCaptureInvalidated);
    capture *of;
    captured_event *at = event_of(event, &of);
    if (at != NULL && of != c) {
        *at = of->events[--of->event_count];
        at = NULL;
    }
    if (at == NULL && c->event_count == MOST_EVENTS) {
        c->is_invalid = true;
        return GPU(ErrorStreamCaptureUnsupported);
    }
    if (at == NULL)
        at = &c->events[c->event_count++];
    at->event = event;
    memcpy(at->clock, c->streams[number].clock, sizeof at->clock);
    return GPU(Success);
}

bool
fake_graph_records(const fake_stream *stream, fake_event *event, fake_code *code)
{
    int number;
    capture *of;
    (void)pthread_mutex_lock(&lock);
    capture *const c = capture_of(stream, &number);
    if (c != NULL) {
        *code = record(c, number, event);
    } else {
        captured_event *const at = event_of(event, &of);
        if (at != NULL)
            *at = of->events[--of->event_count];
    }
    (void)pthread_mutex_unlock(&lock);
    return c != NULL;
}

/* The lock is held. */
static fake_code
wait(capture *c, int number, capture *from, const captured_event *event, const fake_stream *stream)
{
    if ((c != NULL && c->is_invalid) || (from != NULL && from->is_invalid))
        return GPU(ErrorStreamCaptureInvalidated);
    if (from == NULL || (c != NULL && c != from)) {
        c->is_invalid = true;
        if (from != NULL)
            from->is_invalid = true;
        return from == NULL ? GPU(ErrorStreamCaptureIsolation) : GPU(ErrorStreamCaptureMerge);
    }
    if (c == NULL) {
        if (from->stream_count == MOST_STREAMS) {
            from->is_invalid = true;
            return GPU(ErrorStreamCaptureUnsupported);
        }
        number = from->stream_count++;
        from->streams[number] = (captured_stream){.stream = stream};
    }
    merge(from->streams[number].clock, event->clock);
    return GPU(Success);
}

bool
fake_graph_waits(fake_stream *stream, const fake_event *event, bool has_record, fake_code *code)
{
    int number = 0;
    capture *from;
    (void)pthread_mutex_lock(&lock);
    capture *const c = capture_of(stream, &number);
    const captured_event *const at = event_of(event, &from);
    const bool is_one = c != NULL || from != NULL;
    *code = GPU(Success);
    if (from != NULL || (c != NULL && has_record))
        *code = wait(c, number, from, at, stream);
    (void)pthread_mutex_unlock(&lock);
    return is_one;
}

void
fake_graphs_reset(void)
{
    (void)pthread_mutex_lock(&lock);
    while (captures != NULL)
        end_capture(captures);
    (void)pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------------------ the vendor's functions */

fake_code
GPU(StreamBeginCapture)(GPU(Stream_t) handle, openreg_gpu_capture_mode mode)
{
    int dev, number;
    fake_code code = fake_begin_work("StreamBeginCapture", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    const fake_stream *const stream = fake_stream_of(handle, dev);
    if (stream == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    if (handle == NULL)
        return fake_end(GPU(ErrorStreamCaptureUnsupported));
    capture *const begun = calloc(1, sizeof *begun);
    begun->nodes = calloc(1, sizeof *begun->nodes);
    begun->nodes->users = 1;
    begun->nodes->device = begun->device = dev;
    begun->streams[0].stream = stream;
    begun->stream_count = 1;
    begun->thread = pthread_self();
    begun->mode = mode;
    (void)pthread_mutex_lock(&lock);
    if (capture_of(stream, &number) != NULL)
        code = GPU(ErrorIllegalState);
    begun->next = captures;
    captures = begun;
    if (code != GPU(Success))
        end_capture(begun);
    (void)pthread_mutex_unlock(&lock);
    return fake_end(code);
}

/* The lock is held. */
static fake_code
judge_end(const capture *c)
{
    if (c->is_invalid)
        return GPU(ErrorStreamCaptureInvalidated);
    for (int i = 1; i < c->stream_count; ++i)
        if (c->streams[0].clock[i] < c->streams[i].clock[i])
            return GPU(ErrorStreamCaptureUnjoined);
    return GPU(Success);
}

fake_code
GPU(StreamEndCapture)(GPU(Stream_t) handle, GPU(Graph_t) * out)
{
    int dev, number;
    fake_code code = fake_begin_work("StreamEndCapture", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    const fake_stream *const stream = fake_stream_of(handle, dev);
    if (stream == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    *out = NULL;
    (void)pthread_mutex_lock(&lock);
    capture *const c = capture_of(stream, &number);
    if (c == NULL) {
        code = GPU(ErrorIllegalState);
    } else if (c->mode != GPU(StreamCaptureModeRelaxed) && !pthread_equal(c->thread, pthread_self())) {
        code = GPU(ErrorStreamCaptureWrongThread);
    } else if (number != 0) {
        c->is_invalid = true;
        code = GPU(ErrorStreamCaptureUnmatched);
    } else {
        code = judge_end(c);
        if (code == GPU(Success)) {
            ++c->nodes->users;
            *out = (GPU(Graph_t))(void *)c->nodes;
        }
        end_capture(c);
    }
    (void)pthread_mutex_unlock(&lock);
    return fake_end(code);
}

fake_code
GPU(StreamIsCapturing)(GPU(Stream_t) handle, openreg_gpu_capture_status *out)
{
    int dev, number;
    const fake_code code = fake_begin_work("StreamIsCapturing", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    const fake_stream *const stream = fake_stream_of(handle, dev);
    if (stream == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    (void)pthread_mutex_lock(&lock);
    const capture *const c = capture_of(stream, &number);
    *out = c == NULL       ? GPU(StreamCaptureStatusNone)
           : c->is_invalid ? GPU(StreamCaptureStatusInvalidated)
                           : GPU(StreamCaptureStatusActive);
    (void)pthread_mutex_unlock(&lock);
    return fake_end(code);
}

fake_code
GPU(GraphInstantiateWithFlags)(GPU(GraphExec_t) * out, GPU(Graph_t) graph, unsigned long long flags)
{
    int dev;
    const fake_code code = fake_begin_work("GraphInstantiateWithFlags", &dev);
    (void)flags;
    if (code != GPU(Success))
        return fake_end(code);
    exec *const made = calloc(1, sizeof *made);
    made->nodes = (nodes *)(void *)graph;
    made->event = fake_event_hidden(dev);
    (void)pthread_mutex_lock(&lock);
    ++made->nodes->users;
    (void)pthread_mutex_unlock(&lock);
    *out = (GPU(GraphExec_t))(void *)made;
    return fake_end(code);
}

static void
submit_again(const node *from, fake_stream *stream)
{
    fake_task task = from->task;
    for (int i = 0; i < 2; ++i)
        if (from->addresses[i] != NULL && (task.blocks[i] = fake_block_use(from->addresses[i], task.size)) == NULL) {
            (void)atomic_fetch_add(&fake_violations, 1); /* it was freed */
            if (i == 1 && task.blocks[0] != NULL)
                fake_block_release(task.blocks[0]);
            return;
        }
    fake_stream_submit(stream, &task);
}

fake_code
GPU(GraphLaunch)(GPU(GraphExec_t) handle, GPU(Stream_t) stream_handle)
{
    int dev;
    const fake_code code = fake_begin_work("GraphLaunch", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    exec *const launched = (exec *)(void *)handle;
    fake_stream *const stream = fake_stream_of(stream_handle, dev);
    if (stream == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    if (fake_graph_state(stream) != GPU(Success))
        return fake_end(fake_graph_state(stream));
    if (launched->last != NULL && launched->last != stream) /* launches run one after the other */
        fake_event_wait(launched->event, stream);
    for (size_t i = 0; i < launched->nodes->count; ++i)
        submit_again(&launched->nodes->list[i], stream);
    launched->last = stream;
    fake_event_record(launched->event, stream);
    return fake_end(code);
}

static bool
matches(const nodes *a, const nodes *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; ++i)
        if (a->list[i].task.kind != b->list[i].task.kind || a->list[i].stream != b->list[i].stream ||
            memcmp(a->list[i].before, b->list[i].before, sizeof a->list[i].before) != 0)
            return false;
    return true;
}

static fake_code
update(GPU(GraphExec_t) handle, GPU(Graph_t) graph)
{
    int dev;
    const fake_code code = fake_begin_work("GraphExecUpdate", &dev);
    exec *const updated = (exec *)(void *)handle;
    nodes *const new = (nodes *)(void *)graph;
    if (code != GPU(Success))
        return fake_end(code);
    if (!matches(updated->nodes, new))
        return fake_end(GPU(ErrorGraphExecUpdateFailure));
    (void)pthread_mutex_lock(&lock);
    ++new->users;
    release_nodes(updated->nodes);
    updated->nodes = new;
    (void)pthread_mutex_unlock(&lock);
    return fake_end(code);
}

#if !defined(OPENREG_GPU_HIP)
fake_code
cudaGraphExecUpdate(cudaGraphExec_t handle, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *out)
{
    memset(out, 0, sizeof *out);
    return update(handle, graph);
}

fake_code
cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags)
{
    const nodes *const printed = (const nodes *)(void *)graph;
    fake_code code = fake_begin("GraphDebugDotPrint");
    (void)flags;
    FILE *const file = code == GPU(Success) ? fopen(path, "w") : NULL;
    if (file == NULL)
        return fake_end(code == GPU(Success) ? GPU(ErrorInvalidValue) : code);
    (void)fprintf(file, "digraph dot {\n");
    for (size_t i = 0; i < printed->count; ++i)
        (void)fprintf(file, "n%zu [label=\"%d\"];\n", i, (int)printed->list[i].task.kind);
    (void)fprintf(file, "}\n");
    (void)fclose(file);
    return fake_end(code);
}
#else
fake_code
hipGraphExecUpdate(hipGraphExec_t handle, hipGraph_t graph, hipGraphNode_t *node_out, hipGraphExecUpdateResult *out)
{
    *node_out = NULL;
    const fake_code code = update(handle, graph);
    *out = code == hipSuccess ? hipGraphExecUpdateSuccess : hipGraphExecUpdateErrorTopologyChanged;
    return code;
}
#endif

fake_code
GPU(GraphDestroy)(GPU(Graph_t) graph)
{
    int dev;
    const fake_code code = fake_begin_work("GraphDestroy", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    (void)pthread_mutex_lock(&lock);
    release_nodes((nodes *)(void *)graph);
    (void)pthread_mutex_unlock(&lock);
    return fake_end(code);
}

fake_code
GPU(GraphExecDestroy)(GPU(GraphExec_t) handle)
{
    int dev;
    const fake_code code = fake_begin_work("GraphExecDestroy", &dev);
    exec *const destroyed = (exec *)(void *)handle;
    if (code != GPU(Success))
        return fake_end(code);
    (void)pthread_mutex_lock(&lock);
    release_nodes(destroyed->nodes);
    (void)pthread_mutex_unlock(&lock);
    fake_event_release(destroyed->event);
    free(destroyed);
    return fake_end(code);
}
