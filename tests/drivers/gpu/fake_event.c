/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_event.c: the fake vendor's events (fake_gpu.h). Records are numbered; each leaves its mark when its stream
 * passes it. Whoever waits, polls. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <stdlib.h>
#include <unistd.h>

#define POLL_MICROSECONDS 50

typedef struct marks {
    atomic_uint_least64_t recorded;           /* number of the latest record, 0: none */
    atomic_uint_least64_t passed[FAKE_MARKS]; /* number of the record that was passed, at number % FAKE_MARKS */
    atomic_uint_least64_t time[FAKE_MARKS];   /* when */
} marks;

struct fake_event {
    fake_event *next;
    int device;
    unsigned flags;
    marks marks;
    atomic_int references; /* the handle's, and one of each queued task */
    bool destroyed;
};

static pthread_mutex_t event_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and numbering */
static fake_event *events;
atomic_int fake_live_events;

static fake_event *
make_event(int dev, unsigned flags)
{
    fake_event *const event = calloc(1, sizeof *event);
    if (event == NULL)
        return NULL;
    event->device = dev;
    event->flags = flags;
    atomic_init(&event->references, 1);
    (void)pthread_mutex_lock(&event_lock);
    event->next = events;
    events = event;
    (void)pthread_mutex_unlock(&event_lock);
    (void)atomic_fetch_add(&fake_live_events, 1);
    return event;
}

/* The live event of a handle; NULL if there is none. */
static fake_event *
event_of(GPU(Event_t) handle)
{
    fake_event *found = NULL;
    (void)pthread_mutex_lock(&event_lock);
    for (fake_event *event = events; event != NULL; event = event->next)
        if ((void *)event == (void *)handle && !event->destroyed)
            found = event;
    (void)pthread_mutex_unlock(&event_lock);
    return found;
}

void
fake_event_release(fake_event *event)
{
    if (atomic_fetch_sub(&event->references, 1) != 1)
        return;
    (void)pthread_mutex_lock(&event_lock);
    fake_event **link = &events;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    (void)pthread_mutex_unlock(&event_lock);
    free(event);
}

fake_event *
fake_event_hidden(int dev)
{
    fake_event *const event = make_event(dev, 0);
    (void)atomic_fetch_sub(&fake_live_events, 1);
    return event;
}

void
fake_event_record(fake_event *event, fake_stream *stream)
{
    (void)atomic_fetch_add(&event->references, 1);
    (void)pthread_mutex_lock(&event_lock);
    const uint64_t number = atomic_fetch_add(&event->marks.recorded, 1) + 1;
    (void)pthread_mutex_unlock(&event_lock);
    fake_stream_submit(stream, &(fake_task){.kind = FAKE_RECORD, .event = event, .number = number});
}

void
fake_event_wait(fake_event *event, fake_stream *stream)
{
    (void)atomic_fetch_add(&event->references, 1);
    fake_stream_submit(stream,
                       &(fake_task){.kind = FAKE_WAIT, .event = event, .number = atomic_load(&event->marks.recorded)});
}

static bool
has_passed(const fake_event *event, uint64_t number)
{
    return number == 0 || atomic_load(&event->marks.passed[number % FAKE_MARKS]) >= number;
}

void
fake_event_pass(fake_event *event, uint64_t number)
{
    atomic_store(&event->marks.time[number % FAKE_MARKS], fake_microseconds());
    atomic_store(&event->marks.passed[number % FAKE_MARKS], number);
}

void
fake_event_await(fake_event *event, uint64_t number)
{
    while (!has_passed(event, number))
        (void)usleep(POLL_MICROSECONDS);
}

void
fake_events_reset(void)
{
    while (events != NULL)
        fake_event_release(events);
    atomic_store(&fake_live_events, 0);
}

/* ------------------------------------------------------------------------------------------ the vendor's functions */

fake_code
GPU(EventCreateWithFlags)(GPU(Event_t) * out, unsigned flags)
{
    int dev;
    const fake_code code = fake_begin_work("EventCreateWithFlags", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_event *const event = make_event(dev, flags);
    if (event == NULL)
        return fake_end(GPU(ErrorUnknown));
    *out = (GPU(Event_t))(void *)event;
    return fake_end(code);
}

fake_code
GPU(EventDestroy)(GPU(Event_t) handle)
{
    int dev;
    const fake_code code = fake_begin_work("EventDestroy", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_event *const event = event_of(handle);
    if (event == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    event->destroyed = true;
    (void)atomic_fetch_sub(&fake_live_events, 1);
    fake_event_release(event);
    return fake_end(code);
}

fake_code
GPU(EventRecord)(GPU(Event_t) handle, GPU(Stream_t) stream_handle)
{
    int dev;
    const fake_code code = fake_begin_work("EventRecord", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_event *const event = event_of(handle);
    fake_stream *const stream = fake_stream_of(stream_handle, dev);
    if (event == NULL || stream == NULL || event->device != dev)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    fake_code captured;
    if (fake_graph_records(stream, event, &captured))
        return fake_end(captured);
    fake_event_record(event, stream);
    return fake_end(code);
}

fake_code
GPU(EventQuery)(GPU(Event_t) handle)
{
    int dev;
    const fake_code code = fake_begin_work("EventQuery", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    const fake_event *const event = event_of(handle);
    if (event == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    const fake_code captured = fake_graph_host_asks(event);
    if (captured != GPU(Success))
        return fake_end(captured);
    if (!has_passed(event, atomic_load(&event->marks.recorded)))
        return fake_end(GPU(ErrorNotReady));
    return fake_end((fake_code)atomic_load(&fake_devices[event->device].sticky));
}

fake_code
GPU(EventSynchronize)(GPU(Event_t) handle)
{
    int dev;
    const fake_code code = fake_begin_work("EventSynchronize", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_event *const event = event_of(handle);
    if (event == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    const fake_code captured = fake_graph_host_asks(event);
    if (captured != GPU(Success))
        return fake_end(captured);
    fake_event_await(event, atomic_load(&event->marks.recorded));
    return fake_end((fake_code)atomic_load(&fake_devices[event->device].sticky));
}

fake_code
GPU(StreamWaitEvent)(GPU(Stream_t) stream_handle, GPU(Event_t) handle, unsigned flags)
{
    int dev;
    const fake_code code = fake_begin_work("StreamWaitEvent", &dev);
    (void)flags;
    if (code != GPU(Success))
        return fake_end(code);
    fake_event *const event = event_of(handle);
    fake_stream *const stream = fake_stream_of(stream_handle, dev);
    if (event == NULL || stream == NULL)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    fake_code captured;
    if (fake_graph_waits(stream, event, atomic_load(&event->marks.recorded) != 0, &captured))
        return fake_end(captured);
    fake_event_wait(event, stream);
    return fake_end(code);
}

fake_code
GPU(EventElapsedTime)(float *ms, GPU(Event_t) start_handle, GPU(Event_t) end_handle)
{
    int dev;
    const fake_code code = fake_begin_work("EventElapsedTime", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    const fake_event *const start = event_of(start_handle);
    const fake_event *const end = event_of(end_handle);
    if (start == NULL || end == NULL || ((start->flags | end->flags) & GPU(EventDisableTiming)) != 0)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    const uint64_t from = atomic_load(&start->marks.recorded);
    const uint64_t to = atomic_load(&end->marks.recorded);
    if (from == 0 || to == 0)
        return fake_end(GPU(ErrorInvalidResourceHandle));
    if (!has_passed(start, from) || !has_passed(end, to))
        return fake_end(GPU(ErrorNotReady));
    *ms = (float)((double)(int64_t)(atomic_load(&end->marks.time[to % FAKE_MARKS]) -
                                    atomic_load(&start->marks.time[from % FAKE_MARKS])) /
                  1000.0);
    return fake_end(code);
}
