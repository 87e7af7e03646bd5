/* SPDX-License-Identifier: BSD-3-Clause */
// What other files need of copy.cpp.
#pragma once

#include <ATen/core/Tensor.h>

namespace c10::openreg {

// The CPU's copy_, with the devices' memory shown to it. Strides, dtypes, broadcasting, conj bits, quantization: all its
// business. Either tensor may be on the CPU.
void copy_on_host(at::Tensor& destination, const at::Tensor& source, bool non_blocking);

} // namespace c10::openreg
