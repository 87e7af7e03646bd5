/* SPDX-License-Identifier: BSD-3-Clause */
/* driver.c: the smallest driver, seven functions. Its devices are plain malloc() memory that the host is
 * not told about. It is built by a C compiler alone, against openreg/driver.h and nothing else, and proves that the
 * runtime emulates everything that is missing here: streams, events, fills, pinned memory, device information. */
// LITERALINCLUDE START: TOY DRIVER
#include <stdlib.h>
#include <string.h>

#include <openreg/driver.h>

#define MAX_DEVICES 8

struct openreg_instance_s {
    const openreg_host *host;
    int32_t devices;
};

static openreg_status
toy_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    long devices = 2;
    for (size_t i = 0; i < n; ++i) {
        char *end;
        if (strcmp(options[i].key, "devices") != 0)
            continue;
        devices = strtol(options[i].value, &end, 10);
        if (*options[i].value == '\0' || *end != '\0' || devices < 0 || devices > MAX_DEVICES)
            return openreg_fail(host, OPENREG_E_INVALID, 0, "devices must be an integer from 0 to %d, but is \"%s\"",
                                MAX_DEVICES, options[i].value);
    }
    openreg_instance const toy = calloc(1, sizeof *toy);
    if (toy == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory");
    toy->host = host;
    toy->devices = (int32_t)devices;
    *out = toy;
    return OPENREG_OK;
}

static openreg_status
toy_close(openreg_instance toy)
{
    free(toy);
    return OPENREG_OK;
}

static openreg_status
toy_device_count(openreg_instance toy, int32_t *out)
{
    *out = toy->devices;
    return OPENREG_OK;
}

static openreg_status
toy_mem_alloc(openreg_instance toy, int32_t dev, const openreg_alloc_info *info, void **out)
{
    const openreg_status fits = openreg_alloc_check(toy->host, info, 16);
    if (fits != OPENREG_OK)
        return fits;
    void *const memory = malloc(info->size);
    if (memory == NULL)
        return openreg_fail(toy->host, OPENREG_E_NOMEM, 0, "device %d has no room for %llu bytes", dev,
                            (unsigned long long)info->size);
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
toy_mem_free(openreg_instance toy, int32_t dev, void *ptr)
{
    (void)toy;
    (void)dev;
    free(ptr);
    return OPENREG_OK;
}

static openreg_status
toy_copy(openreg_instance toy, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
         const void *src, int32_t src_dev, uint64_t size)
{
    (void)toy;
    (void)dst_dev;
    (void)src_dev;
    (void)stream_dev;
    (void)stream;
    memcpy(dst, src, size);
    return OPENREG_OK;
}

static openreg_status
toy_device_sync(openreg_instance toy, int32_t dev)
{
    (void)toy;
    (void)dev;
    return OPENREG_OK;
}

static const openreg_driver table = {
    .struct_size = sizeof(openreg_driver),
    .abi_minor = OPENREG_ABI_MINOR,
    .name = "toy",
    .version = "1.0",
    .open = toy_open,
    .close = toy_close,
    .device_count = toy_device_count,
    .mem_alloc = toy_mem_alloc,
    .mem_free = toy_mem_free,
    .copy = toy_copy,
    .device_sync = toy_device_sync,
};

__attribute__((visibility("default"))) openreg_status openreg_driver_query_v1(const openreg_host *host,
                                                                              const openreg_driver **out);

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
// LITERALINCLUDE END: TOY DRIVER
