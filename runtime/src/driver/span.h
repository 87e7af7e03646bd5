/* SPDX-License-Identifier: BSD-3-Clause */
/* span.h: reports the begin and end of a call to observers (openreg_span, openreg/observer.h). Internal.
 *
 *   openreg_watched_span span;
 *   openreg_span_begin(&span, OPENREG_TRACE_FILL, call, "", device, stream, size, OPENREG_HOST, index);
 *   openreg_span_queues(&span, handle);          the work is queued from here on
 *   return openreg_span_end(&span, status);
 *
 * Nothing here changes the thread's last error or a status. */
#ifndef OPENREG_SRC_SPAN_H
#define OPENREG_SRC_SPAN_H

#include <openreg/trace.h>

#include "driver/device_table.h"
#include "watch/observers.h"

typedef struct openreg_watched_span {
    bool is_watched;              /* false: nothing else is set */
    const openreg_device *device; /* NULL: the host */
    openreg_span told;
    openreg_span_keepers keepers;
} openreg_watched_span;

/* The call begins. A NULL device is the host. */
static inline void
openreg_span_begin(openreg_watched_span *span, int32_t kind, const char *call, const char *name,
                   const openreg_device *device, openreg_stream stream, uint64_t bytes, int32_t source,
                   int32_t destination)
{
    span->is_watched = openreg_is_observed(OPENREG_OBSERVE_SPANS);
    if (__builtin_expect(!span->is_watched, 1))
        return;
    span->device = device;
    span->told = (openreg_span){.kind = kind,
                                .device = device != NULL ? device->index : OPENREG_HOST,
                                .source = source,
                                .destination = destination,
                                .stream = stream,
                                .bytes = bytes,
                                .call = call,
                                .name = name};
    openreg_observers_span(OPENREG_SPAN_BEGIN, &span->told, &span->keepers);
}

/* From here to the end of the span the work is queued on `handle`, a stream of the span's device. Once a span. */
static inline void
openreg_span_queues(openreg_watched_span *span, openreg_driver_stream handle)
{
    if (__builtin_expect(!span->is_watched, 1) || span->told.table != NULL)
        return;
    span->told.table = &span->device->driver->own;
    span->told.instance = span->device->driver->instance;
    span->told.ordinal = span->device->ordinal;
    span->told.handle = handle;
    openreg_observers_span(OPENREG_SPAN_QUEUES, &span->told, &span->keepers);
}

/* From here to the end of the span the host does the work itself. */
static inline void
openreg_span_works(openreg_watched_span *span)
{
    if (__builtin_expect(span->is_watched, 0))
        openreg_observers_span(OPENREG_SPAN_WORKS, &span->told, &span->keepers);
}

/* The call ends with `status`, which is returned. */
static inline openreg_status
openreg_span_end(openreg_watched_span *span, openreg_status status)
{
    if (__builtin_expect(span->is_watched, 0)) {
        span->told.status = status;
        openreg_observers_span(OPENREG_SPAN_END, &span->told, &span->keepers);
    }
    return status;
}

#endif
