/* SPDX-License-Identifier: BSD-3-Clause */
// One call of a driver's kernel (openreg/kernels.h): PyTorch's arguments as its values, and the results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <openreg/kernels.h>
#include <openreg/openreg.h>

#include <list>
#include <vector>

#include "shim/optional/kernels/shape_functions.h"

namespace c10::openreg {

// Arguments of an operator that its kernel was written without: they are in a later PyTorch's schema.
struct LaterArguments {
  size_t first = 0;
  size_t count = 0;
  bool has(size_t i) const {
    return i >= first && i < first + count;
  }
};

class NativeCall {
 public:
  // `stack` ends with the arguments of `op`; it must stay as it is while this object lives. `ordinal`: that of `device`
  // inside its driver.
  NativeCall(
      const c10::OperatorHandle& op,
      const openreg_kernel& kernel,
      LaterArguments later,
      ShapeFunction& shape_function,
      DeviceIndex device,
      int32_t ordinal,
      const torch::jit::Stack& stack);
  NativeCall(const NativeCall&) = delete;
  NativeCall& operator=(const NativeCall&) = delete;

  // Finds the results' shapes and types, and allocates them. False where an argument is nothing that a kernel can be
  // given, or PyTorch's shape function has objections: the ordinary way then says which.
  bool prepare();

  // Calls the kernel, unless there is nothing to compute. False if it refuses. Throws c10::Error if it fails.
  bool run();

  // After run().
  void replace_arguments(torch::jit::Stack& stack);

 private:
  struct Piece {
    const at::Tensor* tensor;
    bool written;
  };

  bool is_elementwise() const {
    return (kernel_.flags & OPENREG_KERNEL_ELEMENTWISE) != 0;
  }

  bool is_as_declared(size_t i) const;
  static bool can_be_shown(const c10::Argument& declared, const c10::IValue& value);
  bool is_read_too(const at::Tensor& tensor) const;
  bool fit_written(const at::Tensor& tensor, const TensorShape& shape, bool is_out) const;
  bool fit_written_arguments(const CallShapes& shapes);
  const c10::IValue& argument_returned_as(const c10::Argument& result) const;
  c10::IValue new_result(const c10::Argument& declared, const std::vector<TensorShape>& shapes) const;
  void make_results(const CallShapes& shapes);
  bool may_share(const Piece& a, const Piece& b) const;
  bool memory_is_apart() const;
  bool nothing_to_compute() const;

  bool show_arguments();
  bool show(const c10::Argument& declared, const c10::IValue& value, openreg_value& to);
  bool show_list(const c10::IValue& value, bool written, openreg_value& to);
  bool show_number_of_cpu(const at::Tensor& tensor, openreg_value& to);
  bool show_in_shape_of_result(const at::Tensor& tensor, openreg_value& to);
  void show_result(const c10::IValue& value, openreg_value& to);
  const openreg_tensor* show_tensor(const at::Tensor& tensor, bool written);
  void show_tensors(std::vector<const openreg_tensor*> tensors, openreg_value& to);

  const c10::OperatorHandle& op_;
  const openreg_kernel& kernel_;
  const LaterArguments later_;
  ShapeFunction& shape_function_; // of `op`
  const c10::Device device_;
  const int32_t ordinal_;
  const c10::IValue* const arguments_;

  std::vector<c10::IValue> results_;
  c10::SmallVector<openreg_value, 8> argument_values_;
  c10::SmallVector<const char*, 8> argument_names_;
  c10::SmallVector<openreg_value, 2> result_values_;
  // What the values point to: elements of lists stay where they are.
  std::list<openreg_tensor> tensors_;
  std::list<std::vector<const openreg_tensor*>> tensor_lists_;
  std::list<std::vector<int64_t>> integers_;
  std::list<std::vector<double>> reals_;
};

} // namespace c10::openreg
