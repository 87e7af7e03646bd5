/* SPDX-License-Identifier: BSD-3-Clause */
/* validated.h: shared by the files of the layer: the instance, its books, and the beginning and end of a call. Internal.
 *
 * The books have one lock, held only for lookups, never while the driver runs. A call that uses a handle holds a reference
 * to its entry. Freed or destroyed objects leave the books before the driver is called, as the driver may return the same
 * address to another thread before the call ends. */
#ifndef OPENREG_SRC_VALIDATED_H
#define OPENREG_SRC_VALIDATED_H

#include <stdatomic.h>
#include <stdbool.h>

#include <pthread.h>

#include <openreg/comm.h>
#include <openreg/graph.h>
#include <openreg/ipc.h>
#include <openreg/kernels.h>
#include <openreg/schedule.h>
#include <openreg/vmm.h>

#include "base/lock.h"
#include "validation/rules.h"

/* The function that made a range or a handle. */
typedef enum openreg_made_by {
    OPENREG_MADE_BY_MEM_ALLOC,
    OPENREG_MADE_BY_HOST_ALLOC,
    OPENREG_MADE_BY_RESERVE,
    OPENREG_MADE_BY_MEMORY_OPEN, /* its size is not known: 1 */
    OPENREG_MADE_BY_STREAM_CREATE,
    OPENREG_MADE_BY_EVENT_CREATE,
    OPENREG_MADE_BY_COMM_INIT,
    OPENREG_MADE_BY_GRAPH_END,
    OPENREG_MADE_BY_INSTANTIATE,
    OPENREG_MADE_BY_COUNT
} openreg_made_by;

typedef struct openreg_ledger_range {
    uintptr_t start;
    uint64_t size; /* of a reservation: all of it */
    int32_t dev;   /* -1: host memory */
    openreg_made_by kind;
    int has_distance; /* host_alias() has returned it */
    uintptr_t distance;
    unsigned char *mapped; /* of a reservation: which pieces of `step` bytes are memory; the books' */
    uint64_t step;
} openreg_ledger_range;

/* What has been queued, and what is known to have ended. Streams live until close(): an event may still name one. */
typedef struct openreg_stream_state {
    struct openreg_stream_state *next; /* all of an instance */
    atomic_ullong queued;              /* calls that have queued work */
    atomic_ullong drained;             /* `queued` at the begin of a wait that has ended */
    atomic_ullong functions;           /* calls of host_func() that have returned */
    atomic_ullong functions_ended;
    atomic_int is_shared;  /* 1 once stream_native() was called: others may queue work */
    atomic_ullong capture; /* number of the capture that it is part of; 0: none */
} openreg_stream_state;

typedef struct openreg_handle {
    struct openreg_handle *next; /* in its bucket */
    const void *key;
    openreg_made_by kind;
    int32_t dev;
    int uses;                               /* references: that of the books, and one of each call */
    uint32_t flags;                         /* of an event; of a communicator: its rank */
    int32_t size;                           /* of a communicator: its ranks */
    _Atomic(openreg_stream_state *) stream; /* of a stream: its own; of an event: where it was recorded last */
    /* Of an event. Odd during a record, so that nothing is concluded then; 0: never recorded. */
    atomic_ullong records;
    atomic_ullong complete;  /* `records` at the time when it was found complete; 0: never */
    atomic_ullong functions; /* calls of host_func() that the latest record is behind */
    /* Of an event: number of the capture that it was recorded in last, 0: none; of a graph: of its capture. */
    atomic_ullong capture;
} openreg_handle;

/* A capture that a driver's begin() has begun and no end() has ended. */
typedef struct openreg_capture_state {
    struct openreg_capture_state *next;
    unsigned long long number; /* from 1 */
    int32_t dev, mode;
    openreg_driver_stream stream; /* on which it was begun */
    openreg_stream_state *state;  /* of that */
    pthread_t thread;
    bool is_invalid; /* a call was refused because of it */
} openreg_capture_state;

/* A range that work of a capture uses: it must stay while the capture is active or has live graphs. */
typedef struct openreg_captured_range {
    struct openreg_captured_range *next;
    unsigned long long capture;
    uintptr_t start;
} openreg_captured_range;

typedef struct openreg_device_state {
    openreg_device_info info;
    openreg_handle *stream; /* the default one, whose handle is NULL */
    atomic_ullong functions, functions_ended;
    atomic_ullong granularity; /* of vmm.h; 0: not known yet */
    atomic_int has_failed;     /* 1 once a call has: after an asynchronous error functions need not run */
} openreg_device_state;

#define OPENREG_HANDLE_BUCKETS 1024u

/* The extensions, but that of kernels. */
typedef enum openreg_wrapped {
    OPENREG_WRAPPED_IPC,
    OPENREG_WRAPPED_VMM,
    OPENREG_WRAPPED_SCHEDULE,
    OPENREG_WRAPPED_COMM,
    OPENREG_WRAPPED_GRAPH,
    OPENREG_WRAPPED_COUNT
} openreg_wrapped;

struct openreg_instance_s {
    openreg_instance next; /* all layers */
    openreg_driver inner;
    openreg_instance instance; /* the driver's */
    char name[32];
    int32_t count;
    openreg_device_state *devices;
    openreg_lock lock;                                 /* of what follows */
    openreg_ledger_range *ranges;                      /* sorted by their start */
    size_t range_count, range_capacity, ranges_coming; /* the last: calls that have made room */
    openreg_handle *handles[OPENREG_HANDLE_BUCKETS];
    openreg_stream_state *streams;
    openreg_capture_state *captures; /* under way */
    openreg_captured_range *captured_ranges;
    unsigned long long last_capture;
    atomic_uchar reported[OPENREG_RULE_COUNT];
    int functions_running; /* by host_func_slot.c, under its lock, as is is_closed */
    bool is_closed;
    /* The driver's extension tables, once requested, and the layer's list of kernels. */
    _Atomic(const void *) extensions[OPENREG_WRAPPED_COUNT];
    openreg_graph_table graph; /* the runtime's table in its place, without functions that the driver's lacks */
    const openreg_kernels *inner_kernels;
    openreg_kernels *kernels;
};

/* ---- Reports: report.c ---- */

/* Logs that `slot` has broken a rule, once for the rule and instance. Any thread. */
void openreg_validation_report(openreg_instance, openreg_rule, const char *slot, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same, and sets it as the error of the call: returns `code`. */
openreg_status openreg_validation_refuse(openreg_instance, openreg_rule, openreg_status code, const char *slot,
                                         const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Sets the error of a call for which the layer lacks host memory; returns OPENREG_E_NOMEM. */
openreg_status openreg_validation_no_memory(void);

/* ---- A call ---- */

/* set_error() calls of the thread before the driver is called, and the out-parameter. */
typedef struct openreg_call_span {
    uint32_t errors;
    void *out;
    size_t size;
} openreg_call_span;

/* Called before the driver; reports if this thread runs a host function. Fills the out-parameter (or NULL and 0) with
 * a pattern, which must be there after a failure. */
openreg_call_span openreg_validation_begin(openreg_instance, const char *slot, void *out, size_t size);
/* Called after it: checks the rules on errors and out-parameters; returns `status`. `refuses`: OPENREG_E_UNSUPPORTED
 * and OPENREG_E_NOMEM need no text (kernels). */
openreg_status openreg_validation_end(openreg_instance, const char *slot, openreg_call_span, openreg_status status,
                                      int refuses);
/* Reports that a call which failed with `status` has written its out-parameter. */
void openreg_validation_report_written(openreg_instance, const char *slot, openreg_status status);
/* Whether bytes still have that pattern. */
bool openreg_validation_is_unwritten(const void *bytes, size_t size);
/* An address that the driver has written; 0: it wrote none, or NULL. */
uintptr_t openreg_written_address(const void *written);

/* OPENREG_OK if the ordinal exists, else a report and OPENREG_E_INVALID. */
openreg_status openreg_validation_device(openreg_instance, const char *slot, int32_t dev);

/* 1 while this thread runs a host function. */
int openreg_validation_in_function(void);
/* At close(): functions of the instance that have not run never will. True: none runs now, and the caller frees the layer;
 * else the last that runs does. */
bool openreg_validation_forget_functions(openreg_instance);
void openreg_validation_free(openreg_instance);

/* ---- Books: ledger.c ---- */

/* Makes room for one more range, so that adding it can't fail. OPENREG_E_NOMEM with a text. */
openreg_status openreg_ledger_make_room(openreg_instance);
/* Called after `slot` has returned `status` and the range, with room made: adds it, or gives the room up if it failed
 * or `start` is 0. Refuses overlapping memory: its use would destroy other memory. */
openreg_status openreg_ledger_made(openreg_instance, const char *slot, openreg_status status,
                                   const openreg_ledger_range *made);
/* Called around the driver's function that frees the range which begins at `ptr`. The first removes it; refuses if
 * there is none of that kind and device (-1: the host), and reports captures that use it. The second restores it if
 * the function has failed; returns `status`. */
openreg_status openreg_ledger_begin_remove(openreg_instance, const char *slot, openreg_made_by kind, int32_t dev,
                                           const void *ptr, openreg_ledger_range *out);
openreg_status openreg_ledger_end_remove(openreg_instance, openreg_status status, const openreg_ledger_range *range);
/* The range that holds the address, or memory_open()'s that is the nearest below: its size is not known. 0: none. */
int openreg_ledger_find(openreg_instance, const void *ptr, openreg_ledger_range *out);
/* Whether every byte is memory, in one range of the books. */
int openreg_ledger_holds(openreg_instance, const void *ptr, uint64_t size);
/* Marks pieces of the reservation at `ptr` as mapped, or unmapped. 0: it lacks such pieces, or some had that state already;
 * nothing has changed then. */
int openreg_ledger_set_mapped(openreg_instance, const void *ptr, uint64_t offset, uint64_t size, int mapped);
/* Changes one number of the range that begins at `start`, if it exists. */
void openreg_ledger_set_distance(openreg_instance, const void *start, uintptr_t distance);

/* An entry that is in no book yet, with one reference; NULL and an error text if host memory is short. */
openreg_handle *openreg_handle_make(openreg_instance, openreg_made_by kind, int32_t dev);
/* Called after `slot` has returned `status` and the handle `made`: with OPENREG_OK the entry is added to the books
 * and the handle written to *out, else the entry is freed. Refuses a handle that is NULL, not written, or live
 * already. */
openreg_status openreg_handle_made(openreg_instance, const char *slot, openreg_status status, const void *made,
                                   openreg_handle *entry, void *out);
/* *out: the entry with one more reference; NULL and OPENREG_E_INVALID with a report: no such handle is live. */
openreg_status openreg_handle_use(openreg_instance, const char *slot, openreg_made_by kind, const void *key,
                                  openreg_handle **out);
/* The same; refuses one of another device. */
openreg_status openreg_handle_use_on(openreg_instance, const char *slot, openreg_made_by kind, const void *key,
                                     int32_t dev, openreg_handle **out);
/* Called around the driver's function that destroys a handle. The first removes the entry from the books, whose reference
 * passes to the caller, and reports calls that use it; NULL has none. The second drops the reference, or restores the entry
 * if the function has failed; returns `status`. */
openreg_status openreg_handle_begin_destroy(openreg_instance, const char *slot, openreg_made_by kind, const void *key,
                                            openreg_handle **out);
openreg_status openreg_handle_end_destroy(openreg_instance, openreg_status status, const void *key,
                                          openreg_handle *entry);
/* Drops a reference; NULL is accepted. */
void openreg_handle_release(openreg_instance, openreg_handle *entry);
/* Reports live objects, at close(). */
void openreg_ledger_report_live(openreg_instance);
void openreg_ledger_free(openreg_instance);

/* ---- The slots, by file ---- */

/* Replaces a function that the table has. */
#define OPENREG_VALIDATED_SLOT(table, slot)                                                                            \
    if ((table)->slot != NULL)                                                                                         \
    (table)->slot = validated_##slot

void openreg_validation_wrap_memory(openreg_driver *table);
void openreg_validation_wrap_streams(openreg_driver *table);
void openreg_validation_wrap_events(openreg_driver *table);
void openreg_validation_wrap_host_func(openreg_driver *table);
void openreg_validation_wrap_extensions(openreg_driver *table);

/* The runtime's table in place of the driver's openreg.comm: comm_slots.c. */
extern const openreg_comm openreg_validated_comm;

/* The runtime's table in place of the driver's openreg.graph, and captures: graph_slots.c. */
const openreg_graph_table *openreg_validation_graph(openreg_instance, const openreg_graph_table *inner);
/* Work of a stream uses the address, which must stay if the stream is captured. */
void openreg_validation_capture_range(openreg_instance, const openreg_stream_state *state, const void *ptr);
/* The range at `start` is being freed: reports if a capture or graph uses it. */
void openreg_validation_range_goes(openreg_instance, const char *slot, uintptr_t start);
/* A stream has waited for an event: it joins the capture in which the event was recorded, if that is active. */
void openreg_validation_join(openreg_instance, openreg_stream_state *state, const openreg_handle *event);
/* `slot` has returned `status`, of a stream or event of a capture; 0: of none. */
void openreg_validation_judge_refusal(openreg_instance, const char *slot, unsigned long long capture,
                                      openreg_status status);

/* A range of device memory must be inside one allocation; `what` names it in the report. If it begins in none the call goes on
 * after the report: it may be memory of another library that shares the device. If it ends beyond its allocation it would
 * destroy other memory, and is refused. */
openreg_status openreg_validation_range(openreg_instance, const char *slot, const void *ptr, int32_t dev, uint64_t size,
                                        const char *what);

/* The entry of a stream of a device, with a reference: NULL is the default one. */
openreg_status openreg_validation_stream(openreg_instance, const char *slot, int32_t dev, openreg_driver_stream,
                                         openreg_handle **out);
/* A wait or query of a stream, event or device has returned `status`: a failure may be that of earlier work. */
void openreg_validation_note_failure(openreg_instance, int32_t dev, openreg_status status);
/* `slot` has said that work has ended which `functions` host functions are part of, and `ended` of them have
 * returned; `which` says it in the report. */
void openreg_validation_check_functions(openreg_instance, openreg_rule, const char *slot, int32_t dev,
                                        unsigned long long functions, unsigned long long ended, const char *which);

/* The status of a function of the driver's table or extension. The arguments are those after the instance. */
#define OPENREG_VALIDATED(v, table, slot, ...) OPENREG_VALIDATED_SPAN(v, table, slot, NULL, 0, __VA_ARGS__)
/* Of a function that has the out-parameter `out`, a variable, or two in an array. */
#define OPENREG_VALIDATED_OUT(v, table, slot, out, ...)                                                                \
    OPENREG_VALIDATED_SPAN(v, table, slot, &(out), sizeof(out), __VA_ARGS__)

#define OPENREG_VALIDATED_SPAN(v, table, slot, out, size, ...)                                                         \
    __extension__({                                                                                                    \
        const openreg_call_span validated_span = openreg_validation_begin((v), #slot, (out), (size));                  \
        openreg_validation_end((v), #slot, validated_span, (table)->slot((v)->instance, __VA_ARGS__), 0);              \
    })

#endif
