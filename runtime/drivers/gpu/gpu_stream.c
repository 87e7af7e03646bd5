/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_stream.c: streams (gpu.h). The handle is the vendor's own stream.
 *
 * The default stream, NULL, is the vendor's legacy stream of the device: it is the one on which PyTorch's CUDA code
 * works by default, so stream_native() can give it as it is. The vendor makes the legacy stream wait for others, and
 * others for it, except those created as non-blocking: all of ours are, so that, as the ABI asks, the default stream
 * implies no synchronisation with them. */
#define _GNU_SOURCE
#include "gpu.h"
#include "gpu_signals.h"

openreg_status
openreg_gpu_stream_create(openreg_instance instance, int32_t dev, uint32_t flags, int32_t priority,
                          openreg_driver_stream *out)
{
    (void)flags;
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    GPU(Stream_t) stream = NULL;
    const openreg_status status = OPENREG_GPU_TRY(&scope, StreamCreateWithPriority, &stream, GPU(StreamNonBlocking),
                                                  priority);
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        *out = (openreg_driver_stream)stream;
    return status;
}

openreg_status
openreg_gpu_stream_destroy(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    if (stream == NULL || openreg_gpu_is_lost(instance, dev)) /* it went with the device */
        return OPENREG_OK;
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_status status = OPENREG_GPU_TRY(&scope, StreamDestroy, (GPU(Stream_t))stream);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_stream_query(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    openreg_gpu_scope scope;
    bool is_idle = false;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter_to_wait(&scope, instance, dev, &is_idle));
    if (is_idle) {
        *done = 1;
        return OPENREG_OK;
    }
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    const openreg_gpu_code code = GPU_CALL(StreamQuery)((GPU(Stream_t))stream);
    openreg_gpu_restore_capture(mode);
    const openreg_status status = openreg_gpu_check_ready(&scope, code, GPU_NAME(StreamQuery), done);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_stream_sync(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    openreg_gpu_scope scope;
    bool is_idle = false;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter_to_wait(&scope, instance, dev, &is_idle));
    if (is_idle)
        return OPENREG_OK;
    const openreg_status status = OPENREG_GPU_TRY(&scope, StreamSynchronize, (GPU(Stream_t))stream);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_stream_wait(openreg_instance instance, int32_t dev, openreg_driver_stream stream,
                        openreg_driver_event event)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_status status = OPENREG_GPU_TRY(&scope, StreamWaitEvent, (GPU(Stream_t))stream, event->native, 0);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_stream_native(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void **out)
{
    (void)instance;
    (void)dev;
    *out = stream;
    return OPENREG_OK;
}

openreg_status
openreg_gpu_host_func(openreg_instance instance, int32_t dev, openreg_driver_stream stream,
                      void (*function)(void *argument), void *argument)
{
    if (!GPU_HAS(LaunchHostFunc))
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0,
                            "the installed " GPU_VENDOR_TEXT " lacks the function " GPU_NAME(LaunchHostFunc));
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    sigset_t signals;
    openreg_gpu_block_signals(&signals);
    const openreg_status status = OPENREG_GPU_TRY(&scope, LaunchHostFunc, (GPU(Stream_t))stream, function, argument);
    openreg_gpu_restore_signals(&signals);
    openreg_gpu_leave(&scope);
    return status;
}
