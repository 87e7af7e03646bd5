// SPDX-License-Identifier: BSD-3-Clause
// Formulas: aten/src/ATen/native/layer_norm.cpp, Normalization.cpp and EmbeddingBag.cpp.
#include "shim/optional/graph/cpu_shapes.h"

#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace c10::openreg::cpu_shapes {
namespace {

at::Tensor tensor_of(const OptionalTensor& tensor) {
  return tensor.value_or(at::Tensor());
}

at::Tensor contiguous_like(const at::Tensor& tensor) {
  return at::empty_like(tensor, at::MemoryFormat::Contiguous);
}

at::Tensor image_like(const at::Tensor& tensor) {
  return at::empty_like(tensor, tensor.suggest_memory_format());
}

// Of the tensors beside the input, which may be of a wider type.
template <class... Parameters>
at::TensorOptions statistics_options(const at::Tensor& input, const Parameters&... parameters) {
  return input.options().dtype(
      at::native::param_scalar_type(input, at::native::is_mixed_type(input, tensor_of(parameters)...)));
}

} // namespace

Three native_layer_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    double /*eps*/) {
  const auto shape = C10_AS_INTARRAYREF_SLOW(normalized_shape);
  (void)at::native::_check_layer_norm_inputs(input, shape, tensor_of(weight), tensor_of(bias));
  at::DimVector statistics(input.sizes());
  std::fill(statistics.end() - static_cast<std::ptrdiff_t>(shape.size()), statistics.end(), 1);
  const auto options = statistics_options(input, weight, bias);
  return {contiguous_like(input), at::empty(statistics, options), at::empty(statistics, options)};
}

Three native_layer_norm_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const at::Tensor& /*mean*/,
    const at::Tensor& /*rstd*/,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    std::array<bool, 3> output_mask) {
  (void)at::native::_check_layer_norm_inputs(
      input, C10_AS_INTARRAYREF_SLOW(normalized_shape), tensor_of(weight), tensor_of(bias));
  return {
      output_mask[0] ? contiguous_like(input) : at::Tensor(),
      output_mask[1] ? contiguous_like(tensor_of(weight)) : at::Tensor(),
      output_mask[2] ? contiguous_like(tensor_of(bias)) : at::Tensor()};
}

Three native_batch_norm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    bool training,
    double /*momentum*/,
    double /*eps*/) {
  TORCH_CHECK(input.dim() > 1, "batch_norm: expected two dimensions or more, but got ", input.dim());
  const int64_t count = training ? input.size(1) : 0;
  const auto options = statistics_options(input, weight, bias, running_mean, running_var);
  return {image_like(input), at::empty({count}, options), at::empty({count}, options)};
}

Three native_batch_norm_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    const OptionalTensor& save_mean,
    const OptionalTensor& save_invstd,
    bool /*train*/,
    double /*eps*/,
    std::array<bool, 3> output_mask) {
  const auto options = statistics_options(input, weight, running_mean, running_var, save_mean, save_invstd);
  return {
      output_mask[0] ? image_like(input) : at::Tensor(),
      output_mask[1] ? at::empty({input.size(1)}, options) : at::Tensor(),
      output_mask[2] ? at::empty({input.size(1)}, options) : at::Tensor()};
}

template <bool is_differentiated>
Four embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool /*scale_grad_by_freq*/,
    int64_t mode,
    bool /*sparse*/,
    const OptionalTensor& per_sample_weights,
    bool include_last_offset,
    int64_t padding_idx) {
  TORCH_CHECK(
      weight.dim() == 2 && indices.dim() == 1 && offsets.dim() == 1,
      "embedding_bag: expected a matrix, a vector of indices and one of offsets");
  const bool sums = mode == 0;
  const bool takes_max = mode == 2;
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  TORCH_CHECK(bags >= 0, "embedding_bag: the number of bags is negative");
  const auto type = weight.scalar_type();
  const bool has_weights = per_sample_weights.has_value() && per_sample_weights->defined();
  const bool is_fast = (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && weight.stride(1) == 1 &&
      padding_idx < 0 && (!has_weights || per_sample_weights->stride(0) == 1);
  const auto integers = indices.options().dtype(c10::promoteTypes(indices.scalar_type(), offsets.scalar_type()));
  const int64_t counted = sums && !is_differentiated ? offsets.size(0) : bags;
  return {
      at::empty({bags, weight.size(1)}, weight.options()),
      at::empty({sums && is_fast ? 0 : indices.size(0)}, integers),
      at::empty({counted}, integers),
      takes_max ? at::empty({bags, weight.size(1)}, integers) : at::empty({counted}, integers)};
}

template decltype(embedding_bag<true>) embedding_bag<true>;
template decltype(embedding_bag<false>) embedding_bag<false>;

} // namespace c10::openreg::cpu_shapes
