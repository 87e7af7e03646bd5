/* SPDX-License-Identifier: BSD-3-Clause */
/* broken_driver.c: one broken driver for each BROKEN_* macro, for the loader's tests. Without one of them it is a driver
 * of a single device. */
#include <stdlib.h>

#include <openreg/driver.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef BROKEN_UNRESOLVED
extern int openreg_test_symbol_that_nobody_defines(void);
#endif

struct openreg_instance_s {
    int unused;
};

static const openreg_host *the_host;
static struct openreg_instance_s the_instance;

static openreg_status
broken_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    (void)options;
    (void)n;
    the_host = host;
#ifdef BROKEN_OPEN_FAILS
    return openreg_fail(host, OPENREG_E_INCOMPATIBLE, 35, "the vendor's library is too old");
#endif
#ifdef BROKEN_UNRESOLVED
    the_instance.unused = openreg_test_symbol_that_nobody_defines();
#endif
    *out = &the_instance;
    return OPENREG_OK;
}

static openreg_status
broken_close(openreg_instance instance)
{
    (void)instance;
#ifdef BROKEN_CLOSE_FAILS
    return openreg_fail(the_host, OPENREG_E_INTERNAL, 0, "cannot close");
#endif
    return OPENREG_OK;
}

static openreg_status
broken_device_count(openreg_instance instance, int32_t *out)
{
    (void)instance;
#if defined(BROKEN_NO_DEVICES)
    *out = 0;
#elif defined(BROKEN_NEGATIVE_COUNT)
    *out = -5;
#elif defined(BROKEN_TOO_MANY)
    *out = 128;
#else
    *out = 1;
#endif
    return OPENREG_OK;
}

static openreg_status
broken_mem_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    (void)instance;
    (void)dev;
    (void)info;
    (void)out; /* succeeds without memory */
    return OPENREG_OK;
}

static openreg_status
broken_mem_free(openreg_instance instance, int32_t dev, void *ptr)
{
    (void)instance;
    (void)dev;
    (void)ptr;
    return OPENREG_OK;
}

#ifndef BROKEN_NO_COPY
static openreg_status
broken_copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
            const void *src, int32_t src_dev, uint64_t size)
{
    (void)instance;
    (void)dst;
    (void)dst_dev;
    (void)src;
    (void)src_dev;
    (void)size;
    (void)stream_dev;
    (void)stream;
    return OPENREG_OK;
}
#endif

static openreg_status
broken_device_sync(openreg_instance instance, int32_t dev)
{
    (void)instance;
    (void)dev;
    return OPENREG_OK;
}

#ifdef BROKEN_HALF_STREAMS
static openreg_status
broken_stream_create(openreg_instance instance, int32_t dev, uint32_t flags, int32_t priority,
                     openreg_driver_stream *out)
{
    (void)instance;
    (void)dev;
    (void)flags;
    (void)priority;
    *out = NULL;
    return OPENREG_OK;
}
#endif

#if defined(BROKEN_INFO) || defined(BROKEN_ALIAS)
static openreg_status
broken_device_info(openreg_instance instance, int32_t dev, openreg_device_info *inout)
{
    (void)instance;
    (void)dev;
#ifdef BROKEN_INFO
    inout->min_alignment = 3;
#else
    inout->caps = OPENREG_CAP_HOST_VISIBLE;
#endif
    return OPENREG_OK;
}
#endif

/* A table of a later minor, 64 bytes longer than any released one. */
typedef struct future_table {
    openreg_driver base;
    void (*later[8])(void);
} future_table;

static const future_table the_table = {
    .base =
        {
#if defined(BROKEN_SHORT_TABLE)
            .struct_size = OPENREG_DRIVER_SIZE_1 - 8,
#elif defined(BROKEN_FUTURE)
            .struct_size = sizeof(future_table),
            .abi_minor = 99,
#else
            .struct_size = sizeof(openreg_driver),
#endif
#if defined(BROKEN_NAME)
            .name = "Not A Name",
#else
            .name = "broken",
#endif
            .open = broken_open,
            .close = broken_close,
            .device_count = broken_device_count,
            .mem_alloc = broken_mem_alloc,
            .mem_free = broken_mem_free,
#ifndef BROKEN_NO_COPY
            .copy = broken_copy,
#endif
            .device_sync = broken_device_sync,
#ifdef BROKEN_HALF_STREAMS
            .stream_create = broken_stream_create,
#endif
#if defined(BROKEN_INFO) || defined(BROKEN_ALIAS)
            .device_info = broken_device_info,
#endif
        },
};

#if defined(BROKEN_NO_ENTRY)
EXPORT openreg_status some_other_symbol(const openreg_host *host, const openreg_driver **out);
#define ENTRY some_other_symbol
#elif defined(BROKEN_V99_ONLY)
EXPORT openreg_status openreg_driver_query_v99(const openreg_host *host, const openreg_driver **out);
#define ENTRY openreg_driver_query_v99
#elif defined(BROKEN_V2_ONLY)
EXPORT openreg_status openreg_driver_query_v2(const openreg_host *host, const openreg_driver **out);
#define ENTRY openreg_driver_query_v2
#else
EXPORT openreg_status openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out);
#define ENTRY openreg_driver_query_v1
#endif

openreg_status
ENTRY(const openreg_host *host, const openreg_driver **out)
{
    the_host = host;
#if defined(BROKEN_QUERY_FAILS)
    (void)the_table;
    (void)out;
    return openreg_fail(host, OPENREG_E_NO_DEVICE, 7, "nothing here");
#elif defined(BROKEN_NULL_TABLE)
    (void)the_table;
    *out = NULL;
    return OPENREG_OK;
#else
    *out = &the_table.base;
    return OPENREG_OK;
#endif
}
