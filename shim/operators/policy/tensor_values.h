/* SPDX-License-Identifier: BSD-3-Clause */
// The tensors in a boxed argument: one, a list, or a list of which some may be None.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace c10::openreg {

// A list of which elements may be None. Lists that TorchScript makes have a type that equals PyTorch's and isn't the same
// object, which IValue::isOptionalTensorList() doesn't recognise.
inline bool is_optional_tensor_list(const c10::IValue& value) {
  return value.isOptionalTensorList() ||
      (value.isList() && *value.toList().elementType() == *c10::OptionalType::ofTensor());
}

// The value with `map(tensor)` in place of each tensor; nothing if it has none.
template <class Map>
std::optional<c10::IValue> map_tensors(const c10::IValue& value, Map map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const c10::IValue& tensor : value.toListRef()) {
      tensors.push_back(map(tensor.toTensor()));
    }
    return tensors;
  }
  if (is_optional_tensor_list(value)) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const c10::IValue& tensor : value.toListRef()) {
      tensors.push_back(tensor.isNone() ? std::nullopt : std::optional<at::Tensor>(map(tensor.toTensor())));
    }
    return tensors;
  }
  return std::nullopt;
}

} // namespace c10::openreg
