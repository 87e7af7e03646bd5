/* SPDX-License-Identifier: BSD-3-Clause */
// What module.cpp gives the other C++ files. Every function here is called with the GIL held.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/python_headers.h>

#include "csrc/base/bindings.h"

namespace torch_openreg {

// A Python integer, or anything with __index__ but no bool, as a device index. Throws c10::TypeError "invalid argument
// to <function>" for other types, and the error of an index out of range where it does not fit in a DeviceIndex.
c10::DeviceIndex unpack_device_index(PyObject* argument, const char* function);

// Initialises the backend through torch.openreg._lazy_init(), once in a process; raises in a forked child.
void lazy_init();

} // namespace torch_openreg
