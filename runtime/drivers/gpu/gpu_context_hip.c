/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_context_hip.c: the calling thread's device in HIP (gpu.h). hipSetDevice() only notes the device for the thread,
 * and makes no context: a device becomes active by its first work. So it is the way there and the way back.
 *
 * Whether a device is active is the driver's own knowledge or the vendor's word. Older versions say so of the current
 * device alone, so that no wait is left out because of a "no", and nothing else depends on one: in HIP a context is no
 * more than a queue. */
#include "gpu.h"

openreg_status
openreg_gpu_context_open(const openreg_host *host)
{
    (void)host;
    return OPENREG_OK;
}

openreg_status
openreg_gpu_enter(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev)
{
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_reject_lost(instance, dev));
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_look(scope, instance, dev));
    atomic_store_explicit(&instance->devices[dev].context, 1, memory_order_relaxed);
    return OPENREG_OK;
}

/* The first call that succeeds is where another caller's error goes, in versions that keep the last result. */
openreg_status
openreg_gpu_look(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev)
{
    *scope = (openreg_gpu_scope){.instance = instance, .device = dev, .pending = GPU_CALL(PeekAtLastError)()};
    OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(scope, GetDevice, &scope->previous));
    openreg_gpu_note_forgotten(scope);
    if (scope->previous != dev) {
        OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(scope, SetDevice, dev));
        scope->switched = true;
    }
    return OPENREG_OK;
}

void
openreg_gpu_leave(const openreg_gpu_scope *scope)
{
    if (!scope->switched)
        return;
    const openreg_gpu_code code = GPU_CALL(SetDevice)(scope->previous);
    if (code != GPU(Success)) {
        const openreg_host *const host = scope->instance->host;
        char text[128];
        (void)snprintf(text, sizeof text, "hipSetDevice(%d): error %d: this thread stays on device %d", scope->previous,
                       (int)code, scope->device);
        host->log(host->ctx, OPENREG_LOG_ERROR, text);
    }
}

openreg_status
openreg_gpu_query_context(const openreg_gpu_scope *scope, int *active)
{
    unsigned flags = 0;
    return OPENREG_GPU_TRY(scope, DevicePrimaryCtxGetState, scope->device, &flags, active);
}

openreg_status
openreg_gpu_enter_to_wait(openreg_gpu_scope *scope, openreg_instance instance, int32_t dev, bool *is_idle)
{
    *is_idle = false;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_reject_lost(instance, dev));
    return openreg_gpu_look(scope, instance, dev);
}

openreg_status
openreg_gpu_enter_any(openreg_gpu_scope *scope, openreg_instance instance)
{
    int own = 0;
    int32_t dev = 0;
    const openreg_gpu_scope before = {.instance = instance, .pending = GPU_CALL(PeekAtLastError)()};
    if (GPU_CALL(GetDevice)(&own) == GPU(Success) && own < instance->device_count)
        dev = own;
    openreg_gpu_note_forgotten(&before);
    for (int32_t i = 0; i < instance->device_count && openreg_gpu_is_lost(instance, dev); ++i)
        dev = i;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_reject_lost(instance, dev));
    return openreg_gpu_look(scope, instance, dev);
}
