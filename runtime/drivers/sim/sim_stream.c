/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_stream.c: streams of the simulated devices: each has a queue, and a thread that runs it in order and starts with the
 * first task that isn't a wait. */
#define _GNU_SOURCE
#include "sim_schedule.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PARKED 16 /* or a stream that nobody waits for would keep all that it was given to wait for */

static uint64_t
queued_of(openreg_driver_stream stream)
{
    return atomic_load_explicit(&stream->queued, memory_order_acquire);
}

bool
openreg_sim_stream_passed(openreg_driver_stream stream, uint64_t position)
{
    return atomic_load_explicit(&stream->completed, memory_order_acquire) >= position;
}

openreg_driver_stream
openreg_sim_stream_of(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    return stream != NULL ? stream : instance->devices[dev].default_stream;
}

/* -------------------------------------------------------------------------------------------------------- the queue */

/* Room for one more task behind the last. False: no memory. The stream's lock is held. */
static bool
reserve_slot(openreg_driver_stream stream)
{
    if (stream->last != NULL && stream->tail < OPENREG_SIM_CHUNK_TASKS)
        return true;
    openreg_sim_chunk *chunk = stream->spare != NULL ? stream->spare : malloc(sizeof *chunk);
    if (chunk == NULL)
        return false;
    stream->spare = NULL;
    chunk->next = NULL;
    if (stream->last != NULL) {
        stream->last->next = chunk;
    } else {
        stream->first = chunk;
        stream->head = 0;
    }
    stream->last = chunk;
    stream->tail = 0;
    return true;
}

/* There is one. At most one used chunk is kept for the next tasks; the rest of a long queue's memory is freed. */
openreg_sim_task
openreg_sim_stream_pop(openreg_driver_stream stream)
{
    openreg_sim_chunk *chunk = stream->first;
    const openreg_sim_task task = chunk->tasks[stream->head++];
    stream->task_count--;
    if (stream->task_count == 0 || stream->head == OPENREG_SIM_CHUNK_TASKS) {
        stream->first = chunk->next;
        stream->head = 0;
        if (stream->first == NULL)
            stream->last = NULL;
        if (stream->spare == NULL)
            stream->spare = chunk;
        else
            free(chunk);
    }
    return task;
}

openreg_status
openreg_sim_stream_push(openreg_driver_stream stream, const openreg_sim_task *task)
{
    if (!reserve_slot(stream))
        return openreg_fail(stream->device->instance->host, OPENREG_E_NOMEM, 0,
                            "no host memory for the queue of a stream of device %d", stream->device->ordinal);
    stream->last->tasks[stream->tail++] = *task;
    stream->task_count++;
    (void)atomic_fetch_add_explicit(&stream->queued, 1, memory_order_release);
    return OPENREG_OK;
}

/* Whether a seed chooses when the stream's work runs. */
static bool
is_scheduled(openreg_driver_stream stream)
{
    return stream->device->instance->schedule != NULL;
}

/* ------------------------------------------------------------------------------------------------------- lifetime */

void
openreg_sim_stream_reference(openreg_driver_stream stream)
{
    (void)atomic_fetch_add_explicit(&stream->references, 1, memory_order_relaxed);
}

/* Takes a reference, unless the last one was dropped. The device's list lock is held. */
static bool
try_reference(openreg_driver_stream stream)
{
    int seen = atomic_load_explicit(&stream->references, memory_order_relaxed);
    while (seen > 0)
        if (atomic_compare_exchange_weak_explicit(&stream->references, &seen, seen + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

void
openreg_sim_stream_release(openreg_driver_stream stream)
{
    if (atomic_fetch_sub_explicit(&stream->references, 1, memory_order_acq_rel) != 1)
        return;
    openreg_sim_device *device = stream->device;
    (void)pthread_mutex_lock(&device->list_lock);
    if (stream->previous != NULL)
        stream->previous->next = stream->next;
    else
        device->streams = stream->next;
    if (stream->next != NULL)
        stream->next->previous = stream->previous;
    (void)pthread_mutex_unlock(&device->list_lock);
    (void)pthread_cond_destroy(&stream->progress);
    (void)pthread_cond_destroy(&stream->work);
    (void)pthread_mutex_destroy(&stream->lock);
    free(stream->spare);
    while (stream->first != NULL) {
        openreg_sim_chunk *chunk = stream->first;
        stream->first = chunk->next;
        free(chunk);
    }
    free(stream);
}

openreg_status
openreg_sim_stream_create(openreg_instance instance, int32_t dev, uint32_t flags, int32_t priority,
                          openreg_driver_stream *out)
{
    openreg_sim_device *device = &instance->devices[dev];
    (void)flags;
    openreg_driver_stream stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for a stream of device %d", dev);
    stream->device = device;
    stream->priority = priority;
    atomic_init(&stream->references, 1);
    (void)pthread_mutex_init(&stream->lock, NULL);
    (void)pthread_cond_init(&stream->work, NULL);
    (void)pthread_cond_init(&stream->progress, NULL);
    (void)pthread_mutex_lock(&device->list_lock);
    stream->next = device->streams;
    if (stream->next != NULL)
        stream->next->previous = stream;
    device->streams = stream;
    (void)pthread_mutex_unlock(&device->list_lock);
    openreg_sim_schedule_add(stream);
    atomic_store_explicit(&device->active, 1, memory_order_relaxed);
    *out = stream;
    return OPENREG_OK;
}

/* Lets the worker end its queue, and joins it. */
static void
stop_worker(openreg_driver_stream stream)
{
    if (atomic_load_explicit(&stream->is_parked, memory_order_relaxed))
        openreg_sim_stream_await(stream, queued_of(stream));
    (void)pthread_mutex_lock(&stream->lock);
    stream->stopping = true;
    const bool has_worker = stream->has_worker;
    stream->has_worker = false;
    (void)pthread_cond_signal(&stream->work);
    (void)pthread_mutex_unlock(&stream->lock);
    if (has_worker)
        (void)pthread_join(stream->worker, NULL);
}

openreg_status
openreg_sim_stream_destroy(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    (void)instance;
    (void)dev;
    if (stream != NULL) {
        if (is_scheduled(stream)) /* it has no worker that would end its queue */
            openreg_sim_stream_await(stream, queued_of(stream));
        stop_worker(stream);
        openreg_sim_stream_release(stream);
    }
    return OPENREG_OK;
}

void
openreg_sim_streams_destroy(openreg_sim_device *device)
{
    /* Only close() calls this: no other thread uses the instance or the list. Streams that the caller did not destroy
     * are freed too, or their workers would outlive the memory. */
    for (openreg_driver_stream stream = device->streams; stream != NULL; stream = stream->next)
        stop_worker(stream);
    while (device->streams != NULL) {
        openreg_driver_stream stream = device->streams;
        atomic_store_explicit(&stream->references, 1, memory_order_relaxed);
        openreg_sim_stream_release(stream);
    }
    device->default_stream = NULL;
}

/* ------------------------------------------------------------------------------------------------------- the worker */

void
openreg_sim_stream_run(const openreg_sim_task *task)
{
    switch (task->kind) {
    case OPENREG_SIM_COPY:
        memcpy(task->target, task->source, task->amount);
        break;
    case OPENREG_SIM_FILL:
    case OPENREG_SIM_POISON:
        memset(task->target, task->value, task->amount);
        break;
    case OPENREG_SIM_RECORD:
        atomic_store_explicit(&task->record->nanoseconds, openreg_sim_now(), memory_order_relaxed);
        openreg_sim_record_release(task->record);
        break;
    case OPENREG_SIM_WAIT:
        openreg_sim_stream_await(task->awaited, task->amount);
        openreg_sim_stream_release(task->awaited);
        break;
    case OPENREG_SIM_HOST_FUNC:
        task->function(task->target);
        break;
    }
}

/* A task has ended. The stream's lock is held. */
static void
complete(openreg_driver_stream stream)
{
    (void)atomic_fetch_add_explicit(&stream->completed, 1, memory_order_release);
    if (stream->task_count == 0)
        atomic_store_explicit(&stream->is_parked, false, memory_order_relaxed);
    if (stream->waiters > 0)
        (void)pthread_cond_broadcast(&stream->progress);
}

/* Runs a task without the stream's lock, which is held before and after, and completes it. */
static void
run_unlocked(openreg_driver_stream stream, const openreg_sim_task *task)
{
    (void)pthread_mutex_unlock(&stream->lock);
    openreg_sim_stream_run(task);
    (void)pthread_mutex_lock(&stream->lock);
    complete(stream);
}

static void *
worker_main(void *argument)
{
    openreg_driver_stream stream = argument;
    (void)pthread_mutex_lock(&stream->lock);
    for (;;) {
        while ((stream->task_count == 0 && !stream->stopping) || stream->inline_busy) {
            stream->worker_idle = true;
            (void)pthread_cond_wait(&stream->work, &stream->lock);
            stream->worker_idle = false;
        }
        if (stream->task_count == 0)
            break;
        atomic_store_explicit(&stream->is_parked, false, memory_order_relaxed);
        const openreg_sim_task task = openreg_sim_stream_pop(stream);
        run_unlocked(stream, &task);
    }
    (void)pthread_mutex_unlock(&stream->lock);
    return NULL;
}

int
openreg_sim_start_thread(pthread_t *thread, void *(*body)(void *argument), void *argument)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, body, argument);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* The stream's lock is held. */
static openreg_status
start_worker(openreg_driver_stream stream)
{
    const int error = openreg_sim_start_thread(&stream->worker, worker_main, stream);
    if (error != 0)
        return openreg_fail(stream->device->instance->host, OPENREG_E_NOMEM, error,
                            "no worker thread for a stream of device %d: %s", stream->device->ordinal, strerror(error));
    char name[16];
    (void)snprintf(name, sizeof name, "openreg-sim:%d", stream->device->ordinal);
    (void)pthread_setname_np(stream->worker, name);
    stream->has_worker = true;
    return OPENREG_OK;
}

/* The stream's lock is held. */
static openreg_status
submit_locked(openreg_driver_stream stream, const openreg_sim_task *task)
{
    const bool is_parked = task->kind == OPENREG_SIM_WAIT && stream->task_count < MOST_PARKED &&
                           (atomic_load_explicit(&stream->is_parked, memory_order_relaxed) ||
                            openreg_sim_stream_passed(stream, queued_of(stream)));
    if (!is_parked && !stream->has_worker)
        OPENREG_SIM_RETURN_NOT_OK(start_worker(stream));
    OPENREG_SIM_RETURN_NOT_OK(openreg_sim_stream_push(stream, task));
    atomic_store_explicit(&stream->is_parked, is_parked, memory_order_relaxed);
    if (!is_parked && stream->worker_idle)
        (void)pthread_cond_signal(&stream->work);
    return OPENREG_OK;
}

openreg_status
openreg_sim_stream_submit(openreg_driver_stream stream, const openreg_sim_task *task)
{
    if (is_scheduled(stream))
        return openreg_sim_schedule_submit(stream, task);
    (void)pthread_mutex_lock(&stream->lock);
    const openreg_status status = submit_locked(stream, task);
    (void)pthread_mutex_unlock(&stream->lock);
    return status;
}

/* Queues a timed record, with `submit`. */
static openreg_status
queue_record(openreg_driver_stream stream, openreg_sim_record *record,
             openreg_status (*submit)(openreg_driver_stream stream, const openreg_sim_task *task))
{
    const openreg_sim_task task = {.kind = OPENREG_SIM_RECORD, .record = record};
    (void)atomic_fetch_add_explicit(&record->references, 1, memory_order_relaxed);
    const openreg_status status = submit(stream, &task);
    if (status != OPENREG_OK)
        (void)atomic_fetch_sub_explicit(&record->references, 1, memory_order_relaxed);
    return status;
}

openreg_status
openreg_sim_stream_mark(openreg_driver_stream stream, openreg_sim_record *record, uint64_t *position)
{
    openreg_status status = OPENREG_OK;
    if (is_scheduled(stream)) {
        if (record != NULL) /* others take no place in the queue */
            OPENREG_SIM_RETURN_NOT_OK(queue_record(stream, record, openreg_sim_schedule_submit));
        *position = queued_of(stream);
        return OPENREG_OK;
    }
    (void)pthread_mutex_lock(&stream->lock);
    if (record != NULL && openreg_sim_stream_passed(stream, queued_of(stream)))
        /* Nothing is queued: the record is complete now, and needs no worker. */
        atomic_store_explicit(&record->nanoseconds, openreg_sim_now(), memory_order_relaxed);
    else if (record != NULL)
        status = queue_record(stream, record, submit_locked);
    if (status == OPENREG_OK)
        *position = queued_of(stream);
    (void)pthread_mutex_unlock(&stream->lock);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- waiting */

/* The same in a thread that isn't the worker, which waits. */
static void
run_inline(openreg_driver_stream stream, const openreg_sim_task *task)
{
    stream->inline_busy = true;
    run_unlocked(stream, task);
    stream->inline_busy = false;
    if (stream->task_count > 0 && !atomic_load_explicit(&stream->is_parked, memory_order_relaxed))
        (void)pthread_cond_signal(&stream->work);
}

/* Runs the first of the parked waits. The stream's lock is held before and after. */
static void
run_parked(openreg_driver_stream stream)
{
    const openreg_sim_task task = openreg_sim_stream_pop(stream);
    run_inline(stream, &task);
}

void
openreg_sim_stream_await(openreg_driver_stream stream, uint64_t position)
{
    if (is_scheduled(stream)) {
        openreg_sim_schedule_await(stream, position);
        return;
    }
    if (openreg_sim_stream_passed(stream, position))
        return;
    (void)pthread_mutex_lock(&stream->lock);
    stream->waiters++;
    while (!openreg_sim_stream_passed(stream, position)) {
        if (atomic_load_explicit(&stream->is_parked, memory_order_relaxed) && !stream->inline_busy)
            run_parked(stream);
        else
            (void)pthread_cond_wait(&stream->progress, &stream->lock);
    }
    stream->waiters--;
    (void)pthread_mutex_unlock(&stream->lock);
}

/* Whether the first task is a parked wait for work that is complete; then it is, too. */
static bool
end_parked_wait(openreg_driver_stream stream)
{
    (void)pthread_mutex_lock(&stream->lock);
    if (!atomic_load_explicit(&stream->is_parked, memory_order_relaxed) || stream->inline_busy) {
        (void)pthread_mutex_unlock(&stream->lock);
        return false;
    }
    const openreg_sim_task task = stream->first->tasks[stream->head];
    const uint64_t before = atomic_load_explicit(&stream->completed, memory_order_relaxed);
    openreg_sim_stream_reference(task.awaited);
    (void)pthread_mutex_unlock(&stream->lock); /* no lock of a stream is taken under another's */
    const bool has_passed = openreg_sim_stream_settled(task.awaited, task.amount);
    openreg_sim_stream_release(task.awaited);
    if (!has_passed)
        return false;
    (void)pthread_mutex_lock(&stream->lock);
    if (atomic_load_explicit(&stream->is_parked, memory_order_relaxed) && !stream->inline_busy &&
        atomic_load_explicit(&stream->completed, memory_order_relaxed) == before)
        run_parked(stream);
    (void)pthread_mutex_unlock(&stream->lock);
    return true;
}

bool
openreg_sim_stream_settled(openreg_driver_stream stream, uint64_t position)
{
    while (!openreg_sim_stream_passed(stream, position))
        if (!atomic_load_explicit(&stream->is_parked, memory_order_relaxed) || !end_parked_wait(stream))
            return false;
    return true;
}

void
openreg_sim_device_await(openreg_sim_device *device)
{
    /* A reference keeps the current stream in the list during the wait for its queue, without the lock. New streams are
     * added at the front, so the walk ends. */
    openreg_driver_stream held = NULL;
    (void)pthread_mutex_lock(&device->list_lock);
    openreg_driver_stream at = device->streams;
    for (;;) {
        while (at != NULL && (openreg_sim_stream_passed(at, queued_of(at)) || !try_reference(at)))
            at = at->next;
        (void)pthread_mutex_unlock(&device->list_lock);
        if (held != NULL)
            openreg_sim_stream_release(held);
        if (at == NULL)
            return;
        held = at;
        openreg_sim_stream_await(held, queued_of(held));
        (void)pthread_mutex_lock(&device->list_lock);
        at = held->next;
    }
}

void
openreg_sim_await_all(openreg_instance instance)
{
    for (int32_t i = 0; i < instance->device_count; i++)
        openreg_sim_device_await(&instance->devices[i]);
}

openreg_status
openreg_sim_stream_query(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    openreg_driver_stream own = openreg_sim_stream_of(instance, dev, stream);
    if (is_scheduled(own))
        openreg_sim_schedule_look(own);
    *done = openreg_sim_stream_settled(own, queued_of(own));
    return OPENREG_OK;
}

openreg_status
openreg_sim_stream_sync(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    openreg_driver_stream own = openreg_sim_stream_of(instance, dev, stream);
    openreg_sim_stream_await(own, queued_of(own));
    return OPENREG_OK;
}

openreg_status
openreg_sim_device_sync(openreg_instance instance, int32_t dev)
{
    openreg_sim_device_await(&instance->devices[dev]);
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------------------- work */

/* Runs a task at its place in the stream and returns when it has ended. On an idle stream the calling thread runs it
 * itself, and the worker, if there is one, waits. */
static openreg_status
submit_and_await(openreg_driver_stream stream, const openreg_sim_task *task)
{
    if (is_scheduled(stream)) {
        const openreg_status status = openreg_sim_stream_submit(stream, task);
        if (status == OPENREG_OK)
            openreg_sim_stream_await(stream, queued_of(stream));
        return status;
    }
    (void)pthread_mutex_lock(&stream->lock);
    if (!openreg_sim_stream_passed(stream, queued_of(stream))) {
        const openreg_status status = submit_locked(stream, task);
        const uint64_t position = queued_of(stream);
        (void)pthread_mutex_unlock(&stream->lock);
        if (status == OPENREG_OK)
            openreg_sim_stream_await(stream, position);
        return status;
    }
    (void)atomic_fetch_add_explicit(&stream->queued, 1, memory_order_release);
    run_inline(stream, task);
    (void)pthread_mutex_unlock(&stream->lock);
    return OPENREG_OK;
}

/* The host's address of one side of a copy. */
static uintptr_t
host_address(openreg_instance instance, const void *ptr, int32_t dev)
{
    return (uintptr_t)ptr + (dev < 0 ? 0 : (uintptr_t)instance->devices[dev].alias_distance);
}

openreg_status
openreg_sim_copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst,
                 int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size)
{
    openreg_driver_stream own = openreg_sim_stream_of(instance, stream_dev, stream);
    if (size == 0)
        return OPENREG_OK;
    openreg_sim_task task = {.kind = OPENREG_SIM_COPY, .amount = size};
    task.target = (void *)host_address(instance, dst, dst_dev);
    task.source = (const void *)host_address(instance, src, src_dev);
    /* Pageable host memory may be freed or changed as soon as the call returns, as with cudaMemcpyAsync. */
    if ((dst_dev < 0 && !openreg_sim_is_pinned(instance, dst, size)) ||
        (src_dev < 0 && !openreg_sim_is_pinned(instance, src, size)))
        return submit_and_await(own, &task);
    return openreg_sim_stream_submit(own, &task);
}

openreg_status
openreg_sim_fill(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value,
                 uint64_t size)
{
    if (size == 0)
        return OPENREG_OK;
    openreg_sim_task task = {.kind = OPENREG_SIM_FILL, .value = value, .amount = size};
    task.target = (void *)host_address(instance, dst, dev);
    return openreg_sim_stream_submit(openreg_sim_stream_of(instance, dev, stream), &task);
}

openreg_status
openreg_sim_host_func(openreg_instance instance, int32_t dev, openreg_driver_stream stream,
                      void (*function)(void *argument), void *argument)
{
    const openreg_sim_task task = {.kind = OPENREG_SIM_HOST_FUNC, .function = function, .target = argument};
    return openreg_sim_stream_submit(openreg_sim_stream_of(instance, dev, stream), &task);
}
