/* SPDX-License-Identifier: BSD-3-Clause */
/* communicators.c: collectives of a driver's own library (openreg/communicators.h). */
#define _GNU_SOURCE
#include <openreg/communicators.h>

#include <stdlib.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/sized_struct.h"
#include "device/stream.h"
#include "driver/watched_call.h"

struct openreg_communicator_s {
    openreg_device *device;
    const openreg_comm *table;
    openreg_driver_comm native;
    int32_t size;
};

static const char *const names[] = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                    "reduce_scatter", "all_to_all", "send",      "recv"};
#define KINDS ((int32_t)(sizeof names / sizeof names[0]))

static openreg_status
find_table(const char *call, const openreg_device *device, const openreg_comm **out)
{
    const void *table = NULL;
    OPENREG_RETURN_NOT_OK(openreg_call_extension(call, device->driver, &openreg_extension_comm, &table));
    *out = table;
    return OPENREG_OK;
}

static openreg_status
require_table(const char *call, int32_t index, openreg_device **device, const openreg_comm **table)
{
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, device));
    OPENREG_RETURN_NOT_OK(find_table(call, *device, table));
    if (*table == NULL)
        return openreg_error_set_driver(OPENREG_E_UNSUPPORTED, call, (*device)->driver->name,
                                        "it has no collectives of its own (openreg/comm.h)");
    return OPENREG_OK;
}

static openreg_status
reject(const char *call, openreg_communicator communicator)
{
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    return communicator != NULL ? OPENREG_OK : openreg_error_set(OPENREG_E_INVALID, call, "communicator is NULL");
}

openreg_status
openreg_has_communicators(int32_t index, int32_t *has)
{
    static const char call[] = "openreg_has_communicators";
    openreg_device *device = NULL;
    if (has == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "has is NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    const openreg_comm *table = NULL;
    OPENREG_RETURN_NOT_OK(find_table(call, device, &table));
    *has = table != NULL;
    return OPENREG_OK;
}

openreg_status
openreg_communicator_id(int32_t index, openreg_comm_id *out)
{
    static const char call[] = "openreg_communicator_id";
    openreg_device *device = NULL;
    const openreg_comm *table = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(require_table(call, index, &device, &table));
    return OPENREG_DEVICE_CALL(device, call, table->unique_id(device->driver->instance, out));
}

openreg_status
openreg_communicator_create(int32_t index, int32_t rank, int32_t size, const openreg_comm_id *id,
                            openreg_communicator *out)
{
    static const char call[] = "openreg_communicator_create";
    openreg_device *device = NULL;
    const openreg_comm *table = NULL;
    if (id == NULL || out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "id or out is NULL");
    if (size < 1 || rank < 0 || rank >= size)
        return openreg_error_set(OPENREG_E_INVALID, call, "rank %d of %d", rank, size);
    OPENREG_RETURN_NOT_OK(require_table(call, index, &device, &table));
    openreg_communicator const made = malloc(sizeof *made);
    if (made == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a communicator");
    *made = (struct openreg_communicator_s){.device = device, .table = table, .size = size};
    (void)atomic_fetch_add_explicit(&device->live_communicators, 1, memory_order_relaxed);
    openreg_status status = OPENREG_DEVICE_CALL(
        device, call, table->init(device->driver->instance, device->ordinal, rank, size, id, &made->native));
    if (status == OPENREG_OK && made->native == NULL)
        status = openreg_error_set_driver(OPENREG_E_INTERNAL, call, device->driver->name,
                                          "init succeeded but gave no communicator");
    if (status != OPENREG_OK) {
        (void)atomic_fetch_sub_explicit(&device->live_communicators, 1, memory_order_relaxed);
        free(made);
        return status;
    }
    *out = made;
    return OPENREG_OK;
}

static openreg_status
queue(openreg_communicator c, const openreg_collective *w, openreg_driver_stream stream)
{
    openreg_instance const instance = c->device->driver->instance;
    const openreg_comm *const t = c->table;
    switch (w->kind) {
    case OPENREG_COLLECTIVE_ALL_REDUCE:
        return t->all_reduce(instance, c->native, w->send, w->recv, w->count, w->type, w->reduction, stream);
    case OPENREG_COLLECTIVE_REDUCE:
        return t->reduce(instance, c->native, w->send, w->recv, w->count, w->type, w->reduction, w->peer, stream);
    case OPENREG_COLLECTIVE_BROADCAST:
        return t->broadcast(instance, c->native, w->send, w->recv, w->count, w->type, w->peer, stream);
    case OPENREG_COLLECTIVE_ALL_GATHER:
        return t->all_gather(instance, c->native, w->send, w->recv, w->count, w->type, stream);
    case OPENREG_COLLECTIVE_REDUCE_SCATTER:
        return t->reduce_scatter(instance, c->native, w->send, w->recv, w->count, w->type, w->reduction, stream);
    case OPENREG_COLLECTIVE_ALL_TO_ALL:
        return t->all_to_all(instance, c->native, w->send, w->recv, w->count, w->type, stream);
    case OPENREG_COLLECTIVE_SEND:
        return t->send(instance, c->native, w->send, w->count, w->type, w->peer, stream);
    default:
        return t->recv(instance, c->native, w->recv, w->count, w->type, w->peer, stream);
    }
}

openreg_status
openreg_communicator_queue(openreg_communicator communicator, const openreg_collective *what, openreg_stream stream)
{
    static const char call[] = "openreg_communicator_queue";
    openreg_driver_stream handle = NULL;
    OPENREG_RETURN_NOT_OK(reject(call, communicator));
    if (!openreg_sized_is_valid(what, OPENREG_COLLECTIVE_SIZE_1) || what->kind < 0 || what->kind >= KINDS)
        return openreg_error_set(OPENREG_E_INVALID, call, "what is NULL, incomplete or of no known kind");
    if (what->peer < 0 || what->peer >= communicator->size)
        return openreg_error_set(OPENREG_E_INVALID, call, "%s: there is no rank %d of %d", names[what->kind],
                                 what->peer, communicator->size);
    openreg_device *const device = communicator->device;
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(device, call, stream, &handle));
    openreg_stream_is_used(device, names[what->kind], stream);
    if (openreg_device_is_lost(device))
        return openreg_call_lost(device, names[what->kind]);
    openreg_watched watched;
    openreg_error_begin_call();
    openreg_status status = openreg_watched_begin(&watched, device, call, OPENREG_CALL_KERNEL, handle, 0,
                                                  names[what->kind])
                                ? queue(communicator, what, handle)
                                : OPENREG_OK;
    status = openreg_watched_end(&watched, status);
    return openreg_call_end(device, names[what->kind], status);
}

openreg_status
openreg_communicator_group_start(openreg_communicator communicator)
{
    static const char call[] = "openreg_communicator_group_start";
    OPENREG_RETURN_NOT_OK(reject(call, communicator));
    return OPENREG_DEVICE_CALL(communicator->device, call,
                               communicator->table->group_start(communicator->device->driver->instance));
}

openreg_status
openreg_communicator_group_end(openreg_communicator communicator)
{
    static const char call[] = "openreg_communicator_group_end";
    OPENREG_RETURN_NOT_OK(reject(call, communicator));
    /* Of a lost device, too: the group belongs to the thread, and would never end. */
    return OPENREG_RELEASE_CALL(communicator->device, call,
                                communicator->table->group_end(communicator->device->driver->instance));
}

openreg_status
openreg_communicator_get_error(openreg_communicator communicator)
{
    static const char call[] = "openreg_communicator_get_error";
    OPENREG_RETURN_NOT_OK(reject(call, communicator));
    return OPENREG_DEVICE_CALL(
        communicator->device, call,
        communicator->table->get_error(communicator->device->driver->instance, communicator->native));
}

openreg_status
openreg_communicator_abort(openreg_communicator communicator)
{
    static const char call[] = "openreg_communicator_abort";
    OPENREG_RETURN_NOT_OK(reject(call, communicator));
    return OPENREG_RELEASE_CALL(
        communicator->device, call,
        communicator->table->abort(communicator->device->driver->instance, communicator->native));
}

openreg_status
openreg_communicator_destroy(openreg_communicator communicator)
{
    static const char call[] = "openreg_communicator_destroy";
    if (communicator == NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    openreg_device *const device = communicator->device;
    const openreg_status status = OPENREG_RELEASE_CALL(
        device, call, communicator->table->destroy(device->driver->instance, communicator->native));
    if (status != OPENREG_OK)
        return status; /* it lives on */
    (void)atomic_fetch_sub_explicit(&device->live_communicators, 1, memory_order_relaxed);
    free(communicator);
    return OPENREG_OK;
}
