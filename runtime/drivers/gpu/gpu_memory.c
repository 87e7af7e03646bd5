/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_memory.c: device memory, pinned host memory, and whose an address is (gpu.h). Plain allocations: the runtime's
 * cache sits above and asks for large segments. */
#include "gpu.h"

openreg_status
openreg_gpu_mem_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    const openreg_status fits = openreg_alloc_check(instance->host, info, GPU_ALIGNMENT);
    if (fits != OPENREG_OK)
        return fits;
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    void *memory = NULL;
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    const openreg_status status = OPENREG_GPU_TRY(&scope, Malloc, &memory, (size_t)info->size);
    openreg_gpu_restore_capture(mode);
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        *out = memory;
    return status;
}

openreg_status
openreg_gpu_mem_free(openreg_instance instance, int32_t dev, void *ptr)
{
    if (openreg_gpu_is_lost(instance, dev)) /* its memory went with it */
        return OPENREG_OK;
    /* The vendors' Free() mostly waits, but what for is not written down, and copies by another device's stream are not
     * part of it. */
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_peer_await(instance, dev));
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    const openreg_status status = OPENREG_GPU_TRY(&scope, Free, ptr);
    openreg_gpu_restore_capture(mode);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_mem_info(openreg_instance instance, int32_t dev, uint64_t *free_bytes, uint64_t *total)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    size_t free_now = 0;
    size_t total_now = 0;
    const openreg_status status = OPENREG_GPU_TRY(&scope, MemGetInfo, &free_now, &total_now);
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK) {
        *free_bytes = free_now;
        *total = total_now;
    }
    return status;
}

openreg_status
openreg_gpu_host_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    (void)dev;
    const openreg_status fits = openreg_alloc_check(instance->host, info, GPU_ALIGNMENT);
    if (fits != OPENREG_OK)
        return fits;
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter_any(&scope, instance));
    void *memory = NULL;
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    const openreg_status status = OPENREG_GPU_TRY(&scope, GPU_HOST_ALLOC, &memory, (size_t)info->size,
                                                  GPU_HOST_PORTABLE);
    openreg_gpu_restore_capture(mode);
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        *out = memory;
    return status;
}

openreg_status
openreg_gpu_host_free(openreg_instance instance, int32_t dev, void *ptr)
{
    (void)dev;
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter_any(&scope, instance));
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    const openreg_status status = OPENREG_GPU_TRY(&scope, GPU_HOST_FREE, ptr);
    openreg_gpu_restore_capture(mode);
    openreg_gpu_leave(&scope);
    return status;
}
