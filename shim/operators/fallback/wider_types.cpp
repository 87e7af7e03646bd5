// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/wider_types.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/policy/device_check.h"

namespace c10::openreg {
namespace {

// Counts of integers: PyTorch's databases of operators name no other that CUDA has for integers and the CPU has not.
bool counts_integers(const c10::OperatorHandle& op) {
  return op.operator_name().name == "aten::histc";
}

std::optional<c10::ScalarType> wider(c10::ScalarType type, bool counts) {
  switch (type) {
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return c10::ScalarType::Float;
    case c10::ScalarType::ComplexHalf:
      return c10::ScalarType::ComplexFloat;
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
      return c10::ScalarType::Long;
    default:
      return counts && c10::isIntegralType(type, /*includeBool=*/false) ? std::optional(c10::ScalarType::Double)
                                                                        : std::nullopt;
  }
}

bool is_type(const c10::Argument& argument) {
  return argument.real_type()->str().rfind("ScalarType", 0) == 0;
}

// The arguments of one call in wider types. A tensor that is given twice stays one tensor.
class WiderArguments {
 public:
  explicit WiderArguments(bool counts) : counts_(counts) {}

  c10::IValue of(const c10::Argument& declared, const c10::IValue& value) {
    const auto map = [&](const at::Tensor& tensor) { return of(tensor, is_written(declared)); };
    if (auto wide = map_tensors(value, map)) {
      return *std::move(wide);
    }
    if (value.isInt() && is_type(declared)) {
      const auto type = static_cast<c10::ScalarType>(value.toInt());
      return static_cast<int64_t>(wider(type, counts_).value_or(type));
    }
    return value;
  }

  // After the call: gives the tensors that it wrote what their stand-ins hold now.
  void write_back() {
    for (const Pair& pair : pairs_) {
      if (pair.written) {
        if (pair.given.sizes() != pair.wide.sizes()) {
          pair.given.resize_(pair.wide.sizes());
        }
        pair.given.copy_(pair.wide);
      }
    }
  }

  // A result of the call: the tensor that was given where it is the stand-in of one, else in the type `wanted`, else in
  // the half precision that the arguments had.
  at::Tensor result(const at::Tensor& result, std::optional<c10::ScalarType> wanted) const {
    if (!result.defined()) {
      return result;
    }
    for (const Pair& pair : pairs_) {
      if (pair.wide.is_same(result)) {
        return pair.given;
      }
    }
    return result.to(wanted.value_or(narrow(result.scalar_type())));
  }

 private:
  struct Pair {
    at::Tensor given;
    at::Tensor wide;
    bool written;
  };

  at::Tensor of(const at::Tensor& tensor, bool written) {
    const auto type = tensor.defined() ? wider(tensor.scalar_type(), counts_) : std::nullopt;
    if (!type.has_value()) {
      return tensor;
    }
    for (Pair& pair : pairs_) {
      if (pair.given.is_same(tensor)) {
        pair.written |= written;
        return pair.wide;
      }
    }
    pairs_.push_back({tensor, tensor.to(*type), written});
    return pairs_.back().wide;
  }

  c10::ScalarType narrow(c10::ScalarType type) const {
    for (const Pair& pair : pairs_) {
      if (pair.wide.scalar_type() == type) {
        return pair.given.scalar_type();
      }
    }
    const bool has_complex_halves =
        std::any_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.wide.is_complex(); });
    const bool has_halves = std::any_of(
        pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.wide.scalar_type() == at::kFloat; });
    if (type == c10::ScalarType::Float && has_complex_halves) {
      return c10::ScalarType::Half;
    }
    return type == c10::ScalarType::ComplexFloat && has_halves ? c10::ScalarType::ComplexHalf : type;
  }

  const bool counts_;
  std::vector<Pair> pairs_;
};

at::Tensor without_data(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  at::Tensor meta =
      at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true); // the type of a number in the program counts less
  }
  return meta;
}

c10::IValue without_data(const c10::IValue& value) {
  if (auto shapes = map_tensors(value, [](const at::Tensor& tensor) { return without_data(tensor); })) {
    return *std::move(shapes);
  }
  if (value.isDevice()) {
    return c10::Device(at::kMeta);
  }
  return value.isGenerator() ? c10::IValue() : value;
}

// The types of the results, of lists those of their tensors, one after the other; empty where PyTorch has no shape
// function for the operator.
std::vector<c10::ScalarType> types_of_results(
    const c10::OperatorHandle& op, const c10::IValue* arguments, size_t count) {
  torch::jit::Stack stack;
  std::vector<c10::ScalarType> types;
  try {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    std::transform(arguments, arguments + count, std::back_inserter(stack), [](const c10::IValue& value) {
      return without_data(value);
    });
    op.callBoxed(&stack);
  } catch (const c10::Error&) {
    return {};
  }
  for (const c10::IValue& value : stack) {
    (void)map_tensors(value, [&](const at::Tensor& tensor) {
      types.push_back(tensor.defined() ? tensor.scalar_type() : c10::ScalarType::Undefined);
      return tensor;
    });
  }
  return types;
}

} // namespace

bool fits_wider_type(const c10::OperatorHandle& op, const c10::NotImplementedError& refusal) {
  // The text of AT_DISPATCH_...: there is no other way to tell this refusal from others.
  constexpr std::string_view kRefused = "not implemented for '";
  const std::string_view text = refusal.msg();
  const size_t at = text.find(kRefused);
  if (at == std::string_view::npos) {
    return false;
  }
  const std::string_view name =
      text.substr(at + kRefused.size(), text.find('\'', at + kRefused.size()) - at - kRefused.size());
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.alias_info() != nullptr && !argument.alias_info()->isWrite()) {
      return false; // a view of a converted copy is none
    }
  }
  for (int8_t i = 0; i < static_cast<int8_t>(c10::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<c10::ScalarType>(i);
    if (name == c10::toString(type)) {
      return wider(type, counts_integers(op)).has_value();
    }
  }
  return false;
}

void call_in_wider_type(const c10::OperatorHandle& op, torch::jit::Stack* stack, WiderCall call) {
  const auto& declared = op.schema().arguments();
  const size_t first = stack->size() - declared.size();
  const std::vector<c10::ScalarType> types = types_of_results(op, stack->data() + first, declared.size());
  std::optional<c10::impl::ExcludeDispatchKeyGuard> below;
  if (call == WiderCall::below_autograd) {
    below.emplace(kAboveKernels);
  }
  WiderArguments arguments(counts_integers(op));
  for (size_t i = 0; i < declared.size(); ++i) {
    (*stack)[first + i] = arguments.of(declared[i], (*stack)[first + i]);
  }
  if (call == WiderCall::below_autograd) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
  } else {
    op.callBoxed(stack);
  }
  arguments.write_back();
  size_t number = 0;
  const auto convert = [&](const at::Tensor& result) {
    std::optional<c10::ScalarType> wanted;
    if (number < types.size()) {
      wanted = types[number++];
    }
    return arguments.result(result, wanted);
  };
  for (size_t i = first; i < stack->size(); ++i) {
    if (auto converted = map_tensors((*stack)[i], convert)) {
      (*stack)[i] = *std::move(converted);
    }
  }
}

} // namespace c10::openreg
