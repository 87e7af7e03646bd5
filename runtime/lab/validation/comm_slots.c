/* SPDX-License-Identifier: BSD-3-Clause */
/* comm_slots.c: the functions of "openreg.comm" (openreg/comm.h), checked (validated.h). */
#include <string.h>

#include "base/error.h"
#include "validation/validated.h"

#define COMM_CALL(status, v, slot, expression)                                                                         \
    do {                                                                                                               \
        const openreg_call_span validated_span = openreg_validation_begin((v), (slot));                                \
        (status) = (expression);                                                                                       \
        openreg_validation_end((v), (slot), validated_span, (status), 0);                                              \
    } while (0)

#define INNER(v) atomic_load(&(v)->inner_comm)

/* A call that is queued: what is checked before it, and what is held while it runs. */
typedef struct queued_call {
    openreg_handle *comm, *stream;
} queued_call;

static openreg_status
use_comm(openreg_instance v, const char *slot, openreg_driver_comm comm, openreg_handle **out)
{
    *out = openreg_handle_use(v, OPENREG_MADE_BY_COMM_INIT, comm);
    if (*out == NULL)
        return openreg_validation_refuse(v, OPENREG_RULE_HANDLE_ALIVE, OPENREG_E_INVALID, slot,
                                         "communicator %p is not alive", (void *)comm);
    return OPENREG_OK;
}

static uint64_t
size_of(int32_t type)
{
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && (size_t)type < sizeof sizes ? sizes[type] : 0; /* a later one: not checked */
}

static void
leave(openreg_instance v, const queued_call *call)
{
    openreg_handle_release(v, call->comm);
    openreg_handle_release(v, call->stream);
}

/* On failure nothing is to be left. `peer` -1: the call has none. */
static openreg_status
enter(openreg_instance v, const char *slot, openreg_driver_comm comm, int32_t peer, openreg_driver_stream stream,
      queued_call *call)
{
    openreg_stream_state *state = NULL;
    *call = (queued_call){NULL, NULL};
    OPENREG_RETURN_NOT_OK(use_comm(v, slot, comm, &call->comm));
    openreg_status status = openreg_validation_stream(v, slot, call->comm->dev, stream, &call->stream, &state);
    if (status == OPENREG_OK && peer >= call->comm->size)
        status = openreg_validation_refuse(v, OPENREG_RULE_COMM_RANK, OPENREG_E_INVALID, slot,
                                           "there is no rank %d of %d", peer, call->comm->size);
    if (status == OPENREG_OK)
        (void)atomic_fetch_add_explicit(&state->queued, 1, memory_order_relaxed);
    else
        leave(v, call);
    return status;
}

/* `parts` of `count` elements at `ptr` are memory of the communicator's device. */
static openreg_status
check_memory(openreg_instance v, const char *slot, const queued_call *call, const void *ptr, uint64_t count,
             int32_t parts, int32_t type, const char *what)
{
    const uint64_t size = count * (uint64_t)parts * size_of(type);
    return size == 0 ? OPENREG_OK : openreg_validation_range(v, slot, ptr, call->comm->dev, size, what);
}

/* The body of a function that queues: `to` and `from` parts of `count` elements are written and read. */
#define QUEUE(slot, peer, from, to, function)                                                                          \
    do {                                                                                                               \
        queued_call call;                                                                                              \
        OPENREG_RETURN_NOT_OK(enter(v, (slot), comm, (peer), stream, &call));                                          \
        const int32_t size = call.comm->size;                                                                          \
        const int32_t rank = (int32_t)call.comm->flags;                                                                \
        (void)size;                                                                                                    \
        (void)rank;                                                                                                    \
        openreg_status status = check_memory(v, (slot), &call, send, count, (from), type, "the input");                \
        if (status == OPENREG_OK)                                                                                      \
            status = check_memory(v, (slot), &call, recv, count, (to), type, "the output");                            \
        if (status == OPENREG_OK)                                                                                      \
            COMM_CALL(status, v, (slot), function);                                                                    \
        leave(v, &call);                                                                                               \
        return status;                                                                                                 \
    } while (0)

static openreg_status
validated_all_reduce(openreg_instance v, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                     int32_t type, int32_t reduction, openreg_driver_stream stream)
{
    QUEUE("all_reduce", -1, 1, 1, INNER(v)->all_reduce(v->instance, comm, send, recv, count, type, reduction, stream));
}

static openreg_status
validated_reduce(openreg_instance v, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                 int32_t type, int32_t reduction, int32_t root, openreg_driver_stream stream)
{
    QUEUE("reduce", root, 1, rank == root,
          INNER(v)->reduce(v->instance, comm, send, recv, count, type, reduction, root, stream));
}

static openreg_status
validated_broadcast(openreg_instance v, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                    int32_t type, int32_t root, openreg_driver_stream stream)
{
    QUEUE("broadcast", root, rank == root, 1,
          INNER(v)->broadcast(v->instance, comm, send, recv, count, type, root, stream));
}

static openreg_status
validated_all_gather(openreg_instance v, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                     int32_t type, openreg_driver_stream stream)
{
    QUEUE("all_gather", -1, 1, size, INNER(v)->all_gather(v->instance, comm, send, recv, count, type, stream));
}

static openreg_status
validated_reduce_scatter(openreg_instance v, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                         int32_t type, int32_t reduction, openreg_driver_stream stream)
{
    QUEUE("reduce_scatter", -1, size, 1,
          INNER(v)->reduce_scatter(v->instance, comm, send, recv, count, type, reduction, stream));
}

static openreg_status
validated_all_to_all(openreg_instance v, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                     int32_t type, openreg_driver_stream stream)
{
    QUEUE("all_to_all", -1, size, size, INNER(v)->all_to_all(v->instance, comm, send, recv, count, type, stream));
}

static openreg_status
validated_send(openreg_instance v, openreg_driver_comm comm, const void *send, uint64_t count, int32_t type,
               int32_t peer, openreg_driver_stream stream)
{
    const void *const recv = NULL;
    QUEUE("send", peer, 1, 0, INNER(v)->send(v->instance, comm, send, count, type, peer, stream));
}

static openreg_status
validated_recv(openreg_instance v, openreg_driver_comm comm, void *recv, uint64_t count, int32_t type, int32_t peer,
               openreg_driver_stream stream)
{
    const void *const send = NULL;
    QUEUE("recv", peer, 0, 1, INNER(v)->recv(v->instance, comm, recv, count, type, peer, stream));
}

static openreg_status
validated_group_start(openreg_instance v)
{
    openreg_status status;
    COMM_CALL(status, v, "group_start", INNER(v)->group_start(v->instance));
    return status;
}

static openreg_status
validated_group_end(openreg_instance v)
{
    openreg_status status;
    COMM_CALL(status, v, "group_end", INNER(v)->group_end(v->instance));
    return status;
}

static openreg_status
validated_unique_id(openreg_instance v, openreg_comm_id *out)
{
    static const char slot[] = "unique_id";
    openreg_comm_id before;
    memset(&before, 0x5a, sizeof before);
    openreg_comm_id id = before;
    openreg_status status;
    COMM_CALL(status, v, slot, INNER(v)->unique_id(v->instance, &id));
    openreg_validation_untouched(v, slot, status, &id, &before, sizeof id);
    if (status == OPENREG_OK)
        *out = id;
    return status;
}

static openreg_status
validated_init(openreg_instance v, int32_t dev, int32_t rank, int32_t size, const openreg_comm_id *id,
               openreg_driver_comm *out)
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
    openreg_driver_comm const poison = (openreg_driver_comm)(void *)entry;
    openreg_driver_comm comm = poison;
    openreg_status status;
    COMM_CALL(status, v, slot, INNER(v)->init(v->instance, dev, rank, size, id, &comm));
    openreg_validation_untouched(v, slot, status, &comm, &poison, sizeof comm);
    if (status == OPENREG_OK && (comm == NULL || comm == poison || !openreg_handle_add(v, entry, comm)))
        status = openreg_validation_refuse(v, OPENREG_RULE_COMM_HANDLE, OPENREG_E_INTERNAL, slot,
                                           "it gave %p, which is no communicator, or one that is alive already",
                                           comm == poison ? NULL : (void *)comm);
    if (status != OPENREG_OK)
        openreg_handle_release(v, entry);
    else
        *out = comm;
    return status;
}

static openreg_status
validated_get_error(openreg_instance v, openreg_driver_comm comm)
{
    openreg_handle *entry = NULL;
    openreg_status status;
    OPENREG_RETURN_NOT_OK(use_comm(v, "get_error", comm, &entry));
    COMM_CALL(status, v, "get_error", INNER(v)->get_error(v->instance, comm));
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_abort(openreg_instance v, openreg_driver_comm comm)
{
    openreg_handle *entry = NULL;
    openreg_status status;
    OPENREG_RETURN_NOT_OK(use_comm(v, "abort", comm, &entry));
    COMM_CALL(status, v, "abort", INNER(v)->abort(v->instance, comm));
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_destroy(openreg_instance v, openreg_driver_comm comm)
{
    static const char slot[] = "destroy";
    openreg_handle *entry = NULL;
    int others = 0;
    if (comm != NULL) {
        OPENREG_RETURN_NOT_OK(use_comm(v, slot, comm, &entry));
        openreg_handle_release(v, entry);
        entry = openreg_handle_remove(v, OPENREG_MADE_BY_COMM_INIT, comm, &others);
    }
    if (others > 0)
        openreg_validation_report(v, OPENREG_RULE_DESTROY_UNUSED, slot, "%d calls use communicator %p", others,
                                  (void *)comm);
    openreg_status status;
    COMM_CALL(status, v, slot, INNER(v)->destroy(v->instance, comm));
    if (status != OPENREG_OK && entry != NULL && openreg_handle_add(v, entry, comm))
        return status; /* nothing has changed: it is alive */
    openreg_handle_release(v, entry);
    return status;
}

const openreg_comm openreg_validated_comm = {
    .struct_size = sizeof(openreg_comm),
    .version = OPENREG_COMM_VERSION,
    .unique_id = validated_unique_id,
    .init = validated_init,
    .all_reduce = validated_all_reduce,
    .reduce = validated_reduce,
    .broadcast = validated_broadcast,
    .all_gather = validated_all_gather,
    .reduce_scatter = validated_reduce_scatter,
    .all_to_all = validated_all_to_all,
    .send = validated_send,
    .recv = validated_recv,
    .group_start = validated_group_start,
    .group_end = validated_group_end,
    .get_error = validated_get_error,
    .abort = validated_abort,
    .destroy = validated_destroy,
};
