// SPDX-License-Identifier: BSD-3-Clause
// native_dropout: PyTorch calls it for this device, and the CPU's kernel has no generator argument, so that it would
// draw from the CPU's default generator. A GPU's draws from that of the GPU, which is openreg's. Formula: aten/src/ATen/native/Dropout.cpp, native_dropout_cpu.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/ones_like.h>

#include "shim/base/kernel_library.h"
#include "shim/operators/aten/registrations.h"
#include "shim/operators/fallback/fallback.h"
#include "shim/operators/fallback/route.h"

namespace c10::openreg {
namespace {

// Returns the output and the mask of kept elements (bool).
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (is_on_gpu(input)) {
    return call_fallback(handle_of<at::_ops::native_dropout>(), input, p, train);
  }
  const auto mask_options = input.options().dtype(at::kBool);
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, mask_options, c10::MemoryFormat::Contiguous)};
  }
  const double kept = 1.0 - p;
  const at::Tensor mask = at::empty_like(input, mask_options, c10::MemoryFormat::Contiguous).bernoulli_(kept);
  return {input.mul(mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept), mask};
}

} // namespace

void register_dropout() {
  torch::Library& m = kernel_library("aten", c10::DispatchKey::PrivateUse1);
  m.impl("native_dropout", native_dropout);
}

} // namespace c10::openreg
