// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/plan.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shim/operators/policy/device_check.h"

namespace c10::openreg {
namespace {

using Key = c10::DispatchKey;

// They touch no data, and their schemas don't say so. "aten::" is left out.
constexpr std::array<std::string_view, 18> kWithoutData{
    "_efficientzerotensor",
    "_lazy_clone",
    "_resize_output_",
    "_reshape_alias",
    "_unsafe_view",
    "detach",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "lift",
    "new_empty",
    "new_empty_strided",
    "record_stream",
    "resize_",
    "resize_as_",
    "set_",
    "lift_fresh",
};

// Made of other operators on this device (recurrent_cells.cpp), and without a kernel for the meta device.
constexpr std::array<std::string_view, 2> kMadeOfOthers{
    "aten::_thnn_fused_gru_cell",
    "aten::_thnn_fused_gru_cell_backward",
};

bool is_tensors(const c10::TypePtr& type) {
  if (const auto* list = type->castRaw<c10::ListType>()) {
    return is_tensors(list->getElementType());
  }
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    return is_tensors(optional->getElementType());
  }
  return type->kind() == c10::TypeKind::TensorType;
}

bool is_view(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::inplace_view) ||
      std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
           return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
         });
}

// Whether it returns something, and nothing of it is a tensor.
bool answers_the_host(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return !returns.empty() && std::none_of(returns.begin(), returns.end(), [](const c10::Argument& returned) {
    return is_tensors(returned.real_type());
  });
}

bool touches_no_data(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  constexpr std::string_view kAten = "aten::";
  return is_view(op) || answers_the_host(op.schema()) ||
      (name.starts_with(kAten) &&
       std::find(kWithoutData.begin(), kWithoutData.end(), name.substr(kAten.size())) != kWithoutData.end());
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd);
}

Treatment treatment_of(const c10::OperatorHandle& op) {
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
  if (touches_no_data(op)) {
    return Treatment::now;
  }
  const bool is_of_others = std::find(kMadeOfOthers.begin(), kMadeOfOthers.end(), name) != kMadeOfOthers.end() ||
      (is_composite(op) && !op.hasKernelForDispatchKey(Key::PrivateUse1));
  return is_of_others ? Treatment::parts : Treatment::node;
}

// Of PyTorch's own operators; those that are registered later are none of them.
const std::vector<c10::OperatorName>& names() {
  static const auto& all = *new std::vector<c10::OperatorName>(c10::Dispatcher::singleton().getAllOpNames());
  return all;
}

bool is_same_argument(const c10::Argument& a, const c10::Argument& b) {
  return a.name() == b.name() && *a.real_type() == *b.real_type() && is_written(a) == is_written(b);
}

// Whether `out` is `op` with a tensor to write for each result. A generated one calls `op` and copies.
bool writes_results_of(const c10::OperatorHandle& out, const c10::OperatorHandle& op) {
  const auto& given = op.schema().arguments();
  const auto& taken = out.schema().arguments();
  const auto& returns = op.schema().returns();
  return taken.size() == given.size() + returns.size() && !out.hasTag(at::Tag::generated) && !is_composite(out) &&
      std::equal(given.begin(), given.end(), taken.begin(), is_same_argument) &&
      std::all_of(
             taken.begin() + static_cast<std::ptrdiff_t>(given.size()), taken.end(), [](const c10::Argument& argument) {
               return argument.kwarg_only() && is_written(argument) &&
                   argument.real_type()->kind() == c10::TypeKind::TensorType;
             });
}

std::optional<c10::OperatorHandle> out_overload(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  const bool fits = !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const c10::Argument& returned) {
    return returned.alias_info() == nullptr && returned.real_type()->kind() == c10::TypeKind::TensorType;
  });
  const auto& arguments = op.schema().arguments();
  // Losses resize what they are given to their input's shape, and reduce it then: the memory is not what it was.
  const bool reduces = std::any_of(
      arguments.begin(), arguments.end(), [](const c10::Argument& argument) { return argument.name() == "reduction"; });
  if (!fits || reduces || !op.operator_name().name.starts_with("aten::")) {
    return std::nullopt;
  }
  for (const c10::OperatorName& name : names()) {
    if (name.name != op.operator_name().name) {
      continue;
    }
    const auto out = c10::Dispatcher::singleton().findOp(name);
    if (out.has_value() && out->hasSchema() && writes_results_of(*out, op)) {
      return out;
    }
  }
  return std::nullopt;
}

} // namespace

const Plan& plan_of(const c10::OperatorHandle& op) {
  static auto& lock = *new std::mutex;
  static auto& plans = *new std::unordered_map<c10::OperatorName, Plan>; // its elements stay where they are
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = plans.find(op.operator_name());
  if (found != plans.end()) {
    return found->second;
  }
  Plan plan{treatment_of(op), std::nullopt, {}};
  if (op.operator_name().name == "aten::relu") { // clamp_min() is its kernel, and it has no form of its own
    plan.out = c10::Dispatcher::singleton().findOp({"aten::clamp_min", "out"});
    plan.more = {c10::Scalar(0)};
  } else if (plan.treatment == Treatment::node) {
    plan.out = out_overload(op);
  }
  return plans.emplace(op.operator_name(), std::move(plan)).first->second;
}

} // namespace c10::openreg
