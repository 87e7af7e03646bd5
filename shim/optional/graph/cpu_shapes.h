/* SPDX-License-Identifier: BSD-3-Clause */
// What PyTorch's kernels for the CPU return where those for the meta device, which speak for GPUs, say otherwise: other types
// of statistics, and other sizes. All tensors are meta's; the functions have the operators' signatures.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>
#include <optional>
#include <tuple>

namespace c10::openreg::cpu_shapes {

using OptionalTensor = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Three native_layer_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    double eps);
Three native_layer_norm_backward(
    const at::Tensor& grad_out,
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    std::array<bool, 3> output_mask);
Three native_batch_norm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    bool training,
    double momentum,
    double eps);
Three native_batch_norm_backward(
    const at::Tensor& grad_out,
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    const OptionalTensor& save_mean,
    const OptionalTensor& save_invstd,
    bool train,
    double eps,
    std::array<bool, 3> output_mask);
// Of _embedding_bag, or of _embedding_bag_forward_only.
template <bool is_differentiated>
Four embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const OptionalTensor& per_sample_weights,
    bool include_last_offset,
    int64_t padding_idx);

} // namespace c10::openreg::cpu_shapes
