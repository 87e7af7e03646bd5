/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/openreg.h: the C API of libopenreg. Valid C11 and C++17.
 *
 * A table of devices, openreg:0 to openreg:count-1, driven by one or more drivers (driver.h): device selection, memory
 * behind a caching allocator, copies, streams and events. registry.h says how the drivers are chosen.
 *
 * Rules that hold for every function
 *   Errors      A function that can fail returns a status. On failure it has changed nothing, its out-parameters are
 *               as before (openreg_malloc() and openreg_host_alloc() store NULL), and openreg_last_error() holds a
 *               text that names the call, the value and the allowed range. Success leaves the last error alone.
 *   Common      Besides the errors that it lists, every function that reaches a device may return
 *   errors        OPENREG_E_INVALID       device index out of [0, count), or a stream or event of another device
 *                 OPENREG_E_NO_DEVICE, OPENREG_E_INCOMPATIBLE   no driver could be opened (see openreg_init())
 *                 OPENREG_E_FORKED        this process is a fork of one that had opened a driver
 *                 OPENREG_E_DEVICE_LOST, OPENREG_E_INTERNAL     from the driver
 *   Threads     Every function may be called from any thread at any time. The current device and the current streams
 *               belong to the calling thread. Freeing a pointer or destroying an event while another thread uses it is
 *               the caller's error.
 *   Growth      A call takes at most O(log n) steps, n being the number of live and cached blocks, segments, private
 *               pools, pinned blocks, events, and pieces of queued work. The exceptions are calls that concern all of
 *               them, which say so, and a request that releases cached segments because the device is out of memory.
 *   Start       Nothing needs to be called first: the first function that reaches a device runs openreg_init().
 *               Nothing runs at exit.
 *   Units       Sizes in bytes, times in nanoseconds.
 *   Structures  A structure that begins with struct_size may get more fields at its end, and never changes otherwise. The
 *               caller sets struct_size to the sizeof in its header, which may be older or newer: the library writes no
 *               byte beyond it, and takes fields beyond it for zero. Less than the size of the first version
 *               (OPENREG_*_SIZE_1) is OPENREG_E_INVALID. Structures that the library itself fills in may grow, too.
 */
#ifndef OPENREG_OPENREG_H
#define OPENREG_OPENREG_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include <openreg/export.h>
#include <openreg/registry.h>
#include <openreg/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_VERSION_MAJOR 0
#define OPENREG_VERSION_MINOR 1
#define OPENREG_VERSION_PATCH 0
#define OPENREG_VERSION_STRING "0.1.0"

#define OPENREG_MAX_DEVICES 127 /* PyTorch's DeviceIndex is an int8 */
#define OPENREG_HOST (-1)       /* the "device" of host memory, where a function accepts it */

/* A stream runs its work in order. Functions name one by its device and this number: 0 is the device's default stream,
 * which implies no synchronisation with others; any other number belongs to one stream of one device, and is refused with
 * another device. There is nothing to free. */
typedef int64_t openreg_stream;
#define OPENREG_STREAM_DEFAULT INT64_C(0)

/* A marker in a stream, owned by the caller: openreg_event_create(), openreg_event_destroy(). */
typedef struct openreg_event_s *openreg_event;

/* ------------------------------------------------------------------------------------------------ life and errors */

/* OPENREG_VERSION_STRING of the library that is loaded. Static. */
OPENREG_API const char *openreg_version(void);

/* Chooses the active drivers (registry.h), opens them and builds the device table. Idempotent; concurrent callers wait
 * for the first. Errors: OPENREG_E_NO_DEVICE, OPENREG_E_INCOMPATIBLE, OPENREG_E_INVALID (an unknown name, a bad option),
 * OPENREG_E_BUSY (called by a driver inside open()), OPENREG_E_FORKED. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_init(void);

/* The generation of the device table: differs after each change of the table, 0 while there is none. Data derived from the
 * table is valid while its generation is unchanged. Callers that cache it compare generations; there is no notification.
 * Lock-free, never fails. */
OPENREG_API uint32_t openreg_generation(void);

/* 1 if a device table is published (openreg_generation() is not 0), else 0. Never fails. */
OPENREG_API int openreg_is_initialized(void);

/* The value of a variable OPENREG_*, for the settings of drivers and embedding languages. NULL if it is not set, if the
 * name has another prefix, or in a process with raised privileges, as secure_getenv(). Owned by the environment. */
OPENREG_API const char *openreg_variable(const char *name);

/* Frees the caches, destroys the pool's streams, closes all drivers and forgets the table, failures and the choice of
 * openreg_drivers_use(); environment variables are read again by the next openreg_init(). For tests and C programs;
 * nothing calls it at exit. Waits for the pool's streams and for host functions. Other threads may call any function:
 * their calls end before, or wait and find no table. A host function that waits for such a thread therefore never ends.
 * Errors: OPENREG_E_BUSY while there are live allocations or events, while another thread stays inside a call that uses the
 * devices for longer than a tenth of a second, or from a callback of such a call (nothing has changed); OPENREG_E_FORKED. */
OPENREG_API openreg_status openreg_shutdown(void);

/* 1 in a child process whose parent had opened a driver that does not survive fork(), else 0. Never fails. */
OPENREG_API int openreg_in_bad_fork(void);

/* The last error of the calling thread. `message` is a whole sentence and names the driver where one was involved. */
typedef struct openreg_error {
    openreg_status code; /* OPENREG_OK if there was none */
    int32_t names_code;  /* 1 if `message` holds the code's name (texts about a driver do), else 0 */
    int64_t vendor_code; /* the vendor's own number, or 0 */
    char driver[32];     /* name of the driver that failed, or "" */
    char message[1024];  /* NUL-terminated UTF-8 */
} openreg_error;

/* Owned by the runtime; valid until this thread's next call, or its end. Never NULL. */
OPENREG_API const openreg_error *openreg_last_error(void);
OPENREG_API void openreg_clear_error(void);

/* "OPENREG_E_NOMEM" and "out of memory". Static; an unknown code gives "OPENREG_E_INTERNAL". */
OPENREG_API const char *openreg_status_name(openreg_status code);
OPENREG_API const char *openreg_status_text(openreg_status code);

/* Sets what receives the log lines of level >= OPENREG_LOG_LEVEL (debug, info, warning, error; default warning). NULL
 * restores the default, one line to stderr. The callback may be called from any thread and must not call the runtime. */
typedef void (*openreg_log_callback)(void *ctx, int32_t level, const char *utf8);
OPENREG_API void openreg_log_set_callback(openreg_log_callback callback, void *ctx);
/* Sets the least level of the lines that are written while OPENREG_LOG_LEVEL is not set; OPENREG_LOG_WARNING at first. For a
 * callback that filters by itself. Never fails. */
OPENREG_API void openreg_log_set_level(int32_t level);

/* ---------------------------------------------------------------------------------------------------------- devices */

/* Number of devices; 0 if no driver works (a warning "Device initialization: ..." is logged once, and the last error
 * says why). Opens a driver only if it has no describe(), and caches the answer. describe() may count devices of a driver
 * that cannot be opened: once an attempt to open it has failed they no longer count, until variables, registrations or
 * the choice change, or until a later use has opened it. Never fails. */
OPENREG_API int32_t openreg_device_count(void);

/* The calling thread's current device, 0 in a new thread. Lock-free, never fails, initialises nothing. */
OPENREG_API int32_t openreg_current_device(void);

/* Makes `device` current in this thread, or changes nothing. Calls device_bind() of the device's driver, if it has one,
 * unless the device is current already. -1 is an error here.
 * Errors: OPENREG_E_INVALID "The device index is out of range. It must be in [0, N), but got i.", common ones. */
OPENREG_API openreg_status openreg_set_device(int32_t device);

/* openreg_set_device(); stores the previous index in *previous. */
OPENREG_API openreg_status openreg_exchange_device(int32_t device, int32_t *previous);

/* -1: changes nothing and stores -1. Else as openreg_exchange_device(), but never activates a device (no driver call).
 * Errors: OPENREG_E_INVALID for any other negative index and for index >= count. */
OPENREG_API openreg_status openreg_maybe_exchange_device(int32_t device, int32_t *previous);

/* For destructors: makes `device` current if it is in range, else does nothing. Calls no driver, touches no error. */
OPENREG_API void openreg_restore_device(int32_t device);

typedef struct openreg_device_properties {
    uint32_t struct_size;          /* set by the caller; no byte beyond it is written */
    int32_t ordinal;               /* the device's number inside its driver */
    uint64_t total_memory;         /* bytes, 0 if unknown */
    uint64_t caps;                 /* OPENREG_CAP_* of the device and of its driver */
    int32_t priority_low;          /* least urgent stream priority (numerically greatest) */
    int32_t priority_high;         /* most urgent (numerically least) */
    int32_t multi_processor_count; /* 0 if unknown */
    int32_t capability_major;      /* 0 if the driver has no compute capability */
    int32_t capability_minor;
    int32_t reserved;
    char uuid[16];
    char name[128];
    char driver[32];
    char driver_version[64];
    char torch_device_type[16]; /* PyTorch device type whose kernels work on its memory, or "" */
    uint64_t max_allocation;    /* most bytes of one allocation, 0: no such limit */
} openreg_device_properties;

#define OPENREG_DEVICE_PROPERTIES_SIZE_1 312u
static_assert(sizeof(openreg_device_properties) == OPENREG_DEVICE_PROPERTIES_SIZE_1,
              "append a field, then freeze its size");

/* Errors: OPENREG_E_INVALID, common ones. */
OPENREG_API openreg_status openreg_device_get_properties(int32_t device, openreg_device_properties *inout);

/* *active = 1 once the device has a context: its first allocation or stream makes one, selecting it or this call doesn't. */
OPENREG_API openreg_status openreg_device_active(int32_t device, int32_t *active);

/* Waits for all work of the device, on every stream. Also reports its first asynchronous error. */
OPENREG_API openreg_status openreg_device_synchronize(int32_t device);

/* ----------------------------------------------------------------------------------------------------------- memory */

/* Device memory from the caching allocator, at least 512-byte aligned where the driver can; for use on `stream` of
 * `device`. size 0 gives NULL. When the device is full, cached blocks are released and the allocation is retried; if
 * another thread is getting memory from the driver just then, or changing a segment, the call waits for that first.
 * Errors: OPENREG_E_NOMEM (the text has the figures: requested, allocated, cached, free, total; also for more than the
 * device's max_allocation, without a call of the driver), OPENREG_E_INVALID (size above 2^47), common ones. On failure
 * *out is NULL. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_malloc(int32_t device, openreg_stream stream, size_t size,
                                                              void **out);

/* Returns a block to the cache of the stream that it was allocated for: later work of that stream may reuse it at
 * once; streams named by openreg_memory_record_stream() are waited for before reuse. NULL is accepted.
 * Errors: OPENREG_E_INVALID (not the start of a live block; the text says whether it was freed already, is foreign, or lies
 * inside a block). */
OPENREG_API openreg_status openreg_free(void *ptr);

/* Records that work on `stream` of `device` uses the block at `ptr`: its reuse waits for that stream too. The device may be
 * another than the block's, even of another driver.
 * Errors: OPENREG_E_INVALID (not a live block, not a stream of `device`). */
OPENREG_API openreg_status openreg_memory_record_stream(void *ptr, int32_t device, openreg_stream stream);

/* Copies `size` bytes, in order behind the calling thread's current stream of the device(s), and returns when they have
 * arrived. OPENREG_HOST as a device means host memory. Works between any two devices, also of different drivers (staged
 * through the host). Ranges must not overlap.
 * Errors: OPENREG_E_INVALID (a range not inside one live block of the device named, NULL, a wrong device). */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_memcpy(void *dst, int32_t dst_device, const void *src,
                                                              int32_t src_device, size_t size);

/* Queues the copy on `stream` of `stream_device` (one of the two devices; ignored between host and host) and returns.
 * Both ranges must stay alive until the copy has completed. With host memory that is not pinned it may be
 * synchronous. Between two devices it also starts after the work on the calling thread's current stream of the other
 * device, and work queued there later waits for it. Errors: as openreg_memcpy(). */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_memcpy_async(int32_t stream_device, openreg_stream stream,
                                                                    void *dst, int32_t dst_device, const void *src,
                                                                    int32_t src_device, size_t size);

/* Queues a fill of `size` bytes with `value` on a stream of the device. Errors: as openreg_memcpy(). */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_memset_async(int32_t device, openreg_stream stream, void *dst,
                                                                    uint8_t value, size_t size);

/* Pinned host memory of the driver of `device`, 64-byte aligned or better; size 0 gives NULL. Not cached. The runtime's
 * own part takes O(log n) steps in the number of pinned blocks; the driver's part depends on the driver.
 * Errors: OPENREG_E_NOMEM, common ones. On failure *out is NULL. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_host_alloc(int32_t device, size_t size, void **out);
/* NULL is accepted. Errors: OPENREG_E_INVALID (not live pinned memory). */
OPENREG_API openreg_status openreg_host_free(void *ptr);

#define OPENREG_POINTER_UNKNOWN 0 /* not the runtime's: plain host memory, or another library's */
#define OPENREG_POINTER_DEVICE 1
#define OPENREG_POINTER_PINNED 2 /* pinned host memory */
#define OPENREG_POINTER_ALIAS 3  /* the host's view of device memory */

typedef struct openreg_pointer_info {
    uint32_t struct_size; /* set by the caller */
    int32_t kind;         /* OPENREG_POINTER_* */
    int32_t device;       /* of device memory and its alias; else -1 */
    int32_t live;         /* 1 if inside a live block, 0 if inside a cached one */
    void *base;           /* start of the block, as an address of the same kind */
    uint64_t size;        /* bytes that were requested */
} openreg_pointer_info;

#define OPENREG_POINTER_INFO_SIZE_1 32u
static_assert(sizeof(openreg_pointer_info) == OPENREG_POINTER_INFO_SIZE_1, "append a field, then freeze its size");

/* Describes an address, which may lie inside a block. An unknown one is not an error. Never initialises. */
OPENREG_API openreg_status openreg_pointer_get_info(const void *ptr, openreg_pointer_info *inout);

/* The host's address of a device address, and back (devices with OPENREG_CAP_HOST_VISIBLE). Works for any address in a
 * segment: whether a block is live there, and where it ends, is not checked. Lock-free. The host may use the memory when
 * the streams that use it are idle.
 * Errors: OPENREG_E_UNSUPPORTED (the driver's memory is not visible), OPENREG_E_INVALID. */
OPENREG_API openreg_status openreg_host_alias(const void *device_ptr, void **host_ptr);
OPENREG_API openreg_status openreg_device_address(const void *host_ptr, void **device_ptr);

/* Free and total bytes as the driver reports them (cached blocks count as used). Without mem_info(), free is the total of
 * device_info() less what the runtime has allocated; if that is unknown too, the total is OPENREG_MEMORY_UNKNOWN, more
 * than any allocation can have: no limit is known. */
#define OPENREG_MEMORY_UNKNOWN (UINT64_C(1) << 47)
OPENREG_API openreg_status openreg_memory_get_info(int32_t device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Index of the arrays of statistics. */
#define OPENREG_POOL_ALL 0
#define OPENREG_POOL_SMALL 1 /* blocks up to 1 MiB */
#define OPENREG_POOL_LARGE 2
#define OPENREG_POOLS 3

/* A statistic of the caching allocator. */
typedef struct openreg_stat {
    int64_t current, peak, allocated, freed; /* `allocated` and `freed` only grow, until reset */
} openreg_stat;

typedef struct openreg_memory_stats {
    uint32_t struct_size; /* set by the caller */
    uint32_t reserved;
    openreg_stat allocation[OPENREG_POOLS];      /* number of allocated blocks */
    openreg_stat segment[OPENREG_POOLS];         /* number of driver allocations */
    openreg_stat active[OPENREG_POOLS];          /* blocks that are allocated, or freed and waiting for a stream */
    openreg_stat inactive_split[OPENREG_POOLS];  /* free pieces of segments in use */
    openreg_stat allocated_bytes[OPENREG_POOLS]; /* sum of `allocation`, rounded to 512 bytes */
    openreg_stat reserved_bytes[OPENREG_POOLS];  /* sum of `segment` */
    openreg_stat active_bytes[OPENREG_POOLS];
    openreg_stat inactive_split_bytes[OPENREG_POOLS];
    openreg_stat requested_bytes[OPENREG_POOLS]; /* sum of `allocation`, as requested */
    openreg_stat oversize_allocations;           /* kept 0 while no split limit is set */
    openreg_stat oversize_segments;
    int64_t num_alloc_retries; /* times that the cache was flushed to serve a request */
    int64_t num_ooms;
    int64_t num_device_alloc; /* calls of the driver */
    int64_t num_device_free;
    int64_t num_sync_all_streams;
    int64_t max_split_size; /* -1: no limit */
} openreg_memory_stats;

#define OPENREG_MEMORY_STATS_SIZE_1 984u
static_assert(sizeof(openreg_memory_stats) == OPENREG_MEMORY_STATS_SIZE_1, "append a field, then freeze its size");

/* All zero for a device that was never used. Takes a constant number of steps. */
OPENREG_API openreg_status openreg_memory_get_stats(int32_t device, openreg_memory_stats *inout);
OPENREG_API openreg_status openreg_memory_reset_peak_stats(int32_t device);        /* peak = current */
OPENREG_API openreg_status openreg_memory_reset_accumulated_stats(int32_t device); /* allocated = freed = counts = 0 */

/* Releases segments without live blocks to the driver. Device -1: those of all devices. Looks at every segment, a few
 * dozen at a time; other threads' requests are served in between. */
OPENREG_API openreg_status openreg_memory_empty_cache(int32_t device);

/* States of a block, and two further events for an observer's block() (observer.h). */
#define OPENREG_BLOCK_FREE 0
#define OPENREG_BLOCK_ALLOCATED 1
#define OPENREG_BLOCK_AWAITING_FREE 2 /* freed, but a recorded stream's work on it has not ended yet */
#define OPENREG_BLOCK_RECORDED 3      /* event: a stream that uses it was recorded */
#define OPENREG_BLOCK_GONE 4          /* event: its segment was released to the driver, or pinned memory was freed */

/* Names a private pool (allocator.h); chosen by the caller, the same on every device. {0, 0} is the cache that serves
 * requests outside of private pools. */
typedef struct openreg_memory_pool_id {
    uint64_t first, second;
} openreg_memory_pool_id;

typedef struct openreg_block_info {
    uint32_t struct_size;
    int32_t state; /* OPENREG_BLOCK_* */
    void *segment; /* start of the segment */
    void *address;
    uint64_t segment_size, size, requested;
    openreg_stream stream; /* whose cache it belongs to */
    openreg_memory_pool_id pool;
    int32_t large;      /* 1: large pool */
    int32_t expandable; /* 1: the segment can grow */
} openreg_block_info;

/* Calls `visit` for every block of the device, segment by segment, in address order inside each. `visit` runs under
 * the cache's lock, so other threads' requests wait: it must not call the runtime. A non-zero return ends the walk. */
OPENREG_API openreg_status openreg_memory_visit_blocks(int32_t device,
                                                       int (*visit)(void *ctx, const openreg_block_info *block),
                                                       void *ctx);

/* ---------------------------------------------------------------------------------------------- streams and events */

/* A stream of the device's pool: round robin over the 32 streams of that priority, each created on first use. `priority`
 * is clamped to the device's range. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_stream_from_pool(int32_t device, int32_t priority,
                                                                        openreg_stream *out);

/* This thread's current stream of the device: 0 until set. */
OPENREG_API openreg_status openreg_current_stream(int32_t device, openreg_stream *out);
OPENREG_API openreg_status openreg_set_current_stream(int32_t device, openreg_stream stream);

/* *done = 1 if all work queued on it so far has ended. */
OPENREG_API openreg_status openreg_stream_query(int32_t device, openreg_stream stream, int32_t *done);
OPENREG_API openreg_status openreg_stream_synchronize(int32_t device, openreg_stream stream);
/* Later work of the stream waits for the event's latest record; if it was never recorded, nothing waits. The event may
 * belong to another device or driver (across drivers the host waits). */
OPENREG_API openreg_status openreg_stream_wait_event(int32_t device, openreg_stream stream, openreg_event event);
OPENREG_API openreg_status openreg_stream_priority(int32_t device, openreg_stream stream, int32_t *out);
/* The vendor's own stream, for libraries of the vendor; NULL for a default stream is valid. */
OPENREG_API openreg_status openreg_stream_native(int32_t device, openreg_stream stream, void **out);
/* The stream of the device whose openreg_stream_native() is `native`: one that openreg_stream_from_pool() has returned, or
 * the default stream, which NULL names too.
 * Errors: OPENREG_E_UNSUPPORTED (no such stream: one of another library can't be adopted), common ones, the driver's. */
OPENREG_API openreg_status openreg_stream_from_native(int32_t device, const void *native, openreg_stream *out);

/* Queues a call of `function` with `argument` on the stream. It runs once, when all work queued on the stream before
 * has ended, and work queued there after this call has returned waits until the function returns; so do queries,
 * synchronisations and events recorded behind it.
 *   Thread      A thread of the driver or of the runtime, never the caller's; it blocks signals if the runtime or the
 *               simulated devices made it. Thread-local state of the caller, such as its current device, is not available.
 *   May do      Any host work that ends by itself: compute, read and write host and pinned memory and the alias of device
 *               memory (if its other users come before or behind it in this stream), take locks, wake threads, write files.
 *   May call    openreg_host_alias(), openreg_device_address(), openreg_last_error(), openreg_clear_error(),
 *               openreg_status_name(), openreg_status_text(), openreg_is_initialized(), openreg_version(),
 *               openreg_trace_clock(). No other function of the runtime, nor of the vendor: they may wait for the
 *               device, which waits for this function.
 *   Must not    wait for work of a device, for another host function, even of another stream (the vendor may run all of
 *               them one after the other), or for something that the calling thread does after this call: with a driver
 *               without host_func() the caller waits here until the function has returned. Nor may it take Python's GIL,
 *               which threads that wait for devices hold.
 *   Argument    Never read by the runtime; must be valid until the function has run.
 *   Failure     On an error the function was not queued and never runs. If the device is lost, or its work ended with
 *               an asynchronous error before the function's turn, it never runs either, and synchronising the stream
 *               reports that error; from then on `argument` is no longer used.
 *   Shutdown    openreg_shutdown() waits for all queued functions. At exit of the process those that have not run are
 *               dropped. A child made by fork() runs none of its parent's, and gets OPENREG_E_FORKED here.
 *   Traces      don't mention host functions (openreg/trace.h).
 * Errors: OPENREG_E_INVALID (function is NULL), OPENREG_E_NOMEM, common ones; where the caller waits also the error of the
 * stream's work. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_stream_launch_host_func(int32_t device, openreg_stream stream,
                                                                               void (*function)(void *argument),
                                                                               void *argument);

/* `flags`: 0, or OPENREG_EVENT_TIMING for openreg_event_elapsed(). The memory of destroyed events is kept for new ones.
 * Errors: OPENREG_E_NOMEM (no host memory, or too many live events, about a million; the text says which),
 * OPENREG_E_INVALID (flags), common ones. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_event_create(int32_t device, uint32_t flags, openreg_event *out);
/* NULL is accepted; a pending record ends by itself. Errors: OPENREG_E_INVALID (not a live event). */
OPENREG_API openreg_status openreg_event_destroy(openreg_event event);
/* Records the event behind the work queued on `stream` of `device`, which is the event's device. A new record replaces the
 * earlier one: query, synchronize and wait mean the latest record at the time of their call.
 * Errors: OPENREG_E_INVALID (an event of another device, not a stream of `device`), common ones. */
OPENREG_API openreg_status openreg_event_record(openreg_event event, int32_t device, openreg_stream stream);
/* *done = 1 if the latest record is complete, or there is none. */
OPENREG_API openreg_status openreg_event_query(openreg_event event, int32_t *done);
OPENREG_API openreg_status openreg_event_synchronize(openreg_event event);
/* Time from start to end, negative if `end` came first.
 * Errors: OPENREG_E_INVALID unless both events are timed, recorded, complete and on one device. */
OPENREG_API openreg_status openreg_event_elapsed(openreg_event start, openreg_event end, int64_t *nanoseconds);
OPENREG_API openreg_status openreg_event_device(openreg_event event, int32_t *device);

/* ---------------------------------------------------------------------------------------------------------- kernels */

struct openreg_kernel; /* kernels.h */
struct openreg_kernels;
struct openreg_kernel_call;

/* The operators that the driver of `device` runs itself; NULL if it has none. Valid until openreg_shutdown().
 * Errors: OPENREG_E_INVALID (out is NULL), OPENREG_E_INCOMPATIBLE (a malformed table: no version, no list, a
 * name missing or twice, no function, unknown flags), common ones. */
OPENREG_API openreg_status openreg_device_get_kernels(int32_t device, const struct openreg_kernels **out);

/* Runs an entry of that table on `stream` of `device`. The caller sets struct_size, name, arguments, their names and
 * results of `call`, with the device's ordinal as the tensors' device_id; this function sets the rest.
 * Errors: OPENREG_E_UNSUPPORTED without an error text (the kernel refuses these arguments and has done nothing), the
 * driver's, as 'aten::mm: driver "x": ...', those of openreg_free(), for the kernel's scratch memory, OPENREG_E_INVALID (a
 * stream of another device, a NULL, a call without a name or shorter than OPENREG_KERNEL_CALL_SIZE_1). */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_kernel_run(const struct openreg_kernel *kernel, int32_t device,
                                                                  openreg_stream stream,
                                                                  struct openreg_kernel_call *call);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_OPENREG_H */
