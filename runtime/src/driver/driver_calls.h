/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_calls.h: every call of a driver's slot. Internal.
 *
 * Only this file checks for NULL slots and emulates them, completes a driver's error with the names of the call and of the
 * driver, and sets `active`. `call` is the public function on whose behalf a slot is called. */
#ifndef OPENREG_SRC_DRIVER_CALLS_H
#define OPENREG_SRC_DRIVER_CALLS_H

#include <openreg/schedule.h>
#include <openreg/vmm.h>

#include "base/error.h"
#include "base/thread.h"
#include "driver/device_table.h"
#include "driver/extensions.h"
#include "driver/options.h"

/* Bit i: the table has function i (open is 0). */
uint64_t openreg_driver_slots(const openreg_driver *table);

/* Runs a slot on behalf of a device. Once one has returned OPENREG_E_DEVICE_LOST, OPENREG_DEVICE_CALL() of that device
 * fails with it without calling the driver; OPENREG_RELEASE_CALL(), for slots that free, destroy or only read, still does. */
#define OPENREG_DEVICE_CALL(device, call, expression)                                                                  \
    (openreg_device_is_lost(device) ? openreg_call_lost((device), (call))                                              \
                                    : OPENREG_RELEASE_CALL(device, call, expression))
#define OPENREG_RELEASE_CALL(device, call, expression)                                                                 \
    (openreg_call_begin((device), (call)), openreg_call_end((device), (call), (expression)))

/* The device and call on whose behalf this thread calls a driver, for layers (attached_layers.h): slots get neither. */
typedef struct openreg_current_call {
    const openreg_device *device;
    const char *call;
} openreg_current_call;
extern _Thread_local openreg_current_call openreg_current;

static inline void
openreg_call_begin(const openreg_device *device, const char *call)
{
    openreg_current = (openreg_current_call){device, call};
    openreg_error_begin_call();
}
/* Sets the error of a call on a lost device; returns OPENREG_E_DEVICE_LOST. */
openreg_status openreg_call_lost(const openreg_device *device, const char *call);
/* As openreg_error_end_call(); remembers a loss. */
openreg_status openreg_call_end(openreg_device *device, const char *call, openreg_status status);

/* Alignment of mem_alloc()'s addresses if the driver has none of its own: that of malloc(). */
#define OPENREG_LEAST_ALIGNMENT 16u

/* For driver_open.c and topology.c, with no lock held. `name` is the candidate's. The count is checked: a driver
 * without devices is OPENREG_E_NO_DEVICE, "Driver 'sim' provides no devices." */
openreg_status openreg_call_open(const openreg_driver *, const char *name, const char *call,
                                 const openreg_option *options, uint32_t n, openreg_instance *out);
openreg_status openreg_call_close(const openreg_driver *, const char *name, const char *call, openreg_instance);
openreg_status openreg_call_device_count(const openreg_driver *, const char *name, const char *call, openreg_instance,
                                         int32_t *out);
/* describe() of no device. OPENREG_E_UNSUPPORTED without an error text if the driver has none: open it. */
openreg_status openreg_call_count(const openreg_driver *, const char *name, const char *call,
                                  const openreg_options *options, int32_t *out);

/* Fills *infos[0..min(*count, capacity)), whose struct_size is set. */
openreg_status openreg_call_describe(const openreg_driver *, const char *name, const char *call,
                                     const openreg_options *options, const char *topology, int32_t capacity,
                                     openreg_device_info *const *infos, uint8_t *peers, int32_t *count);

openreg_status openreg_call_mem_alloc(openreg_device *, const char *call, uint64_t size, void **out);
openreg_status openreg_call_mem_free(openreg_device *, const char *call, void *ptr);
/* The stream belongs to `on`; a NULL device means host memory. Both devices, if given, belong to on's driver. */
openreg_status openreg_call_copy(openreg_device *on, const char *call, void *dst, openreg_device *dst_device,
                                 const void *src, openreg_device *src_device, uint64_t size, openreg_driver_stream);
openreg_status openreg_call_fill(openreg_device *, const char *call, void *dst, uint8_t value, uint64_t size,
                                 openreg_driver_stream);
OPENREG_INTERNAL openreg_status openreg_call_device_sync(openreg_device *, const char *call);
/* The same, but also calls the driver of a lost device: before a buffer is freed that the device may be reading. */
openreg_status openreg_call_device_drain(openreg_device *, const char *call);
openreg_status openreg_call_device_info(openreg_opened_driver *, const char *call, int32_t ordinal,
                                        openreg_device_info *out);
openreg_status openreg_call_device_active(openreg_device *, const char *call, int32_t *out);
openreg_status openreg_call_device_bind(openreg_device *, const char *call); /* no slot: OK */
openreg_status openreg_call_stream_create(openreg_device *, const char *call, int32_t priority,
                                          openreg_driver_stream *out);
openreg_status openreg_call_stream_destroy(openreg_device *, const char *call, openreg_driver_stream);
openreg_status openreg_call_stream_query(openreg_device *, const char *call, openreg_driver_stream, int32_t *done);
openreg_status openreg_call_stream_sync(openreg_device *, const char *call, openreg_driver_stream);
openreg_status openreg_call_stream_native(openreg_device *, const char *call, openreg_driver_stream, void **out);
/* Without the slot, or if it refuses the call, this returns when the function has: emulated_host_func.c. */
openreg_status openreg_call_host_func(openreg_device *, const char *call, openreg_driver_stream,
                                      void (*function)(void *argument), void *argument);
openreg_status openreg_call_host_alloc(openreg_device *, const char *call, uint64_t size, void **out);
openreg_status openreg_call_host_free(openreg_device *, const char *call, void *ptr);
/* UNSUPPORTED without an error text if the driver has no mem_info: memory.c answers from the cache's statistics. */
openreg_status openreg_call_mem_info(openreg_device *, const char *call, uint64_t *free_bytes, uint64_t *total);
openreg_status openreg_call_host_alias(openreg_device *, const char *call, void *ptr, void **out);

/* Markers: the driver's event, or an emulated one, as one value. Used by event.c and, for recorded streams, cache.c. */
typedef struct openreg_backend_event {
    openreg_driver_event native; /* NULL for an emulated event */
    uint64_t ticket;             /* emulated: value of the device's sync counter that completes it; 0: complete */
    uint64_t recorded_ns;        /* emulated: host clock when it was found complete, 0 before */
    int32_t recorded;            /* 1 once recorded */
    uint32_t flags;              /* OPENREG_EVENT_TIMING */
} openreg_backend_event;
openreg_status openreg_call_marker_create(openreg_device *, const char *call, uint32_t flags,
                                          openreg_backend_event *out);
openreg_status openreg_call_marker_destroy(openreg_device *, const char *call, openreg_backend_event *);
openreg_status openreg_call_marker_record(openreg_device *, const char *call, openreg_backend_event *,
                                          openreg_driver_stream);
openreg_status openreg_call_marker_query(openreg_device *, const char *call, openreg_backend_event *, int32_t *done);
openreg_status openreg_call_marker_sync(openreg_device *, const char *call, openreg_backend_event *);
/* `waiter` may belong to another device of the same driver; if it belongs to another driver the host waits. */
openreg_status openreg_call_stream_wait(openreg_device *waiter, const char *call, openreg_driver_stream,
                                        openreg_device *recorded_on, openreg_backend_event *);
openreg_status openreg_call_marker_elapsed(openreg_device *, const char *call, openreg_backend_event *start,
                                           openreg_backend_event *end, int64_t *nanoseconds);
/* ---- Extensions ---- */

/* Functions of openreg/vmm.h; results of the driver are checked. */
openreg_status openreg_call_granularity(openreg_device *device, const char *call, const openreg_vmm *growing,
                                        uint64_t *out);
openreg_status openreg_call_reserve(openreg_device *device, const char *call, const openreg_vmm *growing, uint64_t size,
                                    uint64_t granularity, void **out);
openreg_status openreg_call_map(openreg_device *device, const char *call, const openreg_vmm *growing, void *ptr,
                                uint64_t offset, uint64_t size);
openreg_status openreg_call_unmap(openreg_device *device, const char *call, const openreg_vmm *growing, void *ptr,
                                  uint64_t offset, uint64_t size);
openreg_status openreg_call_release(openreg_device *device, const char *call, const openreg_vmm *growing, void *ptr);

/* A function of openreg/schedule.h. */
openreg_status openreg_call_poison(openreg_device *device, const char *call, const openreg_schedule *schedule,
                                   void *ptr, uint64_t size, openreg_driver_stream stream);

#endif
