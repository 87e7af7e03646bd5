/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_peer.c: copies that concern a device other than the stream's (gpu.h).
 *
 * Access between two devices is enabled at the first copy between them, both ways. Where the hardware has no way, the
 * vendor's peer copy goes through host memory of its own, in stream order, and returns at once. Where the vendor
 * refuses too, the copy is done here, through pinned host memory: the call then returns when the copy has ended, which
 * is in stream order because it waits for the stream first. */
#include "gpu.h"

#define CHUNK ((uint64_t)4 << 20)

static atomic_uchar *
cell(openreg_instance instance, atomic_uchar *matrix, int32_t row, int32_t column)
{
    return &matrix[(size_t)row * (size_t)instance->device_count + (size_t)column];
}

/* Gives device `from` access to memory of `to`. */
static openreg_status
enable_access(openreg_instance instance, int32_t from, int32_t to, bool *has_access)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, from));
    int can = 0;
    openreg_status status = OPENREG_GPU_TRY(&scope, DeviceCanAccessPeer, &can, from, to);
    if (status == OPENREG_OK && can != 0) {
        const openreg_gpu_code code = GPU_CALL(DeviceEnablePeerAccess)(to, 0);
        if (code == GPU(ErrorPeerAccessAlreadyEnabled)) /* by another thread, or by PyTorch */
            openreg_gpu_forget(&scope, code);
        else if (code == GPU_ERROR_TOO_MANY_PEERS) {
            openreg_gpu_forget(&scope, code);
            can = 0;
        } else
            status = openreg_gpu_check(&scope, code, GPU_NAME(DeviceEnablePeerAccess));
    }
    openreg_gpu_leave(&scope);
    *has_access = can != 0;
    return status;
}

/* The way between two devices, opened if this is their first copy. */
static openreg_status
prepare(openreg_instance instance, int32_t a, int32_t b, unsigned char *way)
{
    atomic_uchar *const known = cell(instance, instance->peers, a, b);
    *way = atomic_load_explicit(known, memory_order_relaxed);
    if (*way != OPENREG_GPU_PEER_UNKNOWN)
        return OPENREG_OK;
    bool there = false;
    bool back = false;
    OPENREG_GPU_RETURN_NOT_OK(enable_access(instance, a, b, &there));
    OPENREG_GPU_RETURN_NOT_OK(enable_access(instance, b, a, &back));
    *way = there && back ? OPENREG_GPU_PEER_ENABLED : OPENREG_GPU_PEER_STAGED;
    if (*way == OPENREG_GPU_PEER_ENABLED)
        return openreg_gpu_vmm_enable_access(instance, a, b, known);
    atomic_store_explicit(known, *way, memory_order_relaxed);
    return OPENREG_OK;
}

/* A stream of `other` works on memory of `owner` from now on. */
static void
touch(openreg_instance instance, int32_t owner, int32_t other)
{
    if (owner >= 0 && owner != other)
        atomic_store_explicit(cell(instance, instance->touched, owner, other), 1, memory_order_relaxed);
}

openreg_status
openreg_gpu_peer_await(openreg_instance instance, int32_t owner)
{
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_device_sync(instance, owner));
    for (int32_t other = 0; other < instance->device_count; ++other)
        if (atomic_load_explicit(cell(instance, instance->touched, owner, other), memory_order_relaxed) != 0 &&
            !openreg_gpu_is_lost(instance, other))
            OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_device_sync(instance, other));
    return OPENREG_OK;
}

/* One copy between a device and the host on a stream made for it, complete on return. */
static openreg_status
copy_now(openreg_instance instance, int32_t dev, void *dst, const void *src, uint64_t size, openreg_gpu_copy_kind kind)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    GPU(Stream_t) stream = NULL;
    openreg_status status = OPENREG_GPU_TRY(&scope, StreamCreateWithPriority, &stream, GPU(StreamNonBlocking), 0);
    if (status == OPENREG_OK) {
        status = OPENREG_GPU_TRY(&scope, MemcpyAsync, dst, src, (size_t)size, kind, stream);
        if (status == OPENREG_OK)
            status = OPENREG_GPU_TRY(&scope, StreamSynchronize, stream);
        (void)GPU_CALL(StreamDestroy)(stream);
    }
    openreg_gpu_leave(&scope);
    return status;
}

static openreg_status
copy_chunks(openreg_instance instance, char *dst, int32_t dst_dev, const char *src, int32_t src_dev, uint64_t size,
            void *pinned, uint64_t room)
{
    for (uint64_t done = 0; done < size; done += room) {
        const uint64_t part = size - done < room ? size - done : room;
        OPENREG_GPU_RETURN_NOT_OK(copy_now(instance, src_dev, pinned, src + done, part, GPU(MemcpyDeviceToHost)));
        OPENREG_GPU_RETURN_NOT_OK(copy_now(instance, dst_dev, dst + done, pinned, part, GPU(MemcpyHostToDevice)));
    }
    return OPENREG_OK;
}

static openreg_status
copy_through_host(openreg_instance instance, char *dst, int32_t dst_dev, const char *src, int32_t src_dev,
                  uint64_t size)
{
    const uint64_t room = size < CHUNK ? size : CHUNK;
    openreg_gpu_scope scope; /* around all, so that the buffer can be freed whatever happens */
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dst_dev));
    void *pinned = NULL;
    openreg_status status = OPENREG_GPU_TRY(&scope, GPU_HOST_ALLOC, &pinned, (size_t)room, GPU_HOST_PORTABLE);
    if (status == OPENREG_OK) {
        status = copy_chunks(instance, dst, dst_dev, src, src_dev, size, pinned, room);
        if (status == OPENREG_OK)
            status = OPENREG_GPU_TRY(&scope, GPU_HOST_FREE, pinned);
        else
            (void)GPU_CALL(GPU_HOST_FREE)(pinned);
    }
    openreg_gpu_leave(&scope);
    return status;
}

/* The stream's earlier work, then the copy, before the call returns. */
static openreg_status
copy_by_us(openreg_instance instance, void *dst, int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size,
           int32_t stream_dev, openreg_driver_stream stream)
{
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_stream_sync(instance, stream_dev, stream));
    if (src_dev < 0)
        return copy_now(instance, dst_dev, dst, src, size, GPU(MemcpyHostToDevice));
    if (dst_dev < 0)
        return copy_now(instance, src_dev, dst, src, size, GPU(MemcpyDeviceToHost));
    return copy_through_host(instance, dst, dst_dev, src, src_dev, size);
}

/* The vendor's peer copy. *refused: it can't, and nothing was done. */
static openreg_status
copy_by_vendor(openreg_instance instance, void *dst, int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size,
               int32_t stream_dev, openreg_driver_stream stream, bool *refused)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, stream_dev));
    openreg_status status = OPENREG_OK;
    const openreg_gpu_code code = GPU_CALL(MemcpyPeerAsync)(dst, dst_dev, src, src_dev, (size_t)size,
                                                            (GPU(Stream_t))stream);
    *refused = code == GPU(ErrorPeerAccessUnsupported) || code == GPU(ErrorNotSupported);
    if (*refused)
        openreg_gpu_forget(&scope, code);
    else
        status = openreg_gpu_check(&scope, code, GPU_NAME(MemcpyPeerAsync));
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_peer_copy(openreg_instance instance, void *dst, int32_t dst_dev, const void *src, int32_t src_dev,
                      uint64_t size, int32_t stream_dev, openreg_driver_stream stream)
{
    if (dst_dev >= 0)
        OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_reject_lost(instance, dst_dev));
    if (src_dev >= 0)
        OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_reject_lost(instance, src_dev));
    /* Host memory and a device that is not the stream's: no call of the vendor's promises that. */
    bool by_us = dst_dev < 0 || src_dev < 0;
    if (!by_us && dst_dev != src_dev) {
        unsigned char way = OPENREG_GPU_PEER_UNKNOWN;
        OPENREG_GPU_RETURN_NOT_OK(prepare(instance, src_dev, dst_dev, &way));
        by_us = way == OPENREG_GPU_PEER_BY_US;
    }
    if (!by_us) {
        touch(instance, dst_dev, stream_dev);
        touch(instance, src_dev, stream_dev);
        OPENREG_GPU_RETURN_NOT_OK(
            copy_by_vendor(instance, dst, dst_dev, src, src_dev, size, stream_dev, stream, &by_us));
        if (by_us && dst_dev != src_dev)
            atomic_store_explicit(cell(instance, instance->peers, src_dev, dst_dev), OPENREG_GPU_PEER_BY_US,
                                  memory_order_relaxed);
    }
    return by_us ? copy_by_us(instance, dst, dst_dev, src, src_dev, size, stream_dev, stream) : OPENREG_OK;
}
