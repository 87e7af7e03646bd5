/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/flight_recorder.h: the last calls of drivers, kept until something goes wrong. Part of the C API: the rules
 * of openreg.h on errors, threads and start hold here. Not promised: it is version 0, and may change in any release.
 * Valid C11 and C++17.
 *
 * The recorder keeps the last N calls: what, device, stream, bytes, when, how it ended, and the operator that it was for.
 * It writes them when a driver's call fails with OPENREG_E_DEVICE_LOST, _INTERNAL, _PEER or _TIMEOUT (asynchronous errors
 * among them, and faults.h's), and in a fatal signal; and when asked to. What is written is a trace in Chrome's JSON format,
 * which Perfetto opens: a process for each device, a thread for each stream.
 *
 * Variables, read when drivers are opened:
 *   OPENREG_FLIGHT_RECORDER       N, from 1 to 1048576, rounded up to a power of two: starts it, and has fatal signals
 *                                 (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) write it, before what else they do
 *   OPENREG_FLIGHT_RECORDER_FILE  where to, "openreg_flight_recorder" otherwise; ".<process>.json" is appended. A child made
 *                                 by fork() writes a file of its own, which begins with its parent's calls. The file is
 *                                 for this user alone; one that is there is replaced only if it is an ordinary file of
 *                                 this user with one name, and no link */
#ifndef OPENREG_FLIGHT_RECORDER_H
#define OPENREG_FLIGHT_RECORDER_H

#include <openreg/lab.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_FLIGHT_RECORDER_MOST (1u << 20)

/* Starts it with room for `calls`, forgetting what it has, or ends it (0). A process has few changes of size: memory of an
 * earlier size is kept, as a thread may be writing there.
 * Errors: OPENREG_E_INVALID (more than OPENREG_FLIGHT_RECORDER_MOST), OPENREG_E_NOMEM. */
OPENREG_WARN_UNUSED static inline openreg_status
openreg_flight_recorder_start(uint32_t calls)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->recorder_start(calls) : OPENREG_E_INCOMPATIBLE;
}

/* Writes what it has to a file; NULL: the one that errors are written to. What is being recorded meanwhile may be missing.
 * Errors: OPENREG_E_INVALID (it was not started, or the file can't be written: the text says why). */
OPENREG_WARN_UNUSED static inline openreg_status
openreg_flight_recorder_write(const char *path)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->recorder_write(path) : OPENREG_E_INCOMPATIBLE;
}

/* For what fails without a call of a driver, as a collective: writes the file that errors are written to, if the recorder is
 * on, and not too often in this process. Never fails. */
static inline void
openreg_flight_recorder_alarm(void)
{
    const openreg_lab *const lab = openreg_lab_peek();
    if (lab != NULL)
        lab->recorder_alarm();
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_FLIGHT_RECORDER_H */
