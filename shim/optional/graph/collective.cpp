// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/collective.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shim/optional/graph/kept_tensors.h"
#include "shim/optional/graph/values.h"

namespace c10::openreg {
namespace {

bool is_work(const c10::IValue& value) {
  static const auto type = c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>();
  return value.isObject() && value.type()->isSubtypeOf(*type);
}

class CollectiveNode final : public Node {
 public:
  CollectiveNode(const c10::OperatorHandle& op, torch::jit::Stack arguments, DeviceIndex device)
      : Node(device),
        op_(op),
        arguments_(std::move(arguments)),
        is_message_(name_of(op) == "c10d::send" || op.operator_name().name.starts_with("c10d::recv")) {}

  void run(torch::jit::Stack& stack, RunScope& /*scope*/) const override {
    stack.insert(stack.end(), arguments_.begin(), arguments_.end());
    op_.callBoxed(&stack);
    for (const c10::IValue& result : stack) {
      if (is_work(result)) {
        started_ = result.toCustomClass<c10d::Work>();
      }
    }
    stack.clear();
    if (!is_message_) {
      wait();
    }
  }

  // For a message that was sent or received, by the node that the program's wait() has become: the peer may wait for what
  // comes between. In one thread with run().
  void wait() const {
    if (const auto work = std::exchange(started_, nullptr)) {
      work->wait();
    }
  }

  bool is_message() const {
    return is_message_;
  }

  // Its first argument has the results.
  void for_each_use(const std::function<void(const at::Tensor&, bool writes)>& see) const override {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) { see(tensor, i == 0); });
    }
  }

  std::string name() const override {
    return name_of(op_);
  }

  bool runs_in_captures() const override {
    return false;
  }

 private:
  const c10::OperatorHandle op_;
  const torch::jit::Stack arguments_;
  const bool is_message_;
  mutable c10::intrusive_ptr<c10d::Work> started_; // not waited for yet
};

// What a call in a capture returns.
class CollectiveInGraph final : public c10d::Work {
 public:
  // The current stream is that of the call, behind its node.
  CollectiveInGraph(std::shared_ptr<const CollectiveNode> node, std::vector<at::Tensor> outputs, c10::Device device)
      : node_(std::move(node)),
        outputs_(std::move(outputs)),
        device_(device),
        event_(device.type()),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device})) {
    event_.record(current_stream());
    future_->markCompleted(outputs_); // with events of its own
  }

  bool isCompleted() override {
    return event_.query(); // which raises: an event of a capture can't be queried
  }

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }

  void synchronize() override {
    const c10::Stream stream = current_stream();
    event_.block(stream);
    const StreamKey key{stream.device_index(), stream.id()};
    if (const auto capture = node_->is_message() ? Captures::instance().of_stream(key) : nullptr) {
      const auto wait = [node = node_] { node->wait(); };
      capture->run(
          std::make_shared<CallNode>("wait for " + node_->name(), wait, outputs_, key.device, /*is_local=*/false), key);
    }
  }

  std::vector<at::Tensor> result() override {
    return outputs_;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (node_->is_message()) {
      synchronize();
    }
    return future_;
  }

 private:
  c10::Stream current_stream() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }

  const std::shared_ptr<const CollectiveNode> node_;
  const std::vector<at::Tensor> outputs_;
  const c10::Device device_;
  c10::Event event_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

} // namespace

void record_collective(const c10::OperatorHandle& op, Capture& capture, StreamKey stream, torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  const size_t first = stack.size() - schema.arguments().size();
  KeptTensors kept(capture.pool());
  torch::jit::Stack arguments;
  for (size_t i = first; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.defined() && !tensor.is_privateuseone()) {
        capture.refuse(name_of(op), "it has tensors of " + tensor.device().str() + ", too");
      }
    });
    arguments.push_back(with_tensors(stack[i], [&kept](const at::Tensor& tensor) { return kept.keep(tensor); }));
  }
  auto node = std::make_shared<const CollectiveNode>(op, std::move(arguments), stream.device);
  capture.run(node, stream);

  const c10::IValue written = stack[first];
  std::vector<at::Tensor> outputs;
  for_each_tensor(written, [&outputs](const at::Tensor& tensor) { outputs.push_back(tensor); });
  const bool returns_tensors = schema.returns().size() > 1;
  stack.resize(first);
  if (returns_tensors) {
    stack.push_back(written);
  }
  const c10::Device device(c10::DeviceType::PrivateUse1, stream.device);
  stack.emplace_back(c10::static_intrusive_pointer_cast<c10d::Work>(
      c10::make_intrusive<CollectiveInGraph>(std::move(node), std::move(outputs), device)));
}

} // namespace c10::openreg
