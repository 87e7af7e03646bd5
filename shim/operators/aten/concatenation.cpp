// SPDX-License-Identifier: BSD-3-Clause
// cat and stack of small tensors where the host reaches the memory: their bytes one behind the other. To show each of them
// to PyTorch's kernel costs more than to copy it. Every other call runs as any operator does.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/stack_ops.h>
#include <openreg/openreg.h>

#include <cstring>
#include <optional>

#include "shim/base/kernel_library.h"
#include "shim/base/status.h"
#include "shim/memory/storage.h"
#include "shim/observe/races.h"
#include "shim/operators/aten/registrations.h"
#include "shim/operators/fallback/kernel_tensor_cache.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/fallback/route.h"
#include "shim/operators/fallback/typed_kernels.h"
#include "shim/operators/policy/operator_counts.h"

namespace c10::openreg {
namespace {

using at::Tensor;

// The mean of the tensors' bytes up to which a copy costs less than what PyTorch's kernel gains by its threads.
constexpr size_t kSmallTensor = 16 << 10;

// PyTorch's kernels for the CPU would run the call, on the device's memory.
template <class Operator>
bool runs_aliased(DeviceIndex device) {
  return execution_mode(device) == ExecutionMode::aliased && is_run_by_cpu(handle_of<Operator>(), device);
}

// Whether the tensor's elements lie one behind the other, and mean what is written there.
bool is_plain(const c10::TensorImpl& tensor) {
  return tensor.device_type() == c10::DeviceType::PrivateUse1 && tensor.layout() == c10::kStrided &&
      !tensor.key_set().has_any(kLazyBits | kNonDense) && tensor.has_storage() && tensor.is_contiguous();
}

// The sum of the tensors' sizes along the dimension `joined`, the only one in which they may differ; with -1, the number of
// tensors. Only for the common case: plain tensors with one device and type, none of them empty, and small on average.
// Otherwise nothing: PyTorch's kernel handles those, and raises the errors.
std::optional<int64_t> length_of_small(
    const at::ITensorListRef& tensors, const c10::TensorImpl& first, int64_t joined) {
  const auto sizes = first.sizes();
  int64_t length = 0;
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      return std::nullopt;
    }
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (impl.dim() != first.dim() || !is_plain(impl) || impl.dtype() != first.dtype() ||
        impl.device() != first.device() || impl.numel() == 0) {
      return std::nullopt;
    }
    for (int64_t i = 0; i < first.dim(); ++i) {
      if (i != joined && impl.sizes()[static_cast<size_t>(i)] != sizes[static_cast<size_t>(i)]) {
        return std::nullopt;
      }
    }
    length += joined < 0 ? 1 : impl.sizes()[static_cast<size_t>(joined)];
    bytes += static_cast<size_t>(impl.numel()) * impl.itemsize();
  }
  return bytes <= tensors.size() * kSmallTensor ? std::optional(length) : std::nullopt;
}

const std::byte* host_address(const c10::TensorImpl& tensor) {
  const auto* const start = static_cast<const std::byte*>(tensor.unsafe_storage().unsafeGetStorageImpl()->data());
  void* host = nullptr;
  OPENREG_CHECK(openreg_host_alias(start + static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize(), &host));
  return static_cast<const std::byte*>(host);
}

void copy_bytes(const at::ITensorListRef& tensors, int64_t dim, Tensor& result) {
  const auto sizes = result.sizes();
  const auto rows = static_cast<size_t>(c10::multiply_integers(sizes.begin(), sizes.begin() + dim));
  const size_t row = result.nbytes() / rows;
  void* host = nullptr;
  OPENREG_CHECK(openreg_host_alias(writable_data(result), &host));
  auto* target = static_cast<std::byte*>(host);
  for (const Tensor& tensor : tensors) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    const size_t part = static_cast<size_t>(impl.numel()) * impl.itemsize() / rows;
    const std::byte* source = host_address(impl);
    for (size_t i = 0; i < rows; ++i) {
      std::memcpy(target + i * row, source + i * part, part);
    }
    target += part;
  }
}

// The tensors one behind the other along `dim`: of theirs, or, stacked, of the result alone. Nothing where the call is for
// PyTorch's kernel.
template <class Operator>
std::optional<Tensor> join_small(const at::ITensorListRef& tensors, int64_t dim, bool stacked) {
  if (tensors.size() == 0) {
    return std::nullopt;
  }
  const Tensor& first = *tensors.begin();
  if (!first.defined() || !first.is_privateuseone()) {
    return std::nullopt;
  }
  const int64_t dims = first.dim() + (stacked ? 1 : 0);
  const DeviceIndex device = first.device().index();
  // What PyTorch makes of four dimensions and more may be channels-last.
  // While races are looked for, KernelView reports the tensors.
  if (races_are_found() || dims == 0 || dims > 3 || dim < -dims || dim >= dims || !runs_aliased<Operator>(device)) {
    return std::nullopt;
  }
  dim = c10::maybe_wrap_dim(dim, dims);
  const c10::TensorImpl& like = *first.unsafeGetTensorImpl();
  const auto length = length_of_small(tensors, like, stacked ? -1 : dim);
  if (!length.has_value()) {
    return std::nullopt;
  }
  const std::string& name = handle_of<Operator>().schema().name();
  OperatorCall call;
  call.take(ExecutionMode::aliased, name, device);
  wait_for_current_stream(device);
  call.begin_work();
  at::DimVector sizes(like.sizes());
  if (stacked) {
    sizes.insert(sizes.begin() + dim, *length);
  } else {
    sizes[static_cast<size_t>(dim)] = *length;
  }
  Tensor result = new_contiguous_tensor(first.device(), like.dtype(), sizes);
  copy_bytes(tensors, dim, result);
  call.end(name, 0);
  return result;
}

Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  using Operator = at::_ops::cat;
  auto result = join_small<Operator>(tensors, dim, /*stacked=*/false);
  return result.has_value() ? *std::move(result) : run_typed_kernel(handle_of<Operator>(), tensors, dim);
}

Tensor stack(at::TensorList tensors, int64_t dim) {
  using Operator = at::_ops::stack;
  auto result = join_small<Operator>(tensors, dim, /*stacked=*/true);
  return result.has_value() ? *std::move(result) : run_typed_kernel(handle_of<Operator>(), tensors, dim);
}

} // namespace

void register_concatenation() {
  for (const char* name : {"aten::cat", "aten::stack"}) {
    note_operator_of_fallback({name, ""});
  }
  torch::Library& m = kernel_library("aten", c10::DispatchKey::PrivateUse1);
  m.impl("cat", cat);
  m.impl("stack", stack);
}

} // namespace c10::openreg
