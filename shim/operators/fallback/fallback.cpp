// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/fallback.h"

#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "shim/device.h"
#include "shim/generator.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/native/native_kernels.h"
#include "shim/operators/policy/device_check.h"

namespace c10::openreg {
namespace {

bool wants_generator(const c10::Argument& argument) {
  const auto& type = argument.real_type();
  if (type->kind() == c10::TypeKind::GeneratorType) {
    return true;
  }
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// Where the results of a call belong: on the device that an argument names, else on that of the openreg tensors, else on
// that of a generator, else on the current one.
c10::Device device_of_results(DeviceIndex of_tensors, const c10::IValue* arguments, size_t count) {
  c10::Device device(c10::DeviceType::PrivateUse1, of_tensors);
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isDevice() && (value.toDevice().is_cpu() || value.toDevice().has_index())) {
      return value.toDevice();
    }
    if (value.isGenerator() && value.toGenerator().device().is_privateuseone() && !device.has_index()) {
      device.set_index(value.toGenerator().device().index());
    }
  }
  if (!device.has_index()) {
    device.set_index(current_device());
  }
  return device;
}

// The keys of the kernels for the kind of tensors that the call is about: dense, or one of kNonDense.
c10::DispatchKeySet kernel_keys_of(Kernels kernels, c10::DispatchKeySet keys) {
  if (kernels == Kernels::gpu) {
    return gpu_keys(keys);
  }
  constexpr c10::DispatchKeySet kinds = kNonDense | c10::DispatchKeySet(c10::DispatchKey::Dense);
  return (keys & kinds) | c10::DispatchKeySet(c10::BackendComponent::CPUBit);
}

c10::IValue host_argument(KernelView& view, const c10::Argument& declared, const c10::IValue& value) {
  if (value.isTensor()) {
    return view.view(value.toTensor(), is_written(declared));
  }
  if (value.isTensorList()) {
    const auto tensors = value.toListRef();
    c10::List<at::Tensor> host;
    host.reserve(tensors.size());
    for (const c10::IValue& tensor : tensors) {
      host.push_back(view.view(tensor.toTensor(), is_written(declared)));
    }
    return host;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> host;
    for (const c10::IValue& tensor : value.toListRef()) {
      host.push_back(
          tensor.isNone() ? std::nullopt
                          : std::optional<at::Tensor>(view.view(tensor.toTensor(), is_written(declared))));
    }
    return host;
  }
  if (value.isGenerator()) {
    return value.toGenerator().device().is_privateuseone() ? c10::IValue(view.shown_generator(value.toGenerator()))
                                                           : value;
  }
  if (value.isDevice()) {
    return value.toDevice().is_privateuseone() ? c10::IValue(view.shown_device()) : value;
  }
  if (value.isNone() && wants_generator(declared)) {
    // Otherwise the kernel would draw from the CPU's default generator, and openreg's seed would mean nothing.
    return view.shown_generator(default_generator(view.device()));
  }
  return value;
}

c10::IValue adopted_result(KernelView& view, c10::IValue value) {
  if (value.isTensor()) {
    return view.adopt(std::move(value).toTensor());
  }
  if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    value = c10::IValue();
    c10::List<at::Tensor> adopted;
    adopted.reserve(tensors.size());
    for (at::Tensor& tensor : tensors) {
      adopted.push_back(view.adopt(std::move(tensor)));
    }
    return adopted;
  }
  return value;
}

} // namespace

void operator_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& declared = schema.arguments();
  const size_t count = declared.size();
  const size_t first = stack->size() - count;
  c10::IValue* arguments = stack->data() + first;

  const DeviceIndex of_tensors = common_device(schema, arguments, count);
  if (of_tensors >= 0 && has_native_kernels(of_tensors) && run_native_kernel(op, of_tensors, stack)) {
    return;
  }
  const c10::Device device = device_of_results(of_tensors, arguments, count);
  const Kernels kernels = device.is_cpu() ? Kernels::host : kernels_of(op, device.index(), keys);
  const c10::DispatchKeySet kernel_keys = kernel_keys_of(kernels, keys);
  const c10::DispatchKey kernel_key = kernel_keys.highestPriorityTypeId();
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(kernel_key),
      schema.name(),
      schema.overload_name().empty() ? "" : ".",
      schema.overload_name(),
      ": there is no kernel for openreg, and none for ",
      kernel_key,
      " that could run in its place.");

  // The arguments live here while the stack holds their views.
  c10::SmallVector<c10::IValue, 8> originals;
  originals.reserve(count);
  KernelView view(schema.name(), device.is_cpu() ? of_tensors : device.index(), count, kernels);
  for (size_t i = 0; i < count; ++i) {
    originals.push_back(std::exchange(arguments[i], c10::IValue()));
    arguments[i] = host_argument(view, declared[i], originals.back());
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    std::optional<AllocateOnDevice> ordinary;
    if (device.is_cpu()) {
      ordinary.emplace(DeviceIndex{-1});
    }
    op.redispatchBoxed(kernel_keys, stack);
  }
  view.finish();
  if (device.is_cpu()) {
    return;
  }
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = adopted_result(view, std::move((*stack)[i]));
  }
}

namespace {

void register_fallback(torch::Library& library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&operator_fallback>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  register_fallback(m);
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  register_fallback(m);
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  register_fallback(m);
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  register_fallback(m);
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  register_fallback(m);
}

} // namespace

} // namespace c10::openreg
