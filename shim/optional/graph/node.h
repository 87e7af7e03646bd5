/* SPDX-License-Identifier: BSD-3-Clause */
// An operator of a captured graph: what is called in each replay.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <vector>

namespace c10::openreg {

class Node {
 public:
  // `arguments`: as the replay uses them. `fixed`: the tensors that the results are copied into, in order; none where the
  // operator writes them itself. An undefined one: the result is not wanted.
  Node(c10::OperatorHandle op, torch::jit::Stack arguments, std::vector<at::Tensor> fixed, DeviceIndex device);

  // On the calling thread's current stream of the node's device, which must be current. `stack` is empty before and after.
  void run(torch::jit::Stack& stack) const;

  // Memory that the call uses: of its tensors without gaps.
  struct Use {
    uintptr_t begin;
    uintptr_t end;
    bool writes;
  };
  std::vector<Use> uses() const;

  DeviceIndex device() const noexcept {
    return device_;
  }
  std::string name() const;

  // By the capture: its stream, and how much of each stream of the capture came before.
  void place_in_order(uint32_t stream, const c10::SmallVector<uint32_t, 4>& before);
  uint32_t stream() const noexcept {
    return stream_;
  }
  const c10::SmallVector<uint32_t, 4>& before() const noexcept {
    return before_;
  }

 private:
  const c10::OperatorHandle op_;
  const torch::jit::Stack arguments_;
  const std::vector<at::Tensor> fixed_;
  const DeviceIndex device_;
  uint32_t stream_ = 0;
  c10::SmallVector<uint32_t, 4> before_;
};

} // namespace c10::openreg
