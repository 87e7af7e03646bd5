// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/fallback.h"

#include <ATen/TracerMode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <utility>

#include "shim/base/device_name.h"
#include "shim/base/kernel_library.h"
#include "shim/device/device.h"
#include "shim/device/generator.h"
#include "shim/operators/fallback/cpu_allocations.h"
#include "shim/operators/fallback/gpu_kernels.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/fallback/route.h"
#include "shim/operators/fallback/wider_types.h"
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

c10::IValue shown_argument(KernelView& view, const c10::Argument& declared, const c10::IValue& value) {
  const auto show = [&](const at::Tensor& tensor) -> const at::Tensor& {
    return view.view(tensor, is_written(declared));
  };
  if (value.isTensor()) {
    return show(value.toTensor()); // the usual kind
  }
  if (auto shown = map_tensors(value, show)) {
    return *std::move(shown);
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

// Whether a tensor has no memory because it is all zeros: a driver's kernel can't know that.
bool has_zero_tensor(const c10::IValue* arguments, size_t count) {
  return std::any_of(arguments, arguments + count, [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor()._is_zerotensor();
  });
}

// PyTorch's general kernel, which is reached by a key that no backend has kernels for.
constexpr c10::DispatchKey kNobody = c10::DispatchKey::FPGA;

bool has_only_general_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op.hasKernelForDispatchKey(kNobody);
}

// For an operator on lists whose tensors are on several devices: PyTorch's general kernel, which works through the lists,
// as a GPU's operators do then. False where there is none.
bool run_tensor_by_tensor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& declared = op.schema().arguments();
  const bool has_list = std::any_of(declared.begin(), declared.end(), [](const c10::Argument& argument) {
    const auto* list = argument.real_type()->castRaw<c10::ListType>();
    return list != nullptr && list->getElementType()->kind() == c10::TypeKind::TensorType;
  });
  if (!has_list || !has_only_general_kernel(op)) {
    return false;
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  op.redispatchBoxed(c10::DispatchKeySet(kNobody), stack);
  return true;
}

// Lists of tensors that the call writes: what a kernel has done to their first tensors stays when it refuses a later one.
enum class WrittenLists : uint8_t { none, of_one_type, of_several_types };

WrittenLists written_lists(const c10::OperatorHandle& op, const c10::IValue* arguments) {
  const auto& declared = op.schema().arguments();
  WrittenLists found = WrittenLists::none;
  bool alike = true;
  for (size_t i = 0; i < declared.size(); ++i) {
    if (arguments[i].isTensorList()) {
      const auto tensors = arguments[i].toListRef();
      found = is_written(declared[i]) ? WrittenLists::of_one_type : found;
      alike = alike && std::all_of(tensors.begin(), tensors.end(), [&](const c10::IValue& tensor) {
                return tensor.toTensor().dtype() == tensors[0].toTensor().dtype();
              });
    }
  }
  return found == WrittenLists::of_one_type && !alike ? WrittenLists::of_several_types : found;
}

std::atomic<bool> cuda_kernels_may_run = false;

// An operator whose CPU kernel may be Python code: what that keeps, a constant that it computes once, is ordinary memory of the
// host and no block of the device's.
bool may_be_python(const c10::OperatorHandle& op) {
  const auto name = op.operator_name().getNamespace();
  return name.has_value() && *name != "aten" && *name != "quantized";
}

// PyTorch's own kernels for CUDA are code for a GPU.
bool runs_by_cuda_kernel(const c10::OperatorHandle& op) {
  return cuda_kernels_may_run.load(std::memory_order_relaxed) && may_be_python(op) &&
      op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
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

using Originals = c10::SmallVector<c10::IValue, 8>;

struct Where {
  Kernels kernels;
  c10::DispatchKeySet keys; // of the kernel
  c10::Device results;
  DeviceIndex tensors;
};

// Runs the kernel on views of the arguments on the stack, which are moved to `originals`.
void run_kernel(const c10::OperatorHandle& op, const Where& where, torch::jit::Stack* stack, Originals& originals) {
  const auto& declared = op.schema().arguments();
  const size_t first = stack->size() - declared.size();
  originals.reserve(declared.size());
  const bool on_cpu = where.results.is_cpu();
  KernelView view(op.schema().name(), on_cpu ? where.tensors : where.results.index(), declared.size(), where.kernels);
  for (size_t i = 0; i < declared.size(); ++i) {
    c10::IValue& argument = (*stack)[first + i];
    originals.push_back(std::exchange(argument, c10::IValue()));
    argument = shown_argument(view, declared[i], originals.back());
    if (C10_UNLIKELY(where.keys.has_any(kNonDense)) && argument.isTensor()) {
      KernelView::show_wanted_gradient(originals.back().toTensor(), argument.toTensor());
    }
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    std::optional<AllocateOnDevice> ordinary;
    if (on_cpu || C10_UNLIKELY(may_be_python(op))) {
      ordinary.emplace(DeviceIndex{-1});
    }
    op.redispatchBoxed(where.keys, stack);
  }
  view.finish();
  if (on_cpu) {
    return;
  }
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = adopted_result(view, std::move((*stack)[i]));
  }
}

} // namespace

void let_cuda_kernels_run(bool on) {
  cuda_kernels_may_run.store(on, std::memory_order_relaxed);
}

void operator_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& declared = schema.arguments();
  const size_t count = declared.size();
  if (C10_UNLIKELY(at::tracer::impl::is_dispatch_enabled()) && has_only_general_kernel(op)) {
    // torch.jit.trace() still records, so it hasn't recorded this operator (convolution): it is to record the parts, with
    // the program's tensors.
    op.redispatchBoxed(c10::DispatchKeySet(kNobody), stack);
    return;
  }
  const size_t first = stack->size() - count;
  c10::IValue* arguments = stack->data() + first;

  DeviceIndex of_tensors = -1;
  try {
    of_tensors = common_device(schema, arguments, count);
  } catch (const c10::Error&) {
    if (run_tensor_by_tensor(op, stack)) {
      return;
    }
    throw;
  }
  const c10::Device device = device_of_results(of_tensors, arguments, count);
  const auto [native, kernels] = route(op, of_tensors, device, keys);
  if (native != nullptr && !keys.has_any(kNonDense) && !has_zero_tensor(arguments, count) &&
      native_kernels().run(*native, op, of_tensors, stack)) {
    return;
  }
  if (native == nullptr && kernels == Kernels::cpu && of_tensors >= 0 && C10_UNLIKELY(has_native_kernels(of_tensors)) &&
      native_kernels().run_in_parts(op, of_tensors, stack, &run_tensor_by_tensor)) {
    return;
  }
  const c10::DispatchKeySet kernel_keys = kernel_keys_of(kernels, keys);
  const c10::DispatchKey kernel_key = kernel_keys.highestPriorityTypeId();
  const bool has_kernel = op.hasComputedKernelForDispatchKey(kernel_key);
  if (!has_kernel && !keys.has_any(kNonDense) && runs_by_cuda_kernel(op)) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CUDA), stack);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_kernel,
      schema.name(),
      schema.overload_name().empty() ? "" : ".",
      schema.overload_name(),
      ": there is no kernel for ",
      device_name(),
      ", and none for ",
      kernel_key,
      " that could run in its place.");

  const WrittenLists lists = written_lists(op, arguments);
  if (C10_UNLIKELY(lists == WrittenLists::of_several_types) && kernels == Kernels::cpu &&
      run_tensor_by_tensor(op, stack)) {
    return;
  }
  // The arguments live here while the stack holds their views.
  Originals originals;
  try {
    run_kernel(op, {kernels, kernel_keys, device, of_tensors}, stack, originals);
    return;
  } catch (const c10::NotImplementedError& refusal) {
    if (kernels == Kernels::gpu || keys.has_any(kNonDense) || lists == WrittenLists::of_several_types ||
        !fits_wider_type(op, refusal)) {
      throw;
    }
  }
  stack->resize(first);
  std::move(originals.begin(), originals.end(), std::back_inserter(*stack));
  // Lists that are written may show one storage several times, of which one call in a wider type would make several copies.
  if (lists == WrittenLists::none || !run_tensor_by_tensor(op, stack)) {
    call_in_wider_type(op, stack, WiderCall::below_autograd);
  }
}

void register_fallbacks() {
  install_cpu_allocations();
  register_gpu_lookup();
  for (const auto key :
       {c10::DispatchKey::PrivateUse1,
        c10::DispatchKey::SparsePrivateUse1,
        c10::DispatchKey::SparseCsrPrivateUse1,
        c10::DispatchKey::QuantizedPrivateUse1,
        c10::DispatchKey::NestedTensorPrivateUse1}) {
    kernel_library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&operator_fallback>());
  }
}

} // namespace c10::openreg
