/* SPDX-License-Identifier: BSD-3-Clause */
/* communicators.c: collectives of a driver's own library (openreg/communicators.h). */
#define _GNU_SOURCE
#include <openreg/communicators.h>

#include <stdlib.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "base/sized_struct.h"
#include "device/stream.h"
#include "driver/driver_calls.h"
#include "watch/capture.h"
#include "watch/interceptors.h"
#include "watch/observers.h"

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
openreg_device_has_communicators(int32_t index, int32_t *has)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_device_has_communicators";
    openreg_device *device = NULL;
    if (has == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "has is NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    const openreg_comm *table = NULL;
    OPENREG_RETURN_NOT_OK(find_table(call, device, &table));
    *has = table != NULL && device->driver->table->event_create != NULL;
    return OPENREG_OK;
}

static openreg_status
find_id_size(const char *call, openreg_device *device, const openreg_comm *table, uint32_t *out)
{
    uint32_t size = 0;
    OPENREG_RETURN_NOT_OK(OPENREG_DEVICE_CALL(device, call, table->id_size(device->driver->instance, &size)));
    if (size == 0 || size > OPENREG_COMM_ID_MAX)
        return openreg_error_set_driver(OPENREG_E_INTERNAL, call, device->driver->name,
                                        "id_size gave %u bytes, not 1 to %u", (unsigned)size, OPENREG_COMM_ID_MAX);
    *out = size;
    return OPENREG_OK;
}

openreg_status
openreg_communicator_id_size(int32_t index, uint32_t *out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_communicator_id_size";
    openreg_device *device = NULL;
    const openreg_comm *table = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(require_table(call, index, &device, &table));
    return find_id_size(call, device, table, out);
}

/* Checks that the caller's id has the driver's size. */
static openreg_status
check_id(const char *call, openreg_device *device, const openreg_comm *table, const void *id, uint32_t size)
{
    uint32_t wanted = 0;
    OPENREG_RETURN_NOT_OK(find_id_size(call, device, table, &wanted));
    return id != NULL && size == wanted
               ? OPENREG_OK
               : openreg_error_set(OPENREG_E_INVALID, call, "id is NULL or has %u bytes, not %u", (unsigned)size,
                                   (unsigned)wanted);
}

openreg_status
openreg_communicator_id(int32_t index, void *id, uint32_t size)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_communicator_id";
    openreg_device *device = NULL;
    const openreg_comm *table = NULL;
    OPENREG_RETURN_NOT_OK(require_table(call, index, &device, &table));
    OPENREG_RETURN_NOT_OK(check_id(call, device, table, id, size));
    return OPENREG_DEVICE_CALL(device, call, table->unique_id(device->driver->instance, device->ordinal, id));
}

openreg_status
openreg_communicator_create(int32_t index, int32_t rank, int32_t ranks, const void *id, uint32_t size,
                            openreg_communicator *out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_communicator_create";
    openreg_device *device = NULL;
    const openreg_comm *table = NULL;
    if (id == NULL || out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "id or out is NULL");
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return openreg_error_set(OPENREG_E_INVALID, call, "rank %d of %d", rank, ranks);
    OPENREG_RETURN_NOT_OK(require_table(call, index, &device, &table));
    OPENREG_RETURN_NOT_OK(check_id(call, device, table, id, size));
    openreg_communicator const made = malloc(sizeof *made);
    if (made == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a communicator");
    *made = (struct openreg_communicator_s){.device = device, .table = table, .size = ranks};
    (void)atomic_fetch_add_explicit(&device->live_communicators, 1, memory_order_relaxed);
    openreg_status status = OPENREG_DEVICE_CALL(
        device, call, table->init(device->driver->instance, device->ordinal, rank, ranks, id, &made->native));
    if (status == OPENREG_OK && made->native == NULL)
        status = openreg_error_set_driver(OPENREG_E_INTERNAL, call, device->driver->name,
                                          "init returned OK without a communicator");
    if (status != OPENREG_OK) {
        (void)atomic_fetch_sub_explicit(&device->live_communicators, 1, memory_order_relaxed);
        free(made);
        return status;
    }
    *out = made;
    return OPENREG_OK;
}

static openreg_status
check_collective(const char *call, openreg_communicator communicator, const openreg_collective *what)
{
    if (what->kind < 0 || what->kind >= KINDS)
        return openreg_error_set(OPENREG_E_INVALID, call, "%d is not a kind of collective", what->kind);
    if (what->peer < 0 || what->peer >= communicator->size)
        return openreg_error_set(OPENREG_E_INVALID, call, "%s: there is no rank %d of %d", names[what->kind],
                                 what->peer, communicator->size);
    const int may_receive = what->kind == OPENREG_COLLECTIVE_ALL_GATHER || what->kind == OPENREG_COLLECTIVE_ALL_TO_ALL;
    const int sends = what->send_counts != NULL, receives = what->recv_counts != NULL;
    if ((receives && !may_receive) || (what->kind == OPENREG_COLLECTIVE_ALL_TO_ALL ? sends != receives : sends))
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "%s: counts of ranks are all_gather's (recv_counts) and all_to_all's (both)",
                                 names[what->kind]);
    return OPENREG_OK;
}

typedef struct queued_collectives {
    openreg_communicator communicator;
    const openreg_collective *list;
    uint32_t n;
    openreg_driver_stream stream;
} queued_collectives;

static openreg_status
run(void *argument)
{
    const queued_collectives *const q = argument;
    const openreg_communicator c = q->communicator;
    return c->table->queue(c->device->driver->instance, c->native, q->stream, q->list, q->n);
}

openreg_status
openreg_communicator_queue(openreg_communicator communicator, openreg_stream stream, const openreg_collective *list,
                           uint32_t n)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_communicator_queue";
    openreg_driver_stream handle = NULL;
    OPENREG_RETURN_NOT_OK(reject(call, communicator));
    if (n == 0)
        return OPENREG_OK;
    if (!openreg_sized_is_valid(list, OPENREG_COLLECTIVE_SIZE_1) || list->struct_size % sizeof(void *) != 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "list is NULL or its struct_size not set");
    for (uint64_t i = 0; i < n; ++i)
        OPENREG_RETURN_NOT_OK(check_collective(call, communicator, openreg_collective_at(list, i)));
    openreg_device *const device = communicator->device;
    const char *const name = names[list->kind]; /* of a group: the first one's */
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(device, call, stream, &handle));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_COLLECTIVES, .call = name, .device = device->index, .stream = stream,
                    .communicator = communicator, .list = list, .count = n, .size = (uint64_t)communicator->size);
    openreg_stream_is_used(device, name, stream);
    if (openreg_device_is_lost(device))
        return openreg_call_lost(device, name);
    openreg_call_begin(device, name);
    queued_collectives queued = {communicator, list, n, handle};
    openreg_status status;
    if (openreg_is_observed(OPENREG_OBSERVE_WORK)) {
        const openreg_work work = {call, name, device->index, handle, &openreg_host_services};
        status = openreg_intercepted_run(&work, run, &queued);
    } else {
        status = run(&queued);
    }
    return openreg_call_end(device, name, status);
}

openreg_status
openreg_communicator_get_error(openreg_communicator communicator)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_communicator_get_error";
    OPENREG_RETURN_NOT_OK(reject(call, communicator));
    return OPENREG_DEVICE_CALL(
        communicator->device, call,
        communicator->table->get_error(communicator->device->driver->instance, communicator->native));
}

openreg_status
openreg_communicator_abort(openreg_communicator communicator)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_communicator_abort";
    OPENREG_RETURN_NOT_OK(reject(call, communicator));
    return OPENREG_RELEASE_CALL(
        communicator->device, call,
        communicator->table->abort(communicator->device->driver->instance, communicator->native));
}

openreg_status
openreg_communicator_destroy(openreg_communicator communicator)
{
    OPENREG_INSIDE;
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
