/* SPDX-License-Identifier: BSD-3-Clause */
/* broken_driver.c: one broken driver for each BROKEN_* macro, for the loader's tests: a toy driver (toy_common.h) of a
 * single device without memory, of which the macro replaces or takes away a part. */
#include "toy_common.h"

#ifdef BROKEN_UNRESOLVED
extern int openreg_test_symbol_that_nobody_defines(void);
#endif

#ifdef BROKEN_OPEN_FAILS
static openreg_status
broken_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    (void)options;
    (void)n;
    (void)out;
    return openreg_fail(host, OPENREG_E_INCOMPATIBLE, 35, "the vendor's library is too old");
}
#endif

#ifdef BROKEN_CLOSE_FAILS
static openreg_status
broken_close(openreg_instance instance)
{
    const openreg_host *const host = instance->host;
    (void)toy_close(instance);
    return openreg_fail(host, OPENREG_E_INTERNAL, 0, "cannot close");
}
#endif

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
#elif defined(BROKEN_UNRESOLVED)
    *out = openreg_test_symbol_that_nobody_defines();
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

static future_table the_table = {
    .base = {.struct_size = sizeof(openreg_driver), .name = "broken", TOY_SLOTS},
};

static void
break_table(openreg_driver *table)
{
    table->device_count = broken_device_count;
    table->mem_alloc = broken_mem_alloc;
#if defined(BROKEN_SHORT_TABLE)
    table->struct_size = OPENREG_DRIVER_SIZE_1 - 8;
#elif defined(BROKEN_FUTURE)
    table->struct_size = sizeof(future_table);
    table->abi_minor = 99;
#elif defined(BROKEN_NAME)
    table->name = "Not A Name";
#elif defined(BROKEN_OPEN_FAILS)
    table->open = broken_open;
#elif defined(BROKEN_CLOSE_FAILS)
    table->close = broken_close;
#elif defined(BROKEN_NO_COPY)
    table->copy = NULL;
#elif defined(BROKEN_HALF_STREAMS)
    table->stream_create = broken_stream_create;
#elif defined(BROKEN_INFO) || defined(BROKEN_ALIAS)
    table->device_info = broken_device_info;
#endif
}

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
#define ENTRY openreg_driver_query_v1
#endif

openreg_status
ENTRY(const openreg_host *host, const openreg_driver **out)
{
    break_table(&the_table.base);
#if defined(BROKEN_QUERY_FAILS)
    (void)out;
    return openreg_fail(host, OPENREG_E_NO_DEVICE, 7, "nothing here");
#else
    (void)host;
    *out = &the_table.base;
#ifdef BROKEN_NULL_TABLE
    *out = NULL;
#endif
    return OPENREG_OK;
#endif
}
