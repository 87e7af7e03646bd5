/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/flight_recorder.h: the last calls of drivers, kept until something goes wrong. Part of the C API: the rules
 * of openreg.h on errors, threads and start hold here. Not stable: it is version 0, and may change in any release.
 * Valid C11 and C++17.
 *
 * The recorder keeps the last N calls: the function, device, stream, bytes, time, result, and the operator that made it. It
 * writes them when a driver's call fails with OPENREG_E_DEVICE_LOST, _INTERNAL, _PEER or _TIMEOUT (also asynchronously, or
 * injected by faults.h), on a fatal signal, and on request. The file is a trace in Chrome's JSON format, which Perfetto opens:
 * a process for each device, a thread for each stream.
 *
 * Variables, read when drivers are opened:
 *   OPENREG_FLIGHT_RECORDER       N, from 1 to 1048576, rounded up to a power of two: starts the recorder, and makes fatal
 *                                 signals (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) write it before they take effect
 *   OPENREG_FLIGHT_RECORDER_FILE  the file, "openreg_flight_recorder" by default; ".<process>.json" is appended. A child made
 *                                 by fork() writes a file of its own, which begins with its parent's calls. Only this user
 *                                 can read the file; an existing one is replaced only if it is a regular file of this user
 *                                 with one name, and not a link */
#ifndef OPENREG_FLIGHT_RECORDER_H
#define OPENREG_FLIGHT_RECORDER_H

#include <openreg/lab.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_FLIGHT_RECORDER_MOST (1u << 20)

/* Starts the recorder with room for `calls` and forgets recorded calls; 0 ends it. A process should change the size only a
 * few times: memory of an earlier size is kept, as a thread may be writing there.
 * Errors: OPENREG_E_INVALID (more than OPENREG_FLIGHT_RECORDER_MOST), OPENREG_E_NOMEM. */
OPENREG_WARN_UNUSED static inline openreg_status
openreg_flight_recorder_start(uint32_t calls)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->recorder_start(calls) : OPENREG_E_INCOMPATIBLE;
}

/* Writes the recorded calls to a file; NULL: the file for errors. Calls recorded at the same time may be missing.
 * Errors: OPENREG_E_INVALID (it was not started, or the file can't be written: the text says why). */
OPENREG_WARN_UNUSED static inline openreg_status
openreg_flight_recorder_write(const char *path)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->recorder_write(path) : OPENREG_E_INCOMPATIBLE;
}

/* For failures without a call of a driver, such as a collective's: writes the file for errors, if the recorder is on; a
 * process does so only a limited number of times. Never fails. */
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
