/* SPDX-License-Identifier: BSD-3-Clause */
/* copy.c: copies and fills of the public API: checks their ranges, and chooses how they are done.
 *
 * Memory of a driver that the host can see is copied by the host, through its alias, when the caller waits anyway: no
 * queue, no other thread. Everything else goes to the driver; between two drivers the bytes pass through the host. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/inside.h"
#include "device/stream.h"
#include "driver/driver_calls.h"
#include "driver/span.h"
#include "memory/cache.h"
#include "memory/host_memory.h"
#include "watch/capture.h"
#include "watch/interceptors.h"

#define STAGING_SIZE (UINT64_C(4) << 20)

/* One end of a copy. */
typedef struct copy_end {
    const char *role; /* "destination" or "source" */
    uintptr_t address;
    openreg_device *device; /* NULL: host memory */
    uintptr_t distance;     /* to the host's alias */
    bool visible;           /* the alias exists */
} copy_end;

static openreg_status
find_device(const char *call, const char *role, int32_t index, copy_end *end)
{
    *end = (copy_end){.role = role};
    return index == OPENREG_HOST ? OPENREG_OK : openreg_device_get(call, index, &end->device);
}

/* Host memory may be anything but device memory that the host cannot touch. */
static openreg_status
check_host_range(const char *call, const copy_end *end, const void *ptr, uint64_t size)
{
    openreg_found_range found;
    if (ptr == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "the %s is NULL", end->role);
    if (size - 1 > UINTPTR_MAX - (uintptr_t)ptr)
        return openreg_error_set(OPENREG_E_INVALID, call, "the %s, %llu bytes at %p, leaves the address space",
                                 end->role, (unsigned long long)size, ptr);
    if (!openreg_address_map_find(ptr, &found) && !openreg_address_map_find((const char *)ptr + (size - 1), &found))
        return OPENREG_OK;
    if (found.alias || ((found.info.flags & OPENREG_RANGE_VISIBLE) != 0 && found.info.distance == 0))
        return OPENREG_OK;
    return openreg_error_set(OPENREG_E_INVALID, call, "the %s %p was given as host memory, but it is memory of %s:%d",
                             end->role, ptr, openreg_device_name(), found.info.device->index);
}

/* A device range must lie inside one live block of the device named, or in a pool that graphs are replayed in. */
static openreg_status
check_device_range(const char *call, copy_end *end, const void *ptr, uint64_t size)
{
    const int32_t index = end->device->index;
    openreg_found_range found;
    openreg_block_view block;
    if (!openreg_address_map_find(ptr, &found))
        return openreg_error_set(OPENREG_E_INVALID, call, "the %s %p is not memory of %s:%d, or was freed already",
                                 end->role, ptr, openreg_device_name(), index);
    if (found.info.device != end->device || found.alias)
        return openreg_error_set(OPENREG_E_INVALID, call, "the %s %p is %s %s:%d, not memory of %s:%d", end->role, ptr,
                                 found.alias ? "the host's alias of memory of" : "memory of", openreg_device_name(),
                                 found.info.device->index, openreg_device_name(), index);
    const bool is_live = openreg_cache_view(&found, (uintptr_t)ptr, &block) && block.live;
    const uint64_t offset = is_live ? (uintptr_t)ptr - block.address : 0;
    const bool fits = is_live && offset <= block.requested && size <= block.requested - offset;
    const bool is_allowed = fits || openreg_cache_is_replayed(&found, (uintptr_t)ptr, size);
    if (!is_live && !is_allowed)
        return openreg_error_set(OPENREG_E_INVALID, call, "the %s %p on %s:%d was freed already", end->role, ptr,
                                 openreg_device_name(), index);
    if (!is_allowed)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "the %s, %llu bytes at offset %llu, exceeds its block of %llu bytes at 0x%llx on "
                                 "%s:%d",
                                 end->role, (unsigned long long)size, (unsigned long long)offset,
                                 (unsigned long long)block.requested, (unsigned long long)block.address,
                                 openreg_device_name(), index);
    end->distance = found.info.distance;
    end->visible = (found.info.flags & OPENREG_RANGE_VISIBLE) != 0;
    return OPENREG_OK;
}

static openreg_status
check_end(const char *call, copy_end *end, const void *ptr, uint64_t size)
{
    end->address = (uintptr_t)ptr;
    return end->device == NULL ? check_host_range(call, end, ptr, size) : check_device_range(call, end, ptr, size);
}

static openreg_status
current_stream_of(openreg_device *device, const char *call, openreg_driver_stream *out)
{
    return openreg_stream_resolve(device, call, openreg_stream_current_of(device), out);
}

static openreg_status
sync_current_stream(openreg_device *device, const char *call)
{
    openreg_driver_stream handle;
    OPENREG_RETURN_NOT_OK(current_stream_of(device, call, &handle));
    return openreg_call_stream_sync(device, call, handle);
}

/* Replaces a host-visible end by its alias, after waiting for the thread's current stream of its device. */
static openreg_status
reach_from_host(copy_end *end, const char *call)
{
    if (!end->visible || openreg_is_observed(OPENREG_INTERCEPT_COPIES))
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(sync_current_stream(end->device, call));
    end->address += end->distance;
    end->device = NULL;
    end->visible = false;
    return OPENREG_OK;
}

static openreg_status
call_copy(openreg_device *on, const char *call, const copy_end *dst, const copy_end *src, uint64_t size,
          openreg_driver_stream stream)
{
    return openreg_call_copy(on, call, (void *)dst->address, dst->device, (const void *)src->address, src->device, size,
                             stream);
}

/* The device that a copy runs on if the caller names none; NULL: the host. */
static openreg_device *
worker_of(const copy_end *dst, const copy_end *src)
{
    return dst->device != NULL ? dst->device : src->device;
}

static void
begin_span(openreg_watched_span *span, const char *call, openreg_device *on, openreg_stream stream, const copy_end *dst,
           const copy_end *src, uint64_t size)
{
    openreg_span_begin(span, OPENREG_TRACE_COPY, call, "", on, stream, size,
                       src->device != NULL ? src->device->index : OPENREG_HOST,
                       dst->device != NULL ? dst->device->index : OPENREG_HOST);
}

/* Copies by the driver; at least one end is on a device. `span` is that of the device's part, or NULL. */
static openreg_status
copy_by_driver(const char *call, const copy_end *dst, const copy_end *src, uint64_t size, openreg_watched_span *span)
{
    openreg_device *on = worker_of(dst, src);
    openreg_driver_stream handle;
    if (src->device != NULL && src->device != on)
        OPENREG_RETURN_NOT_OK(sync_current_stream(src->device, call));
    OPENREG_RETURN_NOT_OK(current_stream_of(on, call, &handle));
    if (span != NULL && span->is_watched && span->device == on)
        openreg_span_queues(span, handle);
    OPENREG_RETURN_NOT_OK(call_copy(on, call, dst, src, size, handle));
    return openreg_call_stream_sync(on, call, handle);
}

static openreg_status
copy_in_chunks(const char *call, copy_end dst, copy_end src, uint64_t size, void *buffer, uint64_t room)
{
    const copy_end staging = {.role = "buffer", .address = (uintptr_t)buffer};
    while (size > 0) {
        const uint64_t chunk = size < room ? size : room;
        OPENREG_RETURN_NOT_OK(copy_by_driver(call, &staging, &src, chunk, NULL));
        OPENREG_RETURN_NOT_OK(copy_by_driver(call, &dst, &staging, chunk, NULL));
        dst.address += chunk;
        src.address += chunk;
        size -= chunk;
    }
    return OPENREG_OK;
}

/* Between two drivers, neither of which has host-visible memory. */
static openreg_status
copy_staged(const char *call, const copy_end *dst, const copy_end *src, uint64_t size)
{
    const uint64_t room = size < STAGING_SIZE ? size : STAGING_SIZE;
    void *buffer = malloc(room);
    if (buffer == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "out of host memory for %llu bytes to stage the copy through",
                                 (unsigned long long)room);
    const openreg_status status = copy_in_chunks(call, *dst, *src, size, buffer, room);
    free(buffer);
    return status;
}

/* Copies behind the thread's current streams of the devices, and returns when the copy is complete. */
static openreg_status
copy_and_wait(const char *call, copy_end dst, copy_end src, uint64_t size, openreg_watched_span *span)
{
    OPENREG_RETURN_NOT_OK(reach_from_host(&dst, call));
    OPENREG_RETURN_NOT_OK(reach_from_host(&src, call));
    if (dst.device == NULL && src.device == NULL) {
        openreg_span_works(span);
        openreg_copy_on_host((void *)dst.address, (const void *)src.address, size);
        return OPENREG_OK;
    }
    if (dst.device != NULL && src.device != NULL && dst.device->driver != src.device->driver)
        return copy_staged(call, &dst, &src, size);
    return copy_by_driver(call, &dst, &src, size, span);
}

/* Reports the uses of a copy to observers: on a stream of `on`, with which the other end's device is ordered. Host memory
 * counts if it is pinned; `waits`: the host waits for the copy. */
static openreg_status
tell_of_copy(const char *call, openreg_device *on, openreg_stream stream, const copy_end *dst, const copy_end *src,
             uint64_t size, bool waits)
{
    openreg_device *const other = dst->device != NULL && dst->device != on ? dst->device : src->device;
    const bool between = other != NULL && other != on;
    const openreg_stream others = between ? openreg_stream_current_of(other) : OPENREG_STREAM_DEFAULT;
    if (between)
        openreg_observers_order(&(openreg_order){.what = OPENREG_ORDER_STREAMS,
                                                 .device = on->index,
                                                 .stream = stream,
                                                 .first_device = other->index,
                                                 .first_stream = others});
    openreg_used_range ranges[2];
    size_t count = 0;
    for (int i = 0; i < 2; ++i) {
        const copy_end *const end = i == 0 ? dst : src;
        openreg_host_block pinned;
        if (end->device != NULL || openreg_host_memory_find(end->address, &pinned))
            ranges[count++] = (openreg_used_range){(const void *)end->address, size, i == 0, 0};
    }
    OPENREG_RETURN_NOT_OK(openreg_intercepted_use(call, on->index, stream, ranges, count));
    if (between)
        openreg_observers_order(&(openreg_order){.what = OPENREG_ORDER_STREAMS,
                                                 .device = other->index,
                                                 .stream = others,
                                                 .first_device = on->index,
                                                 .first_stream = stream});
    if (waits)
        openreg_observers_order(
            &(openreg_order){.what = OPENREG_ORDER_HOST_STREAM, .device = on->index, .stream = stream});
    return OPENREG_OK;
}

openreg_status
openreg_memcpy(void *dst, int32_t dst_device, const void *src, int32_t src_device, size_t size)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memcpy";
    copy_end to, from;
    OPENREG_RETURN_NOT_OK(find_device(call, "destination", dst_device, &to));
    OPENREG_RETURN_NOT_OK(find_device(call, "source", src_device, &from));
    if (size == 0)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(check_end(call, &to, dst, size));
    OPENREG_RETURN_NOT_OK(check_end(call, &from, src, size));
    openreg_watched_span span;
    openreg_device *const on = worker_of(&to, &from);
    openreg_device *const waited_for[] = {to.device, from.device};
    for (int i = 0; i < 2; ++i)
        if (waited_for[i] != NULL)
            OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_STREAM, .call = call, .device = waited_for[i]->index,
                            .stream = openreg_stream_current_of(waited_for[i]));
    if (openreg_is_observed(OPENREG_OBSERVE_USES) && on != NULL)
        OPENREG_RETURN_NOT_OK(tell_of_copy(call, on, openreg_stream_current_of(on), &to, &from, size, true));
    begin_span(&span, call, on, on != NULL ? openreg_stream_current_of(on) : OPENREG_STREAM_DEFAULT, &to, &from, size);
    return openreg_span_end(&span, copy_and_wait(call, to, from, size, &span));
}

/* Makes stream `later` of `waiter` wait for the work that is now on stream `first` of `worker`. */
static openreg_status
order(const char *call, openreg_device *worker, openreg_driver_stream first, openreg_device *waiter,
      openreg_driver_stream later)
{
    openreg_backend_event event;
    OPENREG_RETURN_NOT_OK(openreg_call_marker_create(worker, call, 0, &event));
    openreg_status status = openreg_call_marker_record(worker, call, &event, first);
    if (status == OPENREG_OK)
        status = openreg_call_stream_wait(waiter, call, later, worker, &event);
    if (status != OPENREG_OK) { /* the first error counts */
        const openreg_error_fields error = openreg_error_save();
        (void)openreg_call_marker_destroy(worker, call, &event);
        openreg_error_restore(&error);
        return status;
    }
    return openreg_call_marker_destroy(worker, call, &event);
}

/* Between two devices of one driver: ordered behind the current stream of the other device, and before work that is queued
 * there later. */
static openreg_status
copy_between_peers(const char *call, openreg_device *on, openreg_driver_stream stream, const copy_end *dst,
                   const copy_end *src, uint64_t size)
{
    openreg_device *const other = on == dst->device ? src->device : dst->device;
    openreg_driver_stream others;
    OPENREG_RETURN_NOT_OK(current_stream_of(other, call, &others));
    OPENREG_RETURN_NOT_OK(order(call, other, others, on, stream));
    OPENREG_RETURN_NOT_OK(call_copy(on, call, dst, src, size, stream));
    return order(call, on, stream, other, others);
}

openreg_status
openreg_memcpy_async(int32_t stream_device, openreg_stream stream, void *dst, int32_t dst_device, const void *src,
                     int32_t src_device, size_t size)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memcpy_async";
    copy_end to, from;
    openreg_device *on = NULL;
    openreg_driver_stream handle = NULL;
    OPENREG_RETURN_NOT_OK(find_device(call, "destination", dst_device, &to));
    OPENREG_RETURN_NOT_OK(find_device(call, "source", src_device, &from));
    if (to.device != NULL || from.device != NULL) {
        OPENREG_RETURN_NOT_OK(openreg_device_get(call, stream_device, &on));
        if (on != to.device && on != from.device)
            return openreg_error_set(OPENREG_E_INVALID, call,
                                     "stream_device must be the device of the destination (%d) or of the source "
                                     "(%d), but is %d",
                                     dst_device, src_device, stream_device);
        OPENREG_RETURN_NOT_OK(openreg_stream_resolve(on, call, stream, &handle));
        openreg_stream_is_used(on, call, stream);
    }
    if (size == 0)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(check_end(call, &to, dst, size));
    OPENREG_RETURN_NOT_OK(check_end(call, &from, src, size));
    if (on != NULL)
        OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_COPY, .call = call, .device = stream_device, .stream = stream,
                        .dst = dst, .dst_device = dst_device, .src = src, .src_device = src_device, .size = size);
    if (openreg_is_observed(OPENREG_OBSERVE_USES) && on != NULL)
        OPENREG_RETURN_NOT_OK(tell_of_copy(call, on, stream, &to, &from, size, false));
    openreg_watched_span span;
    begin_span(&span, call, on, stream, &to, &from, size);
    if (on != NULL && (to.device == NULL || from.device == NULL || to.device->driver == from.device->driver)) {
        openreg_span_queues(&span, handle);
        const int between = to.device != NULL && from.device != NULL && to.device != from.device;
        return openreg_span_end(&span, between ? copy_between_peers(call, on, handle, &to, &from, size)
                                               : call_copy(on, call, &to, &from, size, handle));
    }
    /* Between drivers: ordered behind the stream, and complete when this returns, so before later work. */
    openreg_status status = on != NULL ? openreg_call_stream_sync(on, call, handle) : OPENREG_OK;
    if (status == OPENREG_OK)
        status = copy_and_wait(call, to, from, size, &span);
    return openreg_span_end(&span, status);
}

openreg_status
openreg_memset_async(int32_t device, openreg_stream stream, void *dst, uint8_t value, size_t size)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memset_async";
    copy_end to = {.role = "destination"};
    openreg_driver_stream handle;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &to.device));
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(to.device, call, stream, &handle));
    openreg_stream_is_used(to.device, call, stream);
    if (size == 0)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(check_end(call, &to, dst, size));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_FILL, .call = call, .device = device, .stream = stream, .dst = dst,
                    .dst_device = device, .value = value, .size = size);
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        OPENREG_RETURN_NOT_OK(openreg_intercepted_use(call, device, stream, &(openreg_used_range){dst, size, 1, 0}, 1));
    openreg_watched_span span;
    openreg_span_begin(&span, OPENREG_TRACE_FILL, call, "", to.device, stream, size, OPENREG_HOST, device);
    openreg_span_queues(&span, handle);
    return openreg_span_end(&span, openreg_call_fill(to.device, call, dst, value, size, handle));
}
