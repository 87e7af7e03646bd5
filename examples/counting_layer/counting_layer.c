// SPDX-License-Identifier: BSD-3-Clause
// A layer (openreg/layer.h): counts the bytes that are copied on each device, and logs them when the driver is closed.
//
//   cc -shared -fPIC -I "$(python -m torch_openreg.config --include-dir)" -o counting_layer.so counting_layer.c
//   OPENREG_LAYERS=count:./counting_layer.so OPENREG_LOG_LEVEL=info python train.py
#include <openreg/layer.h>
#include <stdatomic.h>

// One open driver. The layer keeps the driver's instance, by which it finds this.
typedef struct counted {
    _Atomic(openreg_instance) instance; // NULL: free
    const openreg_layer_site *site;
    atomic_ullong bytes[64];
} counted;

static counted all[8];

static counted *
find(openreg_instance instance)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        if (atomic_load(&all[i].instance) == instance)
            return &all[i];
    return NULL;
}

static openreg_status
count_copy(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
           const void *src, int32_t src_dev, uint64_t size)
{
    counted *const own = find(instance);
    atomic_fetch_add(&own->bytes[dev % 64], size);
    return own->site->below->copy(instance, dev, stream, dst, dst_dev, src, src_dev, size);
}

static openreg_status
count_close(openreg_instance instance)
{
    counted *const own = find(instance);
    for (int dev = 0; dev < 64; ++dev) {
        const unsigned long long bytes = atomic_exchange(&own->bytes[dev], 0);
        char text[128];
        (void)snprintf(text, sizeof text, "%s device %d: %llu bytes copied", own->site->driver, dev, bytes);
        if (bytes > 0)
            own->site->host->log(own->site->host->ctx, OPENREG_LOG_INFO, text);
    }
    atomic_store(&own->instance, NULL);
    return own->site->below->close(instance);
}

static openreg_status
count_open(const openreg_layer_site *site, openreg_driver *table, openreg_instance *out)
{
    counted *const own = find(NULL);
    if (own == NULL)
        return openreg_fail(site->host, OPENREG_E_NOMEM, 0, "more than 8 drivers are open");
    const openreg_status status = site->below->open(site->host, site->options, site->option_count, out);
    if (status != OPENREG_OK)
        return status; // its error is set already
    own->site = site;
    atomic_store(&own->instance, *out);
    *table = *site->below;
    table->copy = count_copy;
    table->close = count_close;
    return OPENREG_OK;
}

static const openreg_layer layer = {
    .struct_size = sizeof layer,
    .abi_minor = OPENREG_ABI_MINOR,
    .table_size = sizeof(openreg_driver),
    .name = "count",
    .open = count_open,
};

__attribute__((visibility("default"))) openreg_status openreg_layer_query_v1(const openreg_host *host,
                                                                             const openreg_layer **out);

openreg_status
openreg_layer_query_v1(const openreg_host *host, const openreg_layer **out)
{
    (void)host;
    *out = &layer;
    return OPENREG_OK;
}
