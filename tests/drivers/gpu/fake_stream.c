/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_stream.c: the fake vendor's streams (fake_gpu.h): one thread each, which works through a queue. A stream that
 * was not created as non-blocking has no queue of its own, but the legacy stream's: the two are in order, as the
 * vendor's implied synchronisation makes them.
 *
 * Host functions run one at a time, whatever their streams, as the vendor may run them. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOLD_LIMIT_MS 3000

struct fake_stream {
    fake_stream *next;
    fake_stream *runs_on; /* itself, or the legacy stream */
    int device;
    bool is_legacy;
    atomic_int is_held;
    pthread_t worker;

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    fake_task *first, **last;
    uint64_t submitted, completed;
    bool closing, destroyed, has_ended, is_joined;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static fake_stream *streams;                                  /* all, until reset, so that a dead handle is known */
atomic_int fake_live_streams;

static pthread_mutex_t host_func_lock = PTHREAD_MUTEX_INITIALIZER; /* held while one runs */
static _Thread_local bool is_in_host_func;

bool
fake_is_in_host_func(void)
{
    return is_in_host_func;
}

static void
run_host_func(const fake_task *task)
{
    (void)pthread_mutex_lock(&host_func_lock);
    is_in_host_func = true;
    task->function(task->argument);
    is_in_host_func = false;
    (void)pthread_mutex_unlock(&host_func_lock);
}

static void
wait_while_held(const fake_stream *stream)
{
    for (int i = 0; i < HOLD_LIMIT_MS && atomic_load(&stream->is_held) != 0; ++i)
        (void)usleep(1000);
}

static void
run(const fake_stream *stream, const fake_task *task)
{
    atomic_int *const sticky = &fake_devices[stream->device].sticky;
    const bool is_work = task->kind == FAKE_COPY || task->kind == FAKE_FILL || task->kind == FAKE_COLLECTIVE;
    if (is_work)
        wait_while_held(stream);
    if (is_work && fake_delay() > 0)
        (void)usleep((useconds_t)fake_delay());
    const int failure = is_work ? fake_task_failure() : 0;
    if (failure != 0)
        atomic_store(sticky, failure);
    if (is_work && atomic_load(sticky) == 0) {
        if (task->kind == FAKE_COPY)
            memcpy(task->target, task->source, task->size);
        else if (task->kind == FAKE_COLLECTIVE)
            task->function(task->argument);
        else
            memset(task->target, task->value, task->size);
    } else if (task->kind == FAKE_HOST_FUNC) {
        wait_while_held(stream);
        if (atomic_load(sticky) == 0) /* not after an error that ended the context */
            run_host_func(task);
    } else if (task->kind == FAKE_RECORD) {
        fake_event_pass(task->event, task->number);
    } else if (task->kind == FAKE_WAIT) {
        fake_event_await(task->event, task->number);
    }
}

static void
destroy_task(fake_task *task)
{
    for (int i = 0; i < 2; ++i)
        if (task->blocks[i] != NULL)
            fake_block_release(task->blocks[i]);
    if (task->event != NULL)
        fake_event_release(task->event);
    if (task->release != NULL)
        task->release(task->argument);
    free(task->owned);
    free(task);
}

static void *
work(void *argument)
{
    fake_stream *const stream = argument;
    (void)pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (stream->first == NULL && !stream->closing)
            (void)pthread_cond_wait(&stream->changed, &stream->lock);
        fake_task *const task = stream->first;
        if (task == NULL)
            break;
        stream->first = task->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        (void)pthread_mutex_unlock(&stream->lock);
        run(stream, task);
        destroy_task(task);
        (void)pthread_mutex_lock(&stream->lock);
        ++stream->completed;
        (void)pthread_cond_broadcast(&stream->changed);
    }
    stream->has_ended = true;
    (void)pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* Joins the threads of destroyed streams whose queues are empty. Under the list's lock. */
static void
join_ended(void)
{
    for (fake_stream *stream = streams; stream != NULL; stream = stream->next) {
        (void)pthread_mutex_lock(&stream->lock);
        const bool has_ended = stream->has_ended && !stream->is_joined;
        (void)pthread_mutex_unlock(&stream->lock);
        if (has_ended) {
            (void)pthread_join(stream->worker, NULL);
            stream->is_joined = true;
        }
    }
}

static fake_stream *
add_stream(int dev, bool is_legacy, fake_stream *runs_on)
{
    fake_stream *const stream = calloc(1, sizeof *stream);
    stream->device = dev;
    stream->is_legacy = is_legacy;
    stream->runs_on = runs_on != NULL ? runs_on : stream;
    stream->last = &stream->first;
    (void)pthread_mutex_init(&stream->lock, NULL);
    (void)pthread_cond_init(&stream->changed, NULL);
    join_ended();
    if (runs_on == NULL) {
        sigset_t all, before;
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        (void)pthread_create(&stream->worker, NULL, work, stream);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    stream->next = streams;
    streams = stream;
    return stream;
}

/* Under the list's lock. */
static fake_stream *
legacy_of(int dev)
{
    for (fake_stream *stream = streams; stream != NULL; stream = stream->next)
        if (stream->is_legacy && stream->device == dev)
            return stream;
    return add_stream(dev, true, NULL);
}

fake_stream *
fake_stream_of(GPU(Stream_t) handle, int dev)
{
    (void)pthread_mutex_lock(&list_lock);
    fake_stream *found = NULL;
    if (handle == NULL) {
        found = legacy_of(dev);
    } else {
        for (fake_stream *stream = streams; stream != NULL; stream = stream->next)
            if ((void *)stream == (void *)handle && stream->device == dev && !stream->destroyed)
                found = stream->runs_on;
    }
    (void)pthread_mutex_unlock(&list_lock);
    return found;
}

void
fake_stream_hold(int dev, const void *handle, int is_held)
{
    fake_stream *const stream = fake_stream_of((GPU(Stream_t))(uintptr_t)handle, dev);
    if (stream != NULL)
        atomic_store(&stream->is_held, is_held);
}

void
fake_stream_submit(fake_stream *stream, const fake_task *task)
{
    if (fake_graph_take(stream, task))
        return;
    fake_task *const queued = malloc(sizeof *queued);
    *queued = *task;
    queued->next = NULL;
    (void)pthread_mutex_lock(&stream->lock);
    *stream->last = queued;
    stream->last = &queued->next;
    ++stream->submitted;
    (void)pthread_cond_broadcast(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
}

void
fake_stream_await(fake_stream *stream)
{
    (void)pthread_mutex_lock(&stream->lock);
    const uint64_t target = stream->submitted;
    while (stream->completed < target)
        (void)pthread_cond_wait(&stream->changed, &stream->lock);
    (void)pthread_mutex_unlock(&stream->lock);
}

void
fake_device_await(int dev)
{
    (void)pthread_mutex_lock(&list_lock);
    fake_stream *stream = streams; /* streams stay in the list, and new ones come before it */
    (void)pthread_mutex_unlock(&list_lock);
    for (; stream != NULL; stream = stream->next)
        if (stream->device == dev)
            fake_stream_await(stream);
}

void
fake_streams_reset(void)
{
    (void)pthread_mutex_lock(&list_lock);
    fake_stream *all = streams;
    streams = NULL;
    (void)pthread_mutex_unlock(&list_lock);
    for (fake_stream *stream = all; stream != NULL; stream = stream->next)
        fake_stream_await(stream);
    while (all != NULL) {
        fake_stream *const stream = all;
        all = stream->next;
        (void)pthread_mutex_lock(&stream->lock);
        stream->closing = true;
        (void)pthread_cond_broadcast(&stream->changed);
        (void)pthread_mutex_unlock(&stream->lock);
        if (stream->runs_on == stream && !stream->is_joined)
            (void)pthread_join(stream->worker, NULL);
        (void)pthread_cond_destroy(&stream->changed);
        (void)pthread_mutex_destroy(&stream->lock);
        free(stream);
    }
    atomic_store(&fake_live_streams, 0);
}

/* ------------------------------------------------------------------------------------------ the vendor's functions */

fake_code
GPU(StreamCreateWithPriority)(GPU(Stream_t) * out, unsigned flags, int priority)
{
    int dev;
    const fake_code code = fake_begin_work("StreamCreateWithPriority", &dev);
    (void)priority; /* one outside the range is taken for the nearest */
    if (code != GPU(Success))
        return fake_end(code);
    (void)pthread_mutex_lock(&list_lock);
    fake_stream *const shared = (flags & GPU(StreamNonBlocking)) != 0 ? NULL : legacy_of(dev);
    *out = (GPU(Stream_t))(void *)add_stream(dev, false, shared);
    (void)pthread_mutex_unlock(&list_lock);
    (void)atomic_fetch_add(&fake_live_streams, 1);
    return fake_end(code);
}

fake_code
GPU(StreamDestroy)(GPU(Stream_t) handle)
{
    int dev;
    const fake_code code = fake_begin_work("StreamDestroy", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    if (handle == NULL || fake_stream_of(handle, dev) == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    (void)pthread_mutex_lock(&list_lock);
    fake_stream *const stream = (fake_stream *)(void *)handle;
    (void)pthread_mutex_lock(&stream->lock);
    stream->destroyed = true;
    stream->closing = true; /* its queue runs on, and then its thread ends */
    (void)pthread_cond_broadcast(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
    (void)pthread_mutex_unlock(&list_lock);
    (void)atomic_fetch_sub(&fake_live_streams, 1);
    return fake_end(code);
}

fake_code
GPU(StreamQuery)(GPU(Stream_t) handle)
{
    int dev;
    const fake_code code = fake_begin_wait("StreamQuery", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_stream *const stream = fake_stream_of(handle, dev);
    if (stream == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    const fake_code captured = fake_graph_host_waits(stream, dev);
    if (captured != GPU(Success))
        return fake_end(captured);
    (void)pthread_mutex_lock(&stream->lock);
    const bool done = stream->completed == stream->submitted;
    (void)pthread_mutex_unlock(&stream->lock);
    return fake_end(done ? (fake_code)atomic_load(&fake_devices[dev].sticky) : GPU(ErrorNotReady));
}

fake_code
GPU(StreamSynchronize)(GPU(Stream_t) handle)
{
    int dev;
    const fake_code code = fake_begin_wait("StreamSynchronize", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_stream *const stream = fake_stream_of(handle, dev);
    if (stream == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    const fake_code captured = fake_graph_host_waits(stream, dev);
    if (captured != GPU(Success))
        return fake_end(captured);
    fake_stream_await(stream);
    return fake_end((fake_code)atomic_load(&fake_devices[dev].sticky));
}

fake_code
GPU(LaunchHostFunc)(GPU(Stream_t) handle, GPU(HostFn_t) function, void *argument)
{
    int dev;
    const fake_code code = fake_begin_work("LaunchHostFunc", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_stream *const stream = fake_stream_of(handle, dev);
    if (stream == NULL || function == NULL)
        return fake_end(stream == NULL ? GPU(ErrorInvalidResourceHandle) : GPU(ErrorInvalidValue));
    if (fake_graph_state(stream) != GPU(Success))
        return fake_end(fake_graph_state(stream));
    fake_stream_submit(stream, &(fake_task){.kind = FAKE_HOST_FUNC, .function = function, .argument = argument});
    return fake_end(code);
}
