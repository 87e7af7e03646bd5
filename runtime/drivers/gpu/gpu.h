/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu.h: the CUDA and HIP drivers' own structures and functions. Internal to drivers/gpu.
 *
 * A slot of the table does its work between openreg_gpu_enter() and openreg_gpu_leave(), which make a device current in
 * the calling thread and restore the previous one. Streams are the vendor's own handles. No lock is held while the
 * vendor is called, except that of gpu_vmm.c around changes of mappings. */
#ifndef OPENREG_DRIVERS_GPU_GPU_H
#define OPENREG_DRIVERS_GPU_GPU_H

#include <stdatomic.h>
#include <stdbool.h>

#include <openreg/comm.h>
#include <openreg/driver.h>
#include <openreg/graph.h>
#include <openreg/vmm.h>

#include "gpu_names.h"

#define OPENREG_GPU_MAX_DEVICES 127

/* Whether one device reaches another's memory: openreg_instance_s.peers. */
#define OPENREG_GPU_PEER_UNKNOWN 0
#define OPENREG_GPU_PEER_ENABLED 1
#define OPENREG_GPU_PEER_STAGED 2 /* the hardware can't; the vendor copies through host memory */
#define OPENREG_GPU_PEER_BY_US 3  /* nor does the vendor; gpu_peer.c copies through host memory */

typedef struct openreg_gpu_device {
    atomic_int lost;          /* the vendor's number of the error that ended it, 0 if it lives */
    atomic_uintptr_t context; /* CUDA: the primary context, once retained; HIP: 1 once used */
} openreg_gpu_device;

struct openreg_instance_s {
    const openreg_host *host;
    int32_t device_count;
    openreg_gpu_device *devices;
    atomic_uchar *peers;   /* [from * device_count + to], OPENREG_GPU_PEER_* */
    atomic_uchar *touched; /* [owner * device_count + other]: a stream of `other` has worked on memory of `owner` */
    struct openreg_gpu_vmm *vmm;
    struct openreg_gpu_comm *comm;
};

struct openreg_driver_event_s {
    int32_t device;
    bool timed;
    GPU(Event_t) native;
};

/* A stretch of work of one thread on one device. */
typedef struct openreg_gpu_scope {
    openreg_instance instance;
    int32_t device;
    openreg_gpu_code pending; /* the thread's last error before, somebody else's */
    int previous;             /* HIP: the device to return to */
    bool switched;
} openreg_gpu_scope;

#define OPENREG_GPU_RETURN_NOT_OK(expression)                                                                          \
    do {                                                                                                               \
        const openreg_status not_ok_status = (expression);                                                             \
        if (not_ok_status != OPENREG_OK)                                                                               \
            return not_ok_status;                                                                                      \
    } while (0)

/* Around calls that end a capture of a graph which another thread, or another library in the process, may be making:
 * the vendor takes allocations and queries for unsafe, unless this thread's mode is relaxed. They have no part in the
 * captured stream's work. Returns the mode to be put back. */
static inline openreg_gpu_capture_mode
openreg_gpu_relax_capture(void)
{
    openreg_gpu_capture_mode mode = GPU(StreamCaptureModeRelaxed);
    (void)GPU_CALL(ThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}
static inline void
openreg_gpu_restore_capture(openreg_gpu_capture_mode mode)
{
    (void)GPU_CALL(ThreadExchangeStreamCaptureMode)(&mode);
}

/* ---- gpu_error.c ---- */

/* OPENREG_OK, or the status of a vendor's error, which is set as this thread's error with the vendor's function, name
 * and text, the device and advice. Takes back the vendor's own note of the error, where the scope's call made it. */
#define OPENREG_GPU_TRY(scope, name, ...) openreg_gpu_check((scope), GPU_CALL(name)(__VA_ARGS__), GPU_NAME(name))
openreg_status openreg_gpu_check(const openreg_gpu_scope *scope, openreg_gpu_code code, const char *function);
/* For the answer of a query: *done is 0 for NotReady, which is no error. */
openreg_status openreg_gpu_check_ready(const openreg_gpu_scope *scope, openreg_gpu_code code, const char *function,
                                       int32_t *done);
/* openreg_gpu_check() without a device: in open(), where there is no instance. */
openreg_status openreg_gpu_fail_plain(const openreg_host *host, openreg_gpu_code code, const char *function);
/* The vendor's name of an error; never NULL. */
const char *openreg_gpu_error_name(openreg_gpu_code code);
/* For answers that are no errors, as NotReady. */
void openreg_gpu_forget(const openreg_gpu_scope *scope, openreg_gpu_code code);
/* Logs an error of another caller's that the vendor's library forgot because the scope's call succeeded: it can't be put
 * back. HIP before 7 alone. */
void openreg_gpu_note_forgotten(const openreg_gpu_scope *scope);
/* For a failure that the caller has no need to know of: logs it, and notes a loss of the device. */
void openreg_gpu_log_failure(const openreg_gpu_scope *scope, openreg_gpu_code code, const char *function);
bool openreg_gpu_is_lost(openreg_instance instance, int32_t dev);
/* E_DEVICE_LOST if the device is lost. */
openreg_status openreg_gpu_reject_lost(openreg_instance instance, int32_t dev);

/* ---- gpu_library.c, gpu_library_cuda.c, gpu_library_hip.c ---- */

/* Makes the vendor's functions callable. E_NO_DEVICE: the library or the kernel's driver is not installed;
 * E_INCOMPATIBLE: the library lacks a function, is older than what this driver was built against, or has structures that
 * it does not know. May be called
 * again. */
openreg_status openreg_gpu_library_open(const openreg_host *host);
/* Compares what the vendor's `function` answered, `code` and the version `found`; `scale` as openreg_version_ok(). */
openreg_status openreg_gpu_version_check(const openreg_host *host, openreg_gpu_code code, const char *function,
                                         int found, int built, int scale);

/* ---- gpu_context_cuda.c, gpu_context_hip.c ---- */

/* What the context functions need of the vendor's library. */
openreg_status openreg_gpu_context_open(const openreg_host *host);
/* Looks up a function that the vendor's library may lack, after open() has succeeded; CUDA's are the driver API's. */
bool openreg_gpu_find_optional(const openreg_gpu_scope *scope, const char *name, void *out);
/* Makes the device the calling thread's, and makes its context if it has none. On failure nothing is to be left. */
openreg_status openreg_gpu_enter(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev);
/* The same for questions that need no context, which it doesn't make; also of a device that is lost. */
openreg_status openreg_gpu_look(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev);
/* The same to wait for the device's work. *is_idle: there can be none, as the device has no context, and to ask would
 * make one; then there is nothing to be left. */
openreg_status openreg_gpu_enter_to_wait(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev,
                                         bool *is_idle);
/* Gives the thread back what was current before. Cannot fail as far as the caller is concerned: it logs. */
void openreg_gpu_leave(const openreg_gpu_scope *scope);
/* Asks the vendor whether the scope's device has a context: *active = 1 or 0. Never makes one. */
openreg_status openreg_gpu_query_context(const openreg_gpu_scope *scope, int *active);
/* The same for work that belongs to no device: in this thread's if it can be, else in one with a context, else in the
 * first. */
openreg_status openreg_gpu_enter_any(openreg_gpu_scope *scope, openreg_instance instance);

/* ---- gpu_device.c ---- */

/* Whether the device has a context; never makes one. */
openreg_status openreg_gpu_is_active(openreg_instance instance, int32_t dev, bool *out);

/* ---- gpu_properties_cuda.c, gpu_properties_hip.c ---- */

/* Name, UUID, memory and priorities, in the vendor's way; *out has the capability already. Makes no context. */
openreg_status openreg_gpu_read_properties(const openreg_gpu_scope *scope, openreg_device_info *out);

/* ---- gpu_peer.c ---- */

/* Waits for all work on memory of the device, on whatever device's streams. */
openreg_status openreg_gpu_peer_await(openreg_instance instance, int32_t owner);
openreg_status openreg_gpu_peer_copy(openreg_instance instance, void *dst, int32_t dst_dev, const void *src,
                                     int32_t src_dev, uint64_t size, int32_t stream_dev, openreg_driver_stream stream);

/* ---- gpu_vmm.c ---- */

/* What an instance needs for growing segments; NULL without host memory. */
struct openreg_gpu_vmm *openreg_gpu_vmm_create(void);
/* Releases what is left because the vendor refused to release it before. */
void openreg_gpu_vmm_destroy(openreg_instance instance);
/* The extension "openreg.vmm" (openreg/vmm.h); NULL, without an error, where the vendor's library lacks a function that
 * it needs, or a device has no granularity. Makes no context. */
const openreg_vmm *openreg_gpu_vmm_extension(openreg_instance instance);
/* Whether the address is in a reservation of the device's. */
bool openreg_gpu_vmm_has(openreg_instance instance, int32_t dev, const void *ptr);
/* Two devices have access to each other's memory from now on: gives it to the segments that there are, and sets *way,
 * their place in `peers`, to OPENREG_GPU_PEER_ENABLED, by which those to come have it. */
openreg_status openreg_gpu_vmm_enable_access(openreg_instance instance, int32_t a, int32_t b, atomic_uchar *way);

/* ---- gpu_comm.c ---- */

/* What an instance needs for collectives, by the options of open(); NULL without host memory. */
struct openreg_gpu_comm *openreg_gpu_comm_create(const openreg_option *options, uint32_t n);
void openreg_gpu_comm_destroy(struct openreg_gpu_comm *comm);
/* The extension "openreg.comm" (openreg/comm.h); NULL, without an error and with a line in the log, where the vendor's
 * library of collectives is not installed or too old. */
const openreg_comm *openreg_gpu_comm_extension(openreg_instance instance);

/* ---- gpu_graph.c ---- */

/* The extension "openreg.graph" (openreg/graph.h); NULL, without an error, where HIP's library lacks a function. */
const openreg_graph_table *openreg_gpu_graph_extension(void);

/* ---- the slots ---- */

openreg_status openreg_gpu_device_count(openreg_instance, int32_t *out);
openreg_status openreg_gpu_device_info(openreg_instance, int32_t dev, openreg_device_info *inout);
/* "cuda": PyTorch's build for HIP calls its devices so too. */
void openreg_gpu_set_torch_type(openreg_device_info *info);
openreg_status openreg_gpu_device_sync(openreg_instance, int32_t dev);
openreg_status openreg_gpu_device_active(openreg_instance, int32_t dev, int32_t *out);
openreg_status openreg_gpu_device_bind(openreg_instance, int32_t dev);

openreg_status openreg_gpu_mem_alloc(openreg_instance, int32_t dev, const openreg_alloc_info *info, void **out);
openreg_status openreg_gpu_mem_free(openreg_instance, int32_t dev, void *ptr);
openreg_status openreg_gpu_mem_info(openreg_instance, int32_t dev, uint64_t *free_bytes, uint64_t *total);
openreg_status openreg_gpu_host_alloc(openreg_instance, int32_t dev, const openreg_alloc_info *info, void **out);
openreg_status openreg_gpu_host_free(openreg_instance, int32_t dev, void *ptr);

openreg_status openreg_gpu_copy(openreg_instance, int32_t stream_dev, openreg_driver_stream stream, void *dst,
                                int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size);
openreg_status openreg_gpu_fill(openreg_instance, int32_t dev, openreg_driver_stream, void *dst, uint8_t value,
                                uint64_t size);

openreg_status openreg_gpu_stream_create(openreg_instance, int32_t dev, uint32_t flags, int32_t priority,
                                         openreg_driver_stream *out);
openreg_status openreg_gpu_stream_destroy(openreg_instance, int32_t dev, openreg_driver_stream);
openreg_status openreg_gpu_stream_query(openreg_instance, int32_t dev, openreg_driver_stream, int32_t *done);
openreg_status openreg_gpu_stream_sync(openreg_instance, int32_t dev, openreg_driver_stream);
openreg_status openreg_gpu_stream_wait(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_event);
openreg_status openreg_gpu_stream_native(openreg_instance, int32_t dev, openreg_driver_stream, void **out);
openreg_status openreg_gpu_host_func(openreg_instance, int32_t dev, openreg_driver_stream,
                                     void (*function)(void *argument), void *argument);

openreg_status openreg_gpu_event_create(openreg_instance, int32_t dev, uint32_t flags, openreg_driver_event *out);
openreg_status openreg_gpu_event_destroy(openreg_instance, int32_t dev, openreg_driver_event);
openreg_status openreg_gpu_event_record(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_event);
openreg_status openreg_gpu_event_query(openreg_instance, int32_t dev, openreg_driver_event, int32_t *done);
openreg_status openreg_gpu_event_sync(openreg_instance, int32_t dev, openreg_driver_event);
openreg_status openreg_gpu_event_elapsed(openreg_instance, int32_t dev, openreg_driver_event start,
                                         openreg_driver_event end, int64_t *nanoseconds);

openreg_status openreg_gpu_describe(const openreg_host *host, const openreg_option *options, uint32_t n,
                                    const char *topology, int32_t capacity, openreg_device_info *const *infos,
                                    uint8_t *peers, int32_t *count);
const void *openreg_gpu_extension(openreg_instance, const char *name, uint32_t version);

#endif
