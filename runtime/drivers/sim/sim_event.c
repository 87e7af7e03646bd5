/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_event.c: events of the simulated devices. A record is a position on a stream's timeline, so a later record of the
 * same event, on whatever stream, never completes or delays an earlier one. */
#define _GNU_SOURCE
#include "sim_schedule.h"

#include <stdlib.h>
#include <time.h>

uint64_t
openreg_sim_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void
openreg_sim_record_release(openreg_sim_record *record)
{
    if (record != NULL && atomic_fetch_sub_explicit(&record->references, 1, memory_order_acq_rel) == 1)
        free(record);
}

openreg_status
openreg_sim_event_create(openreg_instance instance, int32_t dev, uint32_t flags, openreg_driver_event *out)
{
    openreg_driver_event event = calloc(1, sizeof *event);
    if (event == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for an event of device %d", dev);
    event->instance = instance;
    event->device = dev;
    event->timed = (flags & OPENREG_EVENT_TIMING) != 0;
    (void)pthread_mutex_init(&event->lock, NULL);
    *out = event;
    return OPENREG_OK;
}

openreg_status
openreg_sim_event_destroy(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    (void)instance;
    (void)dev;
    if (event == NULL)
        return OPENREG_OK;
    if (event->timeline != NULL)
        openreg_sim_stream_release(event->timeline);
    openreg_sim_record_release(event->record);
    (void)pthread_mutex_destroy(&event->lock);
    free(event);
    return OPENREG_OK;
}

openreg_status
openreg_sim_event_record(openreg_instance instance, int32_t dev, openreg_driver_stream stream,
                         openreg_driver_event event)
{
    openreg_driver_stream own = openreg_sim_stream_of(instance, dev, stream);
    openreg_sim_record *record = NULL;
    if (event->timed) {
        record = calloc(1, sizeof *record);
        if (record == NULL)
            return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory to record an event of device %d",
                                dev);
        atomic_init(&record->references, 1);
    }
    /* Under the event's lock, so that of two threads that record, the later position wins as a whole. */
    (void)pthread_mutex_lock(&event->lock);
    uint64_t position;
    const openreg_status status = openreg_sim_stream_mark(own, record, &position);
    openreg_driver_stream old_timeline = NULL;
    openreg_sim_record *old_record = record; /* on failure: the new one */
    if (status == OPENREG_OK) {
        old_timeline = event->timeline;
        old_record = event->record;
        openreg_sim_stream_reference(own);
        event->timeline = own;
        event->position = position;
        event->record = record;
    }
    (void)pthread_mutex_unlock(&event->lock);
    if (old_timeline != NULL)
        openreg_sim_stream_release(old_timeline);
    openreg_sim_record_release(old_record);
    return status;
}

/* The latest record: its timeline with a reference for the caller, or NULL if it is complete or there is none. */
static openreg_driver_stream
pending_timeline(openreg_driver_event event, uint64_t *position)
{
    (void)pthread_mutex_lock(&event->lock);
    openreg_driver_stream timeline = event->timeline;
    *position = event->position;
    if (timeline != NULL) {
        if (openreg_sim_stream_passed(timeline, *position))
            timeline = NULL;
        else
            openreg_sim_stream_reference(timeline);
    }
    (void)pthread_mutex_unlock(&event->lock);
    return timeline;
}

openreg_status
openreg_sim_event_query(openreg_instance instance, int32_t dev, openreg_driver_event event, int32_t *done)
{
    (void)dev;
    uint64_t position;
    openreg_driver_stream timeline = instance->schedule != NULL ? pending_timeline(event, &position) : NULL;
    if (timeline != NULL) {
        openreg_sim_schedule_look(timeline);
        openreg_sim_stream_release(timeline);
    }
    (void)pthread_mutex_lock(&event->lock);
    *done = event->timeline == NULL || openreg_sim_stream_settled(event->timeline, event->position);
    (void)pthread_mutex_unlock(&event->lock);
    return OPENREG_OK;
}

openreg_status
openreg_sim_event_sync(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    (void)instance;
    (void)dev;
    uint64_t position;
    openreg_driver_stream timeline = pending_timeline(event, &position);
    if (timeline != NULL) {
        openreg_sim_stream_await(timeline, position);
        openreg_sim_stream_release(timeline);
    }
    return OPENREG_OK;
}

openreg_status
openreg_sim_stream_wait(openreg_instance instance, int32_t dev, openreg_driver_stream stream,
                        openreg_driver_event event)
{
    openreg_driver_stream own = openreg_sim_stream_of(instance, dev, stream);
    openreg_sim_task task = {.kind = OPENREG_SIM_WAIT};
    task.awaited = pending_timeline(event, &task.amount);
    if (task.awaited == NULL)
        return OPENREG_OK;
    /* A stream is behind its own records anyway. */
    const openreg_status status = task.awaited == own ? OPENREG_OK : openreg_sim_stream_submit(own, &task);
    if (task.awaited == own || status != OPENREG_OK)
        openreg_sim_stream_release(task.awaited);
    return status;
}

/* The time of the latest record. False unless the event is timed, recorded and complete. */
static bool
passed_time(openreg_driver_event event, uint64_t *nanoseconds)
{
    (void)pthread_mutex_lock(&event->lock);
    const bool passed = event->record != NULL && openreg_sim_stream_passed(event->timeline, event->position);
    if (passed)
        *nanoseconds = atomic_load_explicit(&event->record->nanoseconds, memory_order_relaxed);
    (void)pthread_mutex_unlock(&event->lock);
    return passed;
}

openreg_status
openreg_sim_event_elapsed(openreg_instance instance, int32_t dev, openreg_driver_event start, openreg_driver_event end,
                          int64_t *nanoseconds)
{
    if (!start->timed || !end->timed)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                            "event_elapsed: the %s event was created without timing", start->timed ? "end" : "start");
    if (start->device != dev || end->device != dev)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                            "event_elapsed: the events belong to devices %d and %d, not both to %d", start->device,
                            end->device, dev);
    uint64_t from, to;
    const bool has_start = passed_time(start, &from);
    if (!has_start || !passed_time(end, &to))
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                            "event_elapsed: the %s event is not recorded, or not complete",
                            has_start ? "end" : "start");
    *nanoseconds = (int64_t)(to - from);
    return OPENREG_OK;
}
