/* SPDX-License-Identifier: BSD-3-Clause */
/* instruments.h: who watches, or disturbs, the calls between the runtime and its drivers. Internal.
 *
 * A call that may be watched reads one flag; where it is 0 nothing else is done. */
#ifndef OPENREG_SRC_INSTRUMENTS_H
#define OPENREG_SRC_INSTRUMENTS_H

#include <openreg/faults.h>

#define OPENREG_INSTRUMENT_FAULTS 1u   /* faults.h */
#define OPENREG_INSTRUMENT_RECORDER 2u /* recorder.h */
#define OPENREG_INSTRUMENT_ERRORS 4u   /* work on the host has left an error that nobody was told of */

static inline unsigned
openreg_instruments(void)
{
    return __atomic_load_n(&openreg_published_instruments, __ATOMIC_RELAXED);
}

/* Any thread. */
void openreg_instruments_switch(unsigned instrument, int on);

/* Kinds of call, a bit each. */
#define OPENREG_CALL_COPY 1u
#define OPENREG_CALL_FILL 2u
#define OPENREG_CALL_KERNEL 4u
#define OPENREG_CALL_FUNCTION 8u
#define OPENREG_CALL_OPERATOR 16u /* that the host has run */
#define OPENREG_CALL_RECORD 32u
#define OPENREG_CALL_STREAM_WAIT 64u /* by a stream, for an event */
#define OPENREG_CALL_STREAM_SYNC 128u
#define OPENREG_CALL_STREAM_QUERY 256u
#define OPENREG_CALL_DEVICE_SYNC 512u
#define OPENREG_CALL_EVENT_SYNC 1024u
#define OPENREG_CALL_SEGMENT 2048u
#define OPENREG_CALL_ALLOCATION 4096u /* of the program */
#define OPENREG_CALL_COLLECTIVE 8192u
#define OPENREG_CALL_FREE 16384u
#define OPENREG_CALL_HOST_ALLOC 32768u
#define OPENREG_CALL_OPEN 65536u /* of a driver; its device is OPENREG_HOST */

#define OPENREG_CALLS_WORK (OPENREG_CALL_COPY | OPENREG_CALL_FILL | OPENREG_CALL_KERNEL | OPENREG_CALL_FUNCTION)
#define OPENREG_CALLS_WAITS (OPENREG_CALL_STREAM_SYNC | OPENREG_CALL_DEVICE_SYNC | OPENREG_CALL_EVENT_SYNC)

#endif
