/* SPDX-License-Identifier: BSD-3-Clause */
// A node of a captured graph: what is called in each replay.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/memory/block_list.h"

namespace c10::openreg {

// What kernels find set, besides their arguments: a replay runs under the capture's, not under its caller's.
struct Modes {
  bool grad;
  bool deterministic;
  bool warns_only;
  bool fills;
  bool mkldnn;
  int threads;           // of the calling thread's operators, on which the order of a sum depends
  c10::ScalarType dtype; // of numbers

  static Modes now();
  void set() const;
  bool operator==(const Modes&) const = default;
};

// In which a thread runs nodes. Its modes, which they set, are afterwards what they were.
class RunScope {
 public:
  RunScope() = default;
  ~RunScope() {
    if (before_.has_value()) {
      enter(*before_);
    }
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

  void enter(const Modes& modes) {
    if (!before_.has_value()) {
      now_ = before_.emplace(Modes::now());
    }
    if (!(modes == now_)) {
      modes.set();
      now_ = modes;
    }
  }

  void note_other_memory() noexcept {
    has_other_memory_ = true;
  }
  // Whether a node has used other memory than in the capture.
  bool has_other_memory() const noexcept {
    return has_other_memory_;
  }

 private:
  std::optional<Modes> before_; // none: no node has needed any
  Modes now_{};
  bool has_other_memory_ = false;
};

// Tensors that a node holds are those of kept_tensors.h.
class Node {
 public:
  explicit Node(DeviceIndex device) : device_(device) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // On the calling thread's current stream of the node's device, which must be current. `stack` is empty before and after.
  virtual void run(torch::jit::Stack& stack, RunScope& scope) const = 0;

  // The tensors that the call uses, undefined ones, too, and whether it may write them.
  virtual void for_each_use(const std::function<void(const at::Tensor&, bool writes)>& see) const = 0;
  virtual std::string name() const = 0;
  // Not what other processes take part in: they may not be in a capture.
  virtual bool runs_in_captures() const {
    return true;
  }
  // Whether all that it does is to queue work on the current stream, so that this can be launched without it.
  virtual bool only_queues() const {
    return false;
  }

  DeviceIndex device() const noexcept {
    return device_;
  }

 private:
  const DeviceIndex device_;
};

// A call of an operator's kernel.
class OperatorNode final : public Node {
 public:
  // `arguments`: as the replay uses them. `fixed`: where the results were at the capture, in order: what a replay gives
  // elsewhere is copied there. An undefined one: an argument, or a view of one. Empty: none is defined. `blocks`: what it
  // allocated, which it gets again, so that results lie where they were.
  OperatorNode(
      c10::OperatorHandle op,
      torch::jit::Stack arguments,
      std::vector<at::Tensor> fixed,
      BlockList blocks,
      const Modes& modes,
      DeviceIndex device,
      bool only_queues);

  void run(torch::jit::Stack& stack, RunScope& scope) const override;
  void for_each_use(const std::function<void(const at::Tensor&, bool writes)>& see) const override;
  std::string name() const override;
  bool only_queues() const override;

 private:
  const c10::OperatorHandle op_;
  const torch::jit::Stack arguments_;
  const std::vector<at::Tensor> fixed_;
  const BlockList blocks_;
  const Modes modes_;
  const bool only_queues_;
};

// A call of a function in the replaying thread.
class CallNode final : public Node {
 public:
  // `tensors`: that it uses; which of them it writes is not known. `is_local`: no other process takes part.
  CallNode(
      std::string name,
      std::function<void()> call,
      std::vector<at::Tensor> tensors,
      DeviceIndex device,
      bool is_local = true);

  void run(torch::jit::Stack& stack, RunScope& scope) const override;
  void for_each_use(const std::function<void(const at::Tensor&, bool writes)>& see) const override;
  std::string name() const override;
  bool runs_in_captures() const override;

 private:
  const std::string name_;
  const std::function<void()> call_;
  const std::vector<at::Tensor> tensors_;
  const bool is_local_;
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
