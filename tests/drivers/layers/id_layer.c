// SPDX-License-Identifier: BSD-3-Clause
// A layer that gives the ids of a driver's communicators (openreg/comm.h) the size of another vendor's: ID_SIZE bytes, the
// driver's own at their end. init() refuses an id of which a byte was lost on the way.
#include <openreg/comm.h>
#include <openreg/layer.h>
#include <string.h>

// One driver at a time is enough.
static const openreg_layer_site *site;
static const openreg_comm *own;
static openreg_comm given;

static unsigned char
expected(uint32_t i)
{
    return (unsigned char)(i * 7 + 1);
}

static openreg_status
id_size(openreg_instance instance, uint32_t *out)
{
    (void)instance;
    *out = ID_SIZE;
    return OPENREG_OK;
}

// Where the driver's own id begins.
static openreg_status
find_own(openreg_instance instance, uint32_t *out)
{
    uint32_t size = 0;
    const openreg_status status = own->id_size(instance, &size);
    if (status == OPENREG_OK && size > ID_SIZE)
        return openreg_fail(site->host, OPENREG_E_INTERNAL, 0, "the driver's ids are larger");
    *out = ID_SIZE - size;
    return status;
}

static openreg_status
unique_id(openreg_instance instance, int32_t dev, void *id)
{
    uint32_t before = 0;
    const openreg_status status = find_own(instance, &before);
    if (status != OPENREG_OK)
        return status;
    unsigned char *const bytes = id;
    for (uint32_t i = 0; i < before; ++i)
        bytes[i] = expected(i);
    return own->unique_id(instance, dev, bytes + before);
}

static openreg_status
init(openreg_instance instance, int32_t dev, int32_t rank, int32_t size, const void *id, openreg_driver_comm *out)
{
    uint32_t before = 0;
    const openreg_status status = find_own(instance, &before);
    if (status != OPENREG_OK)
        return status;
    const unsigned char *const bytes = id;
    for (uint32_t i = 0; i < before; ++i)
        if (bytes[i] != expected(i))
            return openreg_fail(site->host, OPENREG_E_INVALID, 0, "byte %u of the id is another", (unsigned)i);
    char text[64];
    (void)snprintf(text, sizeof text, "rank %d has an id of %d bytes", rank, ID_SIZE);
    site->host->log(site->host->ctx, OPENREG_LOG_INFO, text);
    return own->init(instance, dev, rank, size, bytes + before, out);
}

static const void *
extension(openreg_instance instance, const char *name, uint32_t version)
{
    const void *const table = site->below->extension(instance, name, version);
    if (table == NULL || strcmp(name, OPENREG_COMM_NAME) != 0)
        return table;
    own = table;
    given = *own;
    given.id_size = id_size;
    given.unique_id = unique_id;
    given.init = init;
    return &given;
}

static openreg_status
layer_open(const openreg_layer_site *at, openreg_driver *table, openreg_instance *out)
{
    const openreg_status status = at->below->open(at->host, at->options, at->option_count, out);
    if (status != OPENREG_OK)
        return status;
    site = at;
    *table = *at->below;
    if (at->below->extension != NULL)
        table->extension = extension;
    return OPENREG_OK;
}

static const openreg_layer layer = {
    .struct_size = sizeof layer,
    .abi_minor = OPENREG_ABI_MINOR,
    .table_size = sizeof(openreg_driver),
    .name = "id",
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
