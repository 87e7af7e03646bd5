/* SPDX-License-Identifier: BSD-3-Clause */
// Copies to and on devices whose operators run PyTorch's kernels for GPUs (gpu_kernels.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace c10::openreg {

// Between tensors of one such device, by the GPU's copy_: strides, dtypes, broadcasting, conj bits. Queued on the current
// stream.
void copy_on_gpu(at::Tensor& destination, const at::Tensor& source);

// To a tensor of such a device from the host or another device, where it is more than a copy of bytes: the source's bytes
// are copied to the device first, and converted there.
void copy_to_gpu(at::Tensor& destination, const at::Tensor& source, bool non_blocking);

} // namespace c10::openreg
