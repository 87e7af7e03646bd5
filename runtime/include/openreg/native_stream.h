/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/native_stream.h: from a vendor's stream back to ours. Valid C11 and C++17. */
#ifndef OPENREG_NATIVE_STREAM_H
#define OPENREG_NATIVE_STREAM_H

#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The stream of the device whose openreg_stream_native() is `native`: one that openreg_stream_from_pool() has given, or
 * the default stream, which NULL means too.
 * Errors: OPENREG_E_UNSUPPORTED (no such stream: another library's can't be adopted), common ones, the driver's. */
OPENREG_API openreg_status openreg_stream_from_native(int32_t device, const void *native, openreg_stream *out);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_NATIVE_STREAM_H */
