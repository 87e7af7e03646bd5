/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/driver.h: what a driver library gives the runtime. ABI 1.0. Valid C11 and C++17.
 *
 * A driver is one shared library with one exported function, openreg_driver_query_v1(), that returns a constant table
 * of functions. Seven of them are required; for every other one that is NULL the runtime has a default implementation,
 * correct and slower ("If NULL" of each slot). Handles are never wrapped: the runtime passes back exactly what the driver
 * returned. docs/driver-abi.md gives the reasons for these rules, docs/writing-a-driver.md an example.
 *
 * Rules that hold for every slot
 *   Order       Parameters come as: instance, device, stream, handle, data, sizes, out. A stream follows its device.
 *   Threads     Any slot may be called from any thread, several at once. The runtime serialises open() and close(),
 *               and never calls a destroy slot while another call uses the same handle. No lock of the runtime is held
 *               while query(), open() or close() runs.
 *   Devices     `dev` is an ordinal of this driver, 0 <= dev < device_count; -1 means the host, only in copy(). There
 *               is no "current device": a slot leaves the vendor's current device of the calling thread as it was,
 *               except device_bind().
 *   Addresses   The driver chooses the address of device memory; the host need not be able to read there. The
 *               runtime adds offsets to it: copy(), fill() and host_alias() get any address inside an allocation,
 *               mem_free() what mem_alloc() returned. No two live allocations of a process overlap, nor does one with
 *               the host's own memory, so the driver of a vendor without addresses reserves address space (mmap()
 *               with PROT_NONE).
 *   Streams     Each runs its work in order. Only events order streams among each other: the default stream (NULL)
 *               waits for no other stream, and none waits for it.
 *   Units       Bytes and times are 64 bits wide, times in nanoseconds; counts are 32 bits. A size of 0 is valid, succeeds
 *               and does nothing (mem_alloc() is never called with 0).
 *   Errors      A slot returns OPENREG_OK, or calls host->set_error() exactly once and returns the same code. On
 *               failure nothing has changed and no out-parameter has been written. openreg_fail() below does both.
 *               An asynchronous failure is reported by the next query or sync of that stream.
 *   Structures  Begin with struct_size. The writer writes no byte beyond that size; the reader takes fields beyond it
 *               for zero.
 *   Ownership   Strings in the table are static. Text passed to the host is copied during the call. Neither side frees
 *               the other's memory.
 *   Never       C++ exceptions across the boundary, exit() or abort(), signal handlers, writing to stdout or stderr,
 *               reading the environment (options come through open()), atexit(), destructors that touch a device.
 *               A driver's own threads block all signals.
 *   Language    This header is valid C11 and uses the C library alone; a driver that uses POSIX is compiled as gnu11, or
 *               defines _GNU_SOURCE, as -std=c11 hides POSIX.
 *
 * A device is lost once a slot has returned OPENREG_E_DEVICE_LOST for `dev` (of a copy: the stream's device). Other devices
 * go on. The loss ends when drivers are selected again (openreg_shutdown(), openreg_drivers_use()); a driver whose device
 * is still lost then reports it again. Until then, for that device:
 *   mem_free, host_free, stream_destroy, event_destroy, close; release and unmap of vmm.h;   are called, and succeed
 *   memory_close of ipc.h; abort and destroy of comm.h; destroy_graph and destroy_exec of graph.h
 *   device_active, host_alias     are called: they only read the driver's state
 *   device_sync                   is called before host memory is freed that the device may be reading: it returns, with
 *                                 any status, once the device no longer reads host memory
 *   all others                    are not called: the runtime returns OPENREG_E_DEVICE_LOST itself
 *
 * Each slot is described by four lines:
 *   When        when the runtime calls it, and what it does
 *   May block   what it may wait for; "no": it returns without waiting for a device
 *   Returns     besides OPENREG_OK, OPENREG_E_DEVICE_LOST and OPENREG_E_INTERNAL, which every slot may return
 *   If NULL     what the runtime does without it; "required": the table is refused
 *
 * Versions. Changes are appended only: a slot never changes its meaning; a new slot goes to the end, a new flag takes the
 * next bit, and each raises OPENREG_ABI_MINOR by one. A driver of any minor works with a runtime of any minor. The version
 * of an extension's table is the newest that the driver knows, and serves every older one: the runtime accepts it if it is
 * at least the version that it needs, and finds appended slots by struct_size. A changed meaning gets a new name.
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

/* Properties that a NULL slot cannot show. Bits of openreg_driver.caps describe the whole driver and must be known before
 * open(): whether a fork() may happen while it is open, and whether to prefer its devices to simulated ones. */
#define OPENREG_CAP_FORK_SAFE (UINT64_C(1) << 0) /* an open instance stays usable in a child made by fork() */
#define OPENREG_CAP_SIMULATED (UINT64_C(1) << 1) /* the devices are simulated on the host */
/* Bits of openreg_device_info.caps describe one device: the devices of a driver may differ. */
#define OPENREG_CAP_HOST_VISIBLE (UINT64_C(1) << 2) /* host_alias() gives the host a view of its memory */
#define OPENREG_CAP_FENCED (UINT64_C(1) << 3)       /* its addresses fault when the host touches them */

typedef struct openreg_instance_s *openreg_instance;           /* driver-owned, from open() to close() */
typedef struct openreg_driver_stream_s *openreg_driver_stream; /* NULL is the device's default stream */
typedef struct openreg_driver_event_s *openreg_driver_event;   /* a marker; recording again replaces it */

typedef struct openreg_option {
    const char *key, *value; /* NUL-terminated UTF-8, valid during the call */
} openreg_option;

/* The request of mem_alloc() and host_alloc(). */
typedef struct openreg_alloc_info {
    uint32_t struct_size;
    uint32_t flags;     /* 0; a driver returns OPENREG_E_UNSUPPORTED for one that it doesn't know */
    uint64_t size;      /* bytes, > 0 */
    uint64_t alignment; /* of the address, a power of two; 0: the device's min_alignment, or any for host memory */
} openreg_alloc_info;

/* The runtime's side: owned by it, valid until the process ends. Both functions may be called from any thread, with
 * locks of the driver held, and never call back into a driver. */
typedef struct openreg_host {
    uint32_t struct_size, abi_minor;
    void *ctx; /* first argument of both functions */
    /* Stores this thread's error. `code` is what the slot then returns (if the two differ, the returned one counts and
     * the text reports it); `vendor_code` is the vendor's own number, 0 if none; `utf8` is copied, and cut at 511
     * bytes. */
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
    uint64_t max_allocation;    /* most bytes of one allocation, 0: no limit. The runtime refuses larger requests */
} openreg_device_info;

typedef struct openreg_driver {
    uint32_t struct_size, abi_minor; /* sizeof(openreg_driver), OPENREG_ABI_MINOR as compiled into the driver */
    const char *name;                /* lower case, [a-z0-9_], 1 to 31 characters */
    const char *version;             /* of the driver, free text */
    uint64_t caps;                   /* OPENREG_CAP_FORK_SAFE, OPENREG_CAP_SIMULATED */

    /* ---- Required: these seven make a driver. ---- */

    /* When      Once, before all others. Opens the vendor's library and devices. `host` is valid until the process
     *           ends, the options until this returns. An unknown option is ignored.
     * May block for as long as the vendor takes
     * Returns   E_NO_DEVICE: there is no device, or the vendor's library is not installed; an installed driver is
     *           then left out without an error; E_INCOMPATIBLE: the vendor's library is unfit; E_INVALID: a bad
     *           option (the text names it); E_NOMEM
     * If NULL   required */
    openreg_status (*open)(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out);

    /* When      Once, at the end. Releases the instance and all that it owns; open() may follow. The runtime has freed
     *           all memory and handles before.
     * May block until the devices are idle
     * Returns   nothing else
     * If NULL   required */
    openreg_status (*close)(openreg_instance);

    /* When      Number of devices, >= 0, constant from open() to close().
     * May block no
     * Returns   nothing else
     * If NULL   required */
    openreg_status (*device_count)(openreg_instance, int32_t *out);

    /* When      The caching allocator needs a segment. Device memory, contents undefined. Every stream of the
     *           device may use it as soon as this returns.
     * May block for as long as the vendor takes
     * Returns   E_NOMEM: the runtime frees its caches and tries again; E_UNSUPPORTED: a flag or an alignment that
     *           the driver doesn't support
     * If NULL   required */
    openreg_status (*mem_alloc)(openreg_instance, int32_t dev, const openreg_alloc_info *info, void **out);

    /* When      The caching allocator releases a segment. Frees what mem_alloc() returned, after the work that is
     *           queued on that memory, on any stream, has ended.
     * May block until that work has ended
     * Returns   E_INVALID: not such an address
     * If NULL   required */
    openreg_status (*mem_free)(openreg_instance, int32_t dev, void *ptr);

    /* When      Queues a copy on stream `stream` of device `stream_dev`, in order. dst_dev or src_dev -1: host
     *           memory, pinned or not; never both. Devices may differ (a peer copy). Ranges don't overlap; both
     *           stay alive, and the source unchanged, until the copy has completed, so the call may return
     *           before the copy has begun, with any host memory.
     * May block until the copy has ended, if some of the memory is not pinned or belongs to another device than
     *           `stream_dev`; else no
     * Returns   E_INVALID: not device memory
     * If NULL   required */
    openreg_status (*copy)(openreg_instance, int32_t stream_dev, openreg_driver_stream stream, void *dst,
                           int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size);

    /* When      The program waits for a device. Returns when all work of the device has ended, and reports its
     *           first asynchronous error.
     * May block until that has ended
     * Returns   that error
     * If NULL   required */
    openreg_status (*device_sync)(openreg_instance, int32_t dev);

    /* ---- Optional ---- */

    /* When      After open(), once for each device.
     * May block no
     * Returns   nothing else
     * If NULL   name "<driver> device <dev>", unknown memory, no flags, no priorities */
    openreg_status (*device_info)(openreg_instance, int32_t dev, openreg_device_info *inout);

    /* When      Queues a fill of `size` bytes with `value`.
     * May block no
     * Returns   E_INVALID: not device memory
     * If NULL   a copy from a host buffer, after which the device is synchronised */
    openreg_status (*fill)(openreg_instance, int32_t dev, openreg_driver_stream, void *dst, uint8_t value,
                           uint64_t size);

    /* When      A new stream, `flags` 0, priority between priority_high and priority_low of the device. The stream
     *           slots come together (create, destroy, query, sync).
     * May block for as long as the vendor takes
     * Returns   E_NOMEM
     * If NULL   every stream means the device's default stream */
    openreg_status (*stream_create)(openreg_instance, int32_t dev, uint32_t flags, int32_t priority,
                                    openreg_driver_stream *out);

    /* When      The selection of drivers ends. NULL is accepted. Queued work still runs.
     * May block no
     * Returns   nothing else
     * If NULL   as stream_create */
    openreg_status (*stream_destroy)(openreg_instance, int32_t dev, openreg_driver_stream);

    /* When      *done = 1 if all work queued so far has ended, else 0.
     * May block no
     * Returns   the error of the stream's work
     * If NULL   device_sync, then 1 */
    openreg_status (*stream_query)(openreg_instance, int32_t dev, openreg_driver_stream, int32_t *done);

    /* When      Waits for all work queued so far.
     * May block until that has ended
     * Returns   the error of the stream's work
     * If NULL   device_sync */
    openreg_status (*stream_sync)(openreg_instance, int32_t dev, openreg_driver_stream);

    /* When      Later work of this stream waits for the event's latest record at the time of this call; if it was
     *           never recorded, nothing waits. The event may belong to another device of this driver.
     * May block no
     * Returns   nothing else
     * If NULL   event_sync */
    openreg_status (*stream_wait)(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_event);

    /* When      A new event; `flags` 0 or OPENREG_EVENT_TIMING. The event slots come together (create, destroy,
     *           record, query, sync); `dev` is that of event_create() in all of them.
     * May block no
     * Returns   E_NOMEM
     * If NULL   events that are complete after device_sync; elapsed time by the host's clock */
    openreg_status (*event_create)(openreg_instance, int32_t dev, uint32_t flags, openreg_driver_event *out);

    /* When      NULL is accepted. An event may be destroyed while its record is pending.
     * May block no
     * Returns   nothing else
     * If NULL   as event_create */
    openreg_status (*event_destroy)(openreg_instance, int32_t dev, openreg_driver_event);

    /* When      Records the event behind the work queued on the stream, and replaces an earlier record: query,
     *           sync and stream_wait() mean the latest record at the time of their call, and a later one does not
     *           change what they wait for.
     * May block no
     * Returns   nothing else
     * If NULL   as event_create */
    openreg_status (*event_record)(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_event);

    /* When      *done = 1 if the latest record is complete, or there is none.
     * May block no
     * Returns   the error of the stream's work
     * If NULL   as event_create */
    openreg_status (*event_query)(openreg_instance, int32_t dev, openreg_driver_event, int32_t *done);

    /* When      Waits for the latest record; returns at once if there is none.
     * May block until that is complete
     * Returns   the error of the stream's work
     * If NULL   as event_create */
    openreg_status (*event_sync)(openreg_instance, int32_t dev, openreg_driver_event);

    /* When      Nanoseconds from start to end, negative if `end` came first: between the times at which their
     *           streams reached the records, by one clock. `dev` is their device; if they belong to two, that of
     *           `start`.
     * May block no
     * Returns   E_INVALID unless both are created with OPENREG_EVENT_TIMING on one device, recorded and complete
     * If NULL   the host's clock */
    openreg_status (*event_elapsed)(openreg_instance, int32_t dev, openreg_driver_event start, openreg_driver_event end,
                                    int64_t *nanoseconds);

    /* When      Queues a call of `function` on the stream, as cudaLaunchHostFunc: it runs once, when the work
     *           queued before has ended, and work queued later waits until it returns, as do the stream's queries
     *           and syncs and events recorded behind it. It runs on a thread of the driver's or of the vendor's,
     *           with no lock of the driver held, and calls no slot. Functions of several streams may run one after
     *           the other. After an asynchronous error that ends the device's work it does not run.
     * May block no
     * Returns   E_UNSUPPORTED, with nothing queued: as NULL, for a driver that learns in open() whether its vendor
     *           has such calls
     * If NULL   the calling thread waits for the stream, then for the function, which runs on a thread made for
     *           this call: nothing overlaps, and each call costs a stream_sync and a thread, about 30 microseconds */
    openreg_status (*host_func)(openreg_instance, int32_t dev, openreg_driver_stream, void (*function)(void *argument),
                                void *argument);

    /* When      *out = 1 if the device has a live context. Never makes one.
     * May block no
     * Returns   nothing else
     * If NULL   whether the runtime has allocated memory or made a stream on it */
    openreg_status (*device_active)(openreg_instance, int32_t dev, int32_t *out);

    /* When      A thread makes another device current. Makes it the vendor's current device in this thread.
     * May block for as long as the vendor takes
     * Returns   nothing else
     * If NULL   nothing to do */
    openreg_status (*device_bind)(openreg_instance, int32_t dev);

    /* When      Pinned host memory, usable by every device of this driver; `dev` is the one that requests it.
     * May block for as long as the vendor takes
     * Returns   E_NOMEM; E_UNSUPPORTED as mem_alloc()
     * If NULL   plain aligned memory */
    openreg_status (*host_alloc)(openreg_instance, int32_t dev, const openreg_alloc_info *info, void **out);

    /* When      Frees what host_alloc() returned, for the same `dev`. Work that reads or writes it has ended: the
     *           caller of openreg_host_free() has waited and, where a device was lost, device_sync was called.
     * May block no
     * Returns   E_INVALID: not such an address
     * If NULL   as host_alloc; they come together */
    openreg_status (*host_free)(openreg_instance, int32_t dev, void *ptr);

    /* When      Free and total bytes of the device, free <= total.
     * May block no
     * Returns   nothing else
     * If NULL   total_bytes less what the runtime has allocated */
    openreg_status (*mem_info)(openreg_instance, int32_t dev, uint64_t *free_bytes, uint64_t *total);

    /* When      With OPENREG_CAP_HOST_VISIBLE: the host's address of a device address, at a constant distance
     *           inside one allocation. The host may read and write there when the streams that use the memory are
     *           idle.
     * May block no
     * Returns   nothing else
     * If NULL   the flag is refused */
    openreg_status (*host_alias)(openreg_instance, int32_t dev, void *ptr, void **out);

    /* When      The vendor's own stream, for the vendor's libraries.
     * May block no
     * Returns   nothing else
     * If NULL   the driver's handle */
    openreg_status (*stream_native)(openreg_instance, int32_t dev, openreg_driver_stream, void **out);

    /* When      Counts and describes devices without open(). `options` as in open(). `topology` is "" for this
     *           machine's devices; other names are the driver's own. Sets *count, fills
     *           *infos[0..min(*count, capacity)), whose struct_size the caller has set, and, unless `peers` is
     *           NULL, peers[i * capacity + j]: 1 if device i copies to device j without the host. With `capacity`
     *           0 it only counts (`infos` may be NULL), and must leave a later fork() safe; else it does where the
     *           vendor allows it.
     * May block for as long as the vendor takes
     * Returns   E_INVALID: an unknown topology; E_UNSUPPORTED: only open() can tell
     * If NULL   open(), then device_count(), to count; E_UNSUPPORTED to describe */
    openreg_status (*describe)(const openreg_host *host, const openreg_option *options, uint32_t n,
                               const char *topology, int32_t capacity, openreg_device_info *const *infos,
                               uint8_t *peers, int32_t *count);

    /* When      A part of the runtime needs a table of ipc.h, kernels.h, vmm.h, schedule.h, comm.h or graph.h. It is
     *           led by uint32_t struct_size, version; valid until close(); of at least `version` ("Versions" above).
     * May block no
     * Returns   NULL, with no error, for a name or a version that the driver does not have
     * If NULL   no extensions */
    const void *(*extension)(openreg_instance, const char *name, uint32_t version);
} openreg_driver;

/* Sizes of version 1.0, frozen for ever: a table of that size is accepted by every runtime of this major. LP64 only. */
#define OPENREG_DRIVER_SIZE_1 272u
#define OPENREG_DEVICE_INFO_SIZE_1 216u
#define OPENREG_ALLOC_INFO_SIZE_1 24u
#define OPENREG_HOST_SIZE_1 32u
static_assert(sizeof(openreg_driver) == OPENREG_DRIVER_SIZE_1, "append a slot, and leave the frozen size as it is");
static_assert(sizeof(openreg_device_info) == OPENREG_DEVICE_INFO_SIZE_1, "append a field, then compare with >=");
static_assert(sizeof(openreg_alloc_info) == OPENREG_ALLOC_INFO_SIZE_1, "append a field, then compare with >=");
static_assert(sizeof(openreg_host) == OPENREG_HOST_SIZE_1, "append a function, then compare with >=");
static_assert(sizeof(openreg_option) == 16u, "openreg_option is an element of arrays: it cannot grow");

/* Cheap: opens no vendor library, starts no thread, touches no device; may be called more than once. Returns a table
 * of static storage in *out. `host` is valid until the process ends. */
typedef openreg_status (*openreg_driver_query_fn)(const openreg_host *host, const openreg_driver **out);

/* For drivers: formats a message, sets it as this thread's error and returns `code`. Defined in this header only, so that
 * a driver links no library of the runtime. */
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

/* For drivers whose allocations all have the alignment `alignment` and no flags: refuses a request with a flag or with a
 * larger alignment. */
OPENREG_HELPER openreg_status
openreg_alloc_check(const openreg_host *host, const openreg_alloc_info *info, uint64_t alignment)
{
    if (info->flags != 0)
        return openreg_fail(host, OPENREG_E_UNSUPPORTED, 0, "unknown flags of an allocation: %#x",
                            (unsigned)info->flags);
    if (info->alignment > alignment)
        return openreg_fail(host, OPENREG_E_UNSUPPORTED, 0, "an alignment of %llu bytes (at most %llu)",
                            (unsigned long long)info->alignment, (unsigned long long)alignment);
    return OPENREG_OK;
}

/* A request of `size` bytes, for callers of mem_alloc() and host_alloc(). */
OPENREG_HELPER openreg_alloc_info
openreg_alloc_bytes(uint64_t size)
{
    openreg_alloc_info info = {0, 0, 0, 0};
    info.struct_size = sizeof info;
    info.size = size;
    return info;
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_DRIVER_H */
