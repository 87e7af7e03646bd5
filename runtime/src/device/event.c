/* SPDX-License-Identifier: BSD-3-Clause */
/* event.c: events (openreg.h). What a driver lacks is emulated (emulated_events.c).
 *
 * A handle is not an address but a slot number and the number of the slot's use, so that a destroyed or invalid handle is
 * refused, not dereferenced. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdlib.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "base/lock.h"
#include "device/stream.h"
#include "driver/driver_calls.h"
#include "driver/span.h"
#include "watch/capture.h"

#define CHUNK_SLOTS 256u
#define MAX_EVENTS 1048576 /* live events of a process */
#define MAX_CHUNKS (MAX_EVENTS / CHUNK_SLOTS)

/* Slots are never freed, so reading one through a stale handle is safe. */
typedef struct event_slot {
    atomic_uint use;   /* odd while the event lives; the upper half of its handle */
    uint32_t number;   /* of this slot, constant */
    openreg_lock lock; /* protects the marker against record and read at once; drivers are called with it held, which
                        * delays other uses of this one event */
    openreg_device *device;
    openreg_backend_event marker;
    struct event_slot *next_free;
} event_slot;

static _Atomic(event_slot *) chunks[MAX_CHUNKS];

static openreg_lock free_lock = OPENREG_LOCK_INITIALIZER;
static event_slot *first_free;
static uint32_t chunk_count;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_EVENTS, &free_lock);
}

static openreg_event
handle_of(const event_slot *slot, unsigned use)
{
    return (openreg_event)(uintptr_t)(((uint64_t)use << 32) | (slot->number + 1u));
}

/* The slot of a live event's handle, or NULL. */
static event_slot *
find(openreg_event event)
{
    const uint64_t value = (uint64_t)(uintptr_t)event;
    const uint32_t number = (uint32_t)value - 1u;
    const unsigned use = (unsigned)(value >> 32);
    if ((uint32_t)value == 0 || number / CHUNK_SLOTS >= MAX_CHUNKS || (use & 1u) == 0)
        return NULL;
    event_slot *const chunk = atomic_load_explicit(&chunks[number / CHUNK_SLOTS], memory_order_acquire);
    if (chunk == NULL)
        return NULL;
    event_slot *const slot = &chunk[number % CHUNK_SLOTS];
    return atomic_load_explicit(&slot->use, memory_order_acquire) == use ? slot : NULL;
}

static void
tell_of(openreg_event event, int32_t what, int32_t device, openreg_stream stream)
{
    const uint64_t mark = (uint64_t)(uintptr_t)event << 1; /* odd ones are host functions' */
    openreg_observers_order(&(openreg_order){.what = what, .device = device, .stream = stream, .mark = mark});
}

static bool
add_chunk_locked(void)
{
    if (chunk_count == MAX_CHUNKS)
        return false;
    event_slot *const chunk = calloc(CHUNK_SLOTS, sizeof *chunk);
    if (chunk == NULL)
        return false;
    for (uint32_t i = CHUNK_SLOTS; i-- > 0;) {
        chunk[i].number = chunk_count * CHUNK_SLOTS + i;
        openreg_lock_init(&chunk[i].lock);
        chunk[i].next_free = first_free;
        first_free = &chunk[i];
    }
    atomic_store_explicit(&chunks[chunk_count++], chunk, memory_order_release);
    return true;
}

static openreg_status
take_slot(const char *call, event_slot **out)
{
    openreg_lock_acquire(&free_lock);
    const bool has_one = first_free != NULL || add_chunk_locked();
    const bool is_full = !has_one && chunk_count == MAX_CHUNKS;
    if (has_one) {
        *out = first_free;
        first_free = first_free->next_free;
    }
    openreg_lock_release(&free_lock);
    if (is_full)
        return openreg_error_set(OPENREG_E_NOMEM, call, "too many live events (limit %d)", MAX_EVENTS);
    return has_one ? OPENREG_OK : openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for another event");
}

static void
put_slot(event_slot *slot)
{
    openreg_lock_acquire(&free_lock);
    slot->next_free = first_free;
    first_free = slot;
    openreg_lock_release(&free_lock);
}

static openreg_status
reach(const char *call, openreg_event event, event_slot **out)
{
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    event_slot *const slot = find(event);
    if (slot == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "%p is not a live event", (void *)event);
    *out = slot;
    return OPENREG_OK;
}

/* A copy of an event's state: query, sync and wait use one, and so mean the latest record at the time of their call,
 * even if the event is recorded during it. Errors: OPENREG_E_INVALID (not a live event), OPENREG_E_FORKED. */
static openreg_status
read_event(const char *call, openreg_event event, openreg_device **device, openreg_backend_event *marker)
{
    event_slot *slot = NULL;
    OPENREG_RETURN_NOT_OK(reach(call, event, &slot));
    openreg_lock_acquire(&slot->lock);
    *device = slot->device;
    *marker = slot->marker;
    openreg_lock_release(&slot->lock);
    return OPENREG_OK;
}

openreg_status
openreg_event_create(int32_t index, uint32_t flags, openreg_event *out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_event_create";
    openreg_device *device = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    if ((flags & ~OPENREG_EVENT_TIMING) != 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "flags must be 0 or OPENREG_EVENT_TIMING (%u), but got 0x%x",
                                 OPENREG_EVENT_TIMING, flags);
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));

    openreg_backend_event marker;
    event_slot *slot = NULL;
    OPENREG_RETURN_NOT_OK(take_slot(call, &slot));
    const openreg_status status = openreg_call_marker_create(device, call, flags, &marker);
    if (status != OPENREG_OK) {
        put_slot(slot);
        return status;
    }
    openreg_lock_acquire(&slot->lock);
    slot->device = device;
    slot->marker = marker;
    openreg_lock_release(&slot->lock);
    (void)atomic_fetch_add_explicit(&device->live_events, 1, memory_order_relaxed);
    const unsigned use = atomic_load_explicit(&slot->use, memory_order_relaxed) + 1;
    atomic_store_explicit(&slot->use, use, memory_order_release);
    *out = handle_of(slot, use);
    return OPENREG_OK;
}

openreg_status
openreg_event_destroy(openreg_event event)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_event_destroy";
    event_slot *slot = NULL;
    if (event == NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(reach(call, event, &slot));
    /* The use number makes the handle valid; the thread that ends it owns the slot. So two threads that destroy one event,
     * which is the callers' error, cannot destroy it twice. */
    unsigned use = (unsigned)((uint64_t)(uintptr_t)event >> 32);
    if (!atomic_compare_exchange_strong_explicit(&slot->use, &use, use + 1, memory_order_acq_rel, memory_order_relaxed))
        return openreg_error_set(OPENREG_E_INVALID, call, "%p is not a live event", (void *)event);
    openreg_device *const device = slot->device;
    const openreg_status status = openreg_call_marker_destroy(device, call, &slot->marker);
    if (status != OPENREG_OK) { /* nothing has changed: the event is still live */
        atomic_store_explicit(&slot->use, (unsigned)((uint64_t)(uintptr_t)event >> 32), memory_order_release);
        return status;
    }
    (void)atomic_fetch_sub_explicit(&device->live_events, 1, memory_order_relaxed);
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        tell_of(event, OPENREG_ORDER_MARK_GONE, OPENREG_HOST, OPENREG_STREAM_DEFAULT);
    put_slot(slot);
    return OPENREG_OK;
}

openreg_status
openreg_event_record(openreg_event event, int32_t device, openreg_stream stream)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_event_record";
    event_slot *slot = NULL;
    openreg_driver_stream handle = NULL;
    OPENREG_RETURN_NOT_OK(reach(call, event, &slot));
    if (device != slot->device->index)
        return openreg_error_set(OPENREG_E_INVALID, call, "an event of %s:%d can't be recorded on a stream of %s:%d",
                                 openreg_device_name(), slot->device->index, openreg_device_name(), device);
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(slot->device, call, stream, &handle));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_RECORD, .call = call, .device = device, .stream = stream, .event = event);
    openreg_stream_is_used(slot->device, call, stream);
    openreg_lock_acquire(&slot->lock);
    const openreg_status status = openreg_call_marker_record(slot->device, call, &slot->marker, handle);
    if (openreg_is_observed(OPENREG_OBSERVE_USES) && status == OPENREG_OK)
        tell_of(event, OPENREG_ORDER_MARK, slot->device->index, stream);
    openreg_lock_release(&slot->lock);
    return status;
}

openreg_status
openreg_event_query(openreg_event event, int32_t *done)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_event_query";
    openreg_device *device = NULL;
    openreg_backend_event marker;
    if (done == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "done is NULL");
    OPENREG_RETURN_NOT_OK(read_event(call, event, &device, &marker));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_EVENT, .call = call, .device = device->index, .event = event);
    openreg_stream_is_used(device, call, OPENREG_STREAM_DEFAULT);
    OPENREG_RETURN_NOT_OK(openreg_call_marker_query(device, call, &marker, done));
    if (openreg_is_observed(OPENREG_OBSERVE_USES) && *done)
        tell_of(event, OPENREG_ORDER_HOST_MARK, OPENREG_HOST, OPENREG_STREAM_DEFAULT);
    return OPENREG_OK;
}

openreg_status
openreg_event_synchronize(openreg_event event)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_event_synchronize";
    openreg_device *device = NULL;
    openreg_backend_event marker;
    OPENREG_RETURN_NOT_OK(read_event(call, event, &device, &marker));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_EVENT, .call = call, .device = device->index, .event = event);
    openreg_stream_is_used(device, call, OPENREG_STREAM_DEFAULT);
    openreg_watched_span span;
    openreg_span_begin(&span, OPENREG_TRACE_WAIT, call, "", device, OPENREG_STREAM_DEFAULT, 0, OPENREG_HOST,
                       OPENREG_HOST);
    OPENREG_RETURN_NOT_OK(openreg_span_end(&span, openreg_call_marker_sync(device, call, &marker)));
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        tell_of(event, OPENREG_ORDER_HOST_MARK, OPENREG_HOST, OPENREG_STREAM_DEFAULT);
    return OPENREG_OK;
}

openreg_status
openreg_stream_wait_event(int32_t index, openreg_stream stream, openreg_event event)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_wait_event";
    openreg_device *waiter = NULL;
    openreg_device *recorded_on = NULL;
    openreg_driver_stream handle = NULL;
    openreg_backend_event marker;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &waiter));
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(waiter, call, stream, &handle));
    OPENREG_RETURN_NOT_OK(read_event(call, event, &recorded_on, &marker));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_WAIT, .call = call, .device = index, .stream = stream, .event = event,
                    .has_record = marker.recorded);
    openreg_stream_is_used(openreg_device_is_lost(waiter) ? waiter : recorded_on, call,
                           openreg_device_is_lost(waiter) ? stream : OPENREG_STREAM_DEFAULT);
    OPENREG_RETURN_NOT_OK(openreg_call_stream_wait(waiter, call, handle, recorded_on, &marker));
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        tell_of(event, OPENREG_ORDER_STREAM_MARK, waiter->index, stream);
    return OPENREG_OK;
}

/* Sets an error if the marker cannot be measured. */
static openreg_status
read_timed(const char *call, const char *which, openreg_event event, openreg_device **device,
           openreg_backend_event *marker)
{
    const char *missing = NULL;
    int32_t done = 0;
    OPENREG_RETURN_NOT_OK(read_event(call, event, device, marker));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_EVENT, .call = call, .device = (*device)->index, .event = event);
    if ((marker->flags & OPENREG_EVENT_TIMING) == 0)
        missing = "was created without OPENREG_EVENT_TIMING";
    else if (!marker->recorded)
        missing = "was never recorded";
    else {
        OPENREG_RETURN_NOT_OK(openreg_call_marker_query(*device, call, marker, &done));
        if (!done)
            missing = "is not complete yet";
    }
    if (missing != NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "the %s event %s", which, missing);
    return OPENREG_OK;
}

openreg_status
openreg_event_elapsed(openreg_event start, openreg_event end, int64_t *nanoseconds)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_event_elapsed";
    openreg_device *start_device = NULL;
    openreg_device *end_device = NULL;
    openreg_backend_event start_marker;
    openreg_backend_event end_marker;
    if (nanoseconds == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "nanoseconds is NULL");
    OPENREG_RETURN_NOT_OK(read_timed(call, "start", start, &start_device, &start_marker));
    OPENREG_RETURN_NOT_OK(read_timed(call, "end", end, &end_device, &end_marker));
    if (start_device != end_device)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "the events belong to %s:%d and %s:%d; both must belong to "
                                 "one device",
                                 openreg_device_name(), start_device->index, openreg_device_name(), end_device->index);
    return openreg_call_marker_elapsed(start_device, call, &start_marker, &end_marker, nanoseconds);
}

openreg_status
openreg_event_device(openreg_event event, int32_t *device)
{
    static const char call[] = "openreg_event_device";
    event_slot *slot = NULL;
    if (device == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "device is NULL");
    OPENREG_RETURN_NOT_OK(reach(call, event, &slot));
    *device = slot->device->index;
    return OPENREG_OK;
}
