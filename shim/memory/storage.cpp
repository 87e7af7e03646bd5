// SPDX-License-Identifier: BSD-3-Clause
#include "shim/memory/storage.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "shim/base/status.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/memory/device_allocator.h"

namespace c10::openreg {
namespace {

at::Tensor tensor_with_bytes(c10::Device device, caffe2::TypeMeta dtype, size_t bytes) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      static_cast<int64_t>(bytes),
      device_allocator().allocate_on(device.index(), bytes),
      &device_allocator(),
      /*resizable=*/true);
  return at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

} // namespace

at::Tensor new_contiguous_tensor(c10::Device device, caffe2::TypeMeta dtype, at::IntArrayRef sizes) {
  auto tensor = tensor_with_bytes(device, dtype, at::detail::computeStorageNbytesContiguous(sizes, dtype.itemsize()));
  if (sizes.size() != 1 || sizes[0] != 0) { // a new TensorImpl has sizes {0}
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  }
  return tensor;
}

at::Tensor new_tensor(c10::Device device, caffe2::TypeMeta dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto tensor = tensor_with_bytes(device, dtype, at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize()));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void* writable_data(c10::StorageImpl& storage) {
  if (C10_UNLIKELY(c10::impl::cow::is_cow_data_ptr(storage.data_ptr()))) {
    const c10::DeviceGuard guard(storage.device());
    return storage.mutable_data();
  }
  return storage.mutable_data();
}

void* writable_data(const at::Tensor& tensor) {
  (void)writable_data(*tensor.storage().unsafeGetStorageImpl());
  return tensor.mutable_data_ptr();
}

void resize_storage(c10::StorageImpl& storage, size_t size) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  if (auto* const watch = capture_watch()) {
    watch->moves(storage);
  }
  const DeviceIndex index = storage.device().index();
  c10::DataPtr data = device_allocator().allocate_on(index, size);
  const size_t kept = std::min(size, storage.nbytes());
  if (kept > 0 && storage.data() != nullptr) {
    const c10::Stream stream = current_stream(index);
    OPENREG_CHECK(openreg_memcpy_async(index, stream.id(), data.get(), index, storage.data(), index, kept));
    // The old block goes back to the stream that it was allocated for, which need not be this one.
    device_allocator().recordStream(storage.data_ptr(), stream);
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(size);
}

void resize_tensor(c10::TensorImpl& tensor, at::IntArrayRef sizes, std::optional<at::IntArrayRef> strides) {
  at::detail::check_size_nonnegative(sizes);
  if (tensor.sizes() == sizes && (!strides.has_value() || tensor.strides() == *strides)) {
    return;
  }
  const size_t item = tensor.dtype().itemsize();
  const size_t offset = static_cast<size_t>(tensor.storage_offset());
  const size_t bytes = strides.has_value() ? at::detail::computeStorageNbytes(sizes, *strides, item, offset)
                                           : at::detail::computeStorageNbytesContiguous(sizes, item, offset);
  auto* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  TORCH_CHECK(storage != nullptr, "Tensor: invalid null storage");
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  if (!empty && bytes > storage->nbytes()) {
    resize_storage(*storage, bytes);
  }
  if (strides.has_value()) {
    tensor.set_sizes_and_strides(sizes, *strides);
  } else {
    tensor.set_sizes_contiguous(sizes);
  }
}

} // namespace c10::openreg
