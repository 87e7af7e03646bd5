/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/communicators.h: collectives between devices of several processes, where the driver has a library for them
 * (openreg/comm.h): for torch.distributed, and for C programs. Part of the C API: the rules of openreg.h on errors, threads
 * and start hold here. Ids, types and reductions, what ranks must agree on, and what "in place" means: comm.h. Valid C11 and
 * C++17. */
#ifndef OPENREG_COMMUNICATORS_H
#define OPENREG_COMMUNICATORS_H

#include <openreg/comm.h>
#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Alive until openreg_communicator_destroy(); until then the choice of drivers can't change. Functions of one communicator
 * are called one at a time, but openreg_communicator_get_error() and openreg_communicator_abort(): from any thread, at any
 * time. */
typedef struct openreg_communicator_s *openreg_communicator;

/* *has = 1: the device's driver has collectives of its own. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_has_communicators(int32_t device, int32_t *has);

/* The id of a new communicator, for one rank to make and all to have. Errors: OPENREG_E_UNSUPPORTED (the driver has no
 * collectives), OPENREG_E_INVALID (out is NULL), the driver's, common ones. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_id(int32_t device, openreg_comm_id *out);

/* This rank's part of it. Waits until each of `size` ranks has called it. Errors: as above, and OPENREG_E_INVALID (a rank
 * that is not in [0, size)), OPENREG_E_NOMEM. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_create(int32_t device, int32_t rank, int32_t size,
                                                                           const openreg_comm_id *id,
                                                                           openreg_communicator *out);

/* Functions of comm.h that are queued on a stream. */
#define OPENREG_COLLECTIVE_ALL_REDUCE 0
#define OPENREG_COLLECTIVE_REDUCE 1
#define OPENREG_COLLECTIVE_BROADCAST 2
#define OPENREG_COLLECTIVE_ALL_GATHER 3
#define OPENREG_COLLECTIVE_REDUCE_SCATTER 4
#define OPENREG_COLLECTIVE_ALL_TO_ALL 5
#define OPENREG_COLLECTIVE_SEND 6
#define OPENREG_COLLECTIVE_RECV 7

typedef struct openreg_collective {
    uint32_t struct_size;
    int32_t kind;     /* OPENREG_COLLECTIVE_* */
    const void *send; /* as the function of that kind has it; other fields are not read */
    void *recv;
    uint64_t count;    /* elements */
    int32_t type;      /* OPENREG_COMM_INT8 and the like */
    int32_t reduction; /* OPENREG_COMM_SUM and the like */
    int32_t peer;      /* the root, or the peer */
    uint32_t reserved; /* 0 */
} openreg_collective;

#define OPENREG_COLLECTIVE_SIZE_1 48u
static_assert(sizeof(openreg_collective) == OPENREG_COLLECTIVE_SIZE_1, "append a field, then freeze its size");

/* Queues it on a stream of the communicator's device. Memory is kept by the caller until the stream has passed it. Errors:
 * OPENREG_E_UNSUPPORTED (a type or reduction that the driver's library lacks; nothing is queued), OPENREG_E_INVALID (kind,
 * a peer that is no rank, an aborted communicator, the stream), the driver's, common ones. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_queue(openreg_communicator communicator,
                                                                          const openreg_collective *what,
                                                                          openreg_stream stream);

/* Around collectives of this thread that run as one: group_start() and group_end() of comm.h. Each start has its end, also
 * after an error in between. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_group_start(openreg_communicator communicator);
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_group_end(openreg_communicator communicator);

/* OPENREG_OK, or what has gone wrong since, as a peer that died: openreg_communicator_abort() is due. Doesn't wait. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_get_error(openreg_communicator communicator);
/* Ends what is queued, with undefined results, so that its streams go on. Twice is allowed. */
OPENREG_API openreg_status openreg_communicator_abort(openreg_communicator communicator);
/* Ends its use, after what was queued on it has ended, or openreg_communicator_abort(). NULL is accepted. */
OPENREG_API openreg_status openreg_communicator_destroy(openreg_communicator communicator);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_COMMUNICATORS_H */
