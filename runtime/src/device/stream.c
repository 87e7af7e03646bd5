/* SPDX-License-Identifier: BSD-3-Clause */
/* stream.c: streams of a device and the thread's current one (stream.h, openreg.h).
 *
 * An id is (table << 32) | ((device + 1) << 16) | (slot + 1); slots are level * STREAMS_PER_POOL + number, level 0
 * is the most urgent. The first device table is 0; an id from before drivers were reselected therefore names no stream of
 * the new devices. 0 is every device's default stream. A driver without streams has distinct ids that all name its default
 * stream, so that code with several streams works, only without overlap. */
#define _GNU_SOURCE
#include "device/stream.h"

#include <openreg/openreg.h>
#include <stdlib.h>
#include <string.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/inside.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/thread.h"
#include "driver/driver_calls.h"
#include "driver/extensions.h"
#include "driver/span.h"
#include "watch/capture.h"

#define STREAMS_PER_POOL 32

/* More priorities than any vendor has; if a driver has more, the least urgent ones are merged. */
#define MAX_LEVELS 32

typedef struct pool_stream {
    atomic_int is_made;
    openreg_driver_stream handle; /* valid once is_made */
} pool_stream;

struct openreg_stream_set {
    openreg_device *device;
    int64_t table; /* shifted, as in ids */
    int levels;
    openreg_lock making;              /* held while a stream is made */
    atomic_int has_default_functions; /* 1 once a host function was queued on the default stream */
    atomic_uint next[MAX_LEVELS];
    pool_stream slots[]; /* levels * STREAMS_PER_POOL */
};

struct openreg_stream_set *
openreg_stream_set_create(openreg_device *device, uint32_t generation)
{
    const int64_t priorities = (int64_t)device->info.priority_low - device->info.priority_high + 1;
    const int levels = priorities < MAX_LEVELS ? (int)priorities : MAX_LEVELS;
    const size_t slots = (size_t)levels * STREAMS_PER_POOL;
    struct openreg_stream_set *const set = calloc(1, sizeof *set + slots * sizeof set->slots[0]);
    if (set == NULL)
        return NULL;
    set->device = device;
    set->table = (int64_t)((generation - 1) & 0x7fffffff) << 32;
    set->levels = levels;
    openreg_lock_init(&set->making);
    return set;
}

void
openreg_stream_set_destroy(struct openreg_stream_set *streams)
{
    static const char call[] = "openreg_shutdown";
    const openreg_error_fields before = openreg_error_save();
    const int is_lost = openreg_device_is_lost(streams->device); /* then the error is set already */
    if (is_lost)
        (void)openreg_call_device_drain(streams->device, call);
    /* The driver may be unloaded, or the function's library: no function of the caller may run after the shutdown. */
    if (!is_lost && atomic_load_explicit(&streams->has_default_functions, memory_order_relaxed) &&
        openreg_call_stream_sync(streams->device, call, NULL) != OPENREG_OK)
        openreg_log(OPENREG_LOG_WARNING, "%s", openreg_last_error()->message);
    for (int i = 0; i < streams->levels * STREAMS_PER_POOL; ++i) {
        pool_stream *const slot = &streams->slots[i];
        if (!atomic_load_explicit(&slot->is_made, memory_order_acquire))
            continue;
        if (!is_lost && openreg_call_stream_sync(streams->device, call, slot->handle) != OPENREG_OK)
            openreg_log(OPENREG_LOG_WARNING, "%s", openreg_last_error()->message);
        if (openreg_call_stream_destroy(streams->device, call, slot->handle) != OPENREG_OK)
            openreg_log(OPENREG_LOG_WARNING, "%s", openreg_last_error()->message);
    }
    openreg_lock_destroy(&streams->making);
    free(streams);
    openreg_error_restore(&before);
}

static openreg_status
reject_stream(const openreg_device *device, const char *call, openreg_stream stream)
{
    const int64_t owner = ((stream & 0xffffffff) >> 16) - 1;
    if (stream > 0 && stream >> 32 < device->streams->table >> 32 && owner >= 0 && owner < OPENREG_MAX_DEVICES)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "stream 0x%llx belongs to a previous device table (drivers were reselected), not to "
                                 "%s:%d",
                                 (unsigned long long)stream, openreg_device_name(), device->index);
    if (stream > 0 && owner != device->index && owner >= 0 && owner < OPENREG_MAX_DEVICES)
        return openreg_error_set(OPENREG_E_INVALID, call, "stream 0x%llx belongs to %s:%lld, not to %s:%d",
                                 (unsigned long long)stream, openreg_device_name(), (long long)owner,
                                 openreg_device_name(), device->index);
    return openreg_error_set(OPENREG_E_INVALID, call, "0x%llx is not a stream of %s:%d", (unsigned long long)stream,
                             openreg_device_name(), device->index);
}

static openreg_stream
id_of(const struct openreg_stream_set *set, int64_t slot)
{
    return set->table | ((int64_t)(set->device->index + 1) << 16) | (slot + 1);
}

/* The slot of an id that openreg_stream_from_pool() has returned, or NULL. */
static pool_stream *
find_slot(const openreg_device *device, openreg_stream stream)
{
    struct openreg_stream_set *const set = device->streams;
    const int64_t slot = (stream & 0xffff) - 1;
    if (stream - (slot + 1) != id_of(set, -1) || slot < 0 || slot >= set->levels * STREAMS_PER_POOL)
        return NULL;
    pool_stream *const found = &set->slots[slot];
    return atomic_load_explicit(&found->is_made, memory_order_acquire) ? found : NULL;
}

openreg_status
openreg_stream_resolve(openreg_device *device, const char *call, openreg_stream stream, openreg_driver_stream *out)
{
    if (stream == OPENREG_STREAM_DEFAULT) {
        *out = NULL;
        return OPENREG_OK;
    }
    const pool_stream *const slot = find_slot(device, stream);
    if (slot == NULL)
        return reject_stream(device, call, stream);
    *out = slot->handle;
    return OPENREG_OK;
}

static openreg_status
make_stream(struct openreg_stream_set *set, const char *call, pool_stream *slot, int32_t priority)
{
    openreg_status status = OPENREG_OK;
    openreg_lock_acquire(&set->making);
    if (!atomic_load_explicit(&slot->is_made, memory_order_relaxed)) {
        status = openreg_call_stream_create(set->device, call, priority, &slot->handle);
        if (status == OPENREG_OK)
            atomic_store_explicit(&slot->is_made, 1, memory_order_release);
    }
    openreg_lock_release(&set->making);
    return status;
}

openreg_status
openreg_stream_from_pool(int32_t index, int32_t priority, openreg_stream *out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_from_pool";
    openreg_device *device = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));

    struct openreg_stream_set *const set = device->streams;
    const int64_t distance = (int64_t)priority - device->info.priority_high;
    const int level = distance < 0 ? 0 : distance >= set->levels ? set->levels - 1 : (int)distance;
    const unsigned number = atomic_fetch_add_explicit(&set->next[level], 1, memory_order_relaxed) % STREAMS_PER_POOL;
    const int at = level * STREAMS_PER_POOL + (int)number;
    pool_stream *const slot = &set->slots[at];
    if (!atomic_load_explicit(&slot->is_made, memory_order_acquire))
        OPENREG_RETURN_NOT_OK(make_stream(set, call, slot, device->info.priority_high + level));
    *out = id_of(set, at);
    return OPENREG_OK;
}

openreg_stream
openreg_stream_current_of(openreg_device *device)
{
    const openreg_thread *const thread = openreg_thread_state;
    const openreg_device_table *const table = openreg_device_table_peek();
    if (thread == NULL || table == NULL || thread->streams_generation != table->generation)
        return OPENREG_STREAM_DEFAULT;
    return thread->streams[device->index];
}

openreg_status
openreg_current_stream(int32_t index, openreg_stream *out)
{
    static const char call[] = "openreg_current_stream";
    openreg_device *device = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    *out = openreg_stream_current_of(device);
    return OPENREG_OK;
}

openreg_status
openreg_set_current_stream(int32_t index, openreg_stream stream)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_set_current_stream";
    const openreg_device_table *table = NULL;
    openreg_driver_stream handle = NULL;
    OPENREG_RETURN_NOT_OK(openreg_device_table_get(call, index, &table));
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(table->devices[index], call, stream, &handle));
    openreg_thread *const thread = openreg_thread_get();
    if (thread == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for this thread's streams");
    if (thread->streams_generation != table->generation) {
        memset(thread->streams, 0, sizeof thread->streams);
        thread->streams_generation = table->generation;
    }
    thread->streams[index] = stream;
    return OPENREG_OK;
}

/* The common beginning of functions on a stream. */
static openreg_status
reach(const char *call, int32_t index, openreg_stream stream, openreg_device **device, openreg_driver_stream *handle)
{
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, device));
    return openreg_stream_resolve(*device, call, stream, handle);
}

void
openreg_stream_tell_of_loss(const openreg_device *device, const char *call, openreg_stream stream)
{
    const bool is_known = atomic_load_explicit(&device->loss, memory_order_acquire) == OPENREG_LOSS_KNOWN;
    openreg_observers_lost(call, device->index, stream, is_known ? device->loss_call : "",
                           is_known ? device->loss_place : "");
}

/* Reports that the host has waited for all work of the stream. */
static void
tell_of_host(int32_t index, openreg_stream stream)
{
    openreg_observers_order(&(openreg_order){.what = OPENREG_ORDER_HOST_STREAM, .device = index, .stream = stream});
}

openreg_status
openreg_stream_query(int32_t index, openreg_stream stream, int32_t *done)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_query";
    openreg_device *device = NULL;
    openreg_driver_stream handle = NULL;
    if (done == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "done is NULL");
    OPENREG_RETURN_NOT_OK(reach(call, index, stream, &device, &handle));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_STREAM, .call = call, .device = index, .stream = stream);
    openreg_stream_is_used(device, call, stream);
    OPENREG_RETURN_NOT_OK(openreg_call_stream_query(device, call, handle, done));
    if (openreg_is_observed(OPENREG_OBSERVE_USES) && *done)
        tell_of_host(index, stream);
    return OPENREG_OK;
}

openreg_status
openreg_stream_synchronize(int32_t index, openreg_stream stream)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_synchronize";
    openreg_device *device = NULL;
    openreg_driver_stream handle = NULL;
    OPENREG_RETURN_NOT_OK(reach(call, index, stream, &device, &handle));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_STREAM, .call = call, .device = index, .stream = stream);
    openreg_stream_is_used(device, call, stream);
    openreg_watched_span span;
    openreg_span_begin(&span, OPENREG_TRACE_WAIT, call, "", device, stream, 0, OPENREG_HOST, OPENREG_HOST);
    OPENREG_RETURN_NOT_OK(openreg_span_end(&span, openreg_call_stream_sync(device, call, handle)));
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        tell_of_host(index, stream);
    return OPENREG_OK;
}

/* A host function that first reports to observers that the host is ordered behind its stream. It runs once. */
typedef struct followed_function {
    void (*function)(void *argument);
    void *argument;
} followed_function;

static void
tell_of_function(const followed_function *followed, int32_t what, int32_t index, openreg_stream stream)
{
    openreg_observers_order(&(openreg_order){
        .what = what, .device = index, .stream = stream, .mark = (uint64_t)(uintptr_t)followed | 1}); /* events: even */
}

static void
run_followed(void *argument)
{
    followed_function *const followed = argument;
    tell_of_function(followed, OPENREG_ORDER_HOST_MARK, OPENREG_HOST, OPENREG_STREAM_DEFAULT);
    followed->function(followed->argument);
    tell_of_function(followed, OPENREG_ORDER_MARK_GONE, OPENREG_HOST, OPENREG_STREAM_DEFAULT);
    free(followed);
}

static openreg_status
launch_followed(const char *call, openreg_device *device, openreg_stream stream, openreg_driver_stream handle,
                void (*function)(void *argument), void *argument)
{
    followed_function *const followed = malloc(sizeof *followed);
    if (followed == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory to follow a host function");
    *followed = (followed_function){function, argument};
    tell_of_function(followed, OPENREG_ORDER_MARK, device->index, stream);
    const openreg_status status = openreg_call_host_func(device, call, handle, run_followed, followed);
    if (status != OPENREG_OK) {
        tell_of_function(followed, OPENREG_ORDER_MARK_GONE, OPENREG_HOST, OPENREG_STREAM_DEFAULT);
        free(followed);
    }
    return status;
}

static int
is_captured_by_driver(const char *call, openreg_device *device, openreg_driver_stream handle)
{
    openreg_call_begin(device, call);
    const int is_captured = openreg_driver_captures(device->driver->table, device->driver->instance, device->ordinal,
                                                    handle);
    (void)openreg_call_end(device, call, OPENREG_OK);
    return is_captured;
}

openreg_status
openreg_stream_launch_host_func(int32_t index, openreg_stream stream, void (*function)(void *argument), void *argument)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_launch_host_func";
    openreg_device *device = NULL;
    openreg_driver_stream handle = NULL;
    if (function == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "function is NULL");
    OPENREG_RETURN_NOT_OK(reach(call, index, stream, &device, &handle));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_FUNCTION, .call = call, .device = index, .stream = stream,
                    .function = function, .argument = argument);
    openreg_stream_is_used(device, call, stream);
    if (stream == OPENREG_STREAM_DEFAULT)
        atomic_store_explicit(&device->streams->has_default_functions, 1, memory_order_relaxed);
    if (openreg_is_observed(OPENREG_OBSERVE_USES) && !is_captured_by_driver(call, device, handle))
        return launch_followed(call, device, stream, handle, function, argument);
    return openreg_call_host_func(device, call, handle, function, argument);
}

openreg_status
openreg_stream_priority(int32_t index, openreg_stream stream, int32_t *out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_priority";
    openreg_device *device = NULL;
    openreg_driver_stream handle = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(reach(call, index, stream, &device, &handle));
    const int32_t high = device->info.priority_high;
    const int32_t low = device->info.priority_low;
    if (stream == OPENREG_STREAM_DEFAULT)
        *out = high > 0 ? high : low < 0 ? low : 0; /* 0, or the priority nearest to it */
    else
        *out = high + (int32_t)(((stream & 0xffff) - 1) / STREAMS_PER_POOL);
    return OPENREG_OK;
}

openreg_status
openreg_stream_native(int32_t index, openreg_stream stream, void **out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_native";
    openreg_device *device = NULL;
    openreg_driver_stream handle = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(reach(call, index, stream, &device, &handle));
    return openreg_call_stream_native(device, call, handle, out);
}

openreg_status
openreg_stream_from_native(int32_t index, const void *native, openreg_stream *out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_stream_from_native";
    openreg_device *device = NULL;
    void *candidate = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    OPENREG_RETURN_NOT_OK(openreg_call_stream_native(device, call, NULL, &candidate));
    if (native == NULL || native == candidate) {
        *out = OPENREG_STREAM_DEFAULT;
        return OPENREG_OK;
    }
    struct openreg_stream_set *const set = device->streams;
    for (int i = 0; i < set->levels * STREAMS_PER_POOL; ++i) {
        pool_stream *const slot = &set->slots[i];
        if (!atomic_load_explicit(&slot->is_made, memory_order_acquire))
            continue;
        OPENREG_RETURN_NOT_OK(openreg_call_stream_native(device, call, slot->handle, &candidate));
        if (native == candidate) {
            *out = id_of(set, i);
            return OPENREG_OK;
        }
    }
    return openreg_error_set(OPENREG_E_UNSUPPORTED, call,
                             "%p is not a stream that was made on %s:%d, and driver \"%s\" has no way to "
                             "adopt another library's",
                             native, openreg_device_name(), device->index, device->driver->name);
}
