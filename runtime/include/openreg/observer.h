/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/observer.h: one table for everything that watches the runtime. Part of the C API: the rules of openreg.h on
 * errors, threads and start hold here. Not promised: it is version 0, and may change in any release. Valid C11 and
 * C++17.
 *
 *   static const openreg_observer mine = {.struct_size = sizeof mine, .memory = keep};
 *   openreg_observe(&mine, OPENREG_OBSERVE_MEMORY);
 *   ...
 *   openreg_observer_remove(&mine);
 *
 * What can be seen in a driver's calls alone is for a layer (layer.h); here is what drivers don't see: blocks that are
 * given out and freed, the order of work, waits of the host. An observer observes: it changes nothing.
 *
 * Functions are called by the thread whose call it is, several at once, and only while their event is switched on. None
 * may call a function of the runtime that waits, allocates or runs work, unless it says so; each may be NULL. While
 * there is no observer, each place costs one load of a word that is not written. */
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
#define OPENREG_OBSERVE_WORK 8u   /* alarm(); who runs operators or collectives on the host says so (faults.h) */
#define OPENREG_OBSERVE_TABLE 64u /* table() */
#define OPENREG_OBSERVE_ALL 79u

/* The events of order(): what comes behind what from now on. A mark is a recorded event or a queued host function. */
#define OPENREG_ORDER_HOST_STREAM 1 /* the host has seen all work of `stream` */
#define OPENREG_ORDER_HOST_DEVICE 2 /* of `device` */
#define OPENREG_ORDER_STREAMS 3     /* later work of `stream` is behind all work of `first_stream` of `first_device` */
#define OPENREG_ORDER_MARK 4 /* `mark` stands behind all work of `stream`; an earlier one of that number is replaced */
#define OPENREG_ORDER_HOST_MARK 5   /* the host has seen the mark passed */
#define OPENREG_ORDER_STREAM_MARK 6 /* later work of `stream` is behind the mark */
#define OPENREG_ORDER_MARK_GONE 7   /* sent also where OPENREG_ORDER_MARK was not */

typedef struct openreg_order {
    int32_t what; /* OPENREG_ORDER_* */
    int32_t device, first_device;
    int32_t reserved;
    openreg_stream stream, first_stream;
    uint64_t mark;
} openreg_order;

/* A call that works on a device, or waits. The first fields are set at OPENREG_SPAN_BEGIN. */
typedef struct openreg_span {
    int32_t kind;        /* OPENREG_TRACE_*, trace.h */
    int32_t device;      /* OPENREG_HOST: a copy within the host */
    int32_t source;      /* of a copy; OPENREG_HOST: the host */
    int32_t destination; /* of a copy or fill */
    openreg_stream stream;
    uint64_t bytes;
    const char *call; /* "openreg_memcpy_async" */
    const char *name; /* of a kernel, else "" */
    /* At OPENREG_SPAN_QUEUES: who does the work, and its stream. The table is valid while the device table is. */
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

    /* What the allocator does, in order on each device. Under the cache's lock. */
    void (*memory)(void *ctx, const openreg_memory_event *event);

    /* What has become of a block: OPENREG_BLOCK_ALLOCATED; _RECORDED, with `device` and `stream`; _FREE, before another
     * thread can be given it, with `size` 0; _GONE. */
    void (*block)(void *ctx, int32_t what, const void *address, uint64_t size, int32_t device, openreg_stream stream);
    void (*order)(void *ctx, const openreg_order *order);
    /* A call is about to use a stream, or an event, of a device that was lost in `first_call`, and will fail. */
    void (*lost)(void *ctx, const char *call, int32_t device, openreg_stream stream, const char *first_call,
                 const char *first_place);

    /* `kept` is a word of the observer's own, NULL at OPENREG_SPAN_BEGIN and gone after OPENREG_SPAN_END. An observer that
     * leaves it NULL sees nothing more of that span. May call the driver's functions. Leaves the thread's last error as it is. */
    void (*span)(void *ctx, int32_t step, const openreg_span *span, void **kept);

    /* Of OPENREG_OBSERVE_WORK: something has gone wrong that a recorder writes down. A call has failed with
     * OPENREG_E_DEVICE_LOST, _INTERNAL, _PEER or _TIMEOUT; or with OPENREG_OK, a driver's open() takes long. Any lock may be held. */
    void (*alarm)(void *ctx, int32_t device, openreg_status status);

    /* A device table is about to be published (1), in place of another or none, or the one that is published is about to be
     * withdrawn (0). May call the functions of drivers that are open. */
    void (*table)(void *ctx, int32_t is_published);
} openreg_observer;

#define OPENREG_OBSERVER_SIZE_1 72u
static_assert(sizeof(openreg_observer) == OPENREG_OBSERVER_SIZE_1, "append a function, then freeze its size");

#define OPENREG_OBSERVERS_MAX 16

/* Says which events (OPENREG_OBSERVE_*) the observer wants from now on; it may be changed at any time. 0: none, but the ends of
 * spans that it keeps. `observer` and what it points to stay valid until openreg_observer_remove() has returned.
 * Errors: OPENREG_E_INVALID (incomplete, unknown events), OPENREG_E_NOMEM (there are OPENREG_OBSERVERS_MAX). */
OPENREG_API openreg_status openreg_observe(const openreg_observer *observer, uint32_t events);

/* Waits for calls of the observer's functions that other threads are in; after it there are none, also not for spans that have
 * begun. Called from one of an observer's functions it doesn't wait. Never fails; nothing if it is not known. */
OPENREG_API void openreg_observer_remove(const openreg_observer *observer);

/* The word with the events that somebody wants now, without _TABLE; the parts of this build have bits of their own in it. */
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
