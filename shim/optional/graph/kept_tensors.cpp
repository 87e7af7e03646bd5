// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/kept_tensors.h"

#include <ATen/ops/clone_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "shim/operators/policy/kernel_keys.h"
#include "shim/optional/graph/recorder.h"

namespace c10::openreg {

at::Tensor KeptTensors::keep(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (tensor.is_cpu() && !tensor.is_pinned()) {
    const c10::impl::ExcludeDispatchKeyGuard without(kAboveKernels | c10::DispatchKeySet(kCapture));
    at::Tensor copy = at::_ops::clone::call(tensor, std::nullopt);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return copy;
  }
  at::Tensor& kept = kept_[tensor.unsafeGetTensorImpl()];
  if (!kept.defined()) {
    auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
        c10::VariableVersion(0), /*allow_tensor_metadata_change=*/false);
    const c10::Storage& storage = impl->unsafe_storage();
    if (storage && storage.data() != nullptr && pool_.has(storage.data())) {
      impl->set_storage_keep_dtype(borrowed(storage));
    }
    kept = at::Tensor(std::move(impl));
  }
  return kept;
}

c10::Storage KeptTensors::borrowed(const c10::Storage& storage) {
  c10::Storage& made = borrowed_[storage.unsafeGetStorageImpl()];
  if (!made) {
    made = c10::Storage(
        c10::Storage::use_byte_size_t(),
        storage.nbytes(),
        c10::DataPtr(const_cast<void*>(storage.data()), storage.device()),
        /*allocator=*/nullptr,
        /*resizable=*/false);
  }
  return made;
}

} // namespace c10::openreg
