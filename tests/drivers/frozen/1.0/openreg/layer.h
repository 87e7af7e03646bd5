/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/layer.h: a library that stands between the runtime and its drivers: it counts, checks, logs or disturbs
 * calls, and knows neither side. Not promised: it is version 0, and may change in any release. Valid C11 and C++17.
 * docs/layers.md has more, examples/counting_layer a whole one.
 *
 *   OPENREG_LAYERS=name:path[,name:path]    puts layers around every driver that is opened, the first the outermost
 *
 * A layer is one shared library with one exported function, openreg_layer_query_v1(). For each driver that is opened its
 * open() is called once: it opens what is below, then says which functions of the table it replaces. A replaced function
 * calls that of `below`, or not. The rules of driver.h hold for what a layer gives the runtime, and for how it calls what
 * is below; two cuts are possible:
 *   It keeps the instance    *out is what below->open() gave, and the layer finds its own data by it. It replaces the functions
 *                            that it is interested in; all others, also those that a later driver.h has, and extensions stay.
 *   It has an instance       of its own. Then it replaces all functions of the table, leaves out (NULL) those that it doesn't
 *                            know, and gives extensions of its own or none.
 * Functions that the table lacks are emulated by the runtime above all layers: a layer replaces none of them.
 *
 * What isn't visible in a driver's calls (operators, blocks of the allocator, waits of the host) is for an observer (observer.h). */
#ifndef OPENREG_LAYER_H
#define OPENREG_LAYER_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_LAYER_ABI_MAJOR 1u /* part of the entry point's name */
#define OPENREG_LAYER_ENTRY_NAME "openreg_layer_query_v1"

/* What open() is given. Valid until close() of the driver has returned, except `options`: until open() returns. */
typedef struct openreg_layer_site {
    uint32_t struct_size, reserved;
    const openreg_host *host;    /* for set_error() and log() */
    const char *driver;          /* its name */
    const openreg_driver *below; /* open() is valid; all others are once it has returned */
    const openreg_option *options;
    uint32_t option_count, padding;
} openreg_layer_site;

#define OPENREG_LAYER_SITE_SIZE_1 48u
static_assert(sizeof(openreg_layer_site) == OPENREG_LAYER_SITE_SIZE_1, "append a field, then freeze its size");

typedef struct openreg_layer {
    uint32_t struct_size, abi_minor; /* sizeof(openreg_layer); OPENREG_ABI_MINOR as compiled into the layer */
    uint32_t table_size;             /* sizeof(openreg_driver), likewise: it writes no byte of a table beyond that */
    uint32_t reserved;               /* 0 */
    const char *name;                /* for messages */
    /* Stands for site->below->open(). *table is what the runtime will call, a copy of *below as it is after open(), made by
     * the layer: `*table = *site->below`. An error ends the opening of the driver; what was opened below is closed by the
     * layer then. close() of the table ends what is below, and the layer's part. */
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
