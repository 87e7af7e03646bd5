/* SPDX-License-Identifier: BSD-3-Clause */
// What gloo can't do, found before it is called. gloo finds most of it in a thread of its own, when the call has returned
// and the peers wait; NCCL refuses it at the call, in every rank that has such a tensor, and so do these.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace c10::openreg {

// The tensors of one call, one after another. A call without tensors of openreg is gloo's own to refuse.
class GlooLimits {
 public:
  // `has_complex`: gloo takes complex numbers in this call.
  explicit GlooLimits(bool has_complex) : has_complex_(has_complex) {}

  void see(const std::vector<at::Tensor>& tensors);
  void see(const std::vector<std::vector<at::Tensor>>& lists);

  // Throws c10::TypeError for a type that gloo can't carry, and c10::Error for a tensor of another type of device than
  // those before: nothing would order its results.
  void see(const at::Tensor& tensor);

 private:
  const bool has_complex_;
  std::optional<c10::Device> first_;
};

// Throws c10::Error where gloo can't reduce a type so. Anything goes for a tensor of another device than openreg.
void require_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op);
void require_reduction(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);

// Throws c10::TypeError where the others haven't the first one's type, of tensors of openreg: gloo compares no types here.
void require_one_type(const at::Tensor& first, const std::vector<at::Tensor>& others);

// Throws c10::Error where the numbers of elements differ that a rank has for itself in what it gives and in what it gets.
void require_own(int64_t given, int64_t kept, const char* what, const char* where);

// Throw c10::Error for a peer that is not another rank of the group, and for parts of a tensor (one size a rank; none: equal
// parts) that are negative or don't add up to it; a driver's own collectives are checked so, too. Tensors that are not
// openreg's are not checked: gloo refuses those itself.
void require_peer(const std::vector<at::Tensor>& tensors, int peer, int own, int size);
void require_parts(const at::Tensor& tensor, const std::vector<int64_t>& parts, int size);

} // namespace c10::openreg
