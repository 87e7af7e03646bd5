/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/layer.h: a layer is a library between the runtime and its drivers, that counts, checks, logs or disturbs calls,
 * and knows neither side. Not stable: it is version 0, and may change in any release. Valid C11 and C++17.
 * docs/layers.md has more, examples/counting_layer a complete one.
 *
 *   OPENREG_LAYERS=name:path[,name:path]    puts layers around every driver that is opened, the first the outermost
 *
 * A layer is one shared library with one exported function, openreg_layer_query_v1(). Its open() is called once for each
 * driver that is opened: it opens the table below (the driver, or another layer), then replaces functions of it. A replaced
 * function may call that of `below`. The rules of driver.h hold between the runtime and a layer, and between the layer and
 * the table below. There are two ways:
 *   Same instance    *out is the instance of below->open(), by which the layer finds its own data. It replaces only the
 *                    functions that it needs; all others, also those of a later driver.h, and extensions stay.
 *   Own instance     The layer replaces all functions of the table, leaves out (NULL) those that it doesn't know, and has
 *                    extensions of its own or none.
 * Functions that the table lacks are emulated by the runtime above all layers: a layer does not replace them.
 *
 * Operators, blocks of the allocator and waits of the host are not visible in a driver's calls: use an observer (observer.h). */
#ifndef OPENREG_LAYER_H
#define OPENREG_LAYER_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_LAYER_ABI_MAJOR 1u /* part of the entry point's name */
#define OPENREG_LAYER_ENTRY_NAME "openreg_layer_query_v1"

/* The argument of open(). Valid until close() of the driver has returned, except `options`: until open() returns. */
typedef struct openreg_layer_site {
    uint32_t struct_size, reserved;
    const openreg_host *host;    /* for set_error() and log() */
    const char *driver;          /* its name */
    const openreg_driver *below; /* only its open() may be called before that has returned */
    const openreg_option *options;
    uint32_t option_count, padding;
} openreg_layer_site;

#define OPENREG_LAYER_SITE_SIZE_1 48u
static_assert(sizeof(openreg_layer_site) == OPENREG_LAYER_SITE_SIZE_1, "append a field, then freeze its size");

typedef struct openreg_layer {
    uint32_t struct_size, abi_minor; /* sizeof(openreg_layer); OPENREG_ABI_MINOR as compiled into the layer */
    uint32_t table_size;             /* sizeof(openreg_driver), also: it writes no byte of a table beyond that */
    uint32_t reserved;               /* 0 */
    const char *name;                /* for messages */
    /* Called in place of site->below->open(). Fills in *table, which the runtime will call: a copy of *below after its
     * open(), `*table = *site->below`, with functions replaced. On an error the driver is not opened; the layer has then
     * closed what it opened below. close() of the table closes the table below, and the layer's part. */
    openreg_status (*open)(const openreg_layer_site *site, openreg_driver *table, openreg_instance *out);
} openreg_layer;

#define OPENREG_LAYER_SIZE_1 32u
static_assert(sizeof(openreg_layer) == OPENREG_LAYER_SIZE_1, "append a field, then freeze its size");

/* Cheap; called once. Returns a table of static storage in *out. `host` is valid until the process ends. */
typedef openreg_status (*openreg_layer_query_fn)(const openreg_host *host, const openreg_layer **out);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_LAYER_H */
