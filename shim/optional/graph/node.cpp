// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/node.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/copy_ops.h>
#include <c10/core/GradMode.h>

#include "shim/operators/policy/device_check.h"
#include "shim/optional/graph/values.h"

namespace c10::openreg {
namespace {

constexpr c10::DispatchKeySet kKernel(c10::DispatchKey::PrivateUse1);

bool is_in_place(const at::Tensor& fixed, const at::Tensor& result) {
  return fixed.numel() == 0 ||
      (fixed.const_data_ptr() == result.const_data_ptr() && fixed.strides() == result.strides() &&
       fixed.is_conj() == result.is_conj() && fixed.is_neg() == result.is_neg());
}

// Whether it was elsewhere.
bool copy_result(const c10::OperatorHandle& op, const at::Tensor& fixed, const at::Tensor& result) {
  if (!fixed.defined() || !result.defined()) {
    return false;
  }
  TORCH_CHECK(
      fixed.sizes() == result.sizes() && fixed.scalar_type() == result.scalar_type(),
      "Replay of a graph: ",
      name_of(op),
      " has given ",
      result.scalar_type(),
      result.sizes(),
      ", but ",
      fixed.scalar_type(),
      fixed.sizes(),
      " at the capture");
  if (is_in_place(fixed, result)) {
    return false;
  }
  at::Tensor to = fixed;
  at::_ops::copy_::redispatch(kKernel, to, result, /*non_blocking=*/true);
  return true;
}

// A kernel may write into a list that it is given.
c10::IValue own_list(const c10::IValue& value) {
  if (value.isTensorList()) {
    return value.toTensorList().copy();
  }
  return value.isList() ? value.toList().copy() : value;
}

} // namespace

Modes Modes::now() {
  const auto& context = at::globalContext();
  return {
      c10::GradMode::is_enabled(),
      context.deterministicAlgorithms(),
      context.deterministicAlgorithmsWarnOnly(),
      context.deterministicFillUninitializedMemory(),
      context.userEnabledMkldnn(),
      at::get_num_threads(),
      c10::get_default_dtype_as_scalartype()};
}

void Modes::set() const {
  auto& context = at::globalContext();
  c10::GradMode::set_enabled(grad);
  context.setDeterministicAlgorithms(deterministic, warns_only);
  context.setDeterministicFillUninitializedMemory(fills);
  context.setUserEnabledMkldnn(mkldnn);
  if (at::get_num_threads() != threads) {
    at::set_num_threads(threads);
  }
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
}

OperatorNode::OperatorNode(
    c10::OperatorHandle op,
    torch::jit::Stack arguments,
    std::vector<at::Tensor> fixed,
    BlockList blocks,
    const Modes& modes,
    DeviceIndex device,
    bool only_queues)
    : Node(device),
      op_(op),
      arguments_(std::move(arguments)),
      fixed_(std::move(fixed)),
      blocks_(std::move(blocks)),
      modes_(modes),
      only_queues_(only_queues) {}

void OperatorNode::run(torch::jit::Stack& stack, RunScope& scope) const {
  scope.enter(modes_);
  for (const c10::IValue& argument : arguments_) {
    stack.push_back(own_list(argument));
  }
  const auto given = BlockListScope::serve(blocks_); // until the results are gone
  op_.redispatchBoxed(kKernel, &stack);
  bool differs = given.differs();
  if (!fixed_.empty()) {
    size_t i = 0;
    for (const c10::IValue& result : stack) {
      for_each_tensor(result, [&](const at::Tensor& tensor) { differs |= copy_result(op_, fixed_[i++], tensor); });
    }
  }
  if (differs) {
    scope.note_other_memory();
  }
  stack.clear();
}

void OperatorNode::for_each_use(const std::function<void(const at::Tensor&, bool writes)>& see) const {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const bool writes = is_written(op_.schema().arguments()[i]);
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) { see(tensor, writes); });
  }
  for (const at::Tensor& tensor : fixed_) {
    see(tensor, true);
  }
}

std::string OperatorNode::name() const {
  return name_of(op_);
}

bool OperatorNode::only_queues() const {
  return only_queues_;
}

CallNode::CallNode(
    std::string name, std::function<void()> call, std::vector<at::Tensor> tensors, DeviceIndex device, bool is_local)
    : Node(device),
      name_(std::move(name)),
      call_(std::move(call)),
      tensors_(std::move(tensors)),
      is_local_(is_local) {}

void CallNode::run(torch::jit::Stack& /*stack*/, RunScope& /*scope*/) const {
  call_();
}

void CallNode::for_each_use(const std::function<void(const at::Tensor&, bool writes)>& see) const {
  for (const at::Tensor& tensor : tensors_) {
    see(tensor, true); // which of them is not known
  }
}

std::string CallNode::name() const {
  return name_;
}

bool CallNode::runs_in_captures() const {
  return is_local_;
}

} // namespace c10::openreg
