/* SPDX-License-Identifier: BSD-3-Clause */
/* trace.h: spans, which become records of openreg/trace.h. Internal.
 *
 *   openreg_trace_span span;
 *   openreg_trace_begin(&span, OPENREG_TRACE_FILL, call, device, stream);
 *   span.record.bytes = size;                    what the kind asks for; unread while nobody listens
 *   openreg_trace_queues(&span, handle);         the work is queued from here on
 *   return openreg_trace_end(&span, status);
 *
 * Nothing here changes the thread's last error or a status. */
#ifndef OPENREG_SRC_TRACE_H
#define OPENREG_SRC_TRACE_H

#include <openreg/trace.h>

#include "driver/driver_calls.h"

typedef struct openreg_trace_base openreg_trace_base;

typedef struct openreg_trace_span {
    unsigned trace;         /* number of the trace; 0: nobody listens, and nothing else is set */
    openreg_device *device; /* NULL: the host */
    openreg_driver_stream handle;
    const openreg_trace_base *base; /* set: measured by the two markers */
    openreg_backend_event first, last;
    openreg_trace_record record;
} openreg_trace_span;

extern atomic_uint openreg_trace_number; /* of the trace that is on, or 0 */

/* The slow halves; trace.c. */
void openreg_trace_begin_on(openreg_trace_span *span, unsigned trace, int32_t kind, const char *call,
                            openreg_device *device, openreg_stream stream);
void openreg_trace_queues_on(openreg_trace_span *span, openreg_driver_stream handle);
void openreg_trace_works_on(openreg_trace_span *span);
void openreg_trace_end_on(openreg_trace_span *span, openreg_status status);

/* Flushes and forgets what refers to devices: before their drivers are closed. */
void openreg_trace_leave_devices(void);

/* The call begins. A NULL device is the host. */
static inline void
openreg_trace_begin(openreg_trace_span *span, int32_t kind, const char *call, openreg_device *device,
                    openreg_stream stream)
{
    span->trace = atomic_load_explicit(&openreg_trace_number, memory_order_relaxed);
    if (__builtin_expect(span->trace != 0, 0))
        openreg_trace_begin_on(span, span->trace, kind, call, device, stream);
}

/* From here to the end of the span the work is queued on `handle`, a stream of the span's device. Once a span. */
static inline void
openreg_trace_queues(openreg_trace_span *span, openreg_driver_stream handle)
{
    if (__builtin_expect(span->trace != 0, 0))
        openreg_trace_queues_on(span, handle);
}

/* From here to the end of the span the host does the work itself. */
static inline void
openreg_trace_works(openreg_trace_span *span)
{
    if (__builtin_expect(span->trace != 0, 0))
        openreg_trace_works_on(span);
}

/* The call ends with `status`, which is returned. A call that failed is not told. */
static inline openreg_status
openreg_trace_end(openreg_trace_span *span, openreg_status status)
{
    if (__builtin_expect(span->trace != 0, 0))
        openreg_trace_end_on(span, status);
    return status;
}

#endif
