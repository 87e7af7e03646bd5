/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/communicators.h: collectives between devices of several processes, where the driver has a library for them
 * (openreg/comm.h): for torch.distributed, and for C programs. Part of the C API: the rules of openreg.h on errors, threads
 * and start hold here. Ids, collectives, what ranks must agree on, groups, and what "in place" means: comm.h. Valid C11 and
 * C++17. */
#ifndef OPENREG_COMMUNICATORS_H
#define OPENREG_COMMUNICATORS_H

#include <openreg/comm.h>
#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Alive until openreg_communicator_destroy(); until then the selection of drivers can't change. Functions of one communicator
 * are called one at a time, except openreg_communicator_get_error() and openreg_communicator_abort(), which may be called
 * from any thread at any time. */
typedef struct openreg_communicator_s *openreg_communicator;

/* *has = 1: the device's driver has collectives of its own, and events, which show their end. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_device_has_communicators(int32_t device, int32_t *has);

/* Bytes of an id of the driver, 1 to OPENREG_COMM_ID_MAX. Errors: OPENREG_E_UNSUPPORTED (the driver has no collectives),
 * OPENREG_E_INVALID (out is NULL), OPENREG_E_INCOMPATIBLE (its table lacks a function), the driver's, common ones. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_id_size(int32_t device, uint32_t *out);

/* Makes the id of a new communicator, in one rank, which sends it to all others. `size` is that of
 * openreg_communicator_id_size(). Errors: as above, OPENREG_E_INVALID (id is NULL, another size). */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_id(int32_t device, void *id, uint32_t size);

/* Creates this rank's communicator. Waits until each of the `ranks` ranks has called it. Errors: as above, and
 * OPENREG_E_INVALID (a rank that is not in [0, ranks)), OPENREG_E_NOMEM. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_create(int32_t device, int32_t rank, int32_t ranks,
                                                                           const void *id, uint32_t size,
                                                                           openreg_communicator *out);

/* Queues `n` collectives as one group on a stream of the communicator's device; 0 does nothing. The caller keeps their memory
 * until the stream has completed them. Errors: OPENREG_E_UNSUPPORTED (a type or reduction that the driver's library lacks;
 * nothing is queued), OPENREG_E_INVALID (kind, counts that the kind lacks, a peer out of range, an aborted communicator,
 * the stream), the driver's, common ones. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_queue(openreg_communicator communicator,
                                                                          openreg_stream stream,
                                                                          const openreg_collective *list, uint32_t n);

/* OPENREG_OK, or an error in the background, such as a peer that has died; the caller then aborts. Doesn't wait. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_communicator_get_error(openreg_communicator communicator);
/* Ends queued collectives, with undefined results, so that their streams go on. May be called twice. */
OPENREG_API openreg_status openreg_communicator_abort(openreg_communicator communicator);
/* Frees the communicator, after its queued collectives have ended, or openreg_communicator_abort(). NULL is accepted. */
OPENREG_API openreg_status openreg_communicator_destroy(openreg_communicator communicator);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_COMMUNICATORS_H */
