// SPDX-License-Identifier: BSD-3-Clause
// Operators that change what a tensor shows of its storage, without touching the data: views, set_, resize_.
#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/_lazy_clone_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_unsafe_view_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/new_empty_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "shim/memory/storage.h"

namespace c10::openreg {
namespace {

at::Tensor& set_source_storage_offset(
    at::Tensor& self, at::Storage source, int64_t storage_offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), storage_offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(storage_offset);
  resize_tensor(*impl, size, stride.data() != nullptr ? std::optional(stride) : std::nullopt);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_source_storage_offset(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  at::Storage storage(at::Storage::use_byte_size_t(), 0, self.storage().allocator(), /*resizable=*/true);
  // A new storage of 0 bytes is on the current device; the tensor's own one is meant.
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, self.device()));
  return set_source_storage_offset(self, std::move(storage), 0, {0}, {});
}

const at::Tensor& resize(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> memory_format) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes_before = static_cast<int64_t>(impl->unsafe_storage().nbytes());
  resize_tensor(*impl, size, std::nullopt);
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  if (C10_UNLIKELY(
          at::globalContext().deterministicAlgorithms() &&
          at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_resize_deterministic_(self, bytes_before);
  }
  return self;
}

// Of two tensors' storages, on whichever devices they are.
bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
      self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
      self.strides() == other.strides();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("_unsafe_view", TORCH_FN(at::native::_unsafe_view));
  m.impl("new_empty_strided", TORCH_FN(at::native::new_empty_strided_symint));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("set_.source_Storage_storage_offset", set_source_storage_offset);
  m.impl("set_.source_Storage", set_source_storage);
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", set_empty);
  m.impl("resize_", resize);
  m.impl("is_set_to", is_set_to);
  m.impl("_lazy_clone", TORCH_FN(at::native::_lazy_clone)); // of the tensor's own storage, not of a view of it
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("set_.source_Storage_storage_offset", set_source_storage_offset);
  m.impl("set_.source_Storage", set_source_storage);
}

} // namespace
} // namespace c10::openreg
