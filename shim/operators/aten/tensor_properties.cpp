// SPDX-License-Identifier: BSD-3-Clause
// Operators that say something about a tensor to PyTorch or to the allocator.
#include <ATen/core/Tensor.h>

#include "shim/base/kernel_library.h"
#include "shim/memory/device_allocator.h"
#include "shim/operators/aten/registrations.h"

namespace c10::openreg {
namespace {

// Whether `self.data = from` may reuse self's TensorImpl. Without it Module.to() makes new Parameters, and tied weights
// and optimizers made before the move silently keep the old ones.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return (tensor.is_cpu() || tensor.is_privateuseone()) && tensor.layout() == c10::kStrided &&
        !tensor.is_quantized() && !tensor.is_nested();
  };
  return self.key_set() == from.key_set() || (dense(self) && dense(from));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

} // namespace

void register_tensor_properties() {
  torch::Library& m = kernel_library("aten", c10::DispatchKey::PrivateUse1);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("record_stream", record_stream);
  // What PyTorch does for tensors with a lazy bit would record a copy of the tensor, not its memory, write that back, and
  // take a result off the stack that the operator hasn't put there.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    kernel_library("aten", key).impl("record_stream", torch::CppFunction::makeFallthrough());
  }
}

} // namespace c10::openreg
