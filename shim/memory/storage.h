/* SPDX-License-Identifier: BSD-3-Clause */
// Storages and new tensors in device memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "shim/base/export.h"

namespace c10::openreg {

// A new tensor on the device, contents undefined, without a device guard. Sizes must not be negative.
TORCH_OPENREG_API at::Tensor new_tensor(
    c10::Device device, caffe2::TypeMeta dtype, at::IntArrayRef sizes, at::IntArrayRef strides);
at::Tensor new_contiguous_tensor(c10::Device device, caffe2::TypeMeta dtype, at::IntArrayRef sizes);

// As mutable_data() and mutable_data_ptr(), which make a copy-on-write storage its own: in memory of its own device, also
// where another one is current.
void* writable_data(c10::StorageImpl& storage);
TORCH_OPENREG_API void* writable_data(const at::Tensor& tensor);

// Gives the storage `size` bytes of memory on its own device and keeps the first min(old, new) bytes: their copy is queued
// on the calling thread's current stream there. Throws c10::OutOfMemoryError, and c10::Error for a storage that is not
// resizable.
TORCH_OPENREG_API void resize_storage(c10::StorageImpl& storage, size_t size);

// Sets sizes (and strides; none: contiguous) of a tensor and grows its storage where they need more.
TORCH_OPENREG_API void resize_tensor(
    c10::TensorImpl& tensor, at::IntArrayRef sizes, std::optional<at::IntArrayRef> strides);

} // namespace c10::openreg
