/* SPDX-License-Identifier: BSD-3-Clause */
// The rule that all tensors of an operator are on one device, checked before anything runs.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <optional>

#include "shim/operators/policy/tensor_values.h"

namespace c10::openreg {

// Is given the tensors of one call, one after the other. Not allowed are tensors of two openreg devices, or of another
// device type; except, as on CUDA, zero-dimensional CPU tensors that are not written. A
// compiled graph may have tensors of several openreg devices.
class DeviceCheck {
 public:
  explicit DeviceCheck(const c10::FunctionSchema& schema) : schema_(schema) {}

  // `may_be_on_cpu`: whatever its dimension.
  void add(const at::Tensor& tensor, bool written, bool may_be_on_cpu = false) {
    if (!tensor.defined()) {
      return;
    }
    const c10::Device device = tensor.device();
    if (C10_LIKELY(device.is_privateuseone())) {
      if (C10_UNLIKELY(first_.has_value() && *first_ != device)) {
        check_second(device);
        return;
      }
      first_ = device;
      return;
    }
    has_others_ = true;
    if (!other_.has_value() && !may_be_on_cpu && (written || !device.is_cpu() || tensor.dim() != 0)) {
      other_ = device;
    }
  }

  void add(const at::Generator& generator) {
    if (generator.defined()) {
      generator_ = generator.device().type();
    }
  }

  // The device of the (first of the) openreg tensors, -1 if there was none. Throws c10::Error "Expected all tensors to be on the same
  // device, but found at least two devices, ..."; so does add(). And "Expected a
  // '...' device type for generator but found '...'" where a generator is not of the type of the tensors; its index is free.
  DeviceIndex finish() const {
    if (C10_UNLIKELY(first_.has_value() && other_.has_value())) {
      reject(*first_, *other_);
    }
    if (C10_UNLIKELY(generator_.has_value())) {
      check_generator();
    }
    return first_.has_value() ? first_->index() : DeviceIndex{-1};
  }

 private:
  void check_second(c10::Device device) const;
  [[noreturn]] void reject(c10::Device first, c10::Device second) const;
  void check_generator() const;

  const c10::FunctionSchema& schema_;
  std::optional<c10::Device> first_;
  std::optional<c10::Device> other_;
  std::optional<c10::DeviceType> generator_;
  bool has_others_ = false; // tensors that aren't openreg's
};

// Whether a tensor argument may be on the CPU whatever its dimension: the lengths of ctc_loss, and the sizes of nested tensors,
// which are on the CPU for every device.
bool may_be_on_cpu(const c10::FunctionSchema& schema, const c10::Argument& argument);

// DeviceCheck over the values of the schema's arguments, in order.
DeviceIndex common_device(const c10::FunctionSchema& schema, const c10::IValue* arguments, size_t count);

// Whether the kernel changes the argument's tensors.
inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

} // namespace c10::openreg
