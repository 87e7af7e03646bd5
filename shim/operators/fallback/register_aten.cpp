// SPDX-License-Identifier: BSD-3-Clause
// Kernels that are registered from what the dispatcher holds, so that they are right for any version of PyTorch.
//
// The fallback (fallback.h) serves every operator, but not every operator gets to it, or gets there fast:
//   - operators that PyTorch would take apart before: structured ones (`add.Tensor` would run its shape function here,
//     allocate, and come back as `add.out`), convolution (whose parts have no CPU kernels for this key), and those for
//     which the CPU has a kernel of its own beside PyTorch's general one. They are handed to the CPU whole.
//   - operators whose general kernel works only on PyTorch's own devices (`conj_physical_`, `mode.values`) or differently
//     on other devices than the CPU (`linalg_lstsq`). They too.
//   - operators of a C++ signature that typed_kernels.h knows get a kernel that needs no boxing.
// Kernels written by hand must have been registered before (shim/registration).
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>

#include "shim/base/kernel_library.h"
#include "shim/operators/fallback/fallback.h"
#include "shim/operators/fallback/typed_kernels.h"
#include "shim/operators/native/native_kernels.h"
#include "shim/operators/policy/device_check.h"

namespace c10::openreg {
namespace {

using Key = c10::DispatchKey;

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd);
}

bool has_argument(const c10::OperatorHandle& op, bool (*wanted)(const c10::Argument&)) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), wanted);
}

bool gives_tensors(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return has_argument(op, is_written) || std::any_of(returns.begin(), returns.end(), [](const c10::Argument& returned) {
           const auto* list = returned.real_type()->castRaw<c10::ListType>();
           const auto kind = (list == nullptr ? returned.real_type() : list->getElementType())->kind();
           return kind == c10::TypeKind::TensorType;
         });
}

// Copies between devices, and operators that make tensors on the device given by an argument, may use two devices.
bool may_cross_devices(const c10::OperatorHandle& op) {
  return has_argument(op, [](const c10::Argument& argument) {
    return argument.name() == "non_blocking" || argument.name() == "device";
  });
}

bool is_view(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::inplace_view) || has_argument(op, [](const c10::Argument& argument) {
           return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
         });
}

// Whether PyTorch's general kernel, below autograd, is to run on the CPU as a whole. Without a generator argument an
// operator that draws random numbers would draw from the CPU's; and a generated `out=` variant is the operator and a copy.
// _pack_padded_sequence() is of two devices by design: the lengths that it takes and returns are the CPU's. An operator that
// neither returns nor writes tensors asks what they are, whichever device they are on, or is put together from operators.
bool is_general(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) && gives_tensors(op) &&
      !op.hasTag(at::Tag::generated) && op.operator_name().name != "aten::_pack_padded_sequence" &&
      !op.hasTag(at::Tag::nondeterministic_seeded) && !is_view(op);
}

bool is_taken_apart(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return op.hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional) || name == "aten::convolution" ||
      name == "aten::convolution_backward" ||
      (!may_cross_devices(op) && ((is_composite(op) && op.hasKernelForDispatchKey(Key::CPU)) || is_general(op)));
}

torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<&operator_fallback>();
}

void register_dense(torch::Library& library, const c10::OperatorHandle& op, const char* name) {
  if (op.hasKernelForDispatchKey(Key::PrivateUse1) || !op.hasComputedKernelForDispatchKey(Key::CPU)) {
    return;
  }
  const bool whole = is_taken_apart(op);
  if (!whole && is_composite(op)) {
    return;
  }
  note_operator_of_fallback(op.operator_name());
  if (auto kernel = typed_kernel(op)) {
    library.impl(name, *std::move(kernel));
  } else if (whole) {
    library.impl(name, boxed());
  }
}

// A kind of tensor other than dense ones: our key, and the CPU's.
struct Kind {
  Key ours;
  Key cpu;
};
constexpr std::array<Kind, 4> kKinds{
    {{Key::SparsePrivateUse1, Key::SparseCPU},
     {Key::SparseCsrPrivateUse1, Key::SparseCsrCPU},
     {Key::QuantizedPrivateUse1, Key::QuantizedCPU},
     {Key::NestedTensorPrivateUse1, Key::NestedTensorCPU}}};

bool is_served_whole(const c10::OperatorHandle& op, const Kind& kind) {
  return op.hasKernelForDispatchKey(kind.cpu) && !op.hasKernelForDispatchKey(kind.ours);
}

} // namespace

void register_remaining_operators() {
  torch::Library& dense = kernel_library("aten", Key::PrivateUse1);
  std::array<torch::Library*, kKinds.size()> others{};
  std::transform(kKinds.begin(), kKinds.end(), others.begin(), [](const Kind& kind) {
    return &kernel_library("aten", kind.ours);
  });
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op.has_value() || !op->hasSchema() || name.getNamespace() != "aten") {
      continue;
    }
    const std::string qualified = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    register_dense(dense, *op, qualified.c_str());
    for (size_t i = 0; i < kKinds.size(); ++i) {
      if (is_served_whole(*op, kKinds[i])) {
        others[i]->impl(qualified.c_str(), boxed());
      }
    }
  }
}

} // namespace c10::openreg
