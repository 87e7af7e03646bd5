/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_properties_hip.c: a device's name, UUID, memory and priorities (gpu.h). HIP's structure of properties differs
 * between versions of the library, which is found at run time; so one function is called for each property. */
#include "gpu.h"

#include <string.h>

openreg_status
openreg_gpu_read_properties(const openreg_gpu_scope *scope, openreg_device_info *out)
{
    size_t total = 0;
    int low = 0;
    int high = 0;
    hipUUID uuid;
    OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(scope, DeviceGetName, out->name, (int)sizeof out->name, scope->device));
    OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(scope, DeviceTotalMem, &total, scope->device));
    OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(scope, DeviceGetUuid, &uuid, scope->device));
    OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(scope, DeviceGetStreamPriorityRange, &low, &high));
    static_assert(sizeof uuid == sizeof out->uuid, "a UUID has 16 bytes");
    memcpy(out->uuid, &uuid, sizeof out->uuid);
    out->total_bytes = total;
    out->priority_low = low;
    out->priority_high = high;
    return OPENREG_OK;
}
