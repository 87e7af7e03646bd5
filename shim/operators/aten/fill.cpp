// SPDX-License-Identifier: BSD-3-Clause
// zero_ and fill_ where the host can't reach the memory: the driver sets the bytes, on the current stream, where all
// bytes of the value are the same. PyTorch's zeros, ones, full, their *_like and new_* relatives, `tensor[...] = 0` and
// the gradients that autograd starts from come here. Every other call runs as any operator does.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_zero_ops.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/fill.h>
#include <ATen/ops/zero.h>
#include <openreg/openreg.h>

#include <algorithm>
#include <optional>

#include "shim/base/kernel_library.h"
#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/memory/storage.h"
#include "shim/operators/aten/registrations.h"
#include "shim/operators/fallback/fallback.h"
#include "shim/operators/fallback/route.h"
#include "shim/operators/fallback/typed_kernels.h"
#include "shim/operators/native/native_kernels.h"
#include "shim/operators/policy/operator_counts.h"
#include "shim/operators/policy/operator_policy.h"

namespace c10::openreg {
namespace {

using at::Scalar;
using at::Tensor;

// Types whose elements are whole bytes, and that PyTorch's kernels for the CPU fill.
bool is_ordinary(c10::ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/true) || c10::isComplexType(type) ||
      type == c10::ScalarType::UInt16 || type == c10::ScalarType::UInt32 || type == c10::ScalarType::UInt64 ||
      type == c10::ScalarType::Double || type == c10::ScalarType::Float || c10::isReducedFloatingType(type);
}

// Whether the driver can fill the tensor's memory: it has no kernel of its own for the operator, nor has PyTorch one for
// the GPU that the device is; and the tensor is one range of bytes.
bool can_fill(const c10::OperatorHandle& op, const Tensor& self) {
  if (!self.is_privateuseone() || C10_LIKELY(!is_staged_with_fill(self.device().index()))) {
    return false;
  }
  constexpr c10::DispatchKeySet kOtherValues(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return is_run_by_cpu(op, self.device().index()) && self.layout() == c10::kStrided &&
      !self.key_set().has_any(kOtherValues) && is_ordinary(self.scalar_type()) && self.is_non_overlapping_and_dense() &&
      (self.numel() == 0 || self.const_data_ptr() != nullptr);
}

// What all bytes of the element are; nothing if they differ.
std::optional<uint8_t> byte_of(const Tensor& element) {
  const auto* const first = static_cast<const uint8_t*>(element.const_data_ptr());
  const bool same = std::all_of(first, first + element.nbytes(), [&](uint8_t byte) { return byte == *first; });
  return same ? std::optional(*first) : std::nullopt;
}

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

// As an element of `self`, by PyTorch's own conversions and with their errors.
std::optional<uint8_t> byte_of(const Scalar& value, const Tensor& self) {
  Tensor element = at::detail::empty_cpu({}, self.scalar_type());
  return byte_of(at::_ops::fill__Scalar::redispatch(kCpu, element, value));
}

std::optional<uint8_t> byte_of(const Tensor& value, const Tensor& self) {
  if (!value.is_cpu() || value.dim() != 0) {
    return std::nullopt;
  }
  Tensor element = at::detail::empty_cpu({}, self.scalar_type());
  return byte_of(at::_ops::copy_::redispatch(kCpu, element, value, /*non_blocking=*/false));
}

Tensor& fill_bytes(Tensor& self, uint8_t byte, const std::string& name, OperatorCounter& counter) {
  const DeviceIndex device = self.device().index();
  ask_operator_policy(ExecutionMode::native, name, device);
  const auto start = OperatorClock::now();
  OPENREG_CHECK(openreg_memset_async(device, current_stream(device).id(), writable_data(self), byte, self.nbytes()));
  counter.add_call(0, OperatorClock::now() - start);
  return self;
}

// The driver's work, so it counts as native.
template <class Operator>
Tensor& fill_bytes(Tensor& self, uint8_t byte) {
  const std::string& name = handle_of<Operator>().schema().name();
  static OperatorCounter& counter = operator_counter(ExecutionMode::native, name);
  return fill_bytes(self, byte, name, counter);
}

Tensor& zero_(Tensor& self) {
  const auto& op = handle_of<at::_ops::zero_>();
  return can_fill(op, self) ? fill_bytes<at::_ops::zero_>(self, 0) : run_typed_kernel(op, self);
}

template <class Operator, class Value>
Tensor& fill_(Tensor& self, const Value& value) {
  const auto& op = handle_of<Operator>();
  if (can_fill(op, self)) {
    if (const auto byte = byte_of(value, self)) {
      return fill_bytes<Operator>(self, *byte);
    }
  }
  return run_typed_kernel(op, self, value);
}

// What optimizers' zero_grad(set_to_none=False) calls. As one operator of the CPU's it would stage every gradient.
void foreach_zero_(at::TensorList self) {
  const auto& op = handle_of<at::_ops::_foreach_zero_>();
  if (!std::all_of(self.begin(), self.end(), [&](const Tensor& tensor) { return can_fill(op, tensor); })) {
    call_fallback(op, self);
    return;
  }
  for (Tensor tensor : self) {
    fill_bytes<at::_ops::_foreach_zero_>(tensor, 0);
  }
}

} // namespace

void register_fills() {
  for (const auto& [name, overload] :
       {std::pair("aten::zero_", ""),
        {"aten::fill_", "Scalar"},
        {"aten::fill_", "Tensor"},
        {"aten::_foreach_zero_", ""}}) {
    note_operator_of_fallback({name, overload});
  }
  torch::Library& m = kernel_library("aten", c10::DispatchKey::PrivateUse1);
  m.impl("zero_", zero_);
  m.impl("fill_.Scalar", fill_<at::_ops::fill__Scalar, Scalar>);
  m.impl("fill_.Tensor", fill_<at::_ops::fill__Tensor, Tensor>);
  m.impl("_foreach_zero_", foreach_zero_);
}

} // namespace c10::openreg
