/* SPDX-License-Identifier: BSD-3-Clause */
/* toy_common.h: the seven functions that the toy drivers of the tests share, two devices of memory that the host can't
 * reach: a device address is the host's with one bit flipped, where nothing is mapped. TOY_SLOTS are their places in a
 * table. */
#ifndef OPENREG_TESTS_TOY_COMMON_H
#define OPENREG_TESTS_TOY_COMMON_H

#include <stdlib.h>
#include <string.h>

#include <openreg/driver.h>

#define EXPORT __attribute__((visibility("default")))
#define FLIPPED_BIT ((uintptr_t)1 << 46)

struct openreg_instance_s {
    const openreg_host *host;
};

static void *
on_device(void *host)
{
    return (void *)((uintptr_t)host ^ FLIPPED_BIT);
}

// LITERALINCLUDE START: ON HOST
static void *
on_host(const void *device)
{
    return (void *)((uintptr_t)device ^ FLIPPED_BIT);
}
// LITERALINCLUDE END: ON HOST

static openreg_status
toy_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    (void)options;
    (void)n;
    openreg_instance const instance = calloc(1, sizeof *instance);
    if (instance == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory");
    instance->host = host;
    *out = instance;
    return OPENREG_OK;
}

static openreg_status
toy_close(openreg_instance instance)
{
    free(instance);
    return OPENREG_OK;
}

static openreg_status
toy_device_count(openreg_instance instance, int32_t *out)
{
    (void)instance;
    *out = 2;
    return OPENREG_OK;
}

static openreg_status
toy_mem_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    const openreg_status fits = openreg_alloc_check(instance->host, info, 16);
    if (fits != OPENREG_OK)
        return fits;
    void *const memory = malloc(info->size);
    if (memory == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "device %d has no room for %llu bytes", dev,
                            (unsigned long long)info->size);
    *out = on_device(memory);
    return OPENREG_OK;
}

static openreg_status
toy_mem_free(openreg_instance instance, int32_t dev, void *ptr)
{
    (void)instance;
    (void)dev;
    free(on_host(ptr));
    return OPENREG_OK;
}

static openreg_status
toy_copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
         const void *src, int32_t src_dev, uint64_t size)
{
    (void)instance;
    (void)stream_dev;
    (void)stream;
    memcpy(dst_dev < 0 ? dst : on_host(dst), src_dev < 0 ? src : on_host(src), size);
    return OPENREG_OK;
}

static openreg_status
toy_device_sync(openreg_instance instance, int32_t dev)
{
    (void)instance;
    (void)dev;
    return OPENREG_OK;
}

#define TOY_SLOTS                                                                                                      \
    .open = toy_open, .close = toy_close, .device_count = toy_device_count, .mem_alloc = toy_mem_alloc,                \
    .mem_free = toy_mem_free, .copy = toy_copy, .device_sync = toy_device_sync

EXPORT openreg_status openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out);

#endif
