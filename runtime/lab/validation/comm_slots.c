/* SPDX-License-Identifier: BSD-3-Clause */
/* comm_slots.c: the functions of "openreg.comm" (openreg/comm.h), checked (validated.h). */
#include <string.h>

#include "base/error.h"
#include "validation/validated.h"

#define INNER(v) ((const openreg_comm *)atomic_load(&(v)->extensions[OPENREG_WRAPPED_COMM]))

/* `count` elements at `ptr` are memory of the communicator's device. */
static openreg_status
check_memory(openreg_instance v, const openreg_handle *comm, const openreg_stream_state *state, const void *ptr,
             uint64_t count, openreg_dtype type, const char *what)
{
    const uint64_t size = count * openreg_dtype_size(type);
    if (size > 0)
        openreg_validation_capture_range(v, state, ptr);
    return size == 0 ? OPENREG_OK : openreg_validation_range(v, "queue", ptr, comm->dev, size, what);
}

static openreg_status
check_collective(openreg_instance v, const openreg_handle *comm, const openreg_stream_state *state,
                 const openreg_collective *what)
{
    const int32_t size = comm->size, rank = (int32_t)comm->flags;
    if (what->peer < 0 || what->peer >= size)
        return openreg_validation_refuse(v, OPENREG_RULE_COMM_RANK, OPENREG_E_INVALID, "queue",
                                         "there is no rank %d of %d", what->peer, size);
    uint64_t sent = what->count, received = what->count;
    switch (what->kind) {
    case OPENREG_COLLECTIVE_REDUCE:
        received = rank == what->peer ? received : 0;
        break;
    case OPENREG_COLLECTIVE_BROADCAST:
        sent = rank == what->peer ? sent : 0;
        break;
    case OPENREG_COLLECTIVE_ALL_GATHER:
        sent = openreg_collective_part(what->recv_counts, what->count, rank);
        received = openreg_collective_offset(what->recv_counts, what->count, size);
        break;
    case OPENREG_COLLECTIVE_REDUCE_SCATTER:
        sent *= (uint64_t)size;
        break;
    case OPENREG_COLLECTIVE_ALL_TO_ALL:
        sent = openreg_collective_offset(what->send_counts, what->count, size);
        received = openreg_collective_offset(what->recv_counts, what->count, size);
        break;
    case OPENREG_COLLECTIVE_SEND:
        received = 0;
        break;
    case OPENREG_COLLECTIVE_RECV:
        sent = 0;
        break;
    default:
        break;
    }
    OPENREG_RETURN_NOT_OK(check_memory(v, comm, state, what->send, sent, what->type, "the input"));
    return check_memory(v, comm, state, what->recv, received, what->type, "the output");
}

static openreg_status
validated_queue(openreg_instance v, openreg_driver_comm comm, openreg_driver_stream stream,
                const openreg_collective *list, uint32_t n)
{
    static const char slot[] = "queue";
    openreg_handle *entry = NULL, *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, slot, OPENREG_MADE_BY_COMM_INIT, comm, &entry));
    openreg_status status = openreg_validation_stream(v, slot, entry->dev, stream, &on);
    for (uint64_t i = 0; status == OPENREG_OK && i < n; ++i)
        status = check_collective(v, entry, on->stream, openreg_collective_at(list, i));
    if (status == OPENREG_OK) {
        (void)atomic_fetch_add(&on->stream->queued, 1);
        status = OPENREG_VALIDATED(v, INNER(v), queue, comm, stream, list, n);
    }
    openreg_handle_release(v, entry);
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_id_size(openreg_instance v, uint32_t *out)
{
    uint32_t size;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, INNER(v), id_size, size, &size);
    if (status == OPENREG_OK && (size == 0 || size > OPENREG_COMM_ID_MAX))
        return openreg_validation_refuse(v, OPENREG_RULE_COMM_ID, OPENREG_E_INTERNAL, "id_size", "it gave %u bytes",
                                         (unsigned)size);
    if (status == OPENREG_OK)
        *out = size;
    return status;
}

static openreg_status
validated_unique_id(openreg_instance v, int32_t dev, void *out)
{
    static const char slot[] = "unique_id";
    unsigned char id[OPENREG_COMM_ID_MAX + 8];
    uint32_t size = 0;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    OPENREG_RETURN_NOT_OK(validated_id_size(v, &size));
    const openreg_status status = OPENREG_VALIDATED_OUT(v, INNER(v), unique_id, id, dev, id);
    if (!openreg_validation_is_unwritten(id + size, sizeof id - size))
        openreg_validation_report(v, OPENREG_RULE_COMM_ID, slot, "it wrote beyond the %u bytes of an id",
                                  (unsigned)size);
    if (status == OPENREG_OK)
        memcpy(out, id, size);
    return status;
}

static openreg_status
validated_init(openreg_instance v, int32_t dev, int32_t rank, int32_t size, const void *id, openreg_driver_comm *out)
{
    static const char slot[] = "init";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (rank < 0 || rank >= size)
        return openreg_validation_refuse(v, OPENREG_RULE_COMM_RANK, OPENREG_E_INVALID, slot, "rank %d of %d", rank,
                                         size);
    openreg_handle *const entry = openreg_handle_make(v, OPENREG_MADE_BY_COMM_INIT, dev);
    if (entry == NULL)
        return OPENREG_E_NOMEM;
    entry->flags = (uint32_t)rank;
    entry->size = size;
    openreg_driver_comm comm;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, INNER(v), init, comm, dev, rank, size, id, &comm);
    return openreg_handle_made(v, slot, status, comm, entry, out);
}

static openreg_status
validated_get_error(openreg_instance v, openreg_driver_comm comm)
{
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, "get_error", OPENREG_MADE_BY_COMM_INIT, comm, &entry));
    const openreg_status status = OPENREG_VALIDATED(v, INNER(v), get_error, comm);
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_abort(openreg_instance v, openreg_driver_comm comm)
{
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, "abort", OPENREG_MADE_BY_COMM_INIT, comm, &entry));
    const openreg_status status = OPENREG_VALIDATED(v, INNER(v), abort, comm);
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_destroy(openreg_instance v, openreg_driver_comm comm)
{
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_begin_destroy(v, "destroy", OPENREG_MADE_BY_COMM_INIT, comm, &entry));
    const openreg_status status = OPENREG_VALIDATED(v, INNER(v), destroy, comm);
    return openreg_handle_end_destroy(v, status, comm, entry);
}

const openreg_comm openreg_validated_comm = {
    .struct_size = sizeof(openreg_comm),
    .version = OPENREG_COMM_VERSION,
    .id_size = validated_id_size,
    .unique_id = validated_unique_id,
    .init = validated_init,
    .queue = validated_queue,
    .get_error = validated_get_error,
    .abort = validated_abort,
    .destroy = validated_destroy,
};
