/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/software_streams.h: streams and events on the host, for a vendor with one queue or none. For drivers; defined in this
 * header only. Not stable: it is version 0, and may change in any release; a driver keeps the copy that it was built with. Valid
 * C11 and C++17, with POSIX threads. docs/writing-a-driver.md has the recipe.
 *
 * Each stream has a thread, made by its first work, that runs its work in order. Only there is the vendor called, so the vendor's
 * queue never holds a command that waits for another stream. Events are marks between works; a stream that waits for one stops its
 * own thread and no other.
 *
 * Work is done when its function returns: it waits for the vendor's queue if the host needs the result, as after a copy to host
 * memory, and need not if the queue's order is enough.
 *
 * The functions keep the rules of the slots of driver.h whose names they have, and report errors through `host`. A driver wraps
 * them: its handle of a stream is an openreg_soft_stream, and NULL one that it has made for the device. Any function may be
 * called from any thread; the threads block all signals. They don't exist in a child made by fork(). */
#ifndef OPENREG_SOFTWARE_STREAMS_H
#define OPENREG_SOFTWARE_STREAMS_H

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why work has failed. */
typedef struct openreg_soft_failure {
    int64_t vendor_code;
    char text[256];
} openreg_soft_failure;

/* Work of a stream, called once, in the stream's thread, without a lock. It frees what `argument` points to. On an error it
 * fills *failure and returns the code, which the next query or wait of the stream reports; later work still runs. */
typedef openreg_status (*openreg_soft_work)(void *argument, openreg_soft_failure *failure);

/* One record of an event. Ended by its stream, freed by its last user. */
typedef struct openreg_soft_mark {
    uint32_t users;
    int is_done;
    int64_t nanoseconds;   /* CLOCK_MONOTONIC when it was reached */
    openreg_status status; /* of the stream's work until then */
    openreg_soft_failure failure;
} openreg_soft_mark;

/* One of: work; a mark to end; a mark to wait for. */
typedef struct openreg_soft_item {
    struct openreg_soft_item *next;
    openreg_soft_work work;
    void *argument;
    openreg_soft_mark *mark;
} openreg_soft_item;

typedef struct openreg_soft_stream {
    struct openreg_soft_stream *next;
    int32_t device;
    int has_thread, is_destroyed, has_ended;
    pthread_t thread;
    pthread_cond_t queued_more;
    openreg_soft_item *first, **end;
    uint64_t queued, finished; /* items, ever */
    openreg_status status;     /* not reported yet */
    openreg_soft_failure failure;
    struct openreg_soft_streams *set;
} openreg_soft_stream;

/* All streams of an instance of the driver. */
typedef struct openreg_soft_streams {
    const openreg_host *host;
    pthread_mutex_t lock;
    pthread_cond_t progress; /* an item has finished */
    uint32_t waiting;        /* threads that wait for progress */
    openreg_soft_stream *streams;
} openreg_soft_streams;

typedef struct openreg_soft_event {
    int32_t device;
    uint32_t flags;          /* OPENREG_EVENT_TIMING */
    openreg_soft_mark *mark; /* the latest record, or NULL */
} openreg_soft_event;

/* ---- Inside; the set's lock is held ---- */

OPENREG_HELPER void
openreg_soft_await_progress(openreg_soft_streams *set)
{
    ++set->waiting;
    pthread_cond_wait(&set->progress, &set->lock);
    --set->waiting;
}

OPENREG_HELPER void
openreg_soft_release(openreg_soft_mark *mark)
{
    if (mark != NULL && --mark->users == 0)
        free(mark);
}

/* Runs an item of a stream; the lock is released while it works. */
OPENREG_HELPER void
openreg_soft_run(openreg_soft_stream *stream, openreg_soft_item *item)
{
    openreg_soft_streams *const set = stream->set;
    if (item->work != NULL) {
        openreg_soft_failure failure;
        failure.vendor_code = 0;
        failure.text[0] = '\0';
        pthread_mutex_unlock(&set->lock);
        const openreg_status status = item->work(item->argument, &failure);
        pthread_mutex_lock(&set->lock);
        if (status != OPENREG_OK && stream->status == OPENREG_OK) {
            stream->status = status;
            stream->failure = failure;
        }
    } else if (item->argument != NULL) { /* a mark of this stream */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        item->mark->nanoseconds = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
        item->mark->status = stream->status;
        item->mark->failure = stream->failure;
        item->mark->is_done = 1;
    } else {
        while (!item->mark->is_done)
            openreg_soft_await_progress(set);
    }
    openreg_soft_release(item->mark);
    free(item);
    ++stream->finished;
    if (set->waiting > 0)
        pthread_cond_broadcast(&set->progress);
}

OPENREG_HELPER void *
openreg_soft_thread(void *argument)
{
    openreg_soft_stream *const stream = (openreg_soft_stream *)argument;
    openreg_soft_streams *const set = stream->set;
    pthread_mutex_lock(&set->lock);
    for (;;) {
        openreg_soft_item *const item = stream->first;
        if (item != NULL) {
            stream->first = item->next;
            if (stream->first == NULL)
                stream->end = &stream->first;
            openreg_soft_run(stream, item);
        } else if (stream->is_destroyed) {
            break;
        } else {
            pthread_cond_wait(&stream->queued_more, &set->lock);
        }
    }
    stream->has_ended = 1;
    pthread_mutex_unlock(&set->lock);
    return NULL;
}

OPENREG_HELPER int
openreg_soft_start(openreg_soft_stream *stream)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    stream->has_thread = pthread_create(&stream->thread, NULL, openreg_soft_thread, stream) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return stream->has_thread;
}

/* Frees destroyed streams whose threads have ended; `whole` waits for those that haven't. */
OPENREG_HELPER void
openreg_soft_reap(openreg_soft_streams *set, int whole)
{
    openreg_soft_stream **link = &set->streams;
    while (*link != NULL) {
        openreg_soft_stream *const stream = *link;
        if (!stream->is_destroyed || (stream->has_thread && !stream->has_ended && !whole)) {
            link = &stream->next;
            continue;
        }
        *link = stream->next;
        pthread_mutex_unlock(&set->lock);
        if (stream->has_thread)
            pthread_join(stream->thread, NULL);
        pthread_cond_destroy(&stream->queued_more);
        free(stream);
        pthread_mutex_lock(&set->lock);
        link = &set->streams; /* it may have changed */
    }
}

OPENREG_HELPER openreg_status
openreg_soft_queue(openreg_soft_streams *set, openreg_soft_stream *stream, openreg_soft_work work, void *argument,
                   openreg_soft_mark *mark)
{
    openreg_soft_item *const item = (openreg_soft_item *)calloc(1, sizeof *item);
    if (item == NULL || (!stream->has_thread && !openreg_soft_start(stream))) {
        free(item);
        return openreg_fail(set->host, OPENREG_E_NOMEM, 0, "no memory for a stream's work, or no thread");
    }
    item->work = work;
    item->argument = argument;
    item->mark = mark;
    if (mark != NULL)
        ++mark->users;
    *stream->end = item;
    stream->end = &item->next;
    ++stream->queued;
    pthread_cond_signal(&stream->queued_more);
    return OPENREG_OK;
}

/* Reports and forgets the stream's error. */
OPENREG_HELPER openreg_status
openreg_soft_report(openreg_soft_streams *set, openreg_soft_stream *stream)
{
    const openreg_status status = stream->status;
    stream->status = OPENREG_OK;
    return status == OPENREG_OK
               ? status
               : openreg_fail(set->host, status, stream->failure.vendor_code, "%s", stream->failure.text);
}

/* ---- Streams ---- */

/* Makes an empty set. On an error there is nothing to close. */
OPENREG_HELPER openreg_status
openreg_soft_streams_open(openreg_soft_streams *set, const openreg_host *host)
{
    set->host = host;
    set->waiting = 0;
    set->streams = NULL;
    if (pthread_mutex_init(&set->lock, NULL) != 0)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no memory for streams");
    if (pthread_cond_init(&set->progress, NULL) == 0)
        return OPENREG_OK;
    pthread_mutex_destroy(&set->lock);
    return openreg_fail(host, OPENREG_E_NOMEM, 0, "no memory for streams");
}

/* Destroys all streams, also those that were not destroyed, after their queued work; no other call is in flight. */
OPENREG_HELPER void
openreg_soft_streams_close(openreg_soft_streams *set)
{
    pthread_mutex_lock(&set->lock);
    for (openreg_soft_stream *stream = set->streams; stream != NULL; stream = stream->next) {
        stream->is_destroyed = 1;
        pthread_cond_signal(&stream->queued_more);
    }
    openreg_soft_reap(set, 1);
    pthread_mutex_unlock(&set->lock);
    pthread_cond_destroy(&set->progress);
    pthread_mutex_destroy(&set->lock);
}

OPENREG_HELPER openreg_status
openreg_soft_stream_create(openreg_soft_streams *set, int32_t device, openreg_soft_stream **out)
{
    openreg_soft_stream *const stream = (openreg_soft_stream *)calloc(1, sizeof *stream);
    if (stream == NULL || pthread_cond_init(&stream->queued_more, NULL) != 0) {
        free(stream);
        return openreg_fail(set->host, OPENREG_E_NOMEM, 0, "no memory for a stream");
    }
    stream->device = device;
    stream->end = &stream->first;
    stream->set = set;
    pthread_mutex_lock(&set->lock);
    openreg_soft_reap(set, 0);
    stream->next = set->streams;
    set->streams = stream;
    pthread_mutex_unlock(&set->lock);
    *out = stream;
    return OPENREG_OK;
}

/* NULL is accepted. Queued work still runs. */
OPENREG_HELPER void
openreg_soft_stream_destroy(openreg_soft_streams *set, openreg_soft_stream *stream)
{
    if (stream == NULL)
        return;
    pthread_mutex_lock(&set->lock);
    stream->is_destroyed = 1;
    pthread_cond_signal(&stream->queued_more);
    openreg_soft_reap(set, 0);
    pthread_mutex_unlock(&set->lock);
}

/* Queues work. On an error it was not queued, and `argument` is still the caller's. */
OPENREG_HELPER openreg_status
openreg_soft_push(openreg_soft_streams *set, openreg_soft_stream *stream, openreg_soft_work work, void *argument)
{
    pthread_mutex_lock(&set->lock);
    const openreg_status status = openreg_soft_queue(set, stream, work, argument, NULL);
    pthread_mutex_unlock(&set->lock);
    return status;
}

OPENREG_HELPER openreg_status
openreg_soft_stream_query(openreg_soft_streams *set, openreg_soft_stream *stream, int32_t *done)
{
    pthread_mutex_lock(&set->lock);
    const int is_done = stream->finished == stream->queued;
    const openreg_status status = openreg_soft_report(set, stream);
    pthread_mutex_unlock(&set->lock);
    if (status == OPENREG_OK)
        *done = is_done;
    return status;
}

OPENREG_HELPER openreg_status
openreg_soft_stream_sync(openreg_soft_streams *set, openreg_soft_stream *stream)
{
    pthread_mutex_lock(&set->lock);
    const uint64_t last = stream->queued;
    while (stream->finished < last)
        openreg_soft_await_progress(set);
    const openreg_status status = openreg_soft_report(set, stream);
    pthread_mutex_unlock(&set->lock);
    return status;
}

/* Whether a stream of the device, or of any with -1, has unfinished work. The lock is held. */
OPENREG_HELPER int
openreg_soft_is_busy(const openreg_soft_streams *set, int32_t device)
{
    for (const openreg_soft_stream *stream = set->streams; stream != NULL; stream = stream->next)
        if ((device < 0 || stream->device == device) && stream->finished != stream->queued)
            return 1;
    return 0;
}

/* Waits until no stream of the device, destroyed ones too, has work, and reports the first error. Not for mem_free(), which would
 * take that error from the caller who waits for it: count a buffer's users instead (openreg_handle_find()). */
OPENREG_HELPER openreg_status
openreg_soft_device_sync(openreg_soft_streams *set, int32_t device)
{
    openreg_status status = OPENREG_OK;
    pthread_mutex_lock(&set->lock);
    while (openreg_soft_is_busy(set, device))
        openreg_soft_await_progress(set);
    for (openreg_soft_stream *stream = set->streams; stream != NULL && status == OPENREG_OK; stream = stream->next)
        if (stream->device == device)
            status = openreg_soft_report(set, stream);
    pthread_mutex_unlock(&set->lock);
    return status;
}

/* ---- Events ---- */

OPENREG_HELPER openreg_status
openreg_soft_event_create(openreg_soft_streams *set, int32_t device, uint32_t flags, openreg_soft_event **out)
{
    openreg_soft_event *const event = (openreg_soft_event *)calloc(1, sizeof *event);
    if (event == NULL)
        return openreg_fail(set->host, OPENREG_E_NOMEM, 0, "no memory for an event");
    event->device = device;
    event->flags = flags;
    *out = event;
    return OPENREG_OK;
}

/* NULL is accepted. */
OPENREG_HELPER void
openreg_soft_event_destroy(openreg_soft_streams *set, openreg_soft_event *event)
{
    if (event == NULL)
        return;
    pthread_mutex_lock(&set->lock);
    openreg_soft_release(event->mark);
    pthread_mutex_unlock(&set->lock);
    free(event);
}

OPENREG_HELPER openreg_status
openreg_soft_event_record(openreg_soft_streams *set, openreg_soft_stream *stream, openreg_soft_event *event)
{
    openreg_soft_mark *const mark = (openreg_soft_mark *)calloc(1, sizeof *mark);
    if (mark == NULL)
        return openreg_fail(set->host, OPENREG_E_NOMEM, 0, "no memory for an event's record");
    pthread_mutex_lock(&set->lock);
    mark->users = 1;
    const openreg_status status = openreg_soft_queue(set, stream, NULL, mark, mark);
    if (status == OPENREG_OK) {
        openreg_soft_release(event->mark);
        event->mark = mark;
    } else {
        openreg_soft_release(mark);
    }
    pthread_mutex_unlock(&set->lock);
    return status;
}

OPENREG_HELPER openreg_status
openreg_soft_stream_wait(openreg_soft_streams *set, openreg_soft_stream *stream, const openreg_soft_event *event)
{
    pthread_mutex_lock(&set->lock);
    const int is_to_wait = event->mark != NULL && !event->mark->is_done;
    const openreg_status status = is_to_wait ? openreg_soft_queue(set, stream, NULL, NULL, event->mark) : OPENREG_OK;
    pthread_mutex_unlock(&set->lock);
    return status;
}

/* The result of a record that is complete, or of none. The lock is held. */
OPENREG_HELPER openreg_status
openreg_soft_mark_report(const openreg_soft_streams *set, const openreg_soft_mark *mark)
{
    if (mark == NULL || mark->status == OPENREG_OK)
        return OPENREG_OK;
    return openreg_fail(set->host, mark->status, mark->failure.vendor_code, "%s", mark->failure.text);
}

OPENREG_HELPER openreg_status
openreg_soft_event_query(openreg_soft_streams *set, const openreg_soft_event *event, int32_t *done)
{
    pthread_mutex_lock(&set->lock);
    const int is_done = event->mark == NULL || event->mark->is_done;
    const openreg_status status = is_done ? openreg_soft_mark_report(set, event->mark) : OPENREG_OK;
    pthread_mutex_unlock(&set->lock);
    if (status == OPENREG_OK)
        *done = is_done;
    return status;
}

OPENREG_HELPER openreg_status
openreg_soft_event_sync(openreg_soft_streams *set, const openreg_soft_event *event)
{
    pthread_mutex_lock(&set->lock);
    openreg_soft_mark *const mark = event->mark;
    if (mark != NULL)
        ++mark->users; /* another record may replace it */
    while (mark != NULL && !mark->is_done)
        openreg_soft_await_progress(set);
    const openreg_status status = openreg_soft_mark_report(set, mark);
    openreg_soft_release(mark);
    pthread_mutex_unlock(&set->lock);
    return status;
}

OPENREG_HELPER openreg_status
openreg_soft_event_elapsed(openreg_soft_streams *set, const openreg_soft_event *start, const openreg_soft_event *end,
                           int64_t *nanoseconds)
{
    int is_possible = start->device == end->device && (start->flags & end->flags & OPENREG_EVENT_TIMING) != 0;
    pthread_mutex_lock(&set->lock);
    is_possible = is_possible && start->mark != NULL && start->mark->is_done && end->mark != NULL && end->mark->is_done;
    if (is_possible)
        *nanoseconds = end->mark->nanoseconds - start->mark->nanoseconds;
    pthread_mutex_unlock(&set->lock);
    return is_possible
               ? OPENREG_OK
               : openreg_fail(set->host, OPENREG_E_INVALID, 0,
                              "both events must be recorded on one device with OPENREG_EVENT_TIMING, and complete");
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_SOFTWARE_STREAMS_H */
