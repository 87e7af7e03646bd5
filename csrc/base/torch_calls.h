/* SPDX-License-Identifier: BSD-3-Clause */
// What the C files call of the C++ side, as C functions. No exception of C++ leaves them. Valid C11 and C++20. Every
// function needs the GIL; those that return an int return 0, or -1 with an exception set.
#pragma once

#include <Python.h>
#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

// Sets the exception that belongs to a status other than OPENREG_OK, as the shim maps them (shim/base/status.h). Returns NULL.
PyObject* openreg_raise(openreg_status status);
// None, or openreg_raise(status).
PyObject* openreg_none_or_raise(openreg_status status);

// A Python integer, or anything with __index__ but no bool, as a device index. Sets TypeError "invalid argument to
// <function>" for other types, and the error of an index out of range where it doesn't fit in a DeviceIndex.
int openreg_unpack_device_index(PyObject* argument, const char* function, int32_t* index);
// The same, with the current device for -1.
int openreg_unpack_device(PyObject* argument, const char* function, int32_t* index);

// Initialises the backend through torch.openreg._lazy_init(), once in a process; fails in a forked child.
int openreg_lazy_init(void);

// Before a change of the device table: cached pinned memory would pin the table (without the GIL inside).
int openreg_release_pinned_memory(void);

#ifdef __cplusplus
}
#endif
