/* SPDX-License-Identifier: BSD-3-Clause */
/* sim.h: the simulated devices' own structures. Internal to drivers/sim.
 *
 * A device is a memory file (memfd) mapped twice: at `base` without any access, and at `alias` for reading and writing.
 * Addresses of device memory lie in [base, base + span); host code that touches them faults, and the driver works at
 * `address + alias_distance`. The file is sparse, and `span` is twice the capacity where the address space has room,
 * so that fragmentation does not use up the addresses before the memory.
 *
 * Memory of another process is a piece of that process's file, mapped over unused addresses of the device, twice like
 * its own, so that it works like the device's own memory.
 *
 * Locks, outermost first: event lock, the schedule's lock, stream lock. The device list lock, the device memory lock and the
 * pinned table's lock are leaves. No lock is held while a thread waits for a stream's worker. */
#ifndef OPENREG_DRIVERS_SIM_SIM_H
#define OPENREG_DRIVERS_SIM_SIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <openreg/driver.h>
#include <openreg/ipc.h>

#include "sim_tree.h"

#define OPENREG_SIM_MAX_DEVICES 127
#define OPENREG_SIM_LABEL_SIZE 32
#define OPENREG_SIM_LARGE_PAGE (UINT64_C(2) << 20)
#define OPENREG_SIM_MIN_MEMORY (UINT64_C(2) << 20)
#define OPENREG_SIM_MAX_MEMORY (UINT64_C(16) << 40)
#define OPENREG_SIM_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* of a device's file */

#define OPENREG_SIM_RETURN_NOT_OK(expression)                                                                          \
    do {                                                                                                               \
        const openreg_status openreg_sim_status = (expression);                                                        \
        if (openreg_sim_status != OPENREG_OK)                                                                          \
            return openreg_sim_status;                                                                                 \
    } while (0)

/* The driver's table. Never fails. */
openreg_status openreg_sim_query(const openreg_host *host, const openreg_driver **out);

/* A piece of a device's address range. The pieces of a device cover the span. Finding one, by place or by size, and
 * making and freeing one take O(log n) steps. */
typedef struct openreg_sim_piece {
    uint64_t offset, size;
    bool used, is_foreign; /* is_foreign: shows memory of another process */
    uint64_t memory;       /* bytes that count as used */
    bool *mapped;          /* of a reservation (openreg/vmm.h): which of its large pages are mapped; else NULL */
    openreg_sim_node by_offset;
    openreg_sim_node by_size, by_aligned_size; /* while it is free; the latter: its bytes from a large page on */
    struct openreg_sim_piece *next_spare;
} openreg_sim_piece;

typedef struct openreg_sim_device {
    openreg_instance instance;
    int32_t ordinal;
    int file;                 /* the memfd, or -1 */
    char *base, *alias;       /* both `span` bytes, or NULL */
    ptrdiff_t alias_distance; /* alias - base */
    uint64_t capacity, span;
    atomic_int active; /* memory or a stream was made */

    pthread_mutex_t memory_lock; /* guards the six fields below */
    openreg_sim_node *pieces, *free_by_size, *free_by_aligned_size;
    openreg_sim_piece *spares;
    uint64_t used_bytes, reserved_bytes; /* of memory; of the addresses of reserved pieces */

    pthread_mutex_t list_lock;     /* guards `streams` and the links of its members */
    openreg_driver_stream streams; /* the default stream too */
    openreg_driver_stream default_stream;
} openreg_sim_device;

typedef struct openreg_sim_pinned {
    openreg_sim_node node; /* by start */
    uint64_t size;
} openreg_sim_pinned;

struct openreg_instance_s {
    const openreg_host *host;
    char label[OPENREG_SIM_LABEL_SIZE]; /* "SIM", or the name of the driver that it mocks */
    int32_t device_count;
    openreg_sim_device *devices;

    pthread_mutex_t pinned_lock; /* guards the field below */
    openreg_sim_node *pinned;    /* of openreg_sim_pinned */

    struct openreg_sim_schedule *schedule; /* sim_schedule.h, or NULL */
};

/* With a seed: which work runs when. */
typedef struct openreg_sim_schedule openreg_sim_schedule;
typedef enum openreg_sim_order {
    OPENREG_SIM_ORDER_BY_SEED,
    OPENREG_SIM_RANDOM,
    OPENREG_SIM_PCT,
    OPENREG_SIM_LATEST
} openreg_sim_order;

/* Time of a record of a timed event, shared by the event and the queued task. */
typedef struct openreg_sim_record {
    atomic_int references;
    atomic_uint_least64_t nanoseconds; /* CLOCK_MONOTONIC, 0 until complete */
} openreg_sim_record;

typedef enum openreg_sim_task_kind {
    OPENREG_SIM_COPY,
    OPENREG_SIM_FILL,
    OPENREG_SIM_RECORD,
    OPENREG_SIM_WAIT,
    OPENREG_SIM_HOST_FUNC,
    OPENREG_SIM_POISON /* with a seed: runs along with the task before it, and is not counted */
} openreg_sim_task_kind;

typedef struct openreg_sim_task {
    openreg_sim_task_kind kind;
    uint8_t value; /* FILL, POISON */
    void *target;  /* COPY, FILL, POISON: a host address; HOST_FUNC: the argument */
    const void *source;
    uint64_t amount;               /* COPY, FILL, POISON: bytes; WAIT: the position waited for */
    openreg_sim_record *record;    /* RECORD: a reference that the task owns */
    openreg_driver_stream awaited; /* WAIT: a reference that the task owns */
    void (*function)(void *);      /* HOST_FUNC: called with `target` */
} openreg_sim_task;

/* A stream's queue is a list of these, so the cost of adding a task is independent of its length. */
#define OPENREG_SIM_CHUNK_TASKS 64

typedef struct openreg_sim_chunk {
    struct openreg_sim_chunk *next;
    openreg_sim_task tasks[OPENREG_SIM_CHUNK_TASKS];
} openreg_sim_chunk;

/* A stream is also a timeline: task number n has ended when completed >= n. Events refer to a position on it, so the
 * structure outlives stream_destroy() until the last reference is dropped. */
struct openreg_driver_stream_s {
    openreg_sim_device *device;
    openreg_driver_stream previous, next; /* in the device's list */
    atomic_int references;
    int32_t priority;
    atomic_uint_least64_t queued;    /* tasks given to the stream; written under `lock` */
    atomic_uint_least64_t completed; /* tasks that have ended; written under `lock` */

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t work;  /* for the worker: a task came, or `stopping` */
    pthread_cond_t progress;
    openreg_sim_chunk *first, *last; /* the queue; `last` NULL: empty */
    openreg_sim_chunk *spare;        /* or NULL */
    size_t head, tail;               /* the next task of `first`; the next free place of `last` */
    size_t task_count;               /* in the queue */
    unsigned waiters;                /* threads waiting on `progress` */
    bool has_worker, worker_idle, stopping;
    bool inline_busy; /* a calling thread runs the oldest task itself; the worker waits */
    /* The queue holds only waits, and the worker wasn't woken: a thread that waits for the stream runs them, so that the end
     * of the work they wait for wakes one thread and not two. Written under `lock`. */
    atomic_bool is_parked;
    pthread_t worker;

    /* With a seed: there is no worker, and the schedule's lock guards the queue and these. */
    uint32_t number;           /* of the stream, from the first that was made */
    uint64_t drawn_priority;   /* pct: greater is earlier */
    bool is_busy;              /* its function of the host is running */
    openreg_sim_task function; /* while it is */
};

struct openreg_driver_event_s {
    openreg_instance instance;
    int32_t device;
    bool timed;
    pthread_mutex_t lock;           /* guards the rest */
    openreg_driver_stream timeline; /* of the latest record, with a reference; NULL: never recorded */
    uint64_t position;
    openreg_sim_record *record; /* timed events: of the latest record, with a reference */
};

/* ---- sim_memory.c ---- */

/* Makes and unmakes the memory of a device whose `instance`, `ordinal` and `capacity` are set. On failure the error is
 * set and destroy() may still be called. destroy() accepts a zeroed device whose `file` is -1. */
openreg_status openreg_sim_memory_create(openreg_sim_device *device);
void openreg_sim_memory_destroy(openreg_sim_device *device);

openreg_status openreg_sim_mem_alloc(openreg_instance, int32_t dev, const openreg_alloc_info *info, void **out);
openreg_status openreg_sim_mem_free(openreg_instance, int32_t dev, void *ptr);
/* The size and the offset in the file of memory from mem_alloc(). False if `ptr` is no such address. */
bool openreg_sim_find_memory(openreg_sim_device *device, const void *ptr, uint64_t *offset, uint64_t *size);
/* Maps `size` bytes of another process's file at unused addresses; they do not count as used memory. Offset and size
 * are whole pages of that file, and not none. */
openreg_status openreg_sim_map_foreign(openreg_sim_device *device, int file, uint64_t offset, uint64_t size,
                                       void **out);
/* E_INVALID: not an address of map_foreign(). Nothing uses the memory any more. */
openreg_status openreg_sim_unmap_foreign(openreg_sim_device *device, void *ptr);
openreg_status openreg_sim_mem_info(openreg_instance, int32_t dev, uint64_t *free_bytes, uint64_t *total);
openreg_status openreg_sim_host_alias(openreg_instance, int32_t dev, void *ptr, void **out);

/* The functions of openreg/vmm.h; the last, release(), is mem_free(). */
openreg_status openreg_sim_reserve(openreg_instance, int32_t dev, uint64_t size, void **out);
openreg_status openreg_sim_granularity(openreg_instance, int32_t dev, uint64_t *out);
openreg_status openreg_sim_map(openreg_instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size);
openreg_status openreg_sim_unmap(openreg_instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size);

/* ---- sim_host.c ---- */

openreg_status openreg_sim_host_alloc(openreg_instance, int32_t dev, const openreg_alloc_info *info, void **out);
openreg_status openreg_sim_host_free(openreg_instance, int32_t dev, void *ptr);
void openreg_sim_host_destroy(openreg_instance); /* for close(): forgets the blocks that are left, which stay mapped */
/* Whether [ptr, ptr + size) lies in one pinned block. */
bool openreg_sim_is_pinned(openreg_instance instance, const void *ptr, uint64_t size);

/* ---- sim_stream.c ---- */

openreg_driver_stream openreg_sim_stream_of(openreg_instance instance, int32_t dev, openreg_driver_stream stream);
void openreg_sim_stream_reference(openreg_driver_stream stream);
void openreg_sim_stream_release(openreg_driver_stream stream);
/* Gives a task to the stream. E_NOMEM: no memory, or no worker thread; nothing was queued. */
openreg_status openreg_sim_stream_submit(openreg_driver_stream stream, const openreg_sim_task *task);
/* Appends a record: *position is its place in the queue. With `record` (timed) the worker notes the time when it
 * passes. */
openreg_status openreg_sim_stream_mark(openreg_driver_stream stream, openreg_sim_record *record, uint64_t *position);
bool openreg_sim_stream_passed(openreg_driver_stream stream, uint64_t position);
/* The same, for queries: first it ends the stream's parked waits whose work is complete. */
bool openreg_sim_stream_settled(openreg_driver_stream stream, uint64_t position);
void openreg_sim_stream_await(openreg_driver_stream stream, uint64_t position);
void openreg_sim_device_await(openreg_sim_device *device);
/* Before memory goes: copies between devices that use it may be queued on any of them. */
void openreg_sim_await_all(openreg_instance instance);
/* For sim_schedule.c: appends a task (E_NOMEM), removes the first, and runs a copy or a fill. */
openreg_status openreg_sim_stream_push(openreg_driver_stream stream, const openreg_sim_task *task);
openreg_sim_task openreg_sim_stream_pop(openreg_driver_stream stream);
void openreg_sim_stream_run(const openreg_sim_task *task);
/* Starts a thread with all signals blocked: no handler of the program ever runs on it. 0 or an errno. */
int openreg_sim_start_thread(pthread_t *thread, void *(*body)(void *argument), void *argument);
/* For close(): ends every worker of the device after its queue, and frees all streams. */
void openreg_sim_streams_destroy(openreg_sim_device *device);

openreg_status openreg_sim_stream_create(openreg_instance, int32_t dev, uint32_t flags, int32_t priority,
                                         openreg_driver_stream *out);
openreg_status openreg_sim_stream_destroy(openreg_instance, int32_t dev, openreg_driver_stream);
openreg_status openreg_sim_stream_query(openreg_instance, int32_t dev, openreg_driver_stream, int32_t *done);
openreg_status openreg_sim_stream_sync(openreg_instance, int32_t dev, openreg_driver_stream);
openreg_status openreg_sim_device_sync(openreg_instance, int32_t dev);
openreg_status openreg_sim_copy(openreg_instance, int32_t stream_dev, openreg_driver_stream stream, void *dst,
                                int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size);
openreg_status openreg_sim_fill(openreg_instance, int32_t dev, openreg_driver_stream, void *dst, uint8_t value,
                                uint64_t size);
openreg_status openreg_sim_host_func(openreg_instance, int32_t dev, openreg_driver_stream,
                                     void (*function)(void *argument), void *argument);

/* ---- sim_ipc.c ---- */

const openreg_ipc *openreg_sim_ipc(void);

/* ---- sim_event.c ---- */

void openreg_sim_record_release(openreg_sim_record *record);
uint64_t openreg_sim_now(void); /* CLOCK_MONOTONIC in nanoseconds */

openreg_status openreg_sim_stream_wait(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_event);
openreg_status openreg_sim_event_create(openreg_instance, int32_t dev, uint32_t flags, openreg_driver_event *out);
openreg_status openreg_sim_event_destroy(openreg_instance, int32_t dev, openreg_driver_event);
openreg_status openreg_sim_event_record(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_event);
openreg_status openreg_sim_event_query(openreg_instance, int32_t dev, openreg_driver_event, int32_t *done);
openreg_status openreg_sim_event_sync(openreg_instance, int32_t dev, openreg_driver_event);
openreg_status openreg_sim_event_elapsed(openreg_instance, int32_t dev, openreg_driver_event start,
                                         openreg_driver_event end, int64_t *nanoseconds);

#endif
