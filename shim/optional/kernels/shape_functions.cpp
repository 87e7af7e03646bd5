// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/kernels/shape_functions.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "shim/operators/policy/device_check.h"
#include "shim/operators/policy/kernel_keys.h"

namespace c10::openreg {
namespace {

constexpr size_t kKnownCalls = 4096; // of one operator; more are forgotten and found anew

// ------------------------------------------------------------------------------------------------ running a function

// CPU tensors stay: a shape function may treat a number in a way of its own.
at::Tensor without_data(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) {
    return tensor;
  }
  at::Tensor meta = make_meta_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}

c10::IValue without_data(const c10::IValue& value) {
  return map_tensors(value, [](const at::Tensor& tensor) { return without_data(tensor); }).value_or(value);
}

// Fails for a tensor that isn't a strided one of the key Meta.
bool add_shape(const at::Tensor& tensor, std::vector<TensorShape>& to) {
  if (!tensor.defined()) {
    to.emplace_back();
    return true;
  }
  if (!tensor.is_meta() || tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg()) {
    return false;
  }
  to.push_back({true, tensor.scalar_type(), c10::DimVector(tensor.sizes()), c10::DimVector(tensor.strides())});
  return true;
}

bool add_shapes(const c10::IValue& value, std::vector<std::vector<TensorShape>>& to) {
  auto& shapes = to.emplace_back();
  if (value.isTensor()) {
    return add_shape(value.toTensor(), shapes);
  }
  if (!value.isTensorList()) {
    return false;
  }
  for (const c10::IValue& tensor : value.toListRef()) {
    if (!add_shape(tensor.toTensor(), shapes)) {
      return false;
    }
  }
  return true;
}

void run_for_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
}

// PyTorch's kernels refuse to write a result into a tensor of a lesser kind, floating point into integers. Some of its
// shape functions of forms that write don't, mul_() among them.
bool types_fit(const c10::OperatorHandle& functional, torch::jit::Stack stack, const CallShapes& shapes) {
  stack.resize(functional.schema().arguments().size());
  run_for_meta(functional, stack);
  for (size_t i = 0; i < stack.size(); ++i) {
    size_t k = 0;
    bool fits = true;
    for_each_tensor(stack[i], [&](const at::Tensor& result) {
      fits = fits && k < shapes.results[i].size() && c10::canCast(result.scalar_type(), shapes.results[i][k++].dtype);
    });
    if (!fits) {
      return false;
    }
  }
  return true;
}

std::shared_ptr<const CallShapes> run(
    const c10::OperatorHandle& op, const std::optional<c10::OperatorHandle>& functional, const c10::IValue* arguments) {
  const auto& declared = op.schema().arguments();
  torch::jit::Stack stack;
  stack.reserve(declared.size());
  for (size_t i = 0; i < declared.size(); ++i) {
    stack.push_back(without_data(arguments[i]));
  }
  const torch::jit::Stack before = stack; // the tensors that the function may resize
  torch::jit::Stack of_functional;
  if (functional.has_value()) {
    for (size_t i = 0; i < declared.size(); ++i) {
      of_functional.push_back(without_data(arguments[i])); // apart from those that the function may resize
    }
  }
  try {
    run_for_meta(op, stack);
  } catch (const std::exception&) {
    return nullptr;
  }
  auto shapes = std::make_shared<CallShapes>();
  bool fits = stack.size() == op.schema().returns().size();
  for (const c10::IValue& result : stack) {
    fits = fits && add_shapes(result, shapes->results);
  }
  for (size_t i = 0; i < declared.size() && fits; ++i) {
    if (is_written(declared[i])) {
      fits = add_shapes(before[i], shapes->written);
    } else {
      shapes->written.emplace_back();
    }
  }
  try {
    fits = fits && (!functional.has_value() || types_fit(*functional, std::move(of_functional), *shapes));
  } catch (const std::exception&) {
    return nullptr;
  }
  return fits ? shapes : nullptr;
}

// --------------------------------------------------------------------------------------------- what it may depend on

enum class Tag : int64_t { none, undefined, tensor, boolean, integer, real, complex, number, string, list };

class KeyOfCall {
 public:
  explicit KeyOfCall(size_t arguments) {
    key_.reserve(16 * arguments);
    add(static_cast<int64_t>(c10::get_default_dtype_as_scalartype())); // of an integer tensor and a float
  }

  // False for a value of a kind that has no place in a key.
  bool add(const c10::Argument& declared, const c10::IValue& value) {
    // A Scalar's type decides on the result's, its value on nothing: lr may change with each step.
    return kind_of(declared) == c10::TypeKind::NumberType ? add_type_of_number(value) : add(value);
  }

  std::vector<int64_t> take() {
    return std::move(key_);
  }

 private:
  void add(int64_t value) {
    key_.push_back(value);
  }

  void add(Tag tag, int64_t value) {
    key_.push_back(static_cast<int64_t>(tag));
    key_.push_back(value);
  }

  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      add(Tag::undefined, 0);
      return;
    }
    const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    add(Tag::tensor, static_cast<int64_t>(tensor.scalar_type()) << 2 | tensor.is_cpu() << 1 | wrapped);
    add(tensor.dim());
    key_.insert(key_.end(), tensor.sizes().begin(), tensor.sizes().end());
    key_.insert(key_.end(), tensor.strides().begin(), tensor.strides().end());
  }

  bool add_type_of_number(const c10::IValue& value) {
    const int64_t type = value.isNone() ? 0
        : value.isBool()                ? 1
        : value.isInt()                 ? 2
        : value.isDouble()              ? 3
        : value.isComplexDouble()       ? 4
                                        : -1;
    add(Tag::number, type);
    return type >= 0;
  }

  bool add(const c10::IValue& value) {
    if (value.isNone()) {
      add(Tag::none, 0);
    } else if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isBool()) {
      add(Tag::boolean, value.toBool());
    } else if (value.isInt()) {
      add(Tag::integer, value.toInt());
    } else if (value.isDouble()) {
      add(Tag::real, std::bit_cast<int64_t>(value.toDouble()));
    } else if (value.isString()) {
      const std::string& text = value.toStringRef();
      add(Tag::string, static_cast<int64_t>(text.size()));
      key_.insert(key_.end(), text.begin(), text.end());
    } else if (value.isList()) {
      const auto elements = value.toListRef();
      add(Tag::list, static_cast<int64_t>(elements.size()));
      return std::all_of(elements.begin(), elements.end(), [this](const c10::IValue& one) { return add(one); });
    } else {
      return false;
    }
    return true;
  }

  std::vector<int64_t> key_;
};

} // namespace

c10::TypeKind kind_of(const c10::Argument& argument) {
  const auto& type = argument.real_type();
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional != nullptr ? optional->getElementType()->kind() : type->kind();
}

at::Tensor make_meta_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) {
  return at::detail::empty_strided_meta(sizes, strides, dtype);
}

size_t ShapeFunction::Hash::operator()(const Key& key) const {
  uint64_t hash = key.size();
  for (const int64_t value : key) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

std::shared_ptr<const CallShapes> ShapeFunction::operator()(
    const c10::OperatorHandle& op, const c10::IValue* arguments) {
  const auto& declared = op.schema().arguments();
  KeyOfCall builder(declared.size());
  for (size_t i = 0; i < declared.size(); ++i) {
    if (!builder.add(declared[i], arguments[i])) {
      return nullptr;
    }
  }
  Key key = builder.take();
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = known_.find(key);
    if (found != known_.end()) {
      return found->second;
    }
  }
  // Not under the lock: a function in Python takes Python's.
  auto shapes = run(op, functional_, arguments);
  const std::lock_guard<std::mutex> guard(lock_);
  if (known_.size() >= kKnownCalls) {
    known_.clear();
  }
  known_.emplace(std::move(key), shapes);
  return shapes;
}

} // namespace c10::openreg
