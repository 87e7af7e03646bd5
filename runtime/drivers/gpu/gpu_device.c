/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_device.c: counting, describing, binding and waiting for devices (gpu.h). */
#include "gpu.h"

#include <string.h>

openreg_status
openreg_gpu_device_count(openreg_instance instance, int32_t *out)
{
    *out = instance->device_count;
    return OPENREG_OK;
}

static openreg_status
read_attribute(const openreg_gpu_scope *scope, openreg_gpu_attribute attribute, int32_t *out)
{
    int value = 0;
    OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(scope, DeviceGetAttribute, &value, attribute, scope->device));
    *out = value;
    return OPENREG_OK;
}

/* CUDA: the host faults on device memory, except where both use one page table (Grace Hopper). HIP: it depends on the size
 * of the PCI window and on the driver, and nothing says so. */
static openreg_status
read_caps(const openreg_gpu_scope *scope, openreg_device_info *out)
{
#if defined(GPU_ATTRIBUTE_SHARES_PAGES)
    int32_t shares_pages = 0;
    OPENREG_GPU_RETURN_NOT_OK(read_attribute(scope, GPU_ATTRIBUTE_SHARES_PAGES, &shares_pages));
    out->caps = shares_pages ? 0 : OPENREG_CAP_FENCED;
#else
    (void)scope;
    out->caps = 0;
#endif
    return OPENREG_OK;
}

void
openreg_gpu_set_torch_type(openreg_device_info *info)
{
    memcpy(info->torch_device_type, "cuda", sizeof "cuda");
}

static openreg_status
read_info(const openreg_gpu_scope *scope, openreg_device_info *out)
{
    OPENREG_GPU_RETURN_NOT_OK(read_attribute(scope, GPU_ATTRIBUTE_MULTIPROCESSORS, &out->multi_processor_count));
    OPENREG_GPU_RETURN_NOT_OK(read_attribute(scope, GPU_ATTRIBUTE_CAPABILITY_MAJOR, &out->capability_major));
    OPENREG_GPU_RETURN_NOT_OK(read_attribute(scope, GPU_ATTRIBUTE_CAPABILITY_MINOR, &out->capability_minor));
    OPENREG_GPU_RETURN_NOT_OK(read_caps(scope, out));
    openreg_gpu_set_torch_type(out);
    return openreg_gpu_read_properties(scope, out);
}

openreg_status
openreg_gpu_device_info(openreg_instance instance, int32_t dev, openreg_device_info *inout)
{
    openreg_device_info info;
    memset(&info, 0, sizeof info);
    const uint32_t size = inout->struct_size < sizeof info ? inout->struct_size : (uint32_t)sizeof info;
    info.struct_size = inout->struct_size;
    info.min_alignment = GPU_ALIGNMENT;
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_look(&scope, instance, dev));
    const openreg_status status = read_info(&scope, &info);
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        memcpy(inout, &info, size);
    return status;
}

openreg_status
openreg_gpu_device_sync(openreg_instance instance, int32_t dev)
{
    openreg_gpu_scope scope;
    bool is_idle = false;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter_to_wait(&scope, instance, dev, &is_idle));
    if (is_idle)
        return OPENREG_OK;
    const openreg_status status = openreg_gpu_check(&scope, GPU_CALL(DeviceSynchronize)(), GPU_NAME(DeviceSynchronize));
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_is_active(openreg_instance instance, int32_t dev, bool *out)
{
    int active = atomic_load_explicit(&instance->devices[dev].context, memory_order_relaxed) != 0;
    if (!active) {
        const openreg_gpu_scope scope = {.instance = instance, .device = dev, .pending = GPU_CALL(PeekAtLastError)()};
        OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_query_context(&scope, &active));
        openreg_gpu_note_forgotten(&scope);
    }
    *out = active != 0;
    return OPENREG_OK;
}

openreg_status
openreg_gpu_device_active(openreg_instance instance, int32_t dev, int32_t *out)
{
    bool active = false;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_is_active(instance, dev, &active));
    *out = active;
    return OPENREG_OK;
}

openreg_status
openreg_gpu_device_bind(openreg_instance instance, int32_t dev)
{
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_reject_lost(instance, dev));
    const openreg_gpu_scope scope = {.instance = instance, .device = dev, .pending = GPU_CALL(PeekAtLastError)()};
    OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(&scope, SetDevice, dev));
    openreg_gpu_note_forgotten(&scope);
    return OPENREG_OK;
}
