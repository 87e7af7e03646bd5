// SPDX-License-Identifier: BSD-3-Clause
// Fourier transforms of half precision. PyTorch's composite operators refuse them by device type before they call any
// kernel. For other types these operators remain PyTorch's.

#include <algorithm>

#include "shim/base/kernel_library.h"
#include "shim/operators/aten/registrations.h"
#include "shim/operators/fallback/wider_types.h"

namespace c10::openreg {
namespace {

bool is_half(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_privateuseone()) {
    return false;
  }
  const c10::ScalarType type = value.toTensor().scalar_type();
  return type == c10::ScalarType::Half || type == c10::ScalarType::ComplexHalf;
}

void transform(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  if (std::any_of(first, stack->end(), is_half)) {
    call_in_wider_type(op, stack, WiderCall::from_the_top);
  } else {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::FPGA), stack); // PyTorch's general kernel: nobody has one
  }
}

} // namespace

void register_fourier() {
  for (const auto key : {c10::DispatchKey::PrivateUse1, c10::DispatchKey::AutogradPrivateUse1}) {
    torch::Library& library = kernel_library("aten", key);
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findOp(name);
      if (name.name.rfind("aten::fft_", 0) != 0 || !op.has_value() || !op->hasSchema() ||
          !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
        continue;
      }
      const auto& arguments = op->schema().arguments();
      if (!arguments.empty() && arguments[0].type()->kind() == c10::TypeKind::TensorType) {
        const std::string qualified = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
        library.impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunction<&transform>());
      }
    }
  }
}

} // namespace c10::openreg
