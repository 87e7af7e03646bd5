// SPDX-License-Identifier: BSD-3-Clause
// The operators of torch.nn.SyncBatchNorm, which PyTorch has for GPUs only: a batch normalization in parts, between which
// the statistics of the ranks are gathered. Composed of other operators; formulas: aten/src/ATen/native/cuda/
// Normalization.cuh. Where a GPU's kernels run, its own are called. As there, statistics of half precision are float.
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "shim/operators/fallback/fallback.h"
#include "shim/operators/fallback/route.h"
#include "shim/operators/policy/kernel_keys.h"
#include "shim/optional/distributed/entry.h"

namespace c10::openreg {
namespace {

using at::Tensor;
using std::optional;

at::ScalarType statistics_type(const Tensor& input) {
  return at::toOpMathType(input.scalar_type());
}

Tensor as(const Tensor& tensor, at::ScalarType type) {
  return tensor.scalar_type() == type ? tensor : tensor.to(type);
}

// All dimensions but that of the channels.
std::vector<int64_t> other_dimensions(const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "Batch normalization expects at least two dimensions, but got ", input.dim());
  std::vector<int64_t> dimensions{0};
  for (int64_t i = 2; i < input.dim(); i++) {
    dimensions.push_back(i);
  }
  return dimensions;
}

// A value for each channel, to be combined with `input`.
Tensor per_channel(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return as(values, statistics_type(input)).reshape(sizes);
}

std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& input, double eps) {
  const auto dimensions = other_dimensions(input);
  auto [variance, mean] =
      at::var_mean(as(input, statistics_type(input)), dimensions, /*correction=*/at::Scalar(0), /*keepdim=*/false);
  return {mean, variance.add_(eps).rsqrt_()};
}

// In place, but for a tensor that isn't there: `running` moves towards `value` by `momentum`.
void move_towards(const optional<Tensor>& running, const Tensor& value, double momentum) {
  if (running.has_value() && running->defined()) {
    running->mul_(1 - momentum).add_(as(value, running->scalar_type()), momentum);
  }
}

std::tuple<Tensor, Tensor> batch_norm_gather_stats_with_counts(
    const Tensor& input,
    const Tensor& mean,
    const Tensor& invstd,
    const optional<Tensor>& running_mean,
    const optional<Tensor>& running_var,
    double momentum,
    double eps,
    const Tensor& counts) {
  const auto type = statistics_type(input);
  const Tensor means = as(mean, type);
  const Tensor count = as(counts, type).reshape({-1, 1});
  const Tensor total = count.sum();
  const Tensor joint = means.mul(count).sum(0).div_(total);
  const Tensor variances = as(invstd, type).pow(-2).sub_(eps);
  const Tensor squares = variances.add_(means.sub(joint).square_()).mul_(count).sum(0);
  move_towards(running_mean, joint, momentum);
  move_towards(running_var, squares.div(total.sub(1)), momentum);
  return {joint, squares.div(total).add_(eps).rsqrt_()};
}

std::tuple<Tensor, Tensor> batch_norm_gather_stats(
    const Tensor& input,
    const Tensor& mean,
    const Tensor& invstd,
    const optional<Tensor>& running_mean,
    const optional<Tensor>& running_var,
    double momentum,
    double eps,
    int64_t count) {
  const Tensor counts = at::full({mean.size(0)}, count, mean.options().dtype(statistics_type(input)));
  return openreg::batch_norm_gather_stats_with_counts(
      input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

Tensor batch_norm_elemt(
    const Tensor& input,
    const optional<Tensor>& weight,
    const optional<Tensor>& bias,
    const Tensor& mean,
    const Tensor& invstd,
    double /*eps*/) {
  Tensor factor = per_channel(invstd, input);
  if (weight.has_value() && weight->defined()) {
    factor = factor.mul(per_channel(*weight, input));
  }
  Tensor output = as(input, statistics_type(input)).sub(per_channel(mean, input)).mul_(factor);
  if (bias.has_value() && bias->defined()) {
    output.add_(per_channel(*bias, input));
  }
  return as(output, input.scalar_type());
}

Tensor& batch_norm_elemt_out(
    const Tensor& input,
    const optional<Tensor>& weight,
    const optional<Tensor>& bias,
    const Tensor& mean,
    const Tensor& invstd,
    double eps,
    Tensor& out) {
  const Tensor output = openreg::batch_norm_elemt(input, weight, bias, mean, invstd, eps);
  out.resize_(output.sizes()).copy_(output);
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(
    const Tensor& grad_out,
    const Tensor& input,
    const Tensor& mean,
    const Tensor& invstd,
    const optional<Tensor>& weight,
    bool input_g,
    bool weight_g,
    bool bias_g) {
  const auto type = statistics_type(input);
  const auto dimensions = other_dimensions(input);
  const auto weight_type = weight.has_value() && weight->defined() ? weight->scalar_type() : type;
  const Tensor gradient = as(grad_out, type);
  const Tensor sum_dy = gradient.sum(dimensions);
  const Tensor sum_dy_xmu = as(input, type).sub(per_channel(mean, input)).mul_(gradient).sum(dimensions);
  return {
      input_g ? sum_dy : Tensor(),
      input_g ? sum_dy_xmu : Tensor(),
      weight_g ? sum_dy_xmu.mul(as(invstd, type)).to(weight_type) : Tensor(),
      bias_g ? sum_dy.to(weight_type, /*non_blocking=*/false, /*copy=*/true) : Tensor()};
}

Tensor batch_norm_backward_elemt(
    const Tensor& grad_out,
    const Tensor& input,
    const Tensor& mean,
    const Tensor& invstd,
    const optional<Tensor>& weight,
    const Tensor& sum_dy,
    const Tensor& sum_dy_xmu,
    const Tensor& count) {
  const auto type = statistics_type(input);
  const Tensor total = as(count, type).sum();
  const Tensor scale = per_channel(invstd, input);
  const Tensor slope = per_channel(sum_dy_xmu, input).div(total).mul_(scale).mul_(scale);
  Tensor gradient = as(input, type).sub(per_channel(mean, input)).mul_(slope).neg_();
  gradient.add_(as(grad_out, type)).sub_(per_channel(sum_dy, input).div(total)).mul_(scale);
  if (weight.has_value() && weight->defined()) {
    gradient.mul_(per_channel(*weight, input));
  }
  return as(gradient, input.scalar_type());
}

} // namespace
} // namespace c10::openreg

void openreg_sync_batch_norm(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  using namespace c10::openreg;
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  if (is_on_gpu(arguments[0].toTensor())) {
    operator_fallback(op, keys, stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  static const auto kernel = [](auto function) { return c10::KernelFunction::makeFromUnboxedFunction(function); };
  static const auto& kernels = *new std::map<std::string, c10::KernelFunction>{
      {"aten::batch_norm_stats", kernel(TORCH_FN(batch_norm_stats))},
      {"aten::batch_norm_gather_stats", kernel(TORCH_FN(batch_norm_gather_stats))},
      {"aten::batch_norm_gather_stats_with_counts", kernel(TORCH_FN(batch_norm_gather_stats_with_counts))},
      {"aten::batch_norm_elemt", kernel(TORCH_FN(batch_norm_elemt))},
      {"aten::batch_norm_elemt.out", kernel(TORCH_FN(batch_norm_elemt_out))},
      {"aten::batch_norm_backward_reduce", kernel(TORCH_FN(batch_norm_backward_reduce))},
      {"aten::batch_norm_backward_elemt", kernel(TORCH_FN(batch_norm_backward_elemt))}};
  kernels.at(c10::toString(op.operator_name())).callBoxed(op, keys, stack);
}
