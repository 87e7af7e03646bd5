/* SPDX-License-Identifier: BSD-3-Clause */
/* opencl.h: what the files of this driver share. */
#ifndef TORCH_OPENREG_OPENCL_H
#define TORCH_OPENREG_OPENCL_H

#define CL_TARGET_OPENCL_VERSION 200
#include <CL/cl.h>
#include <openreg/driver.h>
#include <openreg/kernels.h>
#include <openreg/probe.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#define MAX_DEVICES 8

/* ------------------------------------------------------------------------------------------------------------- signals */

#define SIGNALS 32

typedef struct signal_state {
    struct sigaction handlers[SIGNALS];
    sigset_t mask;
} signal_state;

/* Blocks all signals of this thread, and so of the threads that it starts. */
void opencl_block_signals(sigset_t *before);

/* Around calls that start the platform or compile: LLVM and PoCL set handlers. Signals are blocked between the two. */
void opencl_enter_platform(signal_state *before);
void opencl_leave_platform(const signal_state *before);

/* --------------------------------------------------------------------------------------------------------------- state */

/* An in-order queue, and the event of what was queued on it last. */
struct openreg_driver_stream_s {
    pthread_mutex_t lock; /* of `last`: held while a command is queued */
    cl_command_queue queue;
    cl_event last; /* NULL: nothing was queued */
    int32_t dev;
    bool is_destroyed;                            /* and has work that has not ended */
    struct openreg_driver_stream_s *next, **link; /* of the device's list */
};
typedef struct openreg_driver_stream_s stream;

typedef struct kernel_state kernel_state; /* kernels.h */

typedef struct device {
    cl_device_id id;
    stream standard;      /* the default stream */
    pthread_mutex_t lock; /* of the rest */
    stream *streams;      /* created ones */
    uint64_t total_bytes, used_bytes;
    kernel_state *kernels; /* NULL before the first one runs */
} device;

/* Memory of a device. */
typedef struct block {
    char *address;
    uint64_t size;
    cl_mem buffer; /* the same memory, for libraries that take buffers */
    struct block *next;
} block;

typedef struct host_call host_call;

/* The thread that runs functions of the host, started by the first one, and those that it has to run. */
typedef struct host_calls {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    host_call *first, *last;
    bool has_thread, is_ending;
} host_calls;

struct openreg_instance_s {
    const openreg_host *host;
    cl_context context; /* one for all devices: addresses and events are valid on each */
    int32_t count;
    bool has_fine_grain; /* memory that host and devices share without being mapped */
    pthread_mutex_t blocks_lock;
    block *blocks;
    host_calls host_calls;
    device devices[MAX_DEVICES];
};

/* -------------------------------------------------------------------------------------------------------------- errors */

/* Around a call of OpenCL whose code is looked at: where openreg-check makes one fail (probe.h), it isn't made. */
#define TRIED(call) (openreg_probe_fails(&opencl_to_fail) ? CL_OUT_OF_RESOURCES : (call))
extern uint32_t opencl_to_fail;

/* Sets the error of a call of OpenCL, with its code, and returns its status. */
openreg_status opencl_fail(openreg_instance cl, const char *function, cl_int error);

/* -------------------------------------------------------------------------------------------------- queues.c: streams */

/* The stream of a handle: NULL is the device's default one. */
stream *opencl_stream(openreg_instance cl, int32_t dev, openreg_driver_stream handle);

/* With the stream's lock held: `event` is that of what was queued last; the stream owns it from here on. */
void opencl_queued(stream *s, cl_event event);

/* Ends a call that was to queue one command, and unlocks the stream. */
openreg_status opencl_end_queueing(openreg_instance cl, stream *s, const char *function, cl_int error, cl_event event);

cl_int opencl_make_queue(openreg_instance cl, int32_t dev, stream *s);

/* What is queued still runs. */
void opencl_release_queue(stream *s);

/* At close(), when no stream has work. */
void opencl_release_streams(device *d);

/* Slots of driver.h. */
openreg_status opencl_stream_create(openreg_instance cl, int32_t dev, uint32_t flags, int32_t priority,
                                    openreg_driver_stream *out);
openreg_status opencl_stream_destroy(openreg_instance cl, int32_t dev, openreg_driver_stream s);
openreg_status opencl_stream_query(openreg_instance cl, int32_t dev, openreg_driver_stream handle, int32_t *done);
openreg_status opencl_stream_sync(openreg_instance cl, int32_t dev, openreg_driver_stream handle);
openreg_status opencl_stream_native(openreg_instance cl, int32_t dev, openreg_driver_stream handle, void **out);
openreg_status opencl_stream_wait(openreg_instance cl, int32_t dev, openreg_driver_stream handle,
                                  openreg_driver_event event);
openreg_status opencl_device_sync(openreg_instance cl, int32_t dev);
openreg_status opencl_event_create(openreg_instance cl, int32_t dev, uint32_t flags, openreg_driver_event *out);
openreg_status opencl_event_destroy(openreg_instance cl, int32_t dev, openreg_driver_event event);
openreg_status opencl_event_record(openreg_instance cl, int32_t dev, openreg_driver_stream handle,
                                   openreg_driver_event event);
openreg_status opencl_event_query(openreg_instance cl, int32_t dev, openreg_driver_event event, int32_t *done);
openreg_status opencl_event_sync(openreg_instance cl, int32_t dev, openreg_driver_event event);
openreg_status opencl_event_elapsed(openreg_instance cl, int32_t dev, openreg_driver_event start,
                                    openreg_driver_event end, int64_t *nanoseconds);

/* -------------------------------------------------------------------------------------------------------- host_calls.c */

openreg_status opencl_host_func(openreg_instance cl, int32_t dev, openreg_driver_stream handle,
                                void (*function)(void *argument), void *argument);
void opencl_host_calls_start(host_calls *calls);
void opencl_host_calls_end(host_calls *calls);

/* ------------------------------------------------------------------------------------------------------------- kernels */

/* Slots of driver.h. */
openreg_status opencl_mem_alloc(openreg_instance cl, int32_t dev, const openreg_alloc_info *info, void **out);
openreg_status opencl_mem_free(openreg_instance cl, int32_t dev, void *ptr);

/* The buffer that an address is in, and how far; NULL if there is none. */
cl_mem opencl_buffer(openreg_instance cl, const void *address, size_t *offset);

void opencl_kernels_close(kernel_state *state); /* NULL is accepted */
const openreg_kernels *opencl_kernels(void);

#endif /* TORCH_OPENREG_OPENCL_H */
