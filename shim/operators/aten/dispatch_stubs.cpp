// SPDX-License-Identifier: BSD-3-Clause
// Kernels that PyTorch looks up by device type inside composite operators, without calling an operator that is registered
// here: the windows of kaiser_window(), and the check that a sparse tensor declared as coalesced has no duplicate indices.
// attention.cpp has one more, the choice of a kernel. PyTorch exports where kernels are registered, not the CPU's kernels.
#include <ATen/TensorIterator.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/kaiser_window.h>
#include <ATen/ops/tensor.h>

#include <vector>

namespace at::native {
// In a header of PyTorch's that is not installed.
DECLARE_DISPATCH(at::Tensor (*)(const at::Tensor&, c10::IntArrayRef), flatten_indices_stub)
} // namespace at::native

namespace c10::openreg {
namespace {

void kaiser_window(at::TensorIteratorBase& iterator, int64_t length, double beta) {
  const at::Tensor& window = iterator.output();
  window.copy_(at::kaiser_window(length, /*periodic=*/false, beta, window.options().device(at::kCPU)));
}

at::Tensor flatten_indices(const at::Tensor& indices, c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * sizes[i];
  }
  const at::Tensor factors = at::tensor(strides, at::kLong).unsqueeze(1).to(indices.device());
  return indices.to(at::kLong).mul(factors).sum(0);
}

} // namespace

void register_dispatch_stubs() {
  at::native::kaiser_window_stub.set_privateuse1_dispatch_ptr(&kaiser_window);
  at::native::flatten_indices_stub.set_privateuse1_dispatch_ptr(&flatten_indices);
}

} // namespace c10::openreg
