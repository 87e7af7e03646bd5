/* SPDX-License-Identifier: BSD-3-Clause */
/* capture.h: calls that are recorded instead of done, while a stream is captured for a graph and its driver doesn't capture
 * by itself (openreg/graphs.h). Internal.
 *
 * The recorder is in libopenreg_graph.so. While it records nothing each place costs one load. */
#ifndef OPENREG_SRC_CAPTURE_H
#define OPENREG_SRC_CAPTURE_H

#include <stdatomic.h>

#include <openreg/comm.h>
#include <openreg/communicators.h>
#include <openreg/kernels.h>
#include <openreg/openreg.h>

#include "base/internal_api.h"

enum {
    OPENREG_CAPTURED_COPY, /* the first five become nodes */
    OPENREG_CAPTURED_FILL,
    OPENREG_CAPTURED_FUNCTION,
    OPENREG_CAPTURED_KERNEL,
    OPENREG_CAPTURED_COLLECTIVES,
    OPENREG_CAPTURED_RECORD, /* of an event */
    OPENREG_CAPTURED_WAIT,   /* a stream waits for an event; `has_record`: it was recorded outside of a capture */
    OPENREG_CAPTURED_STREAM, /* the host waits for, or queries, a stream */
    OPENREG_CAPTURED_EVENT,  /* the same for an event */
    OPENREG_CAPTURED_DEVICE, /* the same for a device */
    OPENREG_CAPTURED_FREE,   /* memory is released to the driver */
};

/* The function's arguments; fields that the kind doesn't use are zero. */
typedef struct openreg_captured_call {
    int32_t kind; /* OPENREG_CAPTURED_* */
    int32_t device;
    const char *call;
    openreg_stream stream;
    void *dst;
    const void *src;
    int32_t dst_device, src_device;
    uint64_t size; /* of a copy or fill; of COLLECTIVES the number of ranks */
    uint8_t value;
    int32_t has_record;
    void (*function)(void *argument);
    void *argument;
    const openreg_kernel *kernel;
    const openreg_kernel_call *kernel_call;
    openreg_communicator communicator;
    const openreg_collective *list;
    uint64_t count;
    openreg_event event;
} openreg_captured_call;

/* 1: the call was recorded or refused, and *status is its result; 0: it belongs to no capture, and is done as usual. */
typedef int (*openreg_recorder_fn)(const openreg_captured_call *call, openreg_status *status);
/* NULL while nothing is captured. */
OPENREG_INTERNAL extern _Atomic(openreg_recorder_fn) openreg_recorder;

/* OPENREG_CAPTURE(.kind = ..., .call = call, ...): returns from the calling function if a capture takes the call. */
#define OPENREG_CAPTURE(...)                                                                                           \
    do {                                                                                                               \
        const openreg_recorder_fn capture_recorder = atomic_load_explicit(&openreg_recorder, memory_order_acquire);    \
        openreg_status capture_status = OPENREG_OK;                                                                    \
        if (__builtin_expect(capture_recorder != NULL, 0) &&                                                           \
            capture_recorder(&(const openreg_captured_call){__VA_ARGS__}, &capture_status))                            \
            return capture_status;                                                                                     \
    } while (0)

#endif
