/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/trace.h: calls of the runtime that use devices, reported with their times to one listener, such as a profiler. Part
 * of the C API: the rules of openreg.h on errors, threads and start hold here. Not stable: it is version 0, and may
 * change in any release. Valid C11 and C++17.
 *
 *   openreg_tracer tracer = {sizeof tracer, 0, &buffer, note_thread, keep};
 *   openreg_trace_start(&tracer);
 *   ...                                 copies, fills and kernels run; the trace does not wait for them
 *   openreg_trace_stop();               keep() has now been called for each of them
 *
 * Without a listener a traced call costs one load of a flag that is not written. All times are nanoseconds of
 * CLOCK_MONOTONIC. */
#ifndef OPENREG_TRACE_H
#define OPENREG_TRACE_H

#include <openreg/lab.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of record. */
#define OPENREG_TRACE_COPY 1   /* openreg_memcpy(), openreg_memcpy_async() */
#define OPENREG_TRACE_FILL 2   /* openreg_memset_async() */
#define OPENREG_TRACE_KERNEL 3 /* openreg_kernel_run() */
#define OPENREG_TRACE_WAIT 4   /* the host waited: openreg_device_synchronize(), _stream_ and _event_synchronize() */

/* Where device_begin and device_end come from. */
#define OPENREG_TIMING_NONE 0     /* both are 0: the call gave the device no work */
#define OPENREG_TIMING_MEASURED 1 /* by timed events of the driver, before and behind the work on its stream */
#define OPENREG_TIMING_BY_HOST 2  /* the host did the work, in the device's memory, at that time */
#define OPENREG_TIMING_ASSUMED 3  /* the driver can't time: the begin and the end of the call */

/* One call that succeeded. Pointers are valid until the listener returns. */
typedef struct openreg_trace_record {
    uint32_t struct_size;
    int32_t kind;                      /* OPENREG_TRACE_* */
    int32_t timing;                    /* OPENREG_TIMING_NONE to _ASSUMED */
    int32_t device;                    /* whose stream was used or waited for; OPENREG_HOST: a copy within the host */
    int32_t source;                    /* COPY: the source's device or OPENREG_HOST; else OPENREG_HOST */
    int32_t destination;               /* COPY and FILL: the destination's device or OPENREG_HOST; else OPENREG_HOST */
    openreg_stream stream;             /* of `device`; 0 if the whole device was waited for */
    uint64_t bytes;                    /* COPY and FILL, else 0 */
    uint64_t tag;                      /* the result of begin() */
    uint64_t host_begin, host_end;     /* of the call */
    uint64_t device_begin, device_end; /* of the work; not before host_begin */
    const char *call;                  /* "openreg_memcpy_async" */
    const char *name;                  /* KERNEL: the operator's, "aten::mm", cut at 127 characters; else "" */
} openreg_trace_record;

#define OPENREG_TRACE_RECORD_SIZE_1 96u
static_assert(sizeof(openreg_trace_record) == OPENREG_TRACE_RECORD_SIZE_1, "append a field, then freeze its size");

typedef struct openreg_tracer {
    uint32_t struct_size; /* set by the caller */
    uint32_t reserved;    /* 0 */
    void *ctx;
    /* Called by the thread that makes a traced call, when the call begins; its result is the record's tag. NULL: tags
     * are 0. */
    uint64_t (*begin)(void *ctx);
    /* Called once for each traced call that succeeded, as soon as its times are known: by the calling thread if that is
     * at once, else by any thread that makes a traced call, flushes or stops. Not in order. */
    void (*record)(void *ctx, const openreg_trace_record *record);
} openreg_tracer;

#define OPENREG_TRACER_SIZE_1 32u
static_assert(sizeof(openreg_tracer) == OPENREG_TRACER_SIZE_1, "append a field, then freeze its size");

/* Begins a trace. The functions of `tracer` may be called by several threads at once, and must not call the runtime.
 * On a driver with timed events the first traced call of each device waits for its stream, to compare clocks.
 * Errors: OPENREG_E_INVALID (NULL, struct_size not set, no record()), OPENREG_E_BUSY (a trace is active already),
 * OPENREG_E_FORKED. */
OPENREG_WARN_UNUSED static inline openreg_status
openreg_trace_start(const openreg_tracer *tracer)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->trace_start(tracer) : OPENREG_E_INCOMPATIBLE;
}

/* Waits for the work of the calls traced so far and reports those that are not reported yet. Work whose end the driver
 * fails to measure is left out. Errors: OPENREG_E_INVALID (no trace is active), OPENREG_E_FORKED. */
static inline openreg_status
openreg_trace_flush(void)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->trace_flush() : OPENREG_E_INCOMPATIBLE;
}

/* Flushes and ends the trace: when this returns, the listener's functions are not running and are no longer called. Calls
 * in flight are not reported. openreg_shutdown() flushes, but does not stop; a forked child inherits no trace.
 * Errors: OPENREG_E_INVALID (no trace is active). In a child that can't use devices it succeeds. */
static inline openreg_status
openreg_trace_stop(void)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->trace_stop() : OPENREG_E_INCOMPATIBLE;
}

/* The current time, on the clock of all times here. Never fails. */
OPENREG_API uint64_t openreg_trace_clock(void);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_TRACE_H */
