// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/shapes.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "shim/operators/policy/kernel_keys.h"
#include "shim/optional/graph/meta_kernels.h"
#include "shim/optional/graph/recorder.h"
#include "shim/optional/graph/values.h"

namespace c10::openreg {
namespace {

constexpr size_t kMostRemembered = 8192; // then all are forgotten

// A call as the meta kernels see it, in bytes; what they are not known to see makes it unfit.
class ShapeKey {
 public:
  ShapeKey(const c10::OperatorHandle& op, bool runs_on_cpu, c10::ArrayRef<c10::IValue> arguments) {
    fits_ = op.operator_name().name.starts_with("aten::");
    text_.reserve(256);
    add_bytes(&op.schema()); // which lives as long as the operator
    add_bytes(runs_on_cpu);
    add_bytes(c10::get_default_dtype_as_scalartype());
    add_bytes(at::globalContext().deterministicAlgorithms());
    for (const c10::IValue& value : arguments) {
      add(value);
    }
  }

  bool fits() const {
    return fits_;
  }
  const std::string& text() const {
    return text_;
  }

 private:
  template <class Plain>
  void add_bytes(const Plain& value) {
    static_assert(std::is_trivially_copyable_v<Plain>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  void add(const c10::IValue& value) {
    if (value.isNone()) {
      text_ += 'n';
    } else if (value.isTensor()) {
      add_tensor(value.toTensor());
    } else if (value.isInt()) {
      text_ += 'i';
      add_bytes(value.toInt());
    } else if (value.isBool()) {
      text_ += value.toBool() ? 'T' : 'F';
    } else if (value.isDouble()) {
      text_ += 'd';
      add_bytes(value.toDouble());
    } else if (value.isString()) {
      text_ += 's';
      add_bytes(value.toStringRef().size());
      text_ += value.toStringRef();
    } else if (value.isDevice()) {
      text_ += 'v';
      add_bytes(value.toDevice().type());
    } else if (value.isGenerator()) {
      text_ += 'g';
    } else if (value.isIntList()) {
      text_ += 'I';
      const auto list = value.toDimVector();
      add_bytes(list.size());
      text_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(int64_t));
    } else if (value.isList()) {
      text_ += 'L';
      add_bytes(value.toListRef().size());
      for (const c10::IValue& item : value.toListRef()) {
        add(item);
      }
    } else {
      fits_ = false;
    }
  }

  void add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      text_ += 'u';
      return;
    }
    const auto [seen, is_new] = seen_.emplace(tensor.unsafeGetTensorImpl(), seen_.size());
    if (!is_new) { // some kernels look whether two are the same
      text_ += 'r';
      add_bytes(seen->second);
      return;
    }
    text_ += 't';
    add_bytes(tensor.device().type());
    add_bytes(tensor.scalar_type());
    add_bytes(tensor.unsafeGetTensorImpl()->is_wrapped_number());
    add_bytes(tensor.dim());
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      add_bytes(tensor.size(i));
      add_bytes(tensor.stride(i));
    }
    if (tensor.is_cpu() && tensor.dim() == 0) {
      text_.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.element_size());
    }
  }

  std::string text_;
  std::unordered_map<const c10::TensorImpl*, size_t> seen_;
  bool fits_;
};

// A call of the meta kernel.
class Asking {
 public:
  Asking(const c10::OperatorHandle& op, bool runs_on_cpu) : op_(op), runs_on_cpu_(runs_on_cpu) {}

  std::shared_ptr<const Shapes> ask(c10::ArrayRef<c10::IValue> arguments) {
    auto found = std::make_shared<Shapes>();
    torch::jit::Stack stack;
    std::vector<at::Tensor> written;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = arguments[i];
      if (value.isDevice() && value.toDevice().is_privateuseone()) {
        stack.emplace_back(c10::Device(c10::DeviceType::Meta));
      } else if (value.isGenerator()) {
        stack.emplace_back();
      } else {
        stack.push_back(with_tensors(value, [this](const at::Tensor& tensor) { return meta_of(tensor); }));
      }
      if (is_written(op_.schema().arguments()[i])) {
        for_each_tensor(stack.back(), [&written](const at::Tensor& tensor) { written.push_back(tensor); });
      }
    }
    const c10::impl::ExcludeDispatchKeyGuard without(kAboveKernels | c10::DispatchKeySet(kCapture));
    try {
      if (const auto* kernel = meta_kernel_of(op_, runs_on_cpu_)) {
        kernel->callBoxed(op_, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
      } else {
        op_.callBoxed(&stack);
      }
    } catch (const c10::NotImplementedError&) {
      found->are_known = false;
      return found;
    }
    found->results = std::move(stack);
    for (const at::Tensor& tensor : written) {
      found->written.emplace_back(tensor.defined() ? c10::DimVector(tensor.sizes()) : c10::DimVector());
    }
    return found;
  }

 private:
  at::Tensor meta_of(const at::Tensor& tensor) {
    if (!tensor.is_privateuseone() && !(tensor.is_cpu() && tensor.dim() > 0)) {
      return tensor;
    }
    at::Tensor& meta = metas_[tensor.unsafeGetTensorImpl()];
    if (!meta.defined()) {
      meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        meta.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
    }
    return meta;
  }

  const c10::OperatorHandle& op_;
  const bool runs_on_cpu_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> metas_;
};

bool can_be_remembered(const Shapes& shapes) {
  bool fits = shapes.are_known;
  for (const c10::IValue& result : shapes.results) {
    for_each_tensor(
        result, [&fits](const at::Tensor& tensor) { fits = fits && (!tensor.defined() || tensor.is_meta()); });
  }
  return fits;
}

} // namespace

std::shared_ptr<const Shapes> shapes_of(
    const c10::OperatorHandle& op, bool runs_on_cpu, c10::ArrayRef<c10::IValue> arguments) {
  static auto& lock = *new std::mutex;
  static auto& remembered = *new std::unordered_map<std::string, std::shared_ptr<const Shapes>>;
  const ShapeKey key(op, runs_on_cpu, arguments);
  if (key.fits()) {
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = remembered.find(key.text());
    if (found != remembered.end()) {
      return found->second;
    }
  }
  auto shapes = Asking(op, runs_on_cpu).ask(arguments);
  if (key.fits() && can_be_remembered(*shapes)) {
    const std::lock_guard<std::mutex> guard(lock);
    if (remembered.size() >= kMostRemembered) {
      remembered.clear();
    }
    remembered.emplace(key.text(), shapes);
  }
  return shapes;
}

} // namespace c10::openreg
