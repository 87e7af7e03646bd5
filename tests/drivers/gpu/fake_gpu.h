/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_gpu.h: the fake vendor's runtime: CUDA's or HIP's functions over host memory and threads. It is compiled against
 * the vendor's own headers, so the compiler checks each prototype.
 *
 * Stricter than the vendor where that finds mistakes: device memory can't be touched by the host, fresh memory holds
 * 0xCD, no function synchronises more than it must (Free() not at all), and a stream, an event or memory of another
 * device than the current one is an error. */
#ifndef OPENREG_TESTS_DRIVERS_FAKE_GPU_H
#define OPENREG_TESTS_DRIVERS_FAKE_GPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu_names.h"

#define FAKE_MAX_DEVICES 16
#define FAKE_MARKS 64 /* records of one event that may be pending at once */

typedef openreg_gpu_code fake_code;

/* ---- fake_state.c: configuration, errors ---- */

typedef struct fake_settings {
    int devices;
    size_t memory, granularity;
    bool early_properties;
    int driver_version, runtime_version;
    bool staging;
    bool peers[FAKE_MAX_DEVICES][FAKE_MAX_DEVICES];
} fake_settings;

const fake_settings *fake_settings_get(void);

/* Starts a call: counts it and lets it fail if that was asked for, or if a host function of a stream makes it. */
fake_code fake_begin(const char *name);
/* Ends a call: the thread's last error. */
fake_code fake_end(fake_code code);
/* Whether an error ends the context. */
bool fake_is_sticky(int code);
/* What a stream's work was told to fail with, or 0. */
int fake_task_failure(void);
int fake_delay(void);
uint64_t fake_microseconds(void);

/* ---- fake_device.c ---- */

typedef struct fake_device {
    atomic_int has_context;
    atomic_int sticky;                    /* the error that ended the context */
    size_t used;                          /* bytes allocated; of the memory lock */
    atomic_bool access[FAKE_MAX_DEVICES]; /* its kernels may use that device's memory */
} fake_device;

extern fake_device fake_devices[FAKE_MAX_DEVICES];

/* fake_begin() for a call that works in a context: *dev is the current device, whose context is made if there is none;
 * a device whose context has ended gives its error. */
fake_code fake_begin_work(const char *name, int *dev);
/* The same for a call that does no work on the device, and so makes no context in HIP. */
fake_code fake_begin_wait(const char *name, int *dev);
bool fake_is_device(int dev);
void fake_activate(int dev);
int fake_current_device(void);
int fake_has_current_context(void);
void fake_devices_reset(void);

/* ---- fake_memory.c ---- */

typedef struct fake_block {
    struct fake_block *next;
    char *address, *alias; /* the same for pinned memory */
    size_t size;
    int device; /* -1: pinned */
    int file;   /* the memfd of device memory */
    bool imported, freed;
    bool is_view; /* a part of mapped memory, for one task: fake_vmm.c */
    int users;    /* queued tasks that work on it */
} fake_block;

/* The live block that holds ptr; false if there is none. */
bool fake_block_find(const void *ptr, void **start, size_t *size);
/* The live block that holds all of [ptr, ptr + size), with one user more; NULL if there is none. */
fake_block *fake_block_use(const void *ptr, size_t size);
void fake_block_release(fake_block *block);
/* The same address as the host may use it. */
char *fake_block_alias(const fake_block *block, const void *ptr);
void fake_memory_reset(void);
/* Counts memory of the device as used; false if it has not so much. */
bool fake_memory_take(int dev, size_t size);
void fake_memory_give(int dev, size_t size);

/* ---- fake_vmm.c ---- */

/* As fake_block_use() for memory that was mapped. NULL where not all is mapped, or the memory's own device has no access
 * to it, which is a mistake of the driver's, and is counted. */
fake_block *fake_vmm_use(const void *ptr, size_t size);
void fake_vmm_release(fake_block *view);
/* Whether another device has access to all of a block that is in use; to plain memory each has that may have it. */
bool fake_vmm_reaches(const fake_block *block, int dev);
int fake_vmm_live(const char *kind);
void fake_vmm_reset(void);
#if OPENREG_GPU_CUDART
/* The driver API's function of that name, or NULL. */
void (*fake_vmm_entry(const char *name))(void);
#endif

/* ---- fake_stream.c ---- */

typedef struct fake_stream fake_stream;
typedef struct fake_event fake_event;

typedef enum fake_task_kind {
    FAKE_COPY,
    FAKE_FILL,
    FAKE_RECORD,
    FAKE_WAIT,
    FAKE_HOST_FUNC,
    FAKE_COLLECTIVE
} fake_task_kind;

typedef struct fake_task {
    struct fake_task *next;
    fake_task_kind kind;
    uint8_t value;
    char *target;
    const char *source;
    size_t size;
    fake_block *blocks[2]; /* in use until the task has ended */
    char *owned;           /* freed with the task */
    fake_event *event;
    uint64_t number; /* of the event's record */
    void (*function)(void *);
    void (*release)(void *); /* of the argument, with the task; or NULL */
    void *argument;
} fake_task;

/* The queue of a stream handle on the device; NULL if the handle is of another device, or dead. */
fake_stream *fake_stream_of(GPU(Stream_t) stream, int dev);
void fake_stream_hold(int dev, const void *stream, int is_held);
void fake_stream_submit(fake_stream *stream, const fake_task *task);
void fake_stream_await(fake_stream *stream);
void fake_device_await(int dev);
void fake_streams_reset(void);
/* Whether the calling thread is inside a host function of a stream, which may not call the vendor. */
bool fake_is_in_host_func(void);

/* ---- fake_graph.c ---- */

/* Takes the task if the stream is captured: it becomes a node, and what it holds is given back. */
bool fake_graph_take(fake_stream *stream, const fake_task *task);
/* What a call on the stream fails with because its capture is invalid, else success. */
fake_code fake_graph_state(const fake_stream *stream);
/* The host waits for the stream, or for a device (NULL), which makes captures invalid: what that fails with, or success. */
fake_code fake_graph_host_waits(const fake_stream *stream, int dev);
/* Likewise for an event. */
fake_code fake_graph_host_asks(const fake_event *event);
/* A call that the vendor takes for unsafe while others capture: whether it is refused, which makes them invalid. */
bool fake_graph_forbids(void);
/* A record on the stream; a wait of the stream, where `has_record` is that of the event outside of captures. 1: it is a
 * capture's, and *code what the call returns. */
bool fake_graph_records(const fake_stream *stream, fake_event *event, fake_code *code);
bool fake_graph_waits(fake_stream *stream, const fake_event *event, bool has_record, fake_code *code);
void fake_graphs_reset(void);

/* ---- fake_event.c ---- */

/* An event that no user has. */
fake_event *fake_event_hidden(int dev);
void fake_event_record(fake_event *event, fake_stream *stream);
void fake_event_wait(fake_event *event, fake_stream *stream);

void fake_event_pass(fake_event *event, uint64_t number);
void fake_event_await(fake_event *event, uint64_t number);
void fake_event_release(fake_event *event);
void fake_events_reset(void);

/* ---- fake_nccl.c ---- */

/* NCCL's function of that name, or NULL. */
void (*fake_nccl_entry(const char *name))(void);

/* ---- live objects, for the hooks ---- */

extern atomic_int fake_live_streams, fake_live_events, fake_live_communicators, fake_violations;
int fake_live_blocks(const char *kind);

#endif
