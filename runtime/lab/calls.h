/* SPDX-License-Identifier: BSD-3-Clause */
/* calls.h: the kinds of calls that faults hit and the flight recorder keeps, one bit each. Internal. */
#ifndef OPENREG_LAB_CALLS_H
#define OPENREG_LAB_CALLS_H

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
#define OPENREG_CALL_OPEN 65536u /* of a driver; its device is OPENREG_HOST */

#define OPENREG_CALLS_WORK (OPENREG_CALL_COPY | OPENREG_CALL_FILL | OPENREG_CALL_KERNEL | OPENREG_CALL_FUNCTION)
#define OPENREG_CALLS_WAITS (OPENREG_CALL_STREAM_SYNC | OPENREG_CALL_DEVICE_SYNC | OPENREG_CALL_EVENT_SYNC)

#endif
