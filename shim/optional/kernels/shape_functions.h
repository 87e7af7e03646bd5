/* SPDX-License-Identifier: BSD-3-Clause */
// PyTorch's shape functions (kernels for the key Meta): what an operator returns, before it runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "shim/operators/policy/device_check.h"

namespace c10::openreg {

// Of the argument's declared type, without "optional".
c10::TypeKind kind_of(const c10::Argument& argument);

// Calls `visit` with the tensors of a value, lists too; None and undefined ones are left out.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (value.isTensorList() || is_optional_tensor_list(value)) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_tensor(element, visit);
    }
  }
}

// A tensor without data, nor with symbolic sizes.
at::Tensor make_meta_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);

struct TensorShape {
  bool defined = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::DimVector sizes;
  c10::DimVector strides;
};

struct CallShapes {
  std::vector<std::vector<TensorShape>> results; // of each result; a tensor is a list of one
  std::vector<std::vector<TensorShape>> written; // of each argument that is written, after the call; else empty
};

// The shapes of one operator's calls. Many shape functions are written in Python and take a thousand times as long as a
// small kernel, so what they said is kept, by everything of the arguments that they may look at. Threads: any.
class ShapeFunction {
 public:
  // `functional`: the operator that `op` is a form of, in place or with out=, if it is one.
  explicit ShapeFunction(std::optional<c10::OperatorHandle> functional = std::nullopt) : functional_(functional) {}

  // `arguments`: those of a call of `op`, always the same one; tensors are strided, on openreg, or numbers of the CPU.
  // nullptr where the shape function refuses them, as it does for an error of the program.
  std::shared_ptr<const CallShapes> operator()(const c10::OperatorHandle& op, const c10::IValue* arguments);

 private:
  using Key = std::vector<int64_t>;
  struct Hash {
    size_t operator()(const Key& key) const;
  };

  const std::optional<c10::OperatorHandle> functional_;
  std::mutex lock_;
  std::unordered_map<Key, std::shared_ptr<const CallShapes>, Hash> known_;
};

} // namespace c10::openreg
