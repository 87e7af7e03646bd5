/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_census.c: the slot describe, by a census (gpu_census.h). */
#define _GNU_SOURCE
#include "gpu_census.h"
#include "gpu.h"
#include "gpu_signals.h"

#include <stdlib.h>
#include <string.h>

static openreg_status
take(const openreg_host *host, openreg_gpu_census **out)
{
    openreg_gpu_census *const census = calloc(1, sizeof *census);
    if (census == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory to count devices");
    sigset_t signals;
    openreg_gpu_block_signals(&signals);
    openreg_status status = openreg_gpu_census_take(host, census);
    openreg_gpu_restore_signals(&signals);
    if (status == OPENREG_OK && census->count == 0)
        status = openreg_fail(host, OPENREG_E_NO_DEVICE, 0, "no " GPU_VENDOR_TEXT " device is visible");
    if (status != OPENREG_OK) {
        free(census);
        return status;
    }
    *out = census;
    return OPENREG_OK;
}

openreg_status
openreg_gpu_describe(const openreg_host *host, const openreg_option *options, uint32_t n, const char *topology,
                     int32_t capacity, openreg_device_info *const *infos, uint8_t *peers, int32_t *count)
{
    (void)options;
    (void)n;
    if (topology[0] != '\0')
        return openreg_fail(host, OPENREG_E_INVALID, 0,
                            "unknown topology \"%.64s\": this driver describes this machine alone, named \"\"",
                            topology);
    openreg_gpu_census *census = NULL;
    OPENREG_GPU_RETURN_NOT_OK(take(host, &census));
    for (int32_t i = 0; i < census->count && i < capacity; ++i) {
        openreg_device_info *const info = &census->devices[i].info;
        const uint32_t size = infos[i]->struct_size;
        openreg_gpu_set_torch_type(info);
        info->struct_size = size;
        memcpy(infos[i], info, size < sizeof *info ? size : sizeof *info);
        for (int32_t k = 0; peers != NULL && k < census->count && k < capacity; ++k)
            peers[(size_t)i * (size_t)capacity + (size_t)k] = census->peers[i][k];
    }
    *count = census->count;
    free(census);
    return OPENREG_OK;
}
