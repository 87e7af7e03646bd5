// SPDX-License-Identifier: BSD-3-Clause
// Copies of sparse, nested and quantized tensors between devices, and the empty tensors that they are made into. The
// fallback can't do these: it makes its results on the device of the arguments. PyTorch's own kernels can: they are
// written with operators on the parts, whichever device those are on.
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_quantized_native.h>

#include "shim/base/kernel_library.h"
#include "shim/operators/aten/copy.h"
#include "shim/operators/aten/registrations.h"

namespace c10::openreg {
namespace {

at::Tensor& copy_quantized(at::Tensor& self, const at::Tensor& source, bool /*non_blocking*/) {
  if (!self.is_same(source)) {
    copy_on_host(self, source, /*non_blocking=*/false);
  }
  return self;
}

} // namespace

void register_non_dense_copies() {
  {
    torch::Library& m = kernel_library("aten", c10::DispatchKey::SparsePrivateUse1);
    m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
    m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
    m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_coo));
  }
  {
    torch::Library& m = kernel_library("aten", c10::DispatchKey::SparseCsrPrivateUse1);
    m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
    m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_csr));
  }
  {
    torch::Library& m = kernel_library("aten", c10::DispatchKey::NestedTensorPrivateUse1);
    m.impl("copy_", TORCH_FN(at::native::copy_nested_));
    m.impl("empty_like", TORCH_FN(at::native::empty_like_nested));
    m.impl("_to_copy", TORCH_FN(at::native::_to_copy_nested));
  }
  {
    torch::Library& m = kernel_library("aten", c10::DispatchKey::QuantizedPrivateUse1);
    m.impl("copy_", copy_quantized);
    m.impl("empty_like", TORCH_FN(at::native::empty_like_quantized));
    m.impl("empty_quantized", TORCH_FN(at::native::empty_quantized));
  }
}

} // namespace c10::openreg
