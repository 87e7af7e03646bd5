/* SPDX-License-Identifier: BSD-3-Clause */
/* validation.c: installs the layer, and checks the slots of a driver and its devices as a whole (validation.h). */
#define _GNU_SOURCE
#include "validation/validation.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/sized_struct.h"
#include "base/text.h"
#include "validation/validated.h"

/* --------------------------------------------------------------------------------------------------------- devices */

/* A structure with a zone behind it that a driver must leave alone. */
typedef struct guarded_info {
    openreg_device_info info;
    unsigned char guard[64];
} guarded_info;

static openreg_status
read_info(openreg_instance v, int32_t dev, openreg_device_info *inout)
{
    static const char slot[] = "device_info";
    guarded_info given;
    memset(&given, 0x5a, sizeof given);
    openreg_sized_read(&given.info, sizeof given.info, inout);
    given.info.struct_size = sizeof given.info;
    const guarded_info before = given;
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, device_info, dev, &given.info);
    if (status != OPENREG_OK && memcmp(&given.info, &before.info, sizeof given.info) != 0)
        openreg_validation_report_written(v, slot, status);
    if (memcmp(given.guard, before.guard, sizeof given.guard) != 0 || given.info.struct_size != sizeof given.info)
        openreg_validation_report(v, OPENREG_RULE_STRUCT_SIZE, slot, "it wrote beyond the structure, or its size");
    if (status == OPENREG_OK)
        openreg_sized_write(inout, &given.info, sizeof given.info);
    return status;
}

/* The runtime calls it once, between open() and the first use; the layer keeps the results that it needs. */
static openreg_status
validated_device_info(openreg_instance v, int32_t dev, openreg_device_info *inout)
{
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, "device_info", dev));
    OPENREG_RETURN_NOT_OK(read_info(v, dev, inout));
    openreg_device_info *const info = &v->devices[dev].info;
    if (info->struct_size != 0)
        return OPENREG_OK;
    openreg_sized_read(info, sizeof *info, inout);
    info->struct_size = sizeof *info;
    if ((info->min_alignment & (info->min_alignment - 1)) != 0)
        info->min_alignment = 0; /* which the runtime refuses */
    return OPENREG_OK;
}

static openreg_status
make_devices(openreg_instance v, int32_t count)
{
    v->devices = calloc((size_t)count, sizeof *v->devices);
    if (v->devices == NULL)
        return openreg_validation_no_memory();
    v->count = count;
    for (int32_t i = 0; i < count; ++i) {
        v->devices[i].stream = openreg_handle_make(v, OPENREG_MADE_BY_STREAM_CREATE, i);
        if (v->devices[i].stream == NULL)
            return OPENREG_E_NOMEM;
    }
    return OPENREG_OK;
}

/* Also requested right after open(). */
static openreg_status
validated_device_count(openreg_instance v, int32_t *out)
{
    int32_t count;
    OPENREG_RETURN_NOT_OK(OPENREG_VALIDATED_OUT(v, &v->inner, device_count, count, &count));
    if (v->devices != NULL && count != v->count)
        openreg_validation_report(v, OPENREG_RULE_COUNT_CONSTANT, "device_count", "it gave %d, and %d before", count,
                                  v->count);
    if (v->devices == NULL && count > 0) /* the runtime refuses others */
        OPENREG_RETURN_NOT_OK(make_devices(v, count));
    *out = count;
    return OPENREG_OK;
}

static openreg_status
validated_device_active(openreg_instance v, int32_t dev, int32_t *out)
{
    static const char slot[] = "device_active";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    int32_t active;
    OPENREG_RETURN_NOT_OK(OPENREG_VALIDATED_OUT(v, &v->inner, device_active, active, dev, &active));
    if (active != 0 && active != 1)
        openreg_validation_report(v, OPENREG_RULE_ACTIVE, slot, "it gave %d", active);
    *out = active;
    return OPENREG_OK;
}

static openreg_status
validated_device_bind(openreg_instance v, int32_t dev)
{
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, "device_bind", dev));
    return OPENREG_VALIDATED(v, &v->inner, device_bind, dev);
}

/* ------------------------------------------------------------------------------------------------------------ life */

static openreg_lock list_lock = OPENREG_LOCK_INITIALIZER; /* guards the list of all layers; outside each one's lock */
static openreg_instance layers;

static void
lock_for_fork(void)
{
    openreg_lock_acquire(&list_lock);
    for (openreg_instance v = layers; v != NULL; v = v->next)
        openreg_lock_acquire(&v->lock);
}

static void
unlock_after_fork(void)
{
    for (openreg_instance v = layers; v != NULL; v = v->next)
        openreg_lock_release(&v->lock);
    openreg_lock_release(&list_lock);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_handle(
        OPENREG_FORK_BOOKS,
        &(openreg_fork_handlers){.prepare = lock_for_fork, .parent = unlock_after_fork, .child = unlock_after_fork});
}

static openreg_instance
new_layer(void)
{
    openreg_instance const v = calloc(1, sizeof *v);
    if (v == NULL)
        return NULL;
    openreg_lock_init(&v->lock);
    openreg_lock_acquire(&list_lock);
    v->next = layers;
    layers = v;
    openreg_lock_release(&list_lock);
    return v;
}

void
openreg_validation_free(openreg_instance v)
{
    openreg_lock_acquire(&list_lock);
    openreg_instance *link = &layers;
    while (*link != v)
        link = &(*link)->next;
    *link = v->next;
    openreg_lock_release(&list_lock);
    openreg_ledger_free(v);
    openreg_lock_destroy(&v->lock);
    if (v->kernels != NULL)
        free((void *)(uintptr_t)v->kernels->list);
    free(v->kernels);
    for (int32_t i = 0; i < v->count; ++i)
        free(v->devices[i].stream);
    free(v->devices);
    free(v);
}

static openreg_status
validated_close(openreg_instance v)
{
    openreg_ledger_report_live(v);
    const openreg_call_span span = openreg_validation_begin(v, "close", NULL, 0);
    const openreg_status status = openreg_validation_end(v, "close", span, v->inner.close(v->instance), 0);
    if (openreg_validation_forget_functions(v))
        openreg_validation_free(v);
    return status;
}

static void
wrap_table(openreg_driver *table)
{
    table->close = validated_close;
    table->device_count = validated_device_count;
    OPENREG_VALIDATED_SLOT(table, device_info);
    OPENREG_VALIDATED_SLOT(table, device_active);
    OPENREG_VALIDATED_SLOT(table, device_bind);
    openreg_validation_wrap_memory(table);
    openreg_validation_wrap_streams(table);
    openreg_validation_wrap_events(table);
    openreg_validation_wrap_host_func(table);
    openreg_validation_wrap_extensions(table);
}

static openreg_status
validated_open(const openreg_layer_site *site, openreg_driver *table, openreg_instance *out)
{
    openreg_instance const v = new_layer();
    if (v == NULL)
        return openreg_validation_no_memory();
    openreg_text_copy(v->name, sizeof v->name, site->driver);
    const openreg_call_span span = openreg_validation_begin(v, "open", &v->instance, sizeof v->instance);
    const openreg_status status = openreg_validation_end(
        v, "open", span, site->below->open(site->host, site->options, site->option_count, &v->instance), 0);
    if (status != OPENREG_OK) {
        openreg_validation_free(v);
        return status;
    }
    v->inner = *site->below;
    *table = v->inner;
    wrap_table(table);
    *out = v;
    return OPENREG_OK;
}

const openreg_layer openreg_validation_layer = {
    .struct_size = sizeof openreg_validation_layer,
    .abi_minor = OPENREG_ABI_MINOR,
    .table_size = sizeof(openreg_driver),
    .name = "validation",
    .open = validated_open,
};
