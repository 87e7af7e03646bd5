/* SPDX-License-Identifier: BSD-3-Clause */
/* watched_call.h: a driver's call under the eyes of the laboratory's instruments. Internal. Around the call of a slot, in
 * the place of OPENREG_DEVICE_CALL():
 *
 *   openreg_watched watched;
 *   status = OPENREG_WATCHED_CALL(&watched, device, call, OPENREG_CALL_FILL, stream, size, table.fill(...));
 *
 * Without an instrument that is one load more. */
#ifndef OPENREG_SRC_WATCHED_CALL_H
#define OPENREG_SRC_WATCHED_CALL_H

#include "driver/driver_calls.h"
#include "laboratory/faults.h"
#include "laboratory/recorder.h"

typedef struct openreg_watched {
    unsigned instruments; /* 0: nobody watches, and nothing else is set */
    openreg_device *device;
    uint32_t kind;
    openreg_driver_stream stream;
    uint64_t ticket; /* of the recorder */
    openreg_fault_verdict verdict;
} openreg_watched;

/* The slow halves. begin_on(): 0 if the call is not to be made; then end_on() has its result all the same. */
int openreg_watched_begin_on(openreg_watched *, openreg_device *, const char *call, uint32_t kind,
                             openreg_driver_stream, uint64_t bytes, const char *name);
openreg_status openreg_watched_end_on(openreg_watched *, openreg_status);

static inline int
openreg_watched_begin(openreg_watched *watched, openreg_device *device, const char *call, uint32_t kind,
                      openreg_driver_stream stream, uint64_t bytes, const char *name)
{
    watched->instruments = openreg_instruments();
    return __builtin_expect(watched->instruments == 0, 1) ||
           openreg_watched_begin_on(watched, device, call, kind, stream, bytes, name);
}

static inline openreg_status
openreg_watched_end(openreg_watched *watched, openreg_status status)
{
    return __builtin_expect(watched->instruments == 0, 1) ? status : openreg_watched_end_on(watched, status);
}

#define OPENREG_WATCHED(watched, device, call, kind, stream, bytes, expression)                                        \
    openreg_watched_end((watched), openreg_watched_begin((watched), (device), (call), (kind), (stream), (bytes), NULL) \
                                       ? (expression)                                                                  \
                                       : OPENREG_OK)
#define OPENREG_WATCHED_CALL(watched, device, call, kind, stream, bytes, expression)                                   \
    OPENREG_DEVICE_CALL(device, call, OPENREG_WATCHED(watched, device, call, kind, stream, bytes, expression))

/* For a query or wait of a stream, or with `whole` a wait of the device: fails also with what the work left meanwhile that
 * the host did for it (openreg/host_work.h). */
openreg_status openreg_watched_tell(const openreg_device *, openreg_driver_stream, int whole, openreg_status);
#define OPENREG_WATCHED_WAIT(watched, device, call, kind, stream, whole, expression)                                   \
    OPENREG_DEVICE_CALL(                                                                                               \
        device, call,                                                                                                  \
        openreg_told(device, stream, whole, OPENREG_WATCHED(watched, device, call, kind, stream, 0, expression)))

static inline openreg_status
openreg_told(const openreg_device *device, openreg_driver_stream stream, int whole, openreg_status status)
{
    return __builtin_expect((openreg_instruments() & OPENREG_INSTRUMENT_ERRORS) == 0, 1)
               ? status
               : openreg_watched_tell(device, stream, whole, status);
}

/* Whether a fault is to act on the copy that was about to be made; then it has not been made. */
static inline int
openreg_watched_is_disturbed(const openreg_watched *watched)
{
    return __builtin_expect(watched->instruments != 0, 0) && watched->verdict.status == OPENREG_OK &&
           !watched->verdict.is_skipped && (watched->verdict.factor > 1 || watched->verdict.corrupts);
}

/* While `on`, calls of this thread are not watched: they are an instrument's own. */
void openreg_watched_pause(int on);

/* Makes it: as slowly as the verdict says, and with the wrong byte. */
openreg_status openreg_watched_copy(const openreg_watched *, const char *call, void *dst, openreg_device *dst_device,
                                    const void *src, openreg_device *src_device, uint64_t size);

#endif
