/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/comm.h: collectives between devices of several processes: the driver extension "openreg.comm", version 1. Valid
 * C11 and C++17.
 *
 *   const openreg_comm *comm = table->extension(instance, OPENREG_COMM_NAME, OPENREG_COMM_VERSION);
 *
 * NULL: the driver has none, for example because the vendor's library of collectives is not installed; torch.distributed
 * then stages tensors through host memory, as it does for a driver without events, which show the end of a collective.
 * driver.h's rules on threads, devices, errors, loss and ownership hold here too, with these:
 *
 *   Communicators  connect `size` ranks, each a device of one process; rank 0 <= rank < size. All ranks make the same calls
 *                  on a communicator in the same order, with equal counts, types, reductions and roots.
 *   Threads        Functions of one communicator are called one at a time, except abort() and get_error(), which may be
 *                  called while another thread is in a function of the same communicator. destroy() is the last call.
 *   Streams        Collectives are work of the given stream of the communicator's device, in order with the stream's other
 *                  work: they begin when earlier work has ended, and later work finds their results. The calls return
 *                  without waiting for the work of peers' streams; they may wait for peers to make the same call. The
 *                  caller keeps the memory that it passes, and does not touch it, until the stream has completed the
 *                  collective; descriptors and arrays of counts are read during the call.
 *   Groups         The collectives of one call of queue() run together, none waiting for another's end: messages to and
 *                  from several ranks, or in both directions, must be queued by one call. Messages between two ranks
 *                  arrive in the order in which they were queued.
 *   Counts         are in elements of `type`. 0 elements are valid if every rank passes 0.
 *   In place       recv == send is valid where both have the same size; for ALL_GATHER send may be this rank's part of
 *                  recv, for REDUCE_SCATTER recv may be this rank's part of send. Otherwise the two don't overlap.
 *   Errors         A type or reduction that the vendor's library lacks is E_UNSUPPORTED, and nothing of the call is queued.
 *                  After any other error of queue() only abort() and destroy() may be called. Later failures are reported
 *                  by get_error() and by no slot of a stream: E_PEER for a peer that died, E_TIMEOUT for a peer that did
 *                  not join within the library's own time limit; the stream may then be blocked until abort().
 */
#ifndef OPENREG_COMM_H
#define OPENREG_COMM_H

#include <openreg/driver.h>
#include <openreg/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_COMM_NAME "openreg.comm"
#define OPENREG_COMM_VERSION 1u
#define OPENREG_COMM_ID_MAX 8192u /* bytes of an id, at most */

/* Reductions. AVERAGE is the sum divided by the number of ranks; how integers are rounded depends on the library. New
 * ones are appended. */
#define OPENREG_COMM_SUM 0
#define OPENREG_COMM_PRODUCT 1
#define OPENREG_COMM_MAX 2
#define OPENREG_COMM_MIN 3
#define OPENREG_COMM_AVERAGE 4

/* Kinds of collective, and the contents of `send` and `recv`. "Parts" lie one behind the other in the order of ranks. */
#define OPENREG_COLLECTIVE_ALL_REDUCE 0     /* recv[i] in every rank: the reduction of send[i] of all */
#define OPENREG_COLLECTIVE_REDUCE 1         /* the same in rank `peer` only; recv may be NULL in others */
#define OPENREG_COLLECTIVE_BROADCAST 2      /* recv in every rank: send of rank `peer`; send may be NULL in others */
#define OPENREG_COLLECTIVE_ALL_GATHER 3     /* recv has a part for each rank: its send */
#define OPENREG_COLLECTIVE_REDUCE_SCATTER 4 /* send has a part of `count` for each rank, whose recv is its reduction */
#define OPENREG_COLLECTIVE_ALL_TO_ALL 5 /* part r of send becomes this rank's part of recv in rank r; not in place */
#define OPENREG_COLLECTIVE_SEND 6       /* to rank `peer`, which receives from this one; ends when that has begun */
#define OPENREG_COLLECTIVE_RECV 7       /* from rank `peer`; a rank may send to itself, with the receipt in one group */

/* An element of an array; elements are struct_size of the first one apart. Fields that the kind doesn't name are 0. */
typedef struct openreg_collective {
    uint32_t struct_size;
    int32_t kind; /* OPENREG_COLLECTIVE_* */
    const void *send;
    void *recv;
    uint64_t count; /* elements of a part, or of the whole if there are no parts */
    /* For parts of different sizes: a count for each rank, in place of `count`; NULL in every rank or in none. ALL_GATHER
     * may have recv_counts, the same in every rank, each sending the count of its own part; ALL_TO_ALL has both, and the
     * count that a rank sends to another is the one that the other receives. */
    const uint64_t *send_counts, *recv_counts;
    openreg_dtype type;
    int32_t reduction; /* OPENREG_COMM_SUM and the like */
    int32_t peer;      /* the root, or the peer */
    uint32_t reserved;
} openreg_collective;

#define OPENREG_COLLECTIVE_SIZE_1 64u
static_assert(sizeof(openreg_collective) == OPENREG_COLLECTIVE_SIZE_1, "append a field, then freeze its size");

OPENREG_HELPER const openreg_collective *
openreg_collective_at(const openreg_collective *list, uint32_t i)
{
    return (const openreg_collective *)(const void *)((const char *)list + (size_t)i * list->struct_size);
}

/* Elements of the part of rank `rank`, and (the offset) of the parts before it. `counts` may be NULL. */
OPENREG_HELPER uint64_t
openreg_collective_part(const uint64_t *counts, uint64_t count, int32_t rank)
{
    return counts != NULL ? counts[rank] : count;
}

OPENREG_HELPER uint64_t
openreg_collective_offset(const uint64_t *counts, uint64_t count, int32_t rank)
{
    uint64_t offset = 0;
    for (int32_t i = 0; i < rank; ++i)
        offset += openreg_collective_part(counts, count, i);
    return offset;
}

typedef struct openreg_driver_comm_s *openreg_driver_comm; /* driver-owned, from init() to destroy() */

/* Every function is required. */
typedef struct openreg_comm {
    uint32_t struct_size, version; /* sizeof(openreg_comm), OPENREG_COMM_VERSION as compiled into the driver */

    /* Bytes of an id: 1 to OPENREG_COMM_ID_MAX, constant from open() to close(). */
    openreg_status (*id_size)(openreg_instance, uint32_t *out);
    /* Makes the id of one communicator: id_size() bytes without pointers, which are sent to the other processes unchanged.
     * Called in one rank, for the device that it will use; that process must live until every rank's init() has returned. */
    openreg_status (*unique_id)(openreg_instance, int32_t dev, void *id);
    /* Joins the communicator of that id as a rank, with device `dev`. Returns when every rank has called it. E_INVALID: no
     * such rank, the device is a rank of this communicator already, or ranks disagree. */
    openreg_status (*init)(openreg_instance, int32_t dev, int32_t rank, int32_t size, const void *id,
                           openreg_driver_comm *out);
    /* Queues `n` > 0 collectives as one group. */
    openreg_status (*queue)(openreg_instance, openreg_driver_comm, openreg_driver_stream,
                            const openreg_collective *list, uint32_t n);
    /* OPENREG_OK, or an error in the background, such as a peer that has died; the caller then aborts. Doesn't wait. */
    openreg_status (*get_error)(openreg_instance, openreg_driver_comm);
    /* Ends queued collectives and waiting calls; results of unfinished collectives are undefined. The streams go on. Peers
     * are not notified. The handle stays until destroy(); other functions fail with E_INVALID. May be called twice. */
    openreg_status (*abort)(openreg_instance, openreg_driver_comm);
    /* Frees the communicator; NULL is accepted. The caller has waited for its queued collectives, or has aborted; in the
     * first case the call may wait until the peers make it, too. Succeeds also on a device that is lost. */
    openreg_status (*destroy)(openreg_instance, openreg_driver_comm);
} openreg_comm;

#define OPENREG_COMM_SIZE_1 64u
static_assert(sizeof(openreg_comm) == OPENREG_COMM_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_COMM_H */
