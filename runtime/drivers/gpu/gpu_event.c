/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_event.c: events (gpu.h). The vendor's own have the generations that the ABI asks for: query, sync and wait mean
 * the latest record at the time of the call, and an event that was never recorded is complete. */
#include "gpu.h"

#include <stdlib.h>

openreg_status
openreg_gpu_event_create(openreg_instance instance, int32_t dev, uint32_t flags, openreg_driver_event *out)
{
    openreg_driver_event event = calloc(1, sizeof *event);
    if (event == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for an event of device %d", dev);
    event->device = dev;
    event->timed = (flags & OPENREG_EVENT_TIMING) != 0;
    openreg_gpu_scope scope;
    openreg_status status = openreg_gpu_enter(&scope, instance, dev);
    if (status == OPENREG_OK) {
        status = OPENREG_GPU_TRY(&scope, EventCreateWithFlags, &event->native,
                                 event->timed ? 0u : (unsigned)GPU(EventDisableTiming));
        openreg_gpu_leave(&scope);
    }
    if (status != OPENREG_OK) {
        free(event);
        return status;
    }
    *out = event;
    return OPENREG_OK;
}

openreg_status
openreg_gpu_event_destroy(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    if (event == NULL)
        return OPENREG_OK;
    if (!openreg_gpu_is_lost(instance, dev)) { /* else it went with the device */
        openreg_gpu_scope scope;
        OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
        const openreg_status status = OPENREG_GPU_TRY(&scope, EventDestroy, event->native);
        openreg_gpu_leave(&scope);
        OPENREG_GPU_RETURN_NOT_OK(status);
    }
    free(event);
    return OPENREG_OK;
}

openreg_status
openreg_gpu_event_record(openreg_instance instance, int32_t dev, openreg_driver_stream stream,
                         openreg_driver_event event)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_status status = OPENREG_GPU_TRY(&scope, EventRecord, event->native, (GPU(Stream_t))stream);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_event_query(openreg_instance instance, int32_t dev, openreg_driver_event event, int32_t *done)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    const openreg_gpu_code code = GPU_CALL(EventQuery)(event->native);
    openreg_gpu_restore_capture(mode);
    const openreg_status status = openreg_gpu_check_ready(&scope, code, GPU_NAME(EventQuery), done);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_event_sync(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_status status = OPENREG_GPU_TRY(&scope, EventSynchronize, event->native);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_event_elapsed(openreg_instance instance, int32_t dev, openreg_driver_event start, openreg_driver_event end,
                          int64_t *nanoseconds)
{
    if (!start->timed || !end->timed)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                            "event_elapsed: the %s event was created without timing", start->timed ? "end" : "start");
    if (start->device != dev || end->device != dev)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                            "event_elapsed: the events belong to devices %d and %d, not both to %d", start->device,
                            end->device, dev);
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    float elapsed = 0;
    const openreg_gpu_code code = GPU_CALL(EventElapsedTime)(&elapsed, start->native, end->native);
    openreg_status status;
    if (code == GPU(ErrorNotReady)) {
        openreg_gpu_forget(&scope, code);
        status = openreg_fail(instance->host, OPENREG_E_INVALID, (int64_t)code,
                              "event_elapsed: one of the events is not complete");
    } else if (code == GPU(ErrorInvalidResourceHandle)) {
        openreg_gpu_forget(&scope, code);
        status = openreg_fail(instance->host, OPENREG_E_INVALID, (int64_t)code,
                              "event_elapsed: one of the events was never recorded");
    } else {
        status = openreg_gpu_check(&scope, code, GPU_NAME(EventElapsedTime));
    }
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        *nanoseconds = (int64_t)((double)elapsed * 1e6); /* the vendor has milliseconds */
    return status;
}
