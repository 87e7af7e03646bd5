/* SPDX-License-Identifier: BSD-3-Clause */
// Valid C11 and C++20.
#pragma once

#include <Python.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The segments of a device with their blocks, a list of dicts, or NULL with an exception set. Needs the GIL, which it
// releases while it calls the allocator.
PyObject* openreg_memory_segments(int32_t device);

#ifdef __cplusplus
}
#endif
