/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_census_amd.c: AMD's devices (gpu_census.h), from the files in which the kernel's driver describes them. HIP's
 * library is not loaded. */
#define _GNU_SOURCE
#include "gpu_census.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_system.h"

#define NODES "/sys/class/kfd/kfd/topology/nodes"

/* What a node's file of properties says; 0 where it says nothing. */
typedef struct node_properties {
    long long simd_count, simd_per_cu, gfx_target_version, drm_render_minor;
    unsigned long long unique_id;
} node_properties;

/* Reads lines "<key> <decimal number>". False if the file can't be read, or is empty, as that of a device to which this
 * container has no access. */
static bool
read_numbers(const char *path, void (*take)(void *self, const char *key, unsigned long long value), void *self)
{
    FILE *const file = fopen(path, "re");
    char line[256];
    bool has_any = false;
    if (file == NULL)
        return false;
    while (fgets(line, sizeof line, file) != NULL) {
        char *const space = strchr(line, ' ');
        if (space == NULL)
            continue;
        *space = '\0';
        take(self, line, strtoull(space + 1, NULL, 10));
        has_any = true;
    }
    (void)fclose(file);
    return has_any;
}

static void
take_property(void *self, const char *key, unsigned long long value)
{
    node_properties *const properties = self;
    if (strcmp(key, "simd_count") == 0)
        properties->simd_count = (long long)value;
    else if (strcmp(key, "simd_per_cu") == 0)
        properties->simd_per_cu = (long long)value;
    else if (strcmp(key, "gfx_target_version") == 0)
        properties->gfx_target_version = (long long)value;
    else if (strcmp(key, "drm_render_minor") == 0)
        properties->drm_render_minor = (long long)value;
    else if (strcmp(key, "unique_id") == 0)
        properties->unique_id = value;
}

/* A path below NODES; false if it is too long. */
static bool
node_path(int node, const char *rest, char *out, size_t size)
{
    char path[256];
    (void)snprintf(path, sizeof path, NODES "/%d%s", node, rest);
    return openreg_gpu_system_path(path, out, size);
}

/* ------------------------------------------------------------------------------------------- memory banks and links */

typedef struct bank {
    unsigned long long heap_type, size_in_bytes;
} bank;

static void
take_bank(void *self, const char *key, unsigned long long value)
{
    bank *const found = self;
    if (strcmp(key, "heap_type") == 0)
        found->heap_type = value;
    else if (strcmp(key, "size_in_bytes") == 0)
        found->size_in_bytes = value;
}

static uint64_t
read_memory(int node)
{
    uint64_t total = 0;
    for (int i = 0;; ++i) {
        char rest[48];
        char path[512];
        bank found = {0, 0};
        (void)snprintf(rest, sizeof rest, "/mem_banks/%d/properties", i);
        if (!node_path(node, rest, path, sizeof path) || !read_numbers(path, take_bank, &found))
            return total;
        if (found.heap_type == 1 || found.heap_type == 2) /* the device's own, shown on the bus or not */
            total += found.size_in_bytes;
    }
}

static void
take_target(void *self, const char *key, unsigned long long value)
{
    if (strcmp(key, "node_to") == 0)
        *(int *)self = (int)value;
}

/* Whether one of the node's links leads to the other. */
static bool
has_link(int node, int other, const char *kind)
{
    for (int i = 0;; ++i) {
        char rest[48];
        char path[512];
        int target = -1;
        (void)snprintf(rest, sizeof rest, "/%s/%d/properties", kind, i);
        if (!node_path(node, rest, path, sizeof path) || !read_numbers(path, take_target, &target))
            return false;
        if (target == other)
            return true;
    }
}

/* --------------------------------------------------------------------------------------------------------- devices */

/* HIP leaves out a device whose node this process may not open. */
static bool
may_be_used(const node_properties *properties)
{
    char path[512];
    char name[64];
    (void)snprintf(name, sizeof name, "/dev/dri/renderD%lld", properties->drm_render_minor);
    return properties->simd_count > 0 && openreg_gpu_system_path(name, path, sizeof path) &&
           access(path, R_OK | W_OK) == 0;
}

static void
describe(int node, const node_properties *properties, openreg_gpu_census_device *out)
{
    openreg_device_info *const info = &out->info;
    const long long version = properties->gfx_target_version;
    info->total_bytes = read_memory(node);
    if (properties->simd_per_cu > 0)
        info->multi_processor_count = (int32_t)(properties->simd_count / properties->simd_per_cu);
    info->capability_major = (int32_t)(version / 10000);
    info->capability_minor = (int32_t)(version / 100 % 100);
    (void)snprintf(info->name, sizeof info->name, "AMD gfx%d%d%llx", info->capability_major, info->capability_minor,
                   (unsigned long long)(version % 100));
    if (properties->unique_id != 0) {
        (void)snprintf(out->uuid, sizeof out->uuid, "GPU-%016llx", properties->unique_id);
        memcpy(info->uuid, out->uuid + 4, sizeof info->uuid); /* HIP's UUID is these 16 characters */
    }
}

/* The variables in the vendor's order: the lower layer's first, then HIP's, for which an empty one is none and CUDA's
 * name stands in. */
static void
hide(openreg_gpu_census *census)
{
    const char *const lower = openreg_gpu_system_vendor_variable("ROCR_VISIBLE_DEVICES");
    if (lower != NULL)
        openreg_gpu_visible_apply(census, lower, OPENREG_GPU_VISIBLE_HIP);
    const char *upper = openreg_gpu_system_vendor_variable("HIP_VISIBLE_DEVICES");
    if (upper == NULL || upper[0] == '\0')
        upper = openreg_gpu_system_vendor_variable("CUDA_VISIBLE_DEVICES");
    if (upper != NULL && upper[0] != '\0')
        openreg_gpu_visible_apply(census, upper, OPENREG_GPU_VISIBLE_HIP);
}

openreg_status
openreg_gpu_census_take(const openreg_host *host, openreg_gpu_census *out)
{
    int nodes[OPENREG_GPU_CENSUS_MAX];
    char path[512];
    if (!openreg_gpu_system_exists("/dev/kfd")) {
        if (openreg_gpu_system_exists("/dev/dxg"))
            return openreg_fail(host, OPENREG_E_UNSUPPORTED, 0,
                                "the devices can't be counted without opening them: there is no /dev/kfd");
        return openreg_fail(host, OPENREG_E_NO_DEVICE, 0, "no AMD GPU can be used: there is no /dev/kfd");
    }
    for (int node = 0;; ++node) {
        char directory[512];
        node_properties properties = {0};
        if (!node_path(node, "", directory, sizeof directory) || access(directory, F_OK) != 0)
            break;
        if (node_path(node, "/properties", path, sizeof path) && read_numbers(path, take_property, &properties) &&
            may_be_used(&properties) && out->count < OPENREG_GPU_CENSUS_MAX) {
            describe(node, &properties, &out->devices[out->count]);
            nodes[out->count++] = node;
        }
    }
    for (int32_t i = 0; i < out->count; ++i)
        for (int32_t k = 0; k < out->count; ++k)
            out->peers[i][k] = i != k &&
                               (has_link(nodes[i], nodes[k], "io_links") || has_link(nodes[i], nodes[k], "p2p_links"));
    hide(out);
    return OPENREG_OK;
}
