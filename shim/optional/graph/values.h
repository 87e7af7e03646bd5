/* SPDX-License-Identifier: BSD-3-Clause */
// Tensors among an operator's arguments and results, also in lists and lists of lists.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

#include "shim/operators/policy/device_check.h"

namespace c10::openreg {

inline std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// Calls `see` for each tensor of a value, undefined ones, too.
template <class See>
void for_each_tensor(const c10::IValue& value, const See& see) {
  if (value.isTensor()) {
    see(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      for_each_tensor(item, see);
    }
  }
}

// The same value with other tensors. `change` is not asked for undefined ones.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? change(value.toTensor()) : at::Tensor();
  }
  if (!value.isList()) {
    return value;
  }
  const auto kind = value.toList().elementType()->kind();
  if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::OptionalType && kind != c10::TypeKind::ListType) {
    return value;
  }
  c10::impl::GenericList changed(value.toList().elementType());
  for (const c10::IValue& item : value.toListRef()) {
    const bool is_none = kind == c10::TypeKind::OptionalType && item.isTensor() && !item.toTensor().defined();
    changed.push_back(is_none ? c10::IValue() : with_tensors(item, change));
  }
  return changed;
}

} // namespace c10::openreg
