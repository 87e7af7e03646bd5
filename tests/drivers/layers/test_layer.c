// SPDX-License-Identifier: BSD-3-Clause
// Layers for the tests, by what is defined: LAYER_NAME logs each copy; LAYER_OLD knows a part of the
// functions alone; LAYER_REFUSES fails to open.
#include <openreg/layer.h>
#include <string.h>

#ifdef LAYER_OLD
#define TABLE_SIZE offsetof(openreg_driver, event_create)
#else
#define TABLE_SIZE sizeof(openreg_driver)
#endif

// One driver at a time is enough.
static const openreg_layer_site *site;

static openreg_status
logged_copy(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
            const void *src, int32_t src_dev, uint64_t size)
{
    site->host->log(site->host->ctx, OPENREG_LOG_INFO, "copy in layer " LAYER_NAME);
    return site->below->copy(instance, dev, stream, dst, dst_dev, src, src_dev, size);
}

static openreg_status
logged_close(openreg_instance instance)
{
    site->host->log(site->host->ctx, OPENREG_LOG_INFO, "close in layer " LAYER_NAME);
    return site->below->close(instance);
}

static openreg_status
layer_open(const openreg_layer_site *at, openreg_driver *table, openreg_instance *out)
{
    const openreg_status status = at->below->open(at->host, at->options, at->option_count, out);
    if (status != OPENREG_OK)
        return status;
#ifdef LAYER_REFUSES
    (void)at->below->close(*out);
    return openreg_fail(at->host, OPENREG_E_INVALID, 0, "layer " LAYER_NAME " doesn't like %s", at->driver);
#endif
    site = at;
    memcpy(table, at->below, TABLE_SIZE);
    table->copy = logged_copy;
    table->close = logged_close;
    return OPENREG_OK;
}

static const openreg_layer layer = {
    .struct_size = OPENREG_LAYER_SIZE_1,
    .abi_minor = OPENREG_ABI_MINOR,
    .table_size = TABLE_SIZE,
    .name = LAYER_NAME,
    .open = layer_open,
};

openreg_status openreg_layer_query_v1(const openreg_host *host, const openreg_layer **out);

__attribute__((visibility("default"))) openreg_status
openreg_layer_query_v1(const openreg_host *host, const openreg_layer **out)
{
    (void)host;
    *out = &layer;
    return OPENREG_OK;
}
