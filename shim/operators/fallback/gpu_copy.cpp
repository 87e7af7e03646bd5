// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/gpu_copy.h"

#include <ATen/ops/copy.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "shim/operators/fallback/kernel_view.h"

namespace c10::openreg {

void copy_on_gpu(at::Tensor& destination, const at::Tensor& source) {
  static const std::string kName = "aten::copy_";
  KernelView view(kName, destination.device().index(), 2, Kernels::gpu);
  at::Tensor shown = view.view(destination, /*written=*/true);
  const at::Tensor& shown_source = view.view(source, /*written=*/false);
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    at::_ops::copy_::redispatch(view.kernel_keys(), shown, shown_source, /*non_blocking=*/true);
  }
  view.finish();
}

void copy_to_gpu(at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const at::Tensor dense = source.is_non_overlapping_and_dense() ? source : source.clone(c10::MemoryFormat::Contiguous);
  at::Tensor near = at::empty_strided(
      dense.sizes(), dense.strides(), dense.options().device(destination.device()).pinned_memory(false));
  near._set_conj(dense.is_conj());
  near._set_neg(dense.is_neg());
  near.copy_(dense, non_blocking);
  copy_on_gpu(destination, near);
}

} // namespace c10::openreg
