/* SPDX-License-Identifier: BSD-3-Clause */
/* queues.c: streams are in-order queues, events are markers. */
#include <stdlib.h>

#include "opencl.h"

/* ------------------------------------------------------------------------------------------------------------- streams */

stream *
opencl_stream(openreg_instance cl, int32_t dev, openreg_driver_stream handle)
{
    return handle != NULL ? handle : &cl->devices[dev].standard;
}

void
opencl_queued(stream *s, cl_event event)
{
    if (s->last != NULL)
        (void)clReleaseEvent(s->last);
    s->last = event;
    (void)clFlush(s->queue);
}

openreg_status
opencl_end_queueing(openreg_instance cl, stream *s, const char *function, cl_int error, cl_event event)
{
    if (error == CL_SUCCESS)
        opencl_queued(s, event);
    (void)pthread_mutex_unlock(&s->lock);
    return error == CL_SUCCESS ? OPENREG_OK : opencl_fail(cl, function, error);
}

static cl_event
retained_last(stream *s)
{
    (void)pthread_mutex_lock(&s->lock);
    cl_event const event = s->last;
    if (event != NULL)
        (void)clRetainEvent(event);
    (void)pthread_mutex_unlock(&s->lock);
    return event;
}

/* Whether what an event is of has ended, well or with an error. */
static openreg_status
event_state(openreg_instance cl, cl_event event, int32_t *done)
{
    cl_int state = CL_COMPLETE;
    const cl_int error = TRIED(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
    if (error != CL_SUCCESS)
        return opencl_fail(cl, "clGetEventInfo", error);
    if (state < 0)
        return opencl_fail(cl, "a command", state);
    *done = state == CL_COMPLETE;
    return OPENREG_OK;
}

/* Waits for an event that this call has a reference to, if any. */
static openreg_status
wait_for(openreg_instance cl, cl_event event)
{
    openreg_status status = OPENREG_OK;
    int32_t done = 0;
    if (event == NULL)
        return OPENREG_OK;
    const cl_int error = TRIED(clWaitForEvents(1, &event));
    if (error != CL_SUCCESS && error != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
        status = opencl_fail(cl, "clWaitForEvents", error);
    else
        status = event_state(cl, event, &done);
    (void)clReleaseEvent(event);
    return status;
}

cl_int
opencl_make_queue(openreg_instance cl, int32_t dev, stream *s)
{
    const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
    cl_int error;
    s->dev = dev;
    s->queue = clCreateCommandQueueWithProperties(cl->context, cl->devices[dev].id, properties, &error);
    if (error == CL_SUCCESS)
        (void)pthread_mutex_init(&s->lock, NULL);
    return error;
}

void
opencl_release_queue(stream *s)
{
    if (s->last != NULL)
        (void)clReleaseEvent(s->last);
    (void)clReleaseCommandQueue(s->queue);
    (void)pthread_mutex_destroy(&s->lock);
}

openreg_status
opencl_stream_create(openreg_instance cl, int32_t dev, uint32_t flags, int32_t priority, openreg_driver_stream *out)
{
    (void)flags;
    (void)priority;
    device *const d = &cl->devices[dev];
    stream *const s = calloc(1, sizeof *s);
    if (s == NULL)
        return opencl_fail(cl, "calloc", CL_OUT_OF_HOST_MEMORY);
    const cl_int error = opencl_make_queue(cl, dev, s);
    if (error != CL_SUCCESS) {
        free(s);
        return opencl_fail(cl, "clCreateCommandQueueWithProperties", error);
    }
    (void)pthread_mutex_lock(&d->lock);
    s->link = &d->streams;
    s->next = d->streams;
    if (s->next != NULL)
        s->next->link = &s->next;
    d->streams = s;
    (void)pthread_mutex_unlock(&d->lock);
    *out = s;
    return OPENREG_OK;
}

/* With the device's lock held. */
static void
remove_stream(stream *s)
{
    *s->link = s->next;
    if (s->next != NULL)
        s->next->link = s->link;
    opencl_release_queue(s);
    free(s);
}

static bool
is_idle(stream *s)
{
    cl_int state = CL_COMPLETE;
    (void)pthread_mutex_lock(&s->lock);
    if (s->last != NULL)
        (void)clGetEventInfo(s->last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    (void)pthread_mutex_unlock(&s->lock);
    return state <= CL_COMPLETE;
}

/* A stream with work stays in the list, as device_sync() and mem_free() wait for that too. */
openreg_status
opencl_stream_destroy(openreg_instance cl, int32_t dev, openreg_driver_stream s)
{
    if (s == NULL)
        return OPENREG_OK;
    device *const d = &cl->devices[dev];
    (void)pthread_mutex_lock(&d->lock);
    s->is_destroyed = true;
    if (is_idle(s))
        remove_stream(s);
    (void)pthread_mutex_unlock(&d->lock);
    return OPENREG_OK;
}

void
opencl_release_streams(device *d)
{
    while (d->streams != NULL)
        remove_stream(d->streams);
}

openreg_status
opencl_stream_query(openreg_instance cl, int32_t dev, openreg_driver_stream handle, int32_t *done)
{
    cl_event const event = retained_last(opencl_stream(cl, dev, handle));
    openreg_status status = OPENREG_OK;
    int32_t is_done = 1;
    if (event != NULL) {
        status = event_state(cl, event, &is_done);
        (void)clReleaseEvent(event);
    }
    if (status == OPENREG_OK)
        *done = is_done;
    return status;
}

openreg_status
opencl_stream_sync(openreg_instance cl, int32_t dev, openreg_driver_stream handle)
{
    return wait_for(cl, retained_last(opencl_stream(cl, dev, handle)));
}

/* What each stream of the device has queued last, in memory of malloc(); NULL without memory. */
static cl_event *
last_events(device *d, size_t *count)
{
    size_t streams = 1;
    (void)pthread_mutex_lock(&d->lock);
    for (stream *s = d->streams, *next; s != NULL; s = next) {
        next = s->next;
        if (s->is_destroyed && is_idle(s))
            remove_stream(s);
        else
            ++streams;
    }
    cl_event *const events = malloc(streams * sizeof *events);
    if (events != NULL) {
        size_t i = 0;
        events[i++] = retained_last(&d->standard);
        for (stream *s = d->streams; s != NULL; s = s->next)
            events[i++] = retained_last(s);
    }
    (void)pthread_mutex_unlock(&d->lock);
    *count = streams;
    return events;
}

openreg_status
opencl_device_sync(openreg_instance cl, int32_t dev)
{
    size_t count;
    cl_event *const events = last_events(&cl->devices[dev], &count);
    openreg_status status = OPENREG_OK;
    if (events == NULL)
        return opencl_fail(cl, "malloc", CL_OUT_OF_HOST_MEMORY);
    for (size_t i = 0; i < count; ++i) {
        if (status == OPENREG_OK) {
            status = wait_for(cl, events[i]);
        } else if (events[i] != NULL) { /* one error is reported */
            (void)clWaitForEvents(1, &events[i]);
            (void)clReleaseEvent(events[i]);
        }
    }
    free(events);
    return status;
}

openreg_status
opencl_stream_native(openreg_instance cl, int32_t dev, openreg_driver_stream handle, void **out)
{
    *out = opencl_stream(cl, dev, handle)->queue;
    return OPENREG_OK;
}

/* -------------------------------------------------------------------------------------------------------------- events */

struct openreg_driver_event_s {
    pthread_mutex_t lock;
    cl_event marker; /* of the latest record, or NULL */
    int32_t dev;
    bool has_time;
};

openreg_status
opencl_event_create(openreg_instance cl, int32_t dev, uint32_t flags, openreg_driver_event *out)
{
    openreg_driver_event const event = calloc(1, sizeof *event);
    if (event == NULL)
        return opencl_fail(cl, "calloc", CL_OUT_OF_HOST_MEMORY);
    (void)pthread_mutex_init(&event->lock, NULL);
    event->dev = dev;
    event->has_time = (flags & OPENREG_EVENT_TIMING) != 0;
    *out = event;
    return OPENREG_OK;
}

openreg_status
opencl_event_destroy(openreg_instance cl, int32_t dev, openreg_driver_event event)
{
    (void)cl;
    (void)dev;
    if (event == NULL)
        return OPENREG_OK;
    if (event->marker != NULL)
        (void)clReleaseEvent(event->marker);
    (void)pthread_mutex_destroy(&event->lock);
    free(event);
    return OPENREG_OK;
}

openreg_status
opencl_event_record(openreg_instance cl, int32_t dev, openreg_driver_stream handle, openreg_driver_event event)
{
    stream *const s = opencl_stream(cl, dev, handle);
    cl_event marker = NULL;
    (void)pthread_mutex_lock(&s->lock);
    const cl_int error = TRIED(clEnqueueMarkerWithWaitList(s->queue, 0, NULL, &marker));
    if (error == CL_SUCCESS) {
        (void)clRetainEvent(marker); /* the stream's and the event's */
        (void)pthread_mutex_lock(&event->lock);
        cl_event const before = event->marker;
        event->marker = marker;
        (void)pthread_mutex_unlock(&event->lock);
        if (before != NULL)
            (void)clReleaseEvent(before);
    }
    return opencl_end_queueing(cl, s, "clEnqueueMarkerWithWaitList", error, marker);
}

static cl_event
retained_marker(openreg_driver_event event)
{
    (void)pthread_mutex_lock(&event->lock);
    cl_event const marker = event->marker;
    if (marker != NULL)
        (void)clRetainEvent(marker);
    (void)pthread_mutex_unlock(&event->lock);
    return marker;
}

openreg_status
opencl_event_query(openreg_instance cl, int32_t dev, openreg_driver_event event, int32_t *done)
{
    (void)dev;
    cl_event const marker = retained_marker(event);
    openreg_status status = OPENREG_OK;
    int32_t is_done = 1;
    if (marker != NULL) {
        status = event_state(cl, marker, &is_done);
        (void)clReleaseEvent(marker);
    }
    if (status == OPENREG_OK)
        *done = is_done;
    return status;
}

openreg_status
opencl_event_sync(openreg_instance cl, int32_t dev, openreg_driver_event event)
{
    (void)dev;
    return wait_for(cl, retained_marker(event));
}

openreg_status
opencl_stream_wait(openreg_instance cl, int32_t dev, openreg_driver_stream handle, openreg_driver_event event)
{
    stream *const s = opencl_stream(cl, dev, handle);
    cl_event const marker = retained_marker(event);
    cl_event barrier = NULL;
    if (marker == NULL)
        return OPENREG_OK;
    (void)pthread_mutex_lock(&s->lock);
    const cl_int error = TRIED(clEnqueueBarrierWithWaitList(s->queue, 1, &marker, &barrier));
    (void)clReleaseEvent(marker);
    return opencl_end_queueing(cl, s, "clEnqueueBarrierWithWaitList", error, barrier);
}

/* Nanoseconds at which the marker was passed; false where it was not, or there is none. */
static bool
time_of(openreg_driver_event event, cl_ulong *time)
{
    cl_event const marker = retained_marker(event);
    if (marker == NULL)
        return false;
    const cl_int error = clGetEventProfilingInfo(marker, CL_PROFILING_COMMAND_END, sizeof *time, time, NULL);
    (void)clReleaseEvent(marker);
    return error == CL_SUCCESS;
}

openreg_status
opencl_event_elapsed(openreg_instance cl, int32_t dev, openreg_driver_event start, openreg_driver_event end,
                     int64_t *nanoseconds)
{
    cl_ulong from, to;
    if (!start->has_time || !end->has_time || start->dev != dev || end->dev != dev || !time_of(start, &from) ||
        !time_of(end, &to))
        return openreg_fail(cl->host, OPENREG_E_INVALID, 0,
                            "events need timing, one device, and a record that was passed");
    *nanoseconds = (int64_t)(to - from);
    return OPENREG_OK;
}
