// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/non_dense.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DeviceGuard.h>

#include "shim/operators/fallback/kernel_tensor_cache.h"

namespace c10::openreg {
namespace {

using at::native::NestedTensorImpl;

template <class Impl>
Impl* impl_of(const at::Tensor& tensor) {
  return static_cast<Impl*>(tensor.unsafeGetTensorImpl());
}

bool is_kind(const at::Tensor& tensor, c10::DispatchKey kind) {
  return tensor.unsafeGetTensorImpl()->key_set().has(kind);
}

// The keys of `like` as they would be on the device.
c10::DispatchKeySet keys_on(const at::Tensor& like, c10::Device device) {
  return keys_moved(like.key_set(), backend_of(like.device().type()), backend_of(device.type())) - c10::python_ks;
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  const MadeLike part(tensor);
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.unsafeGetTensorImpl()->unsafe_storage()),
      c10::DispatchKeySet(backend_of(tensor.device().type())) | c10::DispatchKeySet(c10::DispatchKey::Dense),
      caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(bytes.storage().nbytes())});
  return bytes;
}

void fill_coo(at::SparseTensorImpl& tensor, const at::SparseTensorImpl& like, const Parts& parts) {
  tensor.raw_resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
  tensor.set_indices_and_values_unsafe(parts[0], parts[1]);
  tensor.set_coalesced(like.coalesced());
}

void fill_quantized(at::QTensorImpl& tensor, at::QTensorImpl& like) {
  tensor.set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  tensor.set_quantizer_(like.quantizer());
}

} // namespace

Parts parts_of(const at::Tensor& tensor) {
  if (is_kind(tensor, c10::DispatchKey::Sparse)) {
    const auto* impl = impl_of<at::SparseTensorImpl>(tensor);
    return {impl->indices(), impl->values()};
  }
  if (is_kind(tensor, c10::DispatchKey::SparseCsr)) {
    const auto* impl = impl_of<at::SparseCsrTensorImpl>(tensor);
    return {impl->compressed_indices(), impl->plain_indices(), impl->values()};
  }
  return {bytes_of(tensor)};
}

at::Tensor non_dense_of(const at::Tensor& like, const Parts& parts, c10::Device device) {
  const MadeLike mode(like);
  const c10::DispatchKeySet keys = keys_on(like, device);
  if (is_kind(like, c10::DispatchKey::Sparse)) {
    const c10::DeviceGuard current(device); // a new SparseTensorImpl is on the current device
    auto tensor = at::detail::make_tensor<at::SparseTensorImpl>(keys, like.dtype());
    fill_coo(*impl_of<at::SparseTensorImpl>(tensor), *impl_of<at::SparseTensorImpl>(like), parts);
    return tensor;
  }
  if (is_kind(like, c10::DispatchKey::SparseCsr)) {
    auto tensor = at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, device, like.layout(), like.dtype());
    impl_of<at::SparseCsrTensorImpl>(tensor)->set_member_tensors(parts[0], parts[1], parts[2], like.sizes());
    return tensor;
  }
  c10::Storage storage = parts[0].storage();
  if (is_kind(like, c10::DispatchKey::NestedTensor)) {
    const auto* impl = impl_of<NestedTensorImpl>(like);
    return at::detail::make_tensor<NestedTensorImpl>(
        std::move(storage),
        keys,
        like.dtype(),
        impl->get_nested_sizes(),
        impl->get_nested_strides(),
        impl->get_storage_offsets());
  }
  auto* impl = impl_of<at::QTensorImpl>(like);
  auto tensor = at::detail::make_tensor<at::QTensorImpl>(std::move(storage), keys, like.dtype(), impl->quantizer());
  fill_quantized(*impl_of<at::QTensorImpl>(tensor), *impl);
  return tensor;
}

void recompose(const at::Tensor& tensor, const at::Tensor& like, const Parts& parts) {
  if (is_kind(tensor, c10::DispatchKey::Sparse)) {
    fill_coo(*impl_of<at::SparseTensorImpl>(tensor), *impl_of<at::SparseTensorImpl>(like), parts);
  } else if (is_kind(tensor, c10::DispatchKey::SparseCsr)) {
    impl_of<at::SparseCsrTensorImpl>(tensor)->set_member_tensors(parts[0], parts[1], parts[2], like.sizes());
  } else if (is_kind(tensor, c10::DispatchKey::Quantized)) {
    fill_quantized(*impl_of<at::QTensorImpl>(tensor), *impl_of<at::QTensorImpl>(like));
  } // nested tensors don't change but for their storage
}

} // namespace c10::openreg
