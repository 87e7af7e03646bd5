/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/observer.h: callbacks for tools that observe the runtime. Part of the C API: the rules of openreg.h on
 * errors, threads and start hold here. Not stable: it is version 0, and may change in any release. Valid C11 and
 * C++17.
 *
 *   static const openreg_observer mine = {.struct_size = sizeof mine, .memory = keep};
 *   openreg_observe(&mine, OPENREG_OBSERVE_MEMORY);
 *   ...
 *   openreg_observer_remove(&mine);
 *
 * To follow a driver's calls, use a layer (layer.h). An observer gets what drivers are not called for: blocks that are
 * allocated and freed, the order of work, waits of the host. It changes nothing.
 *
 * A function is called by the thread that causes the event, by several at once, and only while its event is switched on. None
 * may call a function of the runtime that waits, allocates or runs work, except where noted; each may be NULL. While there
 * is no observer, each place costs one load of a word that is not written. */
#ifndef OPENREG_OBSERVER_H
#define OPENREG_OBSERVER_H

#include <openreg/allocator.h>
#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Events. */
#define OPENREG_OBSERVE_MEMORY 1u /* memory() */
#define OPENREG_OBSERVE_USES 2u   /* block(), order(), lost() */
#define OPENREG_OBSERVE_SPANS 4u  /* span() */
#define OPENREG_OBSERVE_WORK 8u   /* alarm(); libraries also report operators and collectives on the host (faults.h) */
#define OPENREG_OBSERVE_TABLE 64u /* table() */
#define OPENREG_OBSERVE_ALL 79u

/* The events of order(): how work is ordered from now on. A mark is a recorded event or a queued host function. */
#define OPENREG_ORDER_HOST_STREAM 1 /* the host has waited for all work of `stream`, or found it complete */
#define OPENREG_ORDER_HOST_DEVICE 2 /* the same for all work of `device` */
#define OPENREG_ORDER_STREAMS 3     /* later work of `stream` is behind all work of `first_stream` of `first_device` */
#define OPENREG_ORDER_MARK 4 /* `mark` stands behind all work of `stream`; an earlier one of that number is replaced */
#define OPENREG_ORDER_HOST_MARK 5   /* the host has found the mark complete */
#define OPENREG_ORDER_STREAM_MARK 6 /* later work of `stream` is behind the mark */
#define OPENREG_ORDER_MARK_GONE 7   /* the mark no longer exists; sent also if OPENREG_ORDER_MARK was not */

typedef struct openreg_order {
    int32_t what; /* OPENREG_ORDER_* */
    int32_t device, first_device;
    int32_t reserved;
    openreg_stream stream, first_stream;
    uint64_t mark;
} openreg_order;

/* A call that queues work on a device, or waits. The first fields are set at OPENREG_SPAN_BEGIN. */
typedef struct openreg_span {
    int32_t kind;        /* OPENREG_TRACE_*, trace.h */
    int32_t device;      /* OPENREG_HOST: a copy within the host */
    int32_t source;      /* of a copy; OPENREG_HOST: the host */
    int32_t destination; /* of a copy or fill */
    openreg_stream stream;
    uint64_t bytes;
    const char *call; /* "openreg_memcpy_async" */
    const char *name; /* of a kernel, else "" */
    /* At OPENREG_SPAN_QUEUES: the driver of the work, and its stream. The table is valid while the device table is. */
    const openreg_driver *table;
    openreg_instance instance;
    openreg_driver_stream handle;
    int32_t ordinal;
    openreg_status status; /* at OPENREG_SPAN_END */
} openreg_span;

#define OPENREG_SPAN_BEGIN 1
#define OPENREG_SPAN_QUEUES 2 /* from here on the work is queued on `handle`; at most once a span */
#define OPENREG_SPAN_WORKS 3  /* from here on the host does the work itself */
#define OPENREG_SPAN_END 4

typedef struct openreg_observer {
    uint32_t struct_size, reserved; /* sizeof(openreg_observer); 0 */
    void *ctx;                      /* first argument of all functions */

    /* An action of the allocator, in order on each device. Called under the cache's lock. */
    void (*memory)(void *ctx, const openreg_memory_event *event);

    /* The new state of a block of `size` bytes, as it was requested: OPENREG_BLOCK_ALLOCATED; _RECORDED, with `device` and
     * `stream`; _FREE, under the cache's lock, before another thread can allocate it; _GONE, of a range with any blocks. */
    void (*block)(void *ctx, int32_t what, const void *address, uint64_t size, int32_t device, openreg_stream stream);
    void (*order)(void *ctx, const openreg_order *order);
    /* A call is about to use a stream, or an event, of a device that was lost in `first_call`, and will fail. */
    void (*lost)(void *ctx, const char *call, int32_t device, openreg_stream stream, const char *first_call,
                 const char *first_place);

    /* *kept is the observer's own, NULL at OPENREG_SPAN_BEGIN and dropped after OPENREG_SPAN_END. If the observer leaves it
     * NULL, it gets no further steps of that span. May call the driver's functions. Must not change the thread's last error. */
    void (*span)(void *ctx, int32_t step, const openreg_span *span, void **kept);

    /* For recorders: a call has failed with OPENREG_E_DEVICE_LOST, _INTERNAL, _PEER or _TIMEOUT; or, with OPENREG_OK, a
     * driver's open() takes long. Any lock may be held. */
    void (*alarm)(void *ctx, int32_t device, openreg_status status);

    /* A device table is about to be published (1), with or without one before, or the published one is about to be withdrawn
     * (0). May call the functions of open drivers. */
    void (*table)(void *ctx, int32_t is_published);
} openreg_observer;

#define OPENREG_OBSERVER_SIZE_1 72u
static_assert(sizeof(openreg_observer) == OPENREG_OBSERVER_SIZE_1, "append a function, then freeze its size");

#define OPENREG_OBSERVERS_MAX 16

/* Sets which events (OPENREG_OBSERVE_*) the observer gets from now on; may be changed at any time. 0: only the ends of spans
 * that it keeps. `observer` and what it points to must stay valid until openreg_observer_remove() has returned.
 * Errors: OPENREG_E_INVALID (incomplete, unknown events), OPENREG_E_NOMEM (there are OPENREG_OBSERVERS_MAX). */
OPENREG_API openreg_status openreg_observe(const openreg_observer *observer, uint32_t events);

/* Removes an observer, and waits for calls of its functions in other threads; afterwards there are none, not even for spans
 * that have begun. If called from an observer's function it doesn't wait. Never fails; an unknown observer is ignored. */
OPENREG_API void openreg_observer_remove(const openreg_observer *observer);

/* The word with the events that any observer gets now, without _TABLE; the runtime has further bits of its own in it. */
OPENREG_API const uint32_t *openreg_observed_word(void);
/* Its value: two loads, never fails. */
static inline uint32_t
openreg_observed(void)
{
    static const uint32_t *word;
    const uint32_t *known = __atomic_load_n(&word, __ATOMIC_RELAXED);
    if (known == NULL) {
        known = openreg_observed_word();
        __atomic_store_n(&word, known, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(known, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_OBSERVER_H */
