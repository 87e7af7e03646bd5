/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/comm.h: collectives between devices of several processes: the driver extension "openreg.comm", version 1. Valid
 * C11 and C++17.
 *
 *   const openreg_comm *comm = table->extension(instance, OPENREG_COMM_NAME, OPENREG_COMM_VERSION);
 *
 * NULL: the driver has none, as where the vendor's library of collectives is not installed; torch.distributed then stages
 * tensors through host memory. driver.h's rules on threads, devices, errors, loss and ownership hold here too, with these:
 *
 *   Communicators  connect `size` ranks, each a device of one process; rank 0 <= rank < size. All ranks make the same calls
 *                  on a communicator in the same order, with equal counts, types, reductions and roots.
 *   Threads        Functions that take one communicator are called one at a time, but abort() and get_error(), which may be
 *                  called while another thread is in a function of the same communicator. destroy() is the last call.
 *   Streams        What is queued is work of the given stream of the communicator's device, in order with the stream's
 *                  other work: it begins when that has ended, and its result is there for what is queued behind it. The
 *                  calls return without waiting for the work of peers' streams; they may wait for peers to make the same
 *                  call. Memory that is given is the caller's to keep, and to leave alone, until the stream has passed the
 *                  call.
 *   Counts         are in elements of `type`. 0 elements are valid, and every rank gives 0 then.
 *   In place       recv == send is valid where both have the same size; for all_gather() send may be this rank's part of
 *                  recv, for reduce_scatter() recv may be this rank's part of send. Otherwise the two don't overlap.
 *   Errors         A type or reduction that the vendor's library has not is E_UNSUPPORTED, and nothing is queued. After any
 *                  other error of a function that queues, the communicator is fit for abort() and destroy() alone. What goes
 *                  wrong later is get_error()'s to tell: E_PEER for a peer that died, E_TIMEOUT for one that didn't
 *                  come in the library's own time; the stream may then never pass the call
 *                  before abort(). No slot of a stream reports it.
 */
#ifndef OPENREG_COMM_H
#define OPENREG_COMM_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_COMM_NAME "openreg.comm"
#define OPENREG_COMM_VERSION 1u
#define OPENREG_COMM_ID_SIZE 128u

/* Types of elements. Floating-point ones that are not IEEE's: bfloat16, and the 8-bit ones of the OCP's specification
 * (e4m3 without infinities). New ones are appended. */
#define OPENREG_COMM_INT8 0
#define OPENREG_COMM_UINT8 1
#define OPENREG_COMM_INT32 2
#define OPENREG_COMM_UINT32 3
#define OPENREG_COMM_INT64 4
#define OPENREG_COMM_UINT64 5
#define OPENREG_COMM_FLOAT16 6
#define OPENREG_COMM_FLOAT32 7
#define OPENREG_COMM_FLOAT64 8
#define OPENREG_COMM_BFLOAT16 9
#define OPENREG_COMM_FLOAT8_E4M3 10
#define OPENREG_COMM_FLOAT8_E5M2 11

/* Reductions. AVERAGE is the sum divided by the number of ranks; which way it rounds an integer is the library's. New ones
 * are appended. */
#define OPENREG_COMM_SUM 0
#define OPENREG_COMM_PRODUCT 1
#define OPENREG_COMM_MAX 2
#define OPENREG_COMM_MIN 3
#define OPENREG_COMM_AVERAGE 4

typedef struct openreg_comm_id {
    unsigned char bytes[OPENREG_COMM_ID_SIZE]; /* opaque, without pointers: it goes to the other processes as it is */
} openreg_comm_id;

typedef struct openreg_driver_comm_s *openreg_driver_comm; /* driver-owned, from init() to destroy() */

typedef struct openreg_comm {
    uint32_t struct_size, version; /* sizeof(openreg_comm), OPENREG_COMM_VERSION as compiled into the driver */

    /* Makes the id of one communicator: called in one rank, which must live until every rank's init() has returned. */
    openreg_status (*unique_id)(openreg_instance, openreg_comm_id *out);
    /* This process's part of the communicator of that id, for device `dev`. Returns when every rank has called it. E_INVALID:
     * there is no such rank, the device has one of it already, or ranks disagree. */
    openreg_status (*init)(openreg_instance, int32_t dev, int32_t rank, int32_t size, const openreg_comm_id *,
                           openreg_driver_comm *out);
    /* recv[i] in every rank: the reduction of send[i] of all. */
    openreg_status (*all_reduce)(openreg_instance, openreg_driver_comm, const void *send, void *recv, uint64_t count,
                                 int32_t type, int32_t reduction, openreg_driver_stream);
    /* The same in rank `root` alone; recv is not used in others, and may be NULL there. */
    openreg_status (*reduce)(openreg_instance, openreg_driver_comm, const void *send, void *recv, uint64_t count,
                             int32_t type, int32_t reduction, int32_t root, openreg_driver_stream);
    /* recv in every rank: send of rank `root`; send is not used in others, and may be NULL there. */
    openreg_status (*broadcast)(openreg_instance, openreg_driver_comm, const void *send, void *recv, uint64_t count,
                                int32_t type, int32_t root, openreg_driver_stream);
    /* recv has size * count elements: send of each rank, which has `count`, in the order of the ranks. */
    openreg_status (*all_gather)(openreg_instance, openreg_driver_comm, const void *send, void *recv, uint64_t count,
                                 int32_t type, openreg_driver_stream);
    /* send has size * count elements: recv of rank r, which has `count`, is the reduction of the r-th part of all. */
    openreg_status (*reduce_scatter)(openreg_instance, openreg_driver_comm, const void *send, void *recv,
                                     uint64_t count, int32_t type, int32_t reduction, openreg_driver_stream);
    /* Both have size * count elements: the r-th part of send becomes this rank's part of recv in rank r. Not in place. */
    openreg_status (*all_to_all)(openreg_instance, openreg_driver_comm, const void *send, void *recv, uint64_t count,
                                 int32_t type, openreg_driver_stream);
    /* `count` elements to rank `peer`, which calls recv() with this rank; the work ends when the peer's has begun. To
     * exchange with several ranks, or in both directions, calls stand in a group. A rank may send to itself in a group. */
    openreg_status (*send)(openreg_instance, openreg_driver_comm, const void *send, uint64_t count, int32_t type,
                           int32_t peer, openreg_driver_stream);
    openreg_status (*recv)(openreg_instance, openreg_driver_comm, void *recv, uint64_t count, int32_t type,
                           int32_t peer, openreg_driver_stream);
    /* What this thread queues between the two runs as one, so that no part waits for another's end; it is queued by
     * group_end(), which also reports errors of the calls in it. Groups may be nested: the outermost counts. */
    openreg_status (*group_start)(openreg_instance);
    openreg_status (*group_end)(openreg_instance);
    /* OPENREG_OK, or what has gone wrong in the background, as a peer that has died: then abort() is due. Doesn't wait. */
    openreg_status (*get_error)(openreg_instance, openreg_driver_comm);
    /* Ends what is queued, and calls that wait; results of what had not ended are undefined. The streams go on. Peers are
     * not told. The handle stays until destroy(); other functions fail with E_INVALID. Twice is allowed. */
    openreg_status (*abort)(openreg_instance, openreg_driver_comm);
    /* Frees the communicator; NULL is accepted. The caller has waited for what is queued on it, or has aborted; in the first
     * case it may wait until the peers call it, too. Succeeds also on a device that is lost. */
    openreg_status (*destroy)(openreg_instance, openreg_driver_comm);
} openreg_comm;

#define OPENREG_COMM_SIZE_1 128u
static_assert(sizeof(openreg_comm) == OPENREG_COMM_SIZE_1, "append a function, then freeze its size");
static_assert(sizeof(openreg_comm_id) == OPENREG_COMM_ID_SIZE, "an id is its bytes");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_COMM_H */
