/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_properties_cuda.c: a device's name, UUID, memory and priorities (gpu.h) by CUDA's structure of properties. */
#include "gpu.h"

#include <string.h>

#if defined(OPENREG_GPU_HIP)
typedef hipDeviceProp_t device_properties;
#else
typedef struct cudaDeviceProp device_properties;
#endif

openreg_status
openreg_gpu_read_properties(const openreg_gpu_scope *scope, openreg_device_info *out)
{
    device_properties properties;
    OPENREG_GPU_RETURN_NOT_OK(OPENREG_GPU_TRY(scope, GetDeviceProperties, &properties, scope->device));
    static_assert(sizeof properties.name >= sizeof out->name, "the vendor's names are the longer ones");
    memcpy(out->name, properties.name, sizeof out->name - 1); /* what was there is zero */
    out->total_bytes = properties.totalGlobalMem;
#if !defined(OPENREG_GPU_HIP) /* whose structure for NVIDIA has no UUID */
    static_assert(sizeof properties.uuid == sizeof out->uuid, "a UUID has 16 bytes");
    memcpy(out->uuid, &properties.uuid, sizeof out->uuid);
#endif
    /* CUDA tells the range only in a context, and to describe a device must not make one. It is -5 to 0 since
     * capability 7.0 and at least -1 to 0 before; what lies outside is taken for the nearest priority that there is.
     * */
    out->priority_low = 0;
    out->priority_high = out->capability_major >= 7 ? -5 : -1;
    return OPENREG_OK;
}
