// Kernels that are registered from what the dispatcher holds, so that they are right for any version of PyTorch.
//
// The fallback (fallback.h) serves every operator, but not every operator gets to it, or gets there fast:
//   - operators that PyTorch would take apart before: structured ones (`add.Tensor` would run its shape function here,
//     allocate, and come back as `add.out`), convolution (whose parts have no CPU kernels for this key), and the foreach
//     and fused ones (whose slow form calls one operator a tensor). They are handed to the CPU whole.
//   - operators of a C++ signature that typed_kernels.h knows get a kernel that needs no boxing.
// This file is the last of the library (CMakeLists.txt), so that kernels written by hand are registered before.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "shim/operators/fallback.h"
#include "shim/operators/native_kernels.h"
#include "shim/operators/typed_kernels.h"

namespace c10::openreg {
namespace {

bool is_taken_apart(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  const std::string& name = op.operator_name().name;
  return op.hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional) || name == "aten::convolution" ||
      name == "aten::convolution_backward" || name.starts_with("aten::_foreach_");
}

bool reaches_the_fallback(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  return !op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) &&
      !op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd);
}

const torch::Library* const operators [[maybe_unused]] = [] {
  auto* library = new torch::Library( // leaked: unloading would unregister during exit
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op.has_value() || !op->hasSchema() || name.getNamespace() != "aten" ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        !op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
      continue;
    }
    const bool whole = is_taken_apart(*op);
    if (!whole && !reaches_the_fallback(*op)) {
      continue;
    }
    note_operator_of_fallback(name);
    const std::string qualified =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (auto kernel = typed_kernel(*op)) {
      library->impl(qualified.c_str(), *std::move(kernel));
    } else if (whole) {
      library->impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunction<&operator_fallback>());
    }
  }
  return library;
}();

} // namespace
} // namespace c10::openreg
