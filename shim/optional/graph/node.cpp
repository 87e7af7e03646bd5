// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/node.h"

#include <ATen/ops/copy_ops.h>

#include "shim/operators/policy/device_check.h"
#include "shim/optional/graph/values.h"

namespace c10::openreg {
namespace {

constexpr c10::DispatchKeySet kKernel(c10::DispatchKey::PrivateUse1);

void copy_result(const c10::OperatorHandle& op, const at::Tensor& fixed, const at::Tensor& result) {
  if (fixed.defined() && result.defined()) {
    TORCH_CHECK(
        fixed.sizes() == result.sizes(),
        "Replay of a graph: ",
        name_of(op),
        " has given a result of sizes ",
        result.sizes(),
        ", but its kernel for the meta device has said ",
        fixed.sizes());
    at::Tensor to = fixed;
    at::_ops::copy_::redispatch(kKernel, to, result, /*non_blocking=*/true);
  }
}

} // namespace

void Node::note_use(std::vector<Use>& uses, const at::Tensor& tensor, bool writes) {
  if (tensor.defined() && tensor.has_storage() && tensor.numel() > 0 && tensor.is_non_overlapping_and_dense()) {
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    uses.push_back({begin, begin + tensor.nbytes(), writes});
  }
}

OperatorNode::OperatorNode(
    c10::OperatorHandle op, torch::jit::Stack arguments, std::vector<at::Tensor> fixed, DeviceIndex device)
    : Node(device),
      op_(op),
      arguments_(std::move(arguments)),
      fixed_(std::move(fixed)) {}

void OperatorNode::run(torch::jit::Stack& stack) const {
  stack.insert(stack.end(), arguments_.begin(), arguments_.end());
  op_.redispatchBoxed(kKernel, &stack);
  if (!fixed_.empty()) {
    size_t i = 0;
    for (const c10::IValue& result : stack) {
      for_each_tensor(result, [&](const at::Tensor& tensor) { copy_result(op_, fixed_[i++], tensor); });
    }
  }
  stack.clear();
}

std::vector<Node::Use> OperatorNode::uses() const {
  std::vector<Use> found;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const bool writes = is_written(op_.schema().arguments()[i]);
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) { note_use(found, tensor, writes); });
  }
  for (const at::Tensor& tensor : fixed_) {
    note_use(found, tensor, true);
  }
  return found;
}

std::string OperatorNode::name() const {
  return name_of(op_);
}

CallNode::CallNode(std::string name, std::function<void()> call, std::vector<at::Tensor> tensors, DeviceIndex device)
    : Node(device),
      name_(std::move(name)),
      call_(std::move(call)),
      tensors_(std::move(tensors)) {}

void CallNode::run(torch::jit::Stack& /*stack*/) const {
  call_();
}

std::vector<Node::Use> CallNode::uses() const {
  std::vector<Use> found;
  for (const at::Tensor& tensor : tensors_) {
    note_use(found, tensor, false);
  }
  return found;
}

std::string CallNode::name() const {
  return name_;
}

} // namespace c10::openreg
