/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/comm.h: collectives between devices of several processes: the driver extension "openreg.comm", version 1. Valid
 * C11 and C++17.
 *
 *   const openreg_comm *comm = table->extension(instance, OPENREG_COMM_NAME, OPENREG_COMM_VERSION);
 *
 * NULL: the driver has none, as where the vendor's library of collectives is not installed; torch.distributed then stages
 * tensors through host memory, as it does for a driver without events, by which the end of a collective is seen. driver.h's rules on threads, devices, errors, loss and ownership hold here too, with these:
 *
 *   Communicators  connect `size` ranks, each a device of one process; rank 0 <= rank < size. All ranks make the same calls
 *                  on a communicator in the same order, with equal counts, types, reductions and roots.
 *   Threads        Functions that take one communicator are called one at a time, but abort() and get_error(), which may be
 *                  called while another thread is in a function of the same communicator. destroy() is the last call.
 *   Streams        What is queued is work of the given stream of the communicator's device, in order with the stream's
 *                  other work: it begins when that has ended, and its result is there for what is queued behind it. The
 *                  calls return without waiting for the work of peers' streams; they may wait for peers to make the same
 *                  call. Memory that is given is the caller's to keep, and to leave alone, until the stream has passed the
 *                  call; descriptors and arrays of counts are read during the call.
 *   Groups         The collectives of one call of queue() run as one, so that no part waits for another's end: to exchange
 *                  messages with several ranks, or in both directions, they stand in one call. Messages between two ranks
 *                  arrive in the order in which they were given.
 *   Counts         are in elements of `type`. 0 elements are valid, and every rank gives 0 then.
 *   In place       recv == send is valid where both have the same size; for ALL_GATHER send may be this rank's part of
 *                  recv, for REDUCE_SCATTER recv may be this rank's part of send. Otherwise the two don't overlap.
 *   Errors         A type or reduction that the vendor's library lacks is E_UNSUPPORTED, and nothing of the call is queued.
 *                  After any other error of queue() the communicator is fit for abort() and destroy() alone. What goes
 *                  wrong later is get_error()'s to tell: E_PEER for a peer that died, E_TIMEOUT for one that didn't come
 *                  in the library's own time; the stream may then never pass the call before abort(). No slot of a stream
 *                  reports it.
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

/* Reductions. AVERAGE is the sum divided by the number of ranks; which way it rounds an integer is the library's. New ones
 * are appended. */
#define OPENREG_COMM_SUM 0
#define OPENREG_COMM_PRODUCT 1
#define OPENREG_COMM_MAX 2
#define OPENREG_COMM_MIN 3
#define OPENREG_COMM_AVERAGE 4

/* Kinds of collective, and what is in `send` and `recv`. "Parts" lie one behind the other in the order of the ranks. */
#define OPENREG_COLLECTIVE_ALL_REDUCE 0     /* recv[i] in every rank: the reduction of send[i] of all */
#define OPENREG_COLLECTIVE_REDUCE 1         /* the same in rank `peer` alone; recv may be NULL in others */
#define OPENREG_COLLECTIVE_BROADCAST 2      /* recv in every rank: send of rank `peer`; send may be NULL in others */
#define OPENREG_COLLECTIVE_ALL_GATHER 3     /* recv has a part for each rank: its send */
#define OPENREG_COLLECTIVE_REDUCE_SCATTER 4 /* send has a part of `count` for each rank, whose recv is its reduction */
#define OPENREG_COLLECTIVE_ALL_TO_ALL 5 /* part r of send becomes this rank's part of recv in rank r; not in place */
#define OPENREG_COLLECTIVE_SEND 6       /* to rank `peer`, which receives from this one; ends when that has begun */
#define OPENREG_COLLECTIVE_RECV 7       /* a rank may send to itself, in one group with the receipt */

/* An element of an array whose distance is the struct_size of the first one. Fields that the kind doesn't name are 0. */
typedef struct openreg_collective {
    uint32_t struct_size;
    int32_t kind; /* OPENREG_COLLECTIVE_* */
    const void *send;
    void *recv;
    uint64_t count; /* of a part, or of all where there are none */
    /* Where parts differ in size: an element for each rank, in place of `count`; NULL in every rank or in none. ALL_GATHER
     * may have recv_counts, the same in every rank, whose send has the count of its own part; ALL_TO_ALL both, and what a
     * rank sends to another is what that receives. */
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

/* Elements of the part of rank `rank`, and of the parts before it. `counts` may be NULL. */
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
    /* Makes the id of one communicator, so many bytes without pointers, which go to the other processes as they are. Called
     * in one rank, for the device that it is to use; it must live until every rank's init() has returned. */
    openreg_status (*unique_id)(openreg_instance, int32_t dev, void *id);
    /* This process's part of the communicator of that id, for device `dev`. Returns when every rank has called it. E_INVALID:
     * there is no such rank, the device has one of it already, or ranks disagree. */
    openreg_status (*init)(openreg_instance, int32_t dev, int32_t rank, int32_t size, const void *id,
                           openreg_driver_comm *out);
    /* Queues `n` > 0 collectives as one group. */
    openreg_status (*queue)(openreg_instance, openreg_driver_comm, openreg_driver_stream,
                            const openreg_collective *list, uint32_t n);
    /* OPENREG_OK, or what has gone wrong in the background, as a peer that has died: then abort() is due. Doesn't wait. */
    openreg_status (*get_error)(openreg_instance, openreg_driver_comm);
    /* Ends what is queued, and calls that wait; results of what had not ended are undefined. The streams go on. Peers are
     * not told. The handle stays until destroy(); other functions fail with E_INVALID. Twice is allowed. */
    openreg_status (*abort)(openreg_instance, openreg_driver_comm);
    /* Frees the communicator; NULL is accepted. The caller has waited for what is queued on it, or has aborted; in the first
     * case it may wait until the peers call it, too. Succeeds also on a device that is lost. */
    openreg_status (*destroy)(openreg_instance, openreg_driver_comm);
} openreg_comm;

#define OPENREG_COMM_SIZE_1 64u
static_assert(sizeof(openreg_comm) == OPENREG_COMM_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_COMM_H */
