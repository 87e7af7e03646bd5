/* SPDX-License-Identifier: BSD-3-Clause */
/* call_layer.c: the layer around each open driver while there is a fault plan, whose faults it injects (faults.h), or while
 * the flight recorder is on, for which it records the calls (recorder.h); and observers of events that layers don't get. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "device/lab_access.h"
#include "driver/attached_layers.h"
#include "driver/extensions.h"
#include "driver/host_errors.h"
#include "faults/faults.h"
#include "recorder/recorder.h"
#include "watch/interceptors.h"

static openreg_status
say(openreg_status code, const char *text)
{
    openreg_host_services.set_error(openreg_host_services.ctx, code, 0, text);
    return code;
}

/* A call that is about to be made. */
typedef struct watched_call {
    const openreg_driver *below;
    int32_t device;
    uint64_t ticket; /* of the recorder */
    openreg_fault_verdict verdict;
} watched_call;

/* 0: the call must not be made. Queries of streams are not recorded: programs make them in loops. */
static int
begin(watched_call *out, uint32_t kind, openreg_driver_stream stream, uint64_t bytes)
{
    const openreg_caller caller = openreg_layers_caller();
    const openreg_fault_site site = {caller.driver, caller.device, kind, stream, NULL};
    out->below = caller.below;
    out->device = caller.device;
    out->ticket = kind == OPENREG_CALL_STREAM_QUERY
                      ? 0
                      : openreg_recorder_begin(kind, caller.call, NULL, caller.device, stream, bytes);
    openreg_faults_ask(&site, &out->verdict);
    return out->verdict.status == OPENREG_OK && !out->verdict.is_skipped;
}

/* The result of a call that was not made. */
static openreg_status
instead(const watched_call *call)
{
    return call->verdict.status == OPENREG_OK ? OPENREG_OK : say(call->verdict.status, call->verdict.text);
}

/* The result of a query or wait of a stream, or of the device: its own error, or that of earlier work. */
static openreg_status
after(const watched_call *call, openreg_driver_stream stream, int whole, openreg_status status)
{
    return call->verdict.status != OPENREG_OK ? instead(call)
                                              : openreg_host_error_take(call->device, stream, whole, status);
}

static openreg_status
end(const watched_call *call, openreg_status status)
{
    openreg_recorder_end(call->ticket, status);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- copies */

/* One slow copy; freed by the host function behind it. */
typedef struct slow_copy {
    uint64_t begin;
    double factor;
} slow_copy;

static void
note_begin(void *argument)
{
    ((slow_copy *)argument)->begin = openreg_clock_ns();
}

static void
wait_longer(void *argument)
{
    slow_copy *const slow = argument;
    const double rest = (double)(openreg_clock_ns() - slow->begin) * (slow->factor - 1);
    const struct timespec time = {(time_t)(rest / 1e9), (long)(rest - (double)(time_t)(rest / 1e9) * 1e9)};
    (void)nanosleep(&time, NULL);
    free(slow);
}

/* The arguments of a copy. */
typedef struct copy_call {
    const openreg_driver *below;
    openreg_instance instance;
    void *dst;
    int32_t dst_dev;
    const void *src;
    int32_t src_dev;
    uint64_t size;
    int32_t dev;
    openreg_driver_stream stream;
} copy_call;

static openreg_status
wait_for(const copy_call *c)
{
    return c->below->stream_sync != NULL ? c->below->stream_sync(c->instance, c->dev, c->stream)
                                         : c->below->device_sync(c->instance, c->dev);
}

/* Without the slot the function is called when the work before it has ended. */
static openreg_status
queue_function(const copy_call *c, void (*function)(void *argument), void *argument)
{
    if (c->below->host_func != NULL)
        return c->below->host_func(c->instance, c->dev, c->stream, function, argument);
    OPENREG_RETURN_NOT_OK(wait_for(c));
    function(argument);
    return OPENREG_OK;
}

/* Flips one bit of one byte; device memory is read and written back. */
static openreg_status
corrupt(const copy_call *c, uint64_t drawn)
{
    unsigned char *const at = (unsigned char *)c->dst + drawn % c->size;
    const unsigned char bit = (unsigned char)(1u << (drawn >> 61));
    OPENREG_RETURN_NOT_OK(wait_for(c));
    if (c->dst_dev < 0) {
        *at ^= bit;
        return OPENREG_OK;
    }
    unsigned char byte = 0;
    OPENREG_RETURN_NOT_OK(c->below->copy(c->instance, c->dev, c->stream, &byte, -1, at, c->dst_dev, 1));
    OPENREG_RETURN_NOT_OK(wait_for(c));
    byte ^= bit;
    OPENREG_RETURN_NOT_OK(c->below->copy(c->instance, c->dev, c->stream, at, c->dst_dev, &byte, -1, 1));
    return wait_for(c);
}

static openreg_status
copy_slowly(const copy_call *c, double factor)
{
    const int is_captured = openreg_driver_captures(c->below, c->instance, c->dev, c->stream); /* functions run once */
    slow_copy *const slow = is_captured ? NULL : calloc(1, sizeof *slow);
    if (slow == NULL)
        return c->below->copy(c->instance, c->dev, c->stream, c->dst, c->dst_dev, c->src, c->src_dev, c->size);
    slow->factor = factor;
    openreg_status status = queue_function(c, note_begin, slow);
    if (status != OPENREG_OK) {
        free(slow);
        return status;
    }
    status = c->below->copy(c->instance, c->dev, c->stream, c->dst, c->dst_dev, c->src, c->src_dev, c->size);
    if (status != OPENREG_OK) { /* its error stays this call's; note_begin() may be still to come */
        (void)queue_function(c, free, slow);
        return status;
    }
    status = queue_function(c, wait_longer, slow);
    if (status != OPENREG_OK) {
        (void)c->below->device_sync(c->instance, c->dev);
        free(slow);
    }
    return status;
}

static openreg_status
copy_with_faults(const copy_call *c, const openreg_fault_verdict *verdict)
{
    OPENREG_RETURN_NOT_OK(verdict->factor > 1 ? copy_slowly(c, verdict->factor)
                                              : c->below->copy(c->instance, c->dev, c->stream, c->dst, c->dst_dev,
                                                               c->src, c->src_dev, c->size));
    return verdict->corrupts ? corrupt(c, verdict->byte) : OPENREG_OK;
}

static openreg_status
watched_copy(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
             const void *src, int32_t src_dev, uint64_t size)
{
    watched_call call;
    const int is_made = begin(&call, OPENREG_CALL_COPY, stream, size);
    const copy_call c = {call.below, instance, dst, dst_dev, src, src_dev, size, dev, stream};
    return end(&call, is_made ? copy_with_faults(&c, &call.verdict) : instead(&call));
}

/* ------------------------------------------------------------------------------------------------------ other slots */

static openreg_status
watched_mem_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    watched_call call;
    return end(&call, begin(&call, OPENREG_CALL_SEGMENT, NULL, info->size)
                          ? call.below->mem_alloc(instance, dev, info, out)
                          : instead(&call));
}

static openreg_status
watched_fill(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value,
             uint64_t size)
{
    watched_call call;
    return end(&call, begin(&call, OPENREG_CALL_FILL, stream, size)
                          ? call.below->fill(instance, dev, stream, dst, value, size)
                          : instead(&call));
}

static openreg_status
watched_host_func(openreg_instance instance, int32_t dev, openreg_driver_stream stream,
                  void (*function)(void *argument), void *argument)
{
    watched_call call;
    return end(&call, begin(&call, OPENREG_CALL_FUNCTION, stream, 0)
                          ? call.below->host_func(instance, dev, stream, function, argument)
                          : instead(&call));
}

/* Waits are made even if they fail: a caller that then frees memory, or closes a device, relies on the end of the work. */
static openreg_status
watched_device_sync(openreg_instance instance, int32_t dev)
{
    watched_call call;
    (void)begin(&call, OPENREG_CALL_DEVICE_SYNC, NULL, 0);
    return end(&call, after(&call, NULL, 1, call.below->device_sync(instance, dev)));
}

static openreg_status
watched_stream_sync(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    watched_call call;
    (void)begin(&call, OPENREG_CALL_STREAM_SYNC, stream, 0);
    return end(&call, after(&call, stream, 0, call.below->stream_sync(instance, dev, stream)));
}

static openreg_status
watched_stream_query(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    watched_call call;
    return end(&call, begin(&call, OPENREG_CALL_STREAM_QUERY, stream, 0)
                          ? after(&call, stream, 0, call.below->stream_query(instance, dev, stream, done))
                          : instead(&call));
}

static openreg_status
watched_stream_wait(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    watched_call call;
    return end(&call, begin(&call, OPENREG_CALL_STREAM_WAIT, stream, 0)
                          ? call.below->stream_wait(instance, dev, stream, event)
                          : instead(&call));
}

static openreg_status
watched_event_record(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    watched_call call;
    return end(&call, begin(&call, OPENREG_CALL_RECORD, stream, 0)
                          ? call.below->event_record(instance, dev, stream, event)
                          : instead(&call));
}

static openreg_status
watched_event_sync(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    watched_call call;
    (void)begin(&call, OPENREG_CALL_EVENT_SYNC, NULL, 0);
    const openreg_status status = call.below->event_sync(instance, dev, event);
    return end(&call, call.verdict.status != OPENREG_OK ? instead(&call) : status);
}

static void
wrap(openreg_driver *table)
{
#define REPLACE(slot)                                                                                                  \
    if (table->slot != NULL)                                                                                           \
    table->slot = watched_##slot
    REPLACE(mem_alloc);
    REPLACE(copy);
    REPLACE(fill);
    REPLACE(host_func);
    REPLACE(device_sync);
    REPLACE(stream_sync);
    REPLACE(stream_query);
    REPLACE(stream_wait);
    REPLACE(event_record);
    REPLACE(event_sync);
#undef REPLACE
}

/* ------------------------------------------------------------------------------------- what is no function of a table */

static int
allocate(int32_t device, uint64_t size, char *text, size_t text_size)
{
    (void)size;
    const openreg_fault_site site = {openreg_lab_driver_of(device), device, OPENREG_CALL_ALLOCATION, NULL, NULL};
    openreg_fault_verdict verdict;
    openreg_faults_ask(&site, &verdict);
    if (verdict.status == OPENREG_OK)
        return 0;
    openreg_text_copy(text, text_size, verdict.text);
    return 1;
}

static openreg_status
run_with_faults(const openreg_work *work, openreg_status (*next)(void *argument), void *argument)
{
    if (work->device < 0)
        return next(argument);
    const openreg_fault_site site = {openreg_lab_driver_of(work->device), work->device, OPENREG_CALL_KERNEL,
                                     work->stream, work->name};
    openreg_fault_verdict verdict;
    openreg_faults_ask(&site, &verdict);
    if (verdict.status != OPENREG_OK)
        return say(verdict.status, verdict.text);
    return verdict.is_skipped ? OPENREG_OK : next(argument);
}

static const openreg_interceptor faults = {.allocate = allocate, .run = run_with_faults};

void
openreg_fault_layer_switch(int on)
{
    openreg_layers_attach(OPENREG_ATTACHED_FAULTS, on, wrap);
    openreg_intercept(&faults,
                      on ? OPENREG_OBSERVE_WORK | OPENREG_INTERCEPT_ALLOCATIONS | OPENREG_INTERCEPT_COPIES : 0);
}

static openreg_status
record_run(const openreg_work *work, openreg_status (*next)(void *argument), void *argument)
{
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

static const openreg_interceptor recorder = {.run = record_run};
static const openreg_observer alarms = {.struct_size = sizeof alarms, .alarm = alarm_of};

void
openreg_recorder_layer_switch(int on)
{
    openreg_layers_attach(OPENREG_ATTACHED_RECORDER, on, wrap);
    openreg_intercept(&recorder, on ? OPENREG_OBSERVE_WORK : 0);
    (void)openreg_observe(&alarms, on ? OPENREG_OBSERVE_WORK : 0);
}
