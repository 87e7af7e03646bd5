/* SPDX-License-Identifier: BSD-3-Clause */
// Tensors that are more than a view of a storage: sparse ones consist of other tensors; nested and quantized ones add to
// a storage what its bytes mean. Here each is a few dense parts, and can be put together on another device from the
// parts there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

namespace c10::openreg {

// Besides Dense, the kinds of tensor that have kernels of their own.
inline constexpr c10::DispatchKeySet kNonDense(
    {c10::DispatchKey::Sparse,
     c10::DispatchKey::SparseCsr,
     c10::DispatchKey::Quantized,
     c10::DispatchKey::NestedTensor});

inline bool is_non_dense(const c10::TensorImpl& tensor) {
  return tensor.key_set().has_any(kNonDense);
}

// Of the types of device that openreg tensors are shown as, and of openreg's own.
inline c10::BackendComponent backend_of(c10::DeviceType type) {
  return type == c10::DeviceType::CPU ? c10::BackendComponent::CPUBit
      : type == c10::DeviceType::CUDA ? c10::BackendComponent::CUDABit
                                      : c10::BackendComponent::PrivateUse1Bit;
}

using Parts = c10::SmallVector<at::Tensor, 3>;

// COO: indices and values. CSR, CSC, BSR, BSC: compressed indices, plain indices, values. Nested and quantized: the
// bytes of the storage. They share the memory of the tensor.
Parts parts_of(const at::Tensor& tensor);

// A tensor of the kind, sizes and dtype of `like` that consists of `parts`, which are on `device`.
at::Tensor non_dense_of(const at::Tensor& like, const Parts& parts, c10::Device device);

// Makes `tensor` what `like`, of the same kind on another device, has become, from the parts of that on tensor's device.
void recompose(const at::Tensor& tensor, const at::Tensor& like, const Parts& parts);

} // namespace c10::openreg
