/* SPDX-License-Identifier: BSD-3-Clause */
// A node of a captured graph: what is called in each replay.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10::openreg {

// Tensors that a node holds are those of kept_tensors.h.
class Node {
 public:
  explicit Node(DeviceIndex device) : device_(device) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // On the calling thread's current stream of the node's device, which must be current. `stack` is empty before and after.
  virtual void run(torch::jit::Stack& stack) const = 0;

  // Memory that the call uses: of its tensors without gaps.
  struct Use {
    uintptr_t begin;
    uintptr_t end;
    bool writes;
  };
  virtual std::vector<Use> uses() const = 0;
  virtual std::string name() const = 0;

  DeviceIndex device() const noexcept {
    return device_;
  }

 protected:
  static void note_use(std::vector<Use>& uses, const at::Tensor& tensor, bool writes);

 private:
  const DeviceIndex device_;
};

// A call of an operator's kernel.
class OperatorNode final : public Node {
 public:
  // `arguments`: as the replay uses them. `fixed`: the tensors that the results are copied into, in order; none where the
  // operator writes them itself. An undefined one: the result is not wanted.
  OperatorNode(c10::OperatorHandle op, torch::jit::Stack arguments, std::vector<at::Tensor> fixed, DeviceIndex device);

  void run(torch::jit::Stack& stack) const override;
  std::vector<Use> uses() const override;
  std::string name() const override;

 private:
  const c10::OperatorHandle op_;
  const torch::jit::Stack arguments_;
  const std::vector<at::Tensor> fixed_;
};

// A call of a function in the replaying thread.
class CallNode final : public Node {
 public:
  // `tensors`: that it uses; which of them it writes is not known.
  CallNode(std::string name, std::function<void()> call, std::vector<at::Tensor> tensors, DeviceIndex device);

  void run(torch::jit::Stack& stack) const override;
  std::vector<Use> uses() const override;
  std::string name() const override;

 private:
  const std::string name_;
  const std::function<void()> call_;
  const std::vector<at::Tensor> tensors_;
};

// How much of each stream of a capture, by its number there, comes before.
using Clock = c10::SmallVector<uint32_t, 4>;

// A node's place in a capture.
struct PlacedNode {
  std::shared_ptr<const Node> node;
  uint32_t stream;
  Clock before;
};

} // namespace c10::openreg
