// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/typed_kernels.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "shim/device/device.h"
#include "shim/device/generator.h"
#include "shim/operators/fallback/fallback.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/fallback/route.h"
#include "shim/operators/fallback/wider_types.h"
#include "shim/operators/policy/device_check.h"

namespace c10::openreg {
namespace {

using at::Tensor;
using at::TensorList;
using c10::Scalar;
using OptionalTensor = std::optional<Tensor>;
using OptionalScalar = std::optional<Scalar>;
using OptionalGenerator = std::optional<at::Generator>;

// ---------------------------------------------------------------------------------------------- types of arguments

template <class T>
constexpr bool kIsList = std::is_same_v<T, TensorList> || std::is_same_v<T, const at::ITensorListRef&>;
template <class T>
constexpr bool kIsWritten = std::is_same_v<T, Tensor&>;

// How a schema writes the C++ type of an argument, "!" for a tensor that is written.
template <class T>
const std::string& schema_type() {
  static const std::string type = c10::getTypePtrCopy<std::remove_cvref_t<T>>()->str() + (kIsWritten<T> ? "!" : "");
  return type;
}

// The types of a schema's arguments in that notation; empty where an argument follows a rule of its own.
std::vector<std::string> schema_types(const c10::FunctionSchema& schema) {
  std::vector<std::string> types;
  types.reserve(schema.arguments().size());
  for (const c10::Argument& argument : schema.arguments()) {
    if (may_be_on_cpu(schema, argument)) {
      return {};
    }
    types.push_back(argument.real_type()->str() + (is_written(argument) ? "!" : ""));
  }
  return types;
}

// ------------------------------------------------------------------------------------------- arguments of one call

// Adds the tensors of an argument, or its generator, to the check. Returns how many tensors there may be.
template <class T>
size_t add_to(DeviceCheck& check, const std::remove_reference_t<T>& value) {
  using Value = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<Value, Tensor>) {
    check.add(value, kIsWritten<T>);
    return 1;
  } else if constexpr (kIsList<T>) {
    for (const Tensor& tensor : value) {
      check.add(tensor, /*written=*/false);
    }
    return value.size();
  } else if constexpr (std::is_same_v<Value, OptionalTensor>) {
    if (value.has_value()) {
      check.add(*value, /*written=*/false);
    }
    return 1;
  } else if constexpr (std::is_same_v<Value, OptionalGenerator>) {
    if (value.has_value()) {
      check.add(*value);
    }
  }
  return 0;
}

// Where a KernelArgument is made from, in its place: some must not move.
template <class T>
struct Source {
  KernelView& view;
  std::remove_reference_t<T>& value;
};

// An argument for PyTorch's kernel. Most types are what they are; the lifetime is that of the call.
template <class T>
class KernelArgument {
 public:
  explicit KernelArgument(Source<T> source) : value_(shown(source)) {}
  T get() {
    return std::forward<T>(value_);
  }

 private:
  using Value = std::conditional_t<std::is_same_v<T, const OptionalTensor&>, OptionalTensor, T>;

  static Value shown(Source<T> source) {
    if constexpr (std::is_same_v<std::remove_cvref_t<T>, Tensor>) {
      // The view's own tensor is the lvalue that an out or in-place kernel wants.
      return const_cast<Tensor&>(source.view.view(source.value, kIsWritten<T>));
    } else if constexpr (std::is_same_v<Value, OptionalTensor>) {
      return source.value.has_value() ? Value(source.view.view(*source.value, /*written=*/false)) : std::nullopt;
    } else if constexpr (std::is_same_v<T, OptionalGenerator>) {
      // None would be the CPU's default generator, and openreg's seed would mean nothing.
      const at::Generator& given = source.value.has_value() ? *source.value : default_generator(source.view.device());
      return given.device().is_privateuseone() ? source.view.shown_generator(given) : given;
    } else {
      return source.value; // a copy: the call may be made once more
    }
  }

  Value value_;
};

// Both kinds of list of tensors.
template <class T>
  requires(kIsList<T>)
class KernelArgument<T> {
 public:
  explicit KernelArgument(Source<T> source) {
    shown_.reserve(source.value.size());
    for (const Tensor& tensor : source.value) {
      shown_.push_back(source.view.view(tensor, /*written=*/false));
    }
    list_ = TensorList(shown_);
  }
  KernelArgument(const KernelArgument&) = delete;
  KernelArgument& operator=(const KernelArgument&) = delete;
  T get() {
    return list_;
  }

 private:
  c10::SmallVector<Tensor, 8> shown_;
  std::remove_cvref_t<T> list_;
};

// --------------------------------------------------------------------------------------------------------- results

// References to the tensors that an operator returns because it has written them.
template <class T>
auto written(T value) {
  if constexpr (kIsWritten<T>) {
    return std::tuple<Tensor&>(value);
  } else {
    return std::tuple<>();
  }
}

// What the operator returns for its kernel's result. Written tensors are returned as they came; they are all that an operator
// with such a result returns.
template <class Result, class... Args>
Result returned(KernelView& view, Result&& result, Args&... arguments) {
  if constexpr (std::is_same_v<Result, bool>) {
    return result;
  } else if constexpr (std::is_same_v<Result, Tensor&>) {
    return std::get<0>(std::tuple_cat(written<Args>(arguments)...));
  } else if constexpr (std::is_same_v<Result, Tensor>) {
    return view.adopt(std::move(result));
  } else if constexpr (std::is_reference_v<std::tuple_element_t<0, Result>>) {
    return std::tuple_cat(written<Args>(arguments)...);
  } else {
    return std::apply([&](auto&... part) { return Result(view.adopt(std::move(part))...); }, result);
  }
}

// --------------------------------------------------------------------------------------------------------- kernels

template <class Signature>
struct TypedKernel;

template <class Result, class... Args>
struct TypedKernel<Result(Args...)> {
  using Signature = Result(Args...);

  static bool fits(const std::vector<std::string>& types, const c10::FunctionSchema& schema) {
    if (types.size() != sizeof...(Args) || schema.returns().size() != Count<Result>::value) {
      return false;
    }
    size_t i = 0;
    return ((types[i++] == schema_type<Args>()) && ...) && returns_fit(schema);
  }

  static torch::CppFunction make(const c10::OperatorHandle& handle) {
    // typed() checks the signature against that of PyTorch's own kernels.
    return torch::CppFunction(
        [op = handle.typed<Signature>()](Args... arguments) -> Result { return run(op, arguments...); });
  }

  static Result run(const c10::TypedOperatorHandle<Signature>& op, Args&... arguments) {
    const auto& schema = op.schema();
    DeviceCheck check(schema);
    size_t tensors = 0;
    ((tensors += add_to<Args>(check, arguments)), ...);
    const DeviceIndex device = check.finish();
    const c10::Device runs_on(c10::DeviceType::PrivateUse1, device < 0 ? current_device() : device);
    const auto [native, kernels] = route(op, device, runs_on);
    if (native == nullptr) {
      try {
        return run_kernel(op, runs_on.index(), kernels, tensors, arguments...);
      } catch (const c10::NotImplementedError& refusal) {
        if (!fits_wider_type(op, refusal)) {
          throw;
        }
      }
    }
    return call_fallback(op, std::forward<Args>(arguments)...); // which has the driver's kernel, or the wider type
  }

 private:
  template <class T>
  struct Count : std::integral_constant<size_t, 1> {};
  template <class... Ts>
  struct Count<std::tuple<Ts...>> : std::integral_constant<size_t, sizeof...(Ts)> {};

  // Of the kind of the first result alone: a tensor, one of the arguments, or something else.
  static bool returns_fit(const c10::FunctionSchema& schema) {
    const c10::Argument& first = schema.returns()[0];
    if constexpr (std::is_same_v<Result, bool>) {
      return first.type()->kind() == c10::TypeKind::BoolType;
    } else {
      constexpr bool is_argument = (std::is_same_v<Args, Tensor&> || ...);
      return first.type()->kind() == c10::TypeKind::TensorType && is_written(first) == is_argument;
    }
  }

  static Result run_kernel(
      const c10::TypedOperatorHandle<Signature>& op,
      DeviceIndex device,
      Kernels kernels,
      size_t tensors,
      Args&... arguments) {
    KernelView view(op.schema().name(), device, tensors, kernels);
    std::tuple<KernelArgument<Args>...> shown{Source<Args>{view, arguments}...};
    const auto call = [&]() -> Result {
      const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
      return std::apply(
          [&](auto&... argument) -> Result { return op.redispatch(view.kernel_keys(), argument.get()...); }, shown);
    };
    Result result = call();
    view.finish();
    return returned<Result, Args...>(view, std::forward<Result>(result), arguments...);
  }
};

// The signatures of most operators that have a CPU kernel, the common ones first. An operator of any other is served by
// the boxed fallback.
template <class...>
struct Signatures {};
using KnownSignatures = Signatures<
    // one tensor
    Tensor(const Tensor&),
    Tensor&(Tensor&),
    Tensor&(const Tensor&, Tensor&),
    Tensor(const Tensor&, const Scalar&),
    Tensor&(Tensor&, const Scalar&),
    Tensor&(const Tensor&, const Scalar&, Tensor&),
    Tensor(const Tensor&, const Scalar&, const Scalar&),
    Tensor&(Tensor&, const Scalar&, const Scalar&),
    Tensor&(const Tensor&, const Scalar&, const Scalar&, Tensor&),
    Tensor(const Tensor&, const Scalar&, const Scalar&, const Scalar&),
    Tensor(const Tensor&, const OptionalScalar&, const OptionalScalar&),
    Tensor&(Tensor&, const OptionalScalar&, const OptionalScalar&),
    Tensor(const Tensor&, bool),
    Tensor(const Tensor&, int64_t),
    Tensor&(const Tensor&, int64_t, Tensor&),
    Tensor(const Tensor&, int64_t, bool),
    Tensor&(const Tensor&, int64_t, bool, Tensor&),
    std::tuple<Tensor, Tensor>(const Tensor&, int64_t, bool),
    std::tuple<Tensor&, Tensor&>(const Tensor&, int64_t, bool, Tensor&, Tensor&),
    Tensor(const Tensor&, at::IntArrayRef),
    Tensor(const Tensor&, c10::SymIntArrayRef),
    Tensor(const Tensor&, at::OptionalIntArrayRef, bool),
    Tensor(const Tensor&, at::IntArrayRef, bool),
    Tensor(const Tensor&, at::OptionalIntArrayRef, bool, std::optional<c10::ScalarType>),
    Tensor&(const Tensor&, at::OptionalIntArrayRef, bool, std::optional<c10::ScalarType>, Tensor&),
    Tensor(const Tensor&, std::optional<c10::ScalarType>),
    Tensor(const Tensor&, at::OptionalIntArrayRef, const OptionalScalar&, bool),
    Tensor(const Tensor&, std::optional<int64_t>, bool),
    Tensor(const Tensor&, int64_t, std::optional<c10::ScalarType>),
    Tensor(const Tensor&, c10::string_view),
    std::tuple<Tensor, Tensor>(const Tensor&),
    std::tuple<Tensor, Tensor>(const Tensor&, c10::SymInt, int64_t, bool, bool),
    std::tuple<Tensor, Tensor>(const Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool),
    Tensor(const Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool, bool, std::optional<int64_t>),
    Tensor(const Tensor&, c10::SymIntArrayRef, bool, std::optional<double>, std::optional<double>),
    Tensor(const Tensor&, c10::SymIntArrayRef, std::optional<double>, std::optional<double>),
    // two tensors
    Tensor(const Tensor&, const Tensor&),
    Tensor&(Tensor&, const Tensor&),
    Tensor&(const Tensor&, const Tensor&, Tensor&),
    Tensor(const Tensor&, const Tensor&, const Scalar&),
    Tensor&(Tensor&, const Tensor&, const Scalar&),
    Tensor&(const Tensor&, const Tensor&, const Scalar&, Tensor&),
    Tensor(const Tensor&, const Tensor&, const Scalar&, const Scalar&),
    Tensor(const Tensor&, const Tensor&, int64_t),
    Tensor&(const Tensor&, const Tensor&, int64_t, Tensor&),
    Tensor(const Tensor&, const Tensor&, int64_t, c10::ScalarType),
    Tensor(const Tensor&, const Tensor&, bool),
    Tensor(const Tensor&, const Tensor&, c10::string_view),
    Tensor(const Tensor&, const Tensor&, std::optional<c10::string_view>),
    Tensor&(Tensor&, const Tensor&, std::optional<c10::string_view>),
    Tensor&(const Tensor&, const Tensor&, std::optional<c10::string_view>, Tensor&),
    Tensor(const Tensor&, int64_t, const Tensor&),
    Tensor(const Tensor&, int64_t, const Tensor&, bool),
    Tensor(const Tensor&, const Tensor&, c10::SymInt, bool, bool),
    Tensor(const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, bool),
    Tensor(const Tensor&, const Tensor&, c10::SymIntArrayRef),
    Tensor(const Tensor&, int64_t, const Tensor&, const Scalar&),
    Tensor&(Tensor&, int64_t, const Tensor&, const Scalar&),
    Tensor(const Tensor&, const Tensor&, const OptionalTensor&, int64_t),
    bool(const Tensor&, const Tensor&),
    // three tensors and more
    Tensor(const Tensor&, const Tensor&, const Tensor&),
    Tensor&(Tensor&, const Tensor&, const Tensor&),
    Tensor&(const Tensor&, const Tensor&, const Tensor&, Tensor&),
    Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&),
    Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&),
    Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&),
    Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&),
    Tensor&(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&, Tensor&),
    Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t),
    Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&),
    Tensor&(Tensor&, int64_t, const Tensor&, const Tensor&),
    Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, const Scalar&),
    Tensor&(Tensor&, int64_t, const Tensor&, const Tensor&, const Scalar&),
    std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const OptionalTensor&, int64_t, c10::SymInt),
    Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, int64_t, c10::SymInt, const Tensor&),
    std::tuple<Tensor, Tensor, Tensor>(
        const Tensor&, c10::SymIntArrayRef, const OptionalTensor&, const OptionalTensor&, double),
    std::tuple<Tensor, Tensor, Tensor>(
        const Tensor&,
        const Tensor&,
        c10::SymIntArrayRef,
        const Tensor&,
        const Tensor&,
        const OptionalTensor&,
        const OptionalTensor&,
        std::array<bool, 3>),
    Tensor(
        const Tensor&,
        const Tensor&,
        at::IntArrayRef,
        at::IntArrayRef,
        at::IntArrayRef,
        at::IntArrayRef,
        bool,
        const Tensor&),
    // lists
    Tensor(const at::ITensorListRef&, int64_t),
    Tensor&(const at::ITensorListRef&, int64_t, Tensor&),
    Tensor(TensorList, int64_t),
    // random numbers
    Tensor&(Tensor&, OptionalGenerator),
    Tensor&(Tensor&, double, OptionalGenerator),
    Tensor&(Tensor&, double, double, OptionalGenerator),
    Tensor&(Tensor&, int64_t, OptionalGenerator),
    Tensor&(Tensor&, int64_t, std::optional<int64_t>, OptionalGenerator),
    Tensor(const Tensor&, OptionalGenerator),
    Tensor(const Tensor&, double, OptionalGenerator)>;

template <class... Known>
std::optional<torch::CppFunction> first_that_fits(const c10::OperatorHandle& op, Signatures<Known...> /*known*/) {
  const auto types = schema_types(op.schema());
  std::optional<torch::CppFunction> kernel;
  const auto attempt = [&]<class Signature>(std::type_identity<Signature> /*type*/) {
    if (!TypedKernel<Signature>::fits(types, op.schema())) {
      return false;
    }
    try {
      kernel.emplace(TypedKernel<Signature>::make(op));
    } catch (const c10::Error&) {
      return false; // the schema fits, the C++ signature does not: two kinds of list look alike
    }
    return true;
  };
  (attempt(std::type_identity<Known>()) || ...);
  return kernel;
}

} // namespace

std::optional<torch::CppFunction> typed_kernel(const c10::OperatorHandle& op) {
  return first_that_fits(op, KnownSignatures());
}

template <class Result, class... Args>
Result run_typed_kernel(const c10::TypedOperatorHandle<Result(Args...)>& op, std::type_identity_t<Args>... arguments) {
  return TypedKernel<Result(Args...)>::run(op, arguments...);
}

template <class Signature>
using Handle = c10::TypedOperatorHandle<Signature>;
template Tensor& run_typed_kernel(const Handle<Tensor&(Tensor&)>&, Tensor&);
template Tensor& run_typed_kernel(const Handle<Tensor&(Tensor&, const Scalar&)>&, Tensor&, const Scalar&);
template Tensor& run_typed_kernel(const Handle<Tensor&(Tensor&, const Tensor&)>&, Tensor&, const Tensor&);
template Tensor run_typed_kernel(
    const Handle<Tensor(const at::ITensorListRef&, int64_t)>&, const at::ITensorListRef&, int64_t);
template Tensor run_typed_kernel(const Handle<Tensor(TensorList, int64_t)>&, TensorList, int64_t);

} // namespace c10::openreg
