/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/host_work.h: for libraries that do a stream's work on the host, such as a library of collectives with a host
 * function that returns when the collective is done: whether such functions are queued, and how to report their failure.
 * Part of the C API: the rules of openreg.h on errors, threads and start hold here. Not stable: it is version 0, and
 * may change in any release. Valid C11 and C++17. */
#ifndef OPENREG_HOST_WORK_H
#define OPENREG_HOST_WORK_H

#include <openreg/export.h>
#include <openreg/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* *queued = 1: the device's driver has host_func(), stream_wait() and events, so openreg_stream_launch_host_func(), a record
 * behind it and a stream's wait for that record return at once. 0: one of these calls waits on the host, so the function must
 * not wait for anything that another process or thread does later. Errors: OPENREG_E_INVALID (NULL), common ones. */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_host_func_is_queued(int32_t device, int32_t *queued);

/* Leaves an error on a stream, as failed work of the stream would: the next query or wait of the stream, or wait of the
 * device, fails with `code` and `text`, once. Call it before that work ends. The text is copied, and cut at 511 bytes. The
 * error is lost if there is no host memory for it. The device stays usable.
 *   May be called from a host function, and from any thread.
 * Errors: OPENREG_E_INVALID (text is NULL, code is OPENREG_OK, or OPENREG_E_DEVICE_LOST, which only drivers report), common
 * ones. */
OPENREG_API openreg_status openreg_stream_report_error(int32_t device, int64_t stream, openreg_status code,
                                                       const char *text);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_HOST_WORK_H */
