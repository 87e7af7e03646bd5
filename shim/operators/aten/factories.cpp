// SPDX-License-Identifier: BSD-3-Clause
// Operators that make tensors: empty, empty_strided, _efficientzerotensor, from_file. Everything else that makes tensors
// (zeros, arange, randn, ...) is built on these by PyTorch, or runs through the fallback.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/from_file.h>

#include "shim/base/device_name.h"
#include "shim/base/kernel_library.h"
#include "shim/device/device.h"
#include "shim/memory/storage.h"
#include "shim/operators/aten/registrations.h"

namespace c10::openreg {
namespace {

c10::Device resolve_device(std::optional<c10::Device> device) {
  const c10::DeviceIndex index = device.has_value() ? device->index() : c10::DeviceIndex{-1};
  // An index out of range is refused by the allocator, whose message names the range.
  return {c10::DeviceType::PrivateUse1, index == -1 ? current_device() : index};
}

void check_options(
    std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  if (C10_UNLIKELY(dtype == c10::ScalarType::ComplexHalf)) { // as at::detail::empty_generic()
    TORCH_WARN_ONCE("ComplexHalf support is experimental and many operators don't support it yet.");
  }
  TORCH_CHECK(
      layout.value_or(c10::kStrided) == c10::kStrided,
      device_name(),
      " has no support for tensors of layout ",
      layout.value_or(c10::kStrided),
      ".");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor filled_if_deterministic(at::Tensor tensor) {
  // torch.utils.deterministic.fill_uninitialized_memory, as the CPU's empty() does it.
  if (C10_UNLIKELY(
          at::globalContext().deterministicAlgorithms() &&
          at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor empty_memory_format(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> memory_format) {
  check_options(dtype, layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  auto tensor =
      new_contiguous_tensor(resolve_device(device), c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype)), size);
  if (memory_format.has_value() && *memory_format != c10::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  return filled_if_deterministic(std::move(tensor));
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  check_options(dtype, layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  return filled_if_deterministic(
      new_tensor(resolve_device(device), c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype)), size, stride));
}

at::Tensor efficient_zero_tensor(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  check_options(dtype, layout, pin_memory);
  at::native::ZeroTensorAllocator no_memory(resolve_device(device));
  // The ZeroTensor key must stay: without it, formulas that skip zero tensors read a null pointer.
  const auto keys =
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::Tensor(at::detail::empty_generic(size, &no_memory, keys, c10::dtype_or_default(dtype), std::nullopt));
}

// A private mapping of a file is a copy, and the device's is one too. A shared one would have to write back.
at::Tensor from_file(
    c10::string_view filename,
    std::optional<bool> shared,
    std::optional<int64_t> size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !shared.value_or(false),
      "torch.from_file(shared=True): a file can't be mapped into the memory of ",
      a_device_name(),
      " device. Read it with "
      "shared=False, or map it on the CPU.");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::Device sink = device.value_or(c10::Device(c10::DeviceType::PrivateUse1));
  return at::from_file(filename, shared, size, dtype, layout, c10::kCPU, false).to(sink);
}

} // namespace

void register_factories() {
  torch::Library& m = kernel_library("aten", c10::DispatchKey::PrivateUse1);
  m.impl("from_file", from_file);
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", efficient_zero_tensor);
}

} // namespace c10::openreg
