// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/premultiplied_sum.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string_view>
#include <vector>

namespace c10::openreg {
namespace {

using c10d::PreMulSumSupplement;

at::Tensor multiplied(const at::Tensor& tensor, const PreMulSumSupplement& by, bool in_place) {
  TORCH_CHECK(tensor.is_floating_point(), "Cannot use ReduceOp.PREMUL_SUM with ", tensor.scalar_type(), " tensors");
  if (!by.tensor_factor.defined()) {
    return in_place ? tensor.mul_(by.double_factor) : tensor.mul(by.double_factor);
  }
  const auto factor = by.tensor_factor.reshape({});
  return in_place ? tensor.mul_(factor) : tensor.mul(factor);
}

c10::IValue multiplied(const c10::IValue& value, const PreMulSumSupplement& by, bool in_place) {
  if (value.isTensor()) {
    return multiplied(value.toTensor(), by, in_place);
  }
  if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors) {
      tensor = multiplied(tensor, by, in_place);
    }
    return tensors;
  }
  auto lists = value.to<std::vector<std::vector<at::Tensor>>>();
  for (auto& tensors : lists) {
    for (auto& tensor : tensors) {
      tensor = multiplied(tensor, by, in_place);
    }
  }
  return lists;
}

} // namespace

void premultiply(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  const auto has = [&](std::string_view name) { return schema.argumentIndexWithName(name).has_value(); };
  if (!has("reduce_op")) {
    return;
  }
  const auto arguments = stack.end() - static_cast<std::ptrdiff_t>(schema.arguments().size());
  const auto at = [&](std::string_view name) -> c10::IValue& { return arguments[*schema.argumentIndexWithName(name)]; };
  const auto reduction = at("reduce_op").toCustomClass<c10d::ReduceOp>();
  if (reduction->op_ != c10d::ReduceOp::PREMUL_SUM) {
    return;
  }
  const auto& by = static_cast<const PreMulSumSupplement&>(*reduction->supplement_);
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (const auto* const name : {"tensors", "input_tensors", "input_tensor", "inputs"}) {
    if (has(name)) {
      const bool is_result = std::string_view(name) == "tensors" &&
          (!has("root_rank") ||
           at("root_rank").toInt() == at("process_group").toCustomClass<c10d::ProcessGroup>()->getRank());
      at(name) = multiplied(at(name), by, is_result);
    }
  }
  at("reduce_op") = c10::IValue(c10::make_intrusive<c10d::ReduceOp>(c10d::ReduceOp::SUM));
}

} // namespace c10::openreg
