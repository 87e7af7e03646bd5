/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_census.h: the machine's devices, counted and described without the vendor's runtime, which could not be used in a
 * fork() of this process afterwards. Internal to drivers/gpu. */
#ifndef OPENREG_DRIVERS_GPU_CENSUS_H
#define OPENREG_DRIVERS_GPU_CENSUS_H

#include <openreg/driver.h>

#define OPENREG_GPU_CENSUS_MAX 127

typedef struct openreg_gpu_census_device {
    openreg_device_info info; /* what is known of it; the rest is 0 */
    char uuid[96];            /* as the vendor writes it in its variables: "GPU-..."; "" if unknown */
    uint8_t is_partitioned;   /* NVIDIA: in MIG mode, so that only its instances can be used */
    uint8_t has_instance;     /* and `info` is that of the first of them; else there is none */
} openreg_gpu_census_device;

typedef struct openreg_gpu_census {
    int32_t count;
    openreg_gpu_census_device devices[OPENREG_GPU_CENSUS_MAX];
    uint8_t peers[OPENREG_GPU_CENSUS_MAX][OPENREG_GPU_CENSUS_MAX]; /* [from][to] */
} openreg_gpu_census;

/* ---- gpu_census_nvidia.c, gpu_census_amd.c ---- */

/* Fills a zeroed census with the devices that the vendor's runtime would show, those that its variables hide left out.
 * Starts no thread. E_NO_DEVICE: there are none, or no driver for them; E_INCOMPATIBLE: the driver's parts do not fit
 * together; E_UNSUPPORTED: there may be some, and only opening will tell. */
openreg_status openreg_gpu_census_take(const openreg_host *host, openreg_gpu_census *out);

/* ---- gpu_visible.c ---- */

/* How a vendor reads the list of visible devices. */
typedef enum openreg_gpu_visible_rule {
    OPENREG_GPU_VISIBLE_CUDA, /* "1gpu" is 1; a device named twice: no devices at all */
    OPENREG_GPU_VISIBLE_HIP   /* "1gpu" is invalid; a device named twice counts once */
} openreg_gpu_visible_rule;

/* Keeps the `count` devices of those indices, in that order; none if host memory is short. */
void openreg_gpu_census_keep(openreg_gpu_census *census, const int32_t *chosen, int32_t count);

/* Keeps what the list names, in its order: ordinals or UUIDs ("GPU-..." and, CUDA, any unique beginning of one),
 * separated by commas; an item that names no device ends the list. */
void openreg_gpu_visible_apply(openreg_gpu_census *census, const char *list, openreg_gpu_visible_rule rule);

#endif
