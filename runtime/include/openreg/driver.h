/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/driver.h: what a driver library gives the runtime. ABI 1.0. Valid C11 and C++17.
 *
 * A driver is one shared library with one exported function, openreg_driver_query_v1(), that returns a constant table
 * of functions. Seven of them are required; for every other one that is NULL the runtime has a default implementation,
 * correct and slower (each slot below says which). The runtime never wraps a driver's handles: what a driver returns is
 * what it is given back. docs/driver-abi.md gives the reasons for these rules, docs/writing-a-driver.md an example.
 *
 * Rules that hold for every slot
 *   Threads     Any slot may be called from any thread, several at once. The runtime serialises open() and close(),
 *               and never calls a destroy slot while another call uses the same handle. No lock of the runtime is held
 *               while query(), open() or close() runs.
 *   Devices     `dev` is an ordinal of this driver, 0 <= dev < device_count; -1 means the host, only in copy(). There
 *               is no "current device": a slot leaves the vendor's current device of the calling thread as it was,
 *               except device_bind().
 *   Addresses   Device memory is named by an address of the driver's choice, which the host need not be able to read.
 *               The runtime adds offsets to it: copy(), fill() and host_alias() get any address inside an allocation,
 *               mem_free() what mem_alloc() returned. No two live allocations of a process overlap, nor does one with
 *               the host's own memory, so a vendor that has no addresses needs reserved address space (mmap() with
 *               PROT_NONE).
 *   Streams     Run their work in order. Order between streams comes from events alone: the default stream (NULL) waits
 *               for no other stream, and none waits for it.
 *   Sizes       In bytes. A size of 0 is valid, succeeds and does nothing (mem_alloc() is never asked for 0).
 *   Errors      A slot returns OPENREG_OK, or calls host->set_error() exactly once and returns the same code. On
 *               failure nothing has changed and no out-parameter has been written. openreg_fail() below does both.
 *               An asynchronous failure is reported by the next query or sync of that stream.
 *   Loss        After a slot has returned OPENREG_E_DEVICE_LOST for its device `dev` (of a copy: that of the stream), the
 *               runtime answers so itself: the device's slots are no longer called, other devices go on. What frees and
 *               destroys is still called, and succeeds: mem_free, host_free, stream_destroy, event_destroy, close,
 *               release and unmap of vmm.h, memory_close of ipc.h, abort and destroy of comm.h. So are
 *               device_active and host_alias, which only look, and device_sync before the runtime frees host memory that
 *               the device may be reading: it returns once the device reads no host memory any more, whatever its status.
 *               Loss ends when drivers are selected again (openreg_shutdown(), openreg_use_drivers()): a driver whose
 *               device is still lost then says so again.
 *   Structures  Begin with struct_size. The writer writes no byte beyond the size that it is given, and
 *               the reader takes fields beyond its size for zero.
 *   Ownership   Strings in the table are static. Text passed to the host is copied during the call. Neither side frees
 *               the other's memory.
 *   Never       C++ exceptions across the boundary, exit() or abort(), signal handlers, writing to stdout or stderr,
 *               reading the environment (options come through open()), atexit(), destructors that touch a device.
 *               A driver's own threads block all signals.
 *   Language    This header is valid C11 and uses the C library alone; a driver that uses POSIX is compiled as gnu11, or
 *               defines _GNU_SOURCE, as -std=c11 hides POSIX.
 *
 * Changes are appended only: a slot never changes its meaning; a new slot goes to the end, a new flag takes the next bit,
 * and each raises OPENREG_ABI_MINOR by one. A driver of any minor works with a runtime of any minor.
 */
#ifndef OPENREG_DRIVER_H
#define OPENREG_DRIVER_H

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <openreg/export.h>
#include <openreg/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_ABI_MAJOR 1u /* part of the entry point's name */
#define OPENREG_ABI_MINOR 0u /* +1 for each appended slot, field or flag */

/* The only symbol that a driver library exports. */
#define OPENREG_DRIVER_ENTRY_NAME "openreg_driver_query_v1"

/* What a NULL slot cannot show. Bits of openreg_driver.caps are about the driver as a whole and must be known before
 * open(): whether a fork() may happen while it is opened, and whether to prefer its devices to simulated ones. */
#define OPENREG_CAP_FORK_SAFE (UINT64_C(1) << 0) /* an open instance stays usable in a child made by fork() */
#define OPENREG_CAP_SIMULATED (UINT64_C(1) << 1) /* the devices are simulated on the host */
/* Bits of openreg_device_info.caps are about one device: the devices of a driver may differ. */
#define OPENREG_CAP_HOST_VISIBLE (UINT64_C(1) << 2) /* host_alias() gives the host a view of its memory */
#define OPENREG_CAP_FENCED (UINT64_C(1) << 3)       /* its addresses fault when the host touches them */

typedef struct openreg_instance_s *openreg_instance;           /* driver-owned, from open() to close() */
typedef struct openreg_driver_stream_s *openreg_driver_stream; /* NULL is the device's default stream */
typedef struct openreg_driver_event_s *openreg_driver_event;   /* a marker; recording again replaces it */

typedef struct openreg_option {
    const char *key, *value; /* NUL-terminated UTF-8, valid during the call */
} openreg_option;

/* The runtime's side: owned by it, valid until the process ends. Both functions may be called from any thread, with
 * locks of the driver held, and never call back into a driver. */
typedef struct openreg_host {
    uint32_t struct_size, abi_minor;
    void *ctx; /* first argument of both functions */
    /* Stores this thread's error. `code` is the one that the slot then returns (that one counts; if they differ, the
     * text says so); `vendor_code` is the vendor's own number, 0 if none; `utf8` is copied (at most 511 bytes are
     * kept). */
    void (*set_error)(void *ctx, openreg_status code, int64_t vendor_code, const char *utf8);
    void (*log)(void *ctx, int32_t level, const char *utf8); /* level: OPENREG_LOG_*, status.h */
} openreg_host;

/* The runtime zeroes it and sets struct_size; the driver writes no byte beyond that size. */
typedef struct openreg_device_info {
    uint32_t struct_size;
    int32_t multi_processor_count; /* 0 if unknown */
    uint64_t total_bytes;          /* memory of the device */
    uint64_t min_alignment;        /* of mem_alloc()'s addresses, a power of two; 0: as malloc() */
    uint64_t caps;                 /* OPENREG_CAP_HOST_VISIBLE, OPENREG_CAP_FENCED */
    int32_t priority_low;          /* numerically greatest, least urgent stream priority */
    int32_t priority_high;         /* numerically least, most urgent; both 0 if streams have none */
    int32_t capability_major;      /* compute capability or the vendor's counterpart, 0 if none */
    int32_t capability_minor;
    char uuid[16];              /* all zero if unknown */
    char torch_device_type[16]; /* PyTorch device type whose kernels work on this memory ("cuda"), or "" */
    char name[128];             /* NUL-terminated UTF-8 */
} openreg_device_info;

typedef struct openreg_driver {
    uint32_t struct_size, abi_minor; /* sizeof(openreg_driver), OPENREG_ABI_MINOR as compiled into the driver */
    const char *name;                /* lower case, [a-z0-9_], 1 to 31 characters */
    const char *version;             /* of the driver, free text */
    uint64_t caps;                   /* OPENREG_CAP_FORK_SAFE, OPENREG_CAP_SIMULATED */

    /* ---- Required: these seven make a driver. ---- */

    /* Opens the vendor's library and devices. `host` and the options' strings: see above. An unknown option is
     * ignored. E_NO_DEVICE: none is there, or the vendor's library is not installed: an installed driver is then left out
     * without an error; E_INCOMPATIBLE: the vendor's library is unfit; E_INVALID: a bad option (the text names it). */
    openreg_status (*open)(const openreg_host *host, const openreg_option *options, size_t n, openreg_instance *out);
    /* Ends the instance with all that it has; open() may follow. The runtime has freed all memory and handles before. */
    openreg_status (*close)(openreg_instance);
    /* Number of devices, >= 0, constant from open() to close(). */
    openreg_status (*device_count)(openreg_instance, int32_t *out);
    /* `size` > 0 bytes of device memory, contents undefined. Every stream of the device may use it as soon as this
     * returns. E_NOMEM: the runtime frees its caches and asks again. */
    openreg_status (*mem_alloc)(openreg_instance, int32_t dev, uint64_t size, void **out);
    /* Frees what mem_alloc() returned. It waits: it returns after the work that is queued on that memory, on any stream,
     * has ended. */
    openreg_status (*mem_free)(openreg_instance, int32_t dev, void *ptr);
    /* Queues a copy on stream `stream` of device `stream_dev`, in order. dst_dev or src_dev -1: host memory, pinned or
     * not; never both. Devices may differ (a peer copy). Ranges don't overlap; both stay alive, and the source unchanged,
     * until the stream has passed the copy. So the call may return before the copy has begun, with any host memory; with
     * memory that is not pinned, or of another device than `stream_dev`, it may also return when the copy has ended. */
    openreg_status (*copy)(openreg_instance, void *dst, int32_t dst_dev, const void *src, int32_t src_dev,
                           uint64_t size, int32_t stream_dev, openreg_driver_stream stream);
    /* Returns when all work of the device has ended; reports its first asynchronous error. */
    openreg_status (*device_sync)(openreg_instance, int32_t dev);

    /* ---- Optional: NULL is fine. "Default:" says what the runtime does then. ---- */

    /* Default: name "<driver> device <dev>", unknown memory, no flags, no priorities. */
    openreg_status (*device_info)(openreg_instance, int32_t dev, openreg_device_info *inout);
    /* Queues `size` bytes of `value`. Default: a copy from a host buffer, after which the device is synchronised. */
    openreg_status (*fill)(openreg_instance, int32_t dev, void *dst, uint8_t value, uint64_t size,
                           openreg_driver_stream);
    /* A new stream, `flags` 0, priority between priority_high and priority_low of the device. The stream slots come
     * together (create, destroy, query, sync). Default: every stream means the device's default stream. */
    openreg_status (*stream_create)(openreg_instance, int32_t dev, uint32_t flags, int32_t priority,
                                    openreg_driver_stream *out);
    /* NULL is accepted. Queued work still runs. */
    openreg_status (*stream_destroy)(openreg_instance, int32_t dev, openreg_driver_stream);
    /* *done = 1 if all work queued so far has ended, else 0. Default: device_sync, then 1. */
    openreg_status (*stream_query)(openreg_instance, int32_t dev, openreg_driver_stream, int32_t *done);
    /* Waits for all work queued so far. Default: device_sync. */
    openreg_status (*stream_sync)(openreg_instance, int32_t dev, openreg_driver_stream);
    /* Later work of this stream waits for the event's latest record at the time of this call; never recorded: nothing
     * to wait for. The event may be of another device of this driver. Default: event_sync. */
    openreg_status (*stream_wait)(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_event);
    /* The event slots come together (create, destroy, record, query, sync). `dev` is that of event_create() in all of
     * them. Default: an event that is complete after device_sync; elapsed time by the host's clock. */
    openreg_status (*event_create)(openreg_instance, int32_t dev, uint32_t flags, openreg_driver_event *out);
    /* NULL is accepted. An event may be destroyed while its record is pending. */
    openreg_status (*event_destroy)(openreg_instance, int32_t dev, openreg_driver_event);
    /* Records the event behind the work queued on the stream, and replaces an earlier record: query, sync
     * and stream_wait() mean the latest record at the time of their call, and a later one does not change what they
     * wait for. */
    openreg_status (*event_record)(openreg_instance, int32_t dev, openreg_driver_event, openreg_driver_stream);
    /* *done = 1 if the latest record has been passed, or there is none. */
    openreg_status (*event_query)(openreg_instance, int32_t dev, openreg_driver_event, int32_t *done);
    /* Waits for the latest record; returns at once if there is none. */
    openreg_status (*event_sync)(openreg_instance, int32_t dev, openreg_driver_event);
    /* Milliseconds from start to end, of the times at which their streams passed the records, by one clock. Both created
     * with OPENREG_EVENT_TIMING on one device, recorded and complete, else E_INVALID. `dev` is that
     * device, and that of `start` where they are of two. Default: the host's clock. */
    openreg_status (*event_elapsed)(openreg_instance, int32_t dev, openreg_driver_event start, openreg_driver_event end,
                                    double *ms);
    /* Queues a call of `function` on the stream, as cudaLaunchHostFunc: it runs once, when the work queued before has
     * ended, and work queued later waits until it returns, as do the stream's queries and syncs and events recorded
     * behind it. It runs on a thread of the driver's or of the vendor's, with no lock of the driver held, and calls no
     * slot. Functions of several streams may run one after the other. After an asynchronous error that ends the
     * device's work it does not run.
     * Default: the calling thread waits for the stream, then for the function, which runs on a thread made for this
     * call. So nothing overlaps, and each call costs a stream_sync and a thread, about 30 microseconds. The same where it
     * returns E_UNSUPPORTED, with nothing queued: for a driver that learns in open() whether its vendor has such calls. */
    openreg_status (*host_func)(openreg_instance, int32_t dev, openreg_driver_stream, void (*function)(void *argument),
                                void *argument);
    /* *out = 1 if the device has a live context. Never makes one. Default: whether the runtime has allocated memory
     * or made a stream on it. */
    openreg_status (*device_active)(openreg_instance, int32_t dev, int32_t *out);
    /* Makes it the vendor's current device in this thread. Default: nothing to do. */
    openreg_status (*device_bind)(openreg_instance, int32_t dev);
    /* Pinned host memory, usable by every device of this driver; size > 0. Default: plain aligned memory. */
    openreg_status (*host_alloc)(openreg_instance, uint64_t size, void **out);
    /* Frees what host_alloc() returned. Need not wait: work that reads or writes it has ended, by the runtime's callers
     * and, where a device was lost, by device_sync. */
    openreg_status (*host_free)(openreg_instance, void *ptr);
    /* Free and total bytes of the device, free <= total. Default: total_bytes less what the runtime has allocated. */
    openreg_status (*mem_info)(openreg_instance, int32_t dev, uint64_t *free_bytes, uint64_t *total);
    /* With OPENREG_CAP_HOST_VISIBLE: the host's address of a device address, at a constant distance inside one
     * allocation. The host may read and write there when the streams that use the memory are idle. */
    openreg_status (*host_alias)(openreg_instance, int32_t dev, void *ptr, void **out);
    /* The vendor's own stream, for the vendor's libraries. Default: the driver's handle. */
    openreg_status (*stream_native)(openreg_instance, int32_t dev, openreg_driver_stream, void **out);
    /* Counts and describes devices without open(), and starts no thread. `options` as in open(). `topology` is "" for this
     * machine's devices; other names are the driver's own (E_INVALID if unknown). Sets *count, fills
     * *infos[0..min(*count, capacity)), whose struct_size the caller has set, and, unless `peers` is NULL,
     * peers[i * capacity + j]: 1 if device i copies to device j without the host. With `capacity` 0 it only counts
     * (`infos` may be NULL), and must leave a later fork() safe; else it does where the vendor allows it. E_UNSUPPORTED: only
     * open() can tell. Default: open(), then device_count(), to count; E_UNSUPPORTED to describe. */
    openreg_status (*describe)(const openreg_host *host, const openreg_option *options, size_t n, const char *topology,
                               int32_t capacity, openreg_device_info *const *infos, uint8_t *peers, int32_t *count);
    /* A table led by a uint32_t struct_size, valid until close(), or NULL (no error): ipc.h, kernels.h, vmm.h,
     * schedule.h, comm.h, graph.h. */
    const void *(*extension)(openreg_instance, const char *name, uint32_t version);
} openreg_driver;

/* Sizes of version 1.0, frozen for ever: a table of that size is accepted by every runtime of this major. LP64 only. */
#define OPENREG_DRIVER_SIZE_1 272u
#define OPENREG_DEVICE_INFO_SIZE_1 208u
#define OPENREG_HOST_SIZE_1 32u
static_assert(sizeof(openreg_driver) == OPENREG_DRIVER_SIZE_1, "append a slot, and leave the frozen size as it is");
static_assert(sizeof(openreg_device_info) == OPENREG_DEVICE_INFO_SIZE_1, "append a field, then compare with >=");
static_assert(sizeof(openreg_host) == OPENREG_HOST_SIZE_1, "append a function, then compare with >=");
static_assert(sizeof(openreg_option) == 16u, "openreg_option is an element of arrays: it cannot grow");

/* Cheap: opens no vendor library, starts no thread, touches no device; may be called more than once. Returns a table
 * of static storage in *out. `host` is valid until the process ends. */
typedef openreg_status (*openreg_driver_query_fn)(const openreg_host *host, const openreg_driver **out);

/* For drivers: formats a message, sets it as this thread's error and returns `code`. Defined here alone, so that a driver
 * links nothing of ours. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
OPENREG_HELPER openreg_status
openreg_fail(const openreg_host *host, openreg_status code, int64_t vendor_code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    host->set_error(host->ctx, code, vendor_code, text);
    return code;
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_DRIVER_H */
