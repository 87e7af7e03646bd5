/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/status.h: the constants that openreg.h and driver.h share: status codes, log levels, flags of events. Valid
 * C11 and C++17. */
#ifndef OPENREG_STATUS_H
#define OPENREG_STATUS_H

#include <stdint.h>

typedef int32_t openreg_status; /* a fixed width, never a C enum */

/* X(name, number, text): the list of codes, from which their names and texts are generated. */
#define OPENREG_STATUS_MAP(X)                                                                                          \
    X(OPENREG_OK, 0, "success")                                                                                        \
    X(OPENREG_E_INVALID, 1, "invalid argument")                                                                        \
    X(OPENREG_E_NOMEM, 2, "out of memory")                                                                             \
    X(OPENREG_E_UNSUPPORTED, 3, "not supported by this driver")                                                        \
    X(OPENREG_E_NO_DEVICE, 4, "no device")                                                                             \
    X(OPENREG_E_INCOMPATIBLE, 5, "incompatible driver, vendor library or ABI")                                         \
    X(OPENREG_E_DEVICE_LOST, 6, "device lost")                                                                         \
    X(OPENREG_E_FORKED, 7, "used in a forked child")                                                                   \
    X(OPENREG_E_INTERNAL, 8, "internal error")                                                                         \
    X(OPENREG_E_BUSY, 9, "in use")                                                                                     \
    X(OPENREG_E_PEER, 10, "a peer has failed")                                                                         \
    X(OPENREG_E_TIMEOUT, 11, "timed out")                                                                              \
    X(OPENREG_E_CAPTURE, 12, "invalid while a stream is captured")

#define OPENREG_OK 0             /* done */
#define OPENREG_E_INVALID 1      /* the caller broke the contract; nothing was done */
#define OPENREG_E_NOMEM 2        /* out of device or host memory; the caller may free caches and try again */
#define OPENREG_E_UNSUPPORTED 3  /* an optional slot or flag is absent */
#define OPENREG_E_NO_DEVICE 4    /* no driver, or a driver without devices */
#define OPENREG_E_INCOMPATIBLE 5 /* ABI, vendor library or kernel module unfit */
#define OPENREG_E_DEVICE_LOST                                                                                          \
    6                        /* sticky for this device until drivers are selected again; driver.h, "A device is lost" */
#define OPENREG_E_FORKED 7   /* this process is a fork() of one that had opened a driver */
#define OPENREG_E_INTERNAL 8 /* a defect; unknown codes of a driver are taken for it */
#define OPENREG_E_BUSY 9     /* the devices have live objects, or a thread is inside a call that uses them */
#define OPENREG_E_PEER 10    /* another process of a collective has failed or ended; comm.h */
#define OPENREG_E_TIMEOUT 11 /* a wait reached its time limit; the work may still be running */
#define OPENREG_E_CAPTURE 12 /* not possible on a stream that is being captured, or the capture was invalidated */

#define OPENREG_LOG_DEBUG 10 /* levels as in Python's logging */
#define OPENREG_LOG_INFO 20
#define OPENREG_LOG_WARNING 30
#define OPENREG_LOG_ERROR 40

#define OPENREG_EVENT_TIMING 1u /* flag of an event: its time can be measured */

#endif /* OPENREG_STATUS_H */
