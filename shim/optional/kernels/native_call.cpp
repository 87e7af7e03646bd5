// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/kernels/native_call.h"
#include "shim/device/device.h"

#include <ATen/DLConvertor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include <algorithm>

#include "shim/base/status.h"
#include "shim/memory/storage.h"
#include "shim/operators/policy/device_check.h"

static_assert(sizeof(openreg_tensor) == sizeof(DLTensor), "kernels.h promises DLPack's layout");
static_assert(OPENREG_DTYPE_BFLOAT == kDLBfloat && OPENREG_DTYPE_BOOL == kDLBool, "and its codes");
static_assert(OPENREG_TENSOR_DEVICE_TYPE == kDLExtDev, "and its device type");

namespace c10::openreg {
namespace {

constexpr c10::DispatchKeySet kNotPlain(
    {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

// Strided memory that holds the tensor's values as they are.
bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == c10::kStrided && !tensor.key_set().has_any(kNotPlain);
}

bool is_number_of_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.dim() == 0 && is_plain(tensor);
}

openreg_dtype dtype_of(const at::Tensor& tensor) {
  const DLDataType type = at::getDLDataType(tensor);
  return {type.code, type.bits, type.lanes};
}

// Two tensors of one storage that are the same elements of it.
bool are_same_elements(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
      a.storage_offset() == b.storage_offset();
}

openreg_value number(int32_t kind, int64_t integer, double real, double imaginary = 0) {
  openreg_value value{};
  value.kind = kind;
  value.integer = integer;
  value.real = real;
  value.imaginary = imaginary;
  return value;
}

// False for a symbolic number.
bool show_number(const c10::IValue& from, openreg_value& to) {
  if (from.isBool()) {
    to = number(OPENREG_VALUE_BOOL, from.toBool(), from.toBool());
  } else if (from.isInt()) {
    to = number(OPENREG_VALUE_INT, from.toInt(), static_cast<double>(from.toInt()));
  } else if (from.isDouble()) {
    to = number(OPENREG_VALUE_FLOAT, 0, from.toDouble());
  } else if (from.isComplexDouble()) {
    const auto complex = from.toComplexDouble();
    to = number(OPENREG_VALUE_COMPLEX, 0, complex.real(), complex.imag());
  } else {
    return false;
  }
  return true;
}

} // namespace

NativeCall::NativeCall(
    const c10::OperatorHandle& op,
    const openreg_kernel& kernel,
    LaterArguments later,
    ShapeFunction& shape_function,
    DeviceIndex device,
    int32_t ordinal,
    const torch::jit::Stack& stack)
    : op_(op),
      kernel_(kernel),
      later_(later),
      shape_function_(shape_function),
      device_(c10::DeviceType::PrivateUse1, device),
      ordinal_(ordinal),
      arguments_(stack.data() + stack.size() - op.schema().arguments().size()) {}

// A device, a layout and a memory format are PyTorch's own numbers, which mean nothing to a driver; where a number may be
// a truth value, operators have rules.
bool NativeCall::can_be_shown(const c10::Argument& declared, const c10::IValue& value) {
  switch (kind_of(declared)) {
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::DeviceObjType:
      return value.isNone();
    case c10::TypeKind::NumberType:
      return !value.isBool();
    default:
      break;
  }
  bool fits = true;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    fits &= is_plain(tensor) && (tensor.is_privateuseone() || is_number_of_cpu(tensor));
  });
  return fits;
}

// Whether an argument that is newer than the driver's kernel has its default. No default is a tensor.
bool NativeCall::is_as_declared(size_t i) const {
  const auto& declared = op_.schema().arguments()[i].default_value();
  const c10::IValue& value = arguments_[i];
  return declared.has_value() && declared->tagKind() == value.tagKind() && !value.isTensor() && !value.isTensorList() &&
      *declared == value;
}

bool NativeCall::prepare() {
  const auto& declared = op_.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (later_.has(i) ? !is_as_declared(i) : !can_be_shown(declared[i], arguments_[i])) {
      return false;
    }
  }
  const auto shapes = shape_function_(op_, arguments_);
  if (shapes == nullptr || !fit_written_arguments(*shapes)) {
    return false;
  }
  make_results(*shapes);
  return memory_is_apart() && show_arguments();
}

// ----------------------------------------------------------------------------------------------------------- results

// Whether an argument that is not written has the memory of `tensor`.
bool NativeCall::is_read_too(const at::Tensor& tensor) const {
  const auto& declared = op_.schema().arguments();
  bool is_read = false;
  for (size_t i = 0; i < declared.size(); ++i) {
    for_each_tensor(arguments_[i], [&](const at::Tensor& other) {
      is_read = is_read || (!is_written(declared[i]) && other.storage().is_alias_of(tensor.storage()));
    });
  }
  return is_read;
}

bool NativeCall::fit_written(const at::Tensor& tensor, const TensorShape& shape, bool is_out) const {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return false;
  }
  if (tensor.sizes() == shape.sizes) {
    return true;
  }
  if (!is_out || is_read_too(tensor)) {
    return false;
  }
  at::native::resize_output_check(tensor, shape.sizes); // warns
  resize_tensor(*tensor.unsafeGetTensorImpl(), shape.sizes, shape.strides);
  return true;
}

bool NativeCall::fit_written_arguments(const CallShapes& shapes) {
  const auto& declared = op_.schema().arguments();
  bool fits = true;
  for (size_t i = 0; i < declared.size(); ++i) {
    if (is_written(declared[i])) {
      auto shape = shapes.written[i].begin();
      for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
        fits = fits && fit_written(tensor, *shape++, declared[i].is_out());
      });
    }
  }
  return fits;
}

// The argument that is returned because it was written.
const c10::IValue& NativeCall::argument_returned_as(const c10::Argument& result) const {
  const auto& declared = op_.schema().arguments();
  const auto found = std::find_if(declared.begin(), declared.end(), [&](const c10::Argument& argument) {
    return is_written(argument) && *argument.alias_info() == *result.alias_info();
  });
  return arguments_[found - declared.begin()];
}

c10::IValue NativeCall::new_result(const c10::Argument& declared, const std::vector<TensorShape>& shapes) const {
  c10::List<at::Tensor> tensors;
  for (const TensorShape& shape : shapes) {
    tensors.push_back(
        shape.defined ? new_tensor(device_, c10::scalarTypeToTypeMeta(shape.dtype), shape.sizes, shape.strides)
                      : at::Tensor());
  }
  return declared.type()->kind() == c10::TypeKind::TensorType ? c10::IValue(tensors.get(0)) : c10::IValue(tensors);
}

void NativeCall::make_results(const CallShapes& shapes) {
  const auto& declared = op_.schema().returns();
  results_.reserve(declared.size());
  for (size_t i = 0; i < declared.size(); ++i) {
    results_.push_back(
        is_written(declared[i]) ? argument_returned_as(declared[i]) : new_result(declared[i], shapes.results[i]));
  }
}

// Whether two tensors of one storage, of which one is written, share memory only as the kernel's flags allow.
bool NativeCall::may_share(const Piece& a, const Piece& b) const {
  if (are_same_elements(*a.tensor, *b.tensor)) {
    return is_elementwise() && !(a.written && b.written);
  }
  return at::get_overlap_status(*a.tensor, *b.tensor) == at::MemOverlapStatus::No;
}

bool NativeCall::memory_is_apart() const {
  c10::SmallVector<Piece, 8> pieces;
  bool any_written = false;
  const auto& declared = op_.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    const bool written = is_written(declared[i]);
    any_written |= written;
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) { pieces.push_back({&tensor, written}); });
  }
  if (!any_written) {
    return true;
  }
  const auto storage = [](const Piece& piece) { return piece.tensor->storage().unsafeGetStorageImpl(); };
  std::sort(pieces.begin(), pieces.end(), [&](const Piece& a, const Piece& b) {
    return std::less<>()(storage(a), storage(b));
  });
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t j = i + 1; j < pieces.size() && storage(pieces[i]) == storage(pieces[j]); ++j) {
      if ((pieces[i].written || pieces[j].written) && !may_share(pieces[i], pieces[j])) {
        return false;
      }
    }
  }
  return true;
}

// ----------------------------------------------------------------------------------------------- values for a kernel

const openreg_tensor* NativeCall::show_tensor(const at::Tensor& tensor, bool written) {
  void* const data = tensor.numel() == 0 ? nullptr
      : written                          ? writable_data(tensor)
                                         : const_cast<void*>(tensor.const_data_ptr());
  const bool has_dimensions = tensor.dim() > 0;
  tensors_.push_back(
      {data,
       OPENREG_TENSOR_DEVICE_TYPE,
       ordinal_,
       static_cast<int32_t>(tensor.dim()),
       dtype_of(tensor),
       has_dimensions ? tensor.sizes().data() : nullptr,
       has_dimensions ? tensor.strides().data() : nullptr,
       0});
  return &tensors_.back();
}

void NativeCall::show_tensors(std::vector<const openreg_tensor*> tensors, openreg_value& to) {
  tensor_lists_.push_back(std::move(tensors));
  to.kind = OPENREG_VALUE_TENSORS;
  to.count = tensor_lists_.back().size();
  to.tensors = tensor_lists_.back().data();
}

bool NativeCall::show_number_of_cpu(const at::Tensor& tensor, openreg_value& to) {
  return show_number(c10::IValue(tensor.item()), to);
}

// The tensor, expanded to the shape of the first result. False where it can't be.
bool NativeCall::show_in_shape_of_result(const at::Tensor& tensor, openreg_value& to) {
  const at::Tensor& result = results_[0].toTensor();
  const auto missing = result.dim() - tensor.dim();
  if (missing < 0) {
    return false;
  }
  std::vector<int64_t> strides(static_cast<size_t>(result.dim()), 0);
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == result.size(i + missing)) {
      strides[i + missing] = tensor.stride(i);
    } else if (tensor.size(i) != 1) {
      return false;
    }
  }
  show_tensor(tensor, /*written=*/false);
  openreg_tensor& shown = tensors_.back();
  integers_.push_back(std::move(strides));
  shown.ndim = static_cast<int32_t>(result.dim());
  shown.shape = result.dim() > 0 ? result.sizes().data() : nullptr;
  shown.strides = result.dim() > 0 ? integers_.back().data() : nullptr;
  to.kind = OPENREG_VALUE_TENSOR;
  to.tensor = &shown;
  return true;
}

bool NativeCall::show_list(const c10::IValue& value, bool written, openreg_value& to) {
  if (value.isTensorList() || is_optional_tensor_list(value)) {
    std::vector<const openreg_tensor*> tensors;
    for (const c10::IValue& element : value.toListRef()) {
      const bool is_there = element.isTensor() && element.toTensor().defined();
      if (is_there && !element.toTensor().is_privateuseone()) {
        return false;
      }
      tensors.push_back(is_there ? show_tensor(element.toTensor(), written) : nullptr);
    }
    show_tensors(std::move(tensors), to);
  } else if (value.isIntList() || value.isBoolList()) {
    auto& numbers = integers_.emplace_back();
    for (const c10::IValue& element : value.toListRef()) {
      numbers.push_back(element.isBool() ? element.toBool() : element.toInt());
    }
    to.kind = value.isIntList() ? OPENREG_VALUE_INTS : OPENREG_VALUE_BOOLS;
    to.count = numbers.size();
    to.integers = numbers.data();
  } else if (value.isDoubleList()) {
    auto& numbers = reals_.emplace_back(value.toDoubleVector());
    to.kind = OPENREG_VALUE_FLOATS;
    to.count = numbers.size();
    to.reals = numbers.data();
  } else {
    return false;
  }
  return true;
}

bool NativeCall::show(const c10::Argument& declared, const c10::IValue& value, openreg_value& to) {
  to = {};
  if (value.isNone()) {
    return true;
  }
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      return true;
    }
    if (!tensor.is_privateuseone()) {
      return show_number_of_cpu(tensor, to);
    }
    const bool written = is_written(declared);
    if (is_elementwise() && !written && !results_.empty() && results_[0].isTensor()) {
      return show_in_shape_of_result(tensor, to);
    }
    to.kind = OPENREG_VALUE_TENSOR;
    to.tensor = show_tensor(tensor, written);
    return true;
  }
  if (value.isList()) {
    return show_list(value, is_written(declared), to);
  }
  if (value.isString()) {
    to.kind = OPENREG_VALUE_STRING;
    to.count = value.toStringRef().size();
    to.text = value.toStringRef().c_str();
    return true;
  }
  if (kind_of(declared) == c10::TypeKind::ScalarTypeType) {
    to.kind = OPENREG_VALUE_DTYPE;
    to.dtype = dtype_of(make_meta_tensor({0}, {1}, value.toScalarType()));
    return true;
  }
  return show_number(value, to);
}

void NativeCall::show_result(const c10::IValue& value, openreg_value& to) {
  to = {};
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      to.kind = OPENREG_VALUE_TENSOR;
      to.tensor = show_tensor(value.toTensor(), /*written=*/true);
    }
    return;
  }
  std::vector<const openreg_tensor*> tensors;
  for (const c10::IValue& element : value.toListRef()) {
    const at::Tensor& tensor = element.toTensor();
    tensors.push_back(tensor.defined() ? show_tensor(tensor, /*written=*/true) : nullptr);
  }
  show_tensors(std::move(tensors), to);
}

bool NativeCall::show_arguments() {
  const auto& declared = op_.schema().arguments();
  argument_values_.reserve(declared.size());
  result_values_.resize(results_.size());
  try {
    // Results first: writing makes a copy-on-write storage its own, which an argument may be too.
    for (size_t i = 0; i < results_.size(); ++i) {
      show_result(results_[i], result_values_[i]);
    }
    for (size_t i = 0; i < declared.size(); ++i) {
      if (later_.has(i)) {
        continue;
      }
      argument_names_.push_back(declared[i].name().c_str());
      if (!show(declared[i], arguments_[i], argument_values_.emplace_back())) {
        return false;
      }
    }
  } catch (const c10::Error&) {
    return false; // a type that DLPack has no code for
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------------- the call

bool NativeCall::nothing_to_compute() const {
  bool all_empty = !results_.empty();
  for (const c10::IValue& result : results_) {
    for_each_tensor(result, [&](const at::Tensor& tensor) { all_empty &= tensor.numel() == 0; });
  }
  return all_empty;
}

namespace {

template <unsigned kMany>
c10::SmallVector<const openreg_value*, kMany> pointers_to(c10::ArrayRef<openreg_value> values) {
  c10::SmallVector<const openreg_value*, kMany> result;
  for (const openreg_value& value : values) {
    result.push_back(&value);
  }
  return result;
}

} // namespace

bool NativeCall::run() {
  if (nothing_to_compute()) {
    return true;
  }
  const openreg_stream stream = current_stream(device_.index()).id();
  const auto arguments = pointers_to<8>(argument_values_);
  const auto results = pointers_to<2>(result_values_);
  openreg_kernel_call call{};
  call.struct_size = sizeof call;
  call.name = op_.schema().name().c_str();
  call.arguments = arguments.data();
  call.argument_count = static_cast<uint32_t>(arguments.size());
  call.argument_names = argument_names_.data();
  call.results = results.data();
  call.result_count = static_cast<uint32_t>(results.size());
  const openreg_status status = openreg_kernel_run(&kernel_, device_.index(), stream, &call);
  if (status == OPENREG_E_UNSUPPORTED) {
    return false;
  }
  OPENREG_CHECK(status);
  return true;
}

void NativeCall::replace_arguments(torch::jit::Stack& stack) {
  torch::jit::drop(stack, op_.schema().arguments().size());
  for (c10::IValue& result : results_) {
    stack.push_back(std::move(result));
  }
}

} // namespace c10::openreg
