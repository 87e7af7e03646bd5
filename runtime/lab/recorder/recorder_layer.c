/* SPDX-License-Identifier: BSD-3-Clause */
/* recorder_layer.c: the layer that puts calls of drivers into the flight recorder, around each open driver while that is on,
 * and the observer of what layers don't see (recorder.h). */
#define _GNU_SOURCE
#include "driver/attached_layers.h"
#include "recorder/recorder.h"
#include "watch/observers.h"

typedef struct recorded_call {
    const openreg_driver *below;
    uint64_t ticket;
} recorded_call;

static recorded_call
begin(uint32_t kind, openreg_driver_stream stream, uint64_t bytes)
{
    const openreg_caller caller = openreg_layers_caller(OPENREG_ATTACHED_RECORDER);
    return (recorded_call){caller.below, openreg_recorder_begin(kind, caller.call, NULL, caller.device, stream, bytes)};
}

static openreg_status
end(const recorded_call *call, openreg_status status)
{
    openreg_recorder_end(call->ticket, status);
    return status;
}

static openreg_status
recorded_mem_alloc(openreg_instance instance, int32_t dev, uint64_t size, void **out)
{
    const recorded_call call = begin(OPENREG_CALL_SEGMENT, NULL, size);
    return end(&call, call.below->mem_alloc(instance, dev, size, out));
}

static openreg_status
recorded_copy(openreg_instance instance, void *dst, int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size,
              int32_t dev, openreg_driver_stream stream)
{
    const recorded_call call = begin(OPENREG_CALL_COPY, stream, size);
    return end(&call, call.below->copy(instance, dst, dst_dev, src, src_dev, size, dev, stream));
}

static openreg_status
recorded_fill(openreg_instance instance, int32_t dev, void *dst, uint8_t value, uint64_t size,
              openreg_driver_stream stream)
{
    const recorded_call call = begin(OPENREG_CALL_FILL, stream, size);
    return end(&call, call.below->fill(instance, dev, dst, value, size, stream));
}

static openreg_status
recorded_host_func(openreg_instance instance, int32_t dev, openreg_driver_stream stream,
                   void (*function)(void *argument), void *argument)
{
    const recorded_call call = begin(OPENREG_CALL_FUNCTION, stream, 0);
    return end(&call, call.below->host_func(instance, dev, stream, function, argument));
}

static openreg_status
recorded_device_sync(openreg_instance instance, int32_t dev)
{
    const recorded_call call = begin(OPENREG_CALL_DEVICE_SYNC, NULL, 0);
    return end(&call, call.below->device_sync(instance, dev));
}

static openreg_status
recorded_stream_sync(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    const recorded_call call = begin(OPENREG_CALL_STREAM_SYNC, stream, 0);
    return end(&call, call.below->stream_sync(instance, dev, stream));
}

static openreg_status
recorded_stream_wait(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    const recorded_call call = begin(OPENREG_CALL_STREAM_WAIT, stream, 0);
    return end(&call, call.below->stream_wait(instance, dev, stream, event));
}

static openreg_status
recorded_event_record(openreg_instance instance, int32_t dev, openreg_driver_event event, openreg_driver_stream stream)
{
    const recorded_call call = begin(OPENREG_CALL_RECORD, stream, 0);
    return end(&call, call.below->event_record(instance, dev, event, stream));
}

static openreg_status
recorded_event_sync(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    const recorded_call call = begin(OPENREG_CALL_EVENT_SYNC, NULL, 0);
    return end(&call, call.below->event_sync(instance, dev, event));
}

static void
wrap(openreg_driver *table)
{
#define REPLACE(slot)                                                                                                  \
    if (table->slot != NULL)                                                                                           \
    table->slot = recorded_##slot
    REPLACE(mem_alloc);
    REPLACE(copy);
    REPLACE(fill);
    REPLACE(host_func);
    REPLACE(device_sync);
    REPLACE(stream_sync);
    REPLACE(stream_wait);
    REPLACE(event_record);
    REPLACE(event_sync);
#undef REPLACE
}

/* ------------------------------------------------------------------------------------- what is no function of a table */

static openreg_status
run(void *ctx, const openreg_work *work, openreg_status (*next)(void *argument), void *argument)
{
    (void)ctx;
    const uint32_t kind = work->device < 0 ? OPENREG_CALL_OPEN : OPENREG_CALL_KERNEL;
    const uint64_t ticket = openreg_recorder_begin(kind, work->call, work->name, work->device, work->stream, 0);
    const openreg_status status = next(argument);
    openreg_recorder_end(ticket, status);
    return status;
}

static void
alarm_of(void *ctx, int32_t device, openreg_status status)
{
    (void)ctx, (void)device, (void)status;
    openreg_recorder_alarm();
}

static const openreg_observer observer = {.struct_size = sizeof observer, .run = run, .alarm = alarm_of};

void
openreg_recorder_layer_switch(int on)
{
    openreg_layers_attach(OPENREG_ATTACHED_RECORDER, on ? wrap : NULL);
    (void)openreg_observe(&observer, on ? OPENREG_OBSERVE_WORK : 0);
}
