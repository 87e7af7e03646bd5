/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_copy.c: copies and fills (gpu.h). Between devices: gpu_peer.c. */
#include "gpu.h"

static openreg_gpu_copy_kind
kind_of(int32_t dst_dev, int32_t src_dev)
{
    if (dst_dev < 0)
        return src_dev < 0 ? GPU(MemcpyHostToHost) : GPU(MemcpyDeviceToHost);
    return src_dev < 0 ? GPU(MemcpyHostToDevice) : GPU(MemcpyDeviceToDevice);
}

openreg_status
openreg_gpu_copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst,
                 int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size)
{
    if (size == 0)
        return OPENREG_OK;
    /* Memory of one device on a stream of another is a peer copy too. */
    const bool is_peer = (dst_dev >= 0 && dst_dev != stream_dev) || (src_dev >= 0 && src_dev != stream_dev);
    if (is_peer)
        return openreg_gpu_peer_copy(instance, dst, dst_dev, src, src_dev, size, stream_dev, stream);
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, stream_dev));
    const openreg_status status = OPENREG_GPU_TRY(&scope, MemcpyAsync, dst, src, (size_t)size,
                                                  kind_of(dst_dev, src_dev), (GPU(Stream_t))stream);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_fill(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value,
                 uint64_t size)
{
    if (size == 0)
        return OPENREG_OK;
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_status status = OPENREG_GPU_TRY(&scope, MemsetAsync, dst, value, (size_t)size, (GPU(Stream_t))stream);
    openreg_gpu_leave(&scope);
    return status;
}
