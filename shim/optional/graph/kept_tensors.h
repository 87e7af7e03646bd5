/* SPDX-License-Identifier: BSD-3-Clause */
// Tensors as the nodes of a graph hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "shim/optional/graph/pool.h"

namespace c10::openreg {

// For one node: one tensor is kept once. A kept tensor has no gradient. The program's own memory is kept alive with it, that
// of the pool is not: others may be given it before the replay. Numbers on the host are copied.
class KeptTensors {
 public:
  explicit KeptTensors(const GraphPool& pool) : pool_(pool) {}

  at::Tensor keep(const at::Tensor& tensor);

 private:
  c10::Storage borrowed(const c10::Storage& storage);

  const GraphPool& pool_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> kept_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> borrowed_;
};

} // namespace c10::openreg
