// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/node.h"

#include <ATen/ops/copy_ops.h>

#include "shim/operators/policy/device_check.h"

namespace c10::openreg {
namespace {

constexpr c10::DispatchKeySet kKernel(c10::DispatchKey::PrivateUse1);

void copy_result(const at::Tensor& fixed, const at::Tensor& result) {
  if (fixed.defined() && result.defined()) {
    at::Tensor to = fixed;
    at::_ops::copy_::redispatch(kKernel, to, result, /*non_blocking=*/true);
  }
}

} // namespace

Node::Node(c10::OperatorHandle op, torch::jit::Stack arguments, std::vector<at::Tensor> fixed, DeviceIndex device)
    : op_(op),
      arguments_(std::move(arguments)),
      fixed_(std::move(fixed)),
      device_(device) {}

void Node::run(torch::jit::Stack& stack) const {
  stack.insert(stack.end(), arguments_.begin(), arguments_.end());
  op_.redispatchBoxed(kKernel, &stack);
  if (!fixed_.empty()) {
    size_t i = 0;
    for (const c10::IValue& result : stack) {
      if (result.isTensor()) {
        copy_result(fixed_[i++], result.toTensor());
      } else if (result.isTensorList()) {
        for (const c10::IValue& tensor : result.toListRef()) {
          copy_result(fixed_[i++], tensor.toTensor());
        }
      }
    }
  }
  stack.clear();
}

std::vector<Node::Use> Node::uses() const {
  std::vector<Use> found;
  const auto note = [&found](const at::Tensor& tensor, bool writes) {
    if (tensor.defined() && tensor.has_storage() && tensor.numel() > 0 && tensor.is_non_overlapping_and_dense()) {
      const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
      found.push_back({begin, begin + tensor.nbytes(), writes});
    }
  };
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const bool writes = is_written(op_.schema().arguments()[i]);
    if (arguments_[i].isTensor()) {
      note(arguments_[i].toTensor(), writes);
    } else if (arguments_[i].isTensorList()) {
      for (const c10::IValue& tensor : arguments_[i].toListRef()) {
        note(tensor.toTensor(), writes);
      }
    }
  }
  for (const at::Tensor& tensor : fixed_) {
    note(tensor, true);
  }
  return found;
}

std::string Node::name() const {
  const auto& name = op_.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

void Node::place_in_order(uint32_t stream, const c10::SmallVector<uint32_t, 4>& before) {
  stream_ = stream;
  before_ = before;
}

} // namespace c10::openreg
