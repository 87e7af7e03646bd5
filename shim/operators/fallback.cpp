#include "shim/operators/fallback.h"

#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>
#include <torch/library.h>

#include "shim/device.h"
#include "shim/generator.h"
#include "shim/operators/device_check.h"
#include "shim/operators/host_view.h"

namespace c10::openreg {
namespace {

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool wants_generator(const c10::Argument& argument) {
  const auto& type = argument.real_type();
  if (type->kind() == c10::TypeKind::GeneratorType) {
    return true;
  }
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// The device of a call without openreg tensors: its device argument, its generator's, else the current one.
DeviceIndex device_without_tensors(const c10::IValue* arguments, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isDevice() && value.toDevice().is_privateuseone() && value.toDevice().has_index()) {
      return value.toDevice().index();
    }
    if (value.isGenerator() && value.toGenerator().device().is_privateuseone()) {
      return value.toGenerator().device().index();
    }
  }
  return current_device();
}

c10::IValue host_argument(HostView& view, const c10::Argument& declared, c10::IValue value) {
  if (value.isTensor()) {
    return view.view(std::move(value).toTensor(), is_written(declared));
  }
  if (value.isTensorList()) {
    const bool written = is_written(declared);
    const auto tensors = value.toTensorVector();
    c10::List<at::Tensor> host;
    host.reserve(tensors.size());
    for (const auto& tensor : tensors) {
      host.push_back(view.view(tensor, written));
    }
    return host;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> host;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      host.push_back(
          tensor.has_value() ? std::optional<at::Tensor>(view.view(*tensor, is_written(declared))) : std::nullopt);
    }
    return host;
  }
  if (value.isGenerator()) {
    return value.toGenerator().device().is_privateuseone() ? c10::IValue(inner_cpu_generator(value.toGenerator()))
                                                           : std::move(value);
  }
  if (value.isDevice()) {
    return value.toDevice().is_privateuseone() ? c10::IValue(c10::Device(c10::DeviceType::CPU)) : std::move(value);
  }
  if (value.isNone() && wants_generator(declared)) {
    // Otherwise the kernel would draw from the CPU's default generator, and openreg's seed would mean nothing.
    return inner_cpu_generator(default_generator(view.device()));
  }
  return value;
}

c10::IValue adopted_result(HostView& view, c10::IValue value) {
  if (value.isTensor()) {
    return view.adopt(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> adopted;
    for (const at::Tensor& tensor : value.toTensorList()) {
      adopted.push_back(view.adopt(tensor));
    }
    return adopted;
  }
  return value;
}

} // namespace

void operator_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& declared = schema.arguments();
  const size_t count = declared.size();
  const size_t first = stack->size() - count;
  c10::IValue* arguments = stack->data() + first;

  DeviceIndex device = common_device(schema, arguments, count);
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
      schema.name(),
      schema.overload_name().empty() ? "" : ".",
      schema.overload_name(),
      ": there is no kernel for openreg, and none for the CPU that could run in its place.");
  if (device < 0) {
    device = device_without_tensors(arguments, count);
  }

  HostView view(schema.name(), device);
  for (size_t i = 0; i < count; ++i) {
    arguments[i] = host_argument(view, declared[i], std::move(arguments[i]));
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  view.finish();
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = adopted_result(view, std::move((*stack)[i]));
  }
}

namespace {

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&operator_fallback>());
}

// Operators that PyTorch would take apart before they reach the fallback are better handed to the CPU whole:
// structured operators (`add.Tensor` would run its shape function here, allocate, and come back as `add.out`), and
// convolution (whose parts have no CPU kernels for this key). Read from the dispatcher, so that it is right for any
// version of PyTorch.
const torch::Library* const whole_operators [[maybe_unused]] = [] {
  auto* library = new torch::Library( // leaked: unloading would unregister during exit
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  const auto hand_over = [library](const c10::OperatorName& name) {
    const std::string qualified =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunction<&operator_fallback>());
  };
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNamesForDispatchKey(c10::DispatchKey::CPU)) {
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && op->hasSchema() && name.getNamespace() == "aten" &&
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      hand_over(name);
    }
  }
  hand_over({"aten::convolution", ""});
  hand_over({"aten::convolution_backward", ""});
  return library;
}();

} // namespace

} // namespace c10::openreg
