// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/treatment.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace c10::openreg {
namespace {

using Key = c10::DispatchKey;

bool is_tensors(const c10::TypePtr& type) {
  if (const auto* list = type->castRaw<c10::ListType>()) {
    return is_tensors(list->getElementType());
  }
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    return is_tensors(optional->getElementType());
  }
  return type->kind() == c10::TypeKind::TensorType;
}

// Whether it returns something, and nothing of it is a tensor.
bool answers_the_host(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return !returns.empty() && std::none_of(returns.begin(), returns.end(), [](const c10::Argument& returned) {
    return is_tensors(returned.real_type());
  });
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return is_tensors(argument.real_type());
  });
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd);
}

Treatment find_treatment(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  if (name == "c10d::barrier") {
    return Treatment::refused;
  }
  if (name.starts_with("c10d::")) { // _c10d_functional's are made of these
    return Treatment::collective;
  }
  // Indices that are masks are looked at in each call, and results of a size that is given are not of an unknown one.
  const bool may_be_static = name == "aten::index" || name == "aten::repeat_interleave";
  if (op.hasTag(at::Tag::data_dependent_output) || (op.hasTag(at::Tag::dynamic_output_shape) && !may_be_static)) {
    return Treatment::refused;
  }
  if (op.hasTag(at::Tag::inplace_view)) {
    return Treatment::now;
  }
  if (name == "aten::empty" || name == "aten::empty_strided") { // this device's own kernels
    return Treatment::memory;
  }
  if (is_composite(op) && !op.hasKernelForDispatchKey(Key::PrivateUse1)) {
    return Treatment::parts;
  }
  if (answers_the_host(op.schema())) { // PyTorch's own without a tag look at sizes alone; nobody knows of others
    return name.starts_with("aten::") || !takes_tensors(op.schema()) ? Treatment::now : Treatment::refused;
  }
  return Treatment::node;
}

} // namespace

Treatment treatment_of(const c10::OperatorHandle& op) {
  static auto& lock = *new std::mutex;
  static auto& known = *new std::unordered_map<c10::OperatorName, Treatment>;
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = known.find(op.operator_name());
  return found != known.end() ? found->second : known.emplace(op.operator_name(), find_treatment(op)).first->second;
}

} // namespace c10::openreg
