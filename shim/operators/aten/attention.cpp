// SPDX-License-Identifier: BSD-3-Clause
// scaled_dot_product_attention: the CPU's fused kernel where the CPU would take it, else PyTorch's math.
//
// PyTorch reaches a fused kernel of this device through the "overrideable" pair of operators; here they are the CPU's
// flash attention, which runs through the fallback like any other operator. Where the device runs PyTorch's kernels for
// GPUs, the choice is the GPU's; of its fused kernels PyTorch calls all but flash attention by their own operators.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <algorithm>
#include <array>

#include "shim/base/kernel_library.h"
#include "shim/operators/aten/registrations.h"
#include "shim/operators/fallback/fallback.h"
#include "shim/operators/fallback/route.h"

namespace c10::openreg {
namespace {

// PyTorch returns them as numbers.
constexpr auto kMath = static_cast<int64_t>(sdp::SDPBackend::math);
constexpr auto kFlash = static_cast<int64_t>(sdp::SDPBackend::flash_attention);
constexpr auto kOverrideable = static_cast<int64_t>(sdp::SDPBackend::overrideable);

using OptionalTensor = std::optional<at::Tensor>;

// Whether a tensor may be one of vmap()'s: in vmap(grad(f)) the tensors are grad's, which wrap those of vmap, and only the
// outermost wrapper is visible here.
bool is_batched(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kTransforms(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize});
  return tensor.unsafeGetTensorImpl()->key_set().has_any(kTransforms);
}

// Tensors that a transform or a subclass stands for: their sizes are known, but an operator on them would be theirs.
bool is_wrapped(const at::Tensor& tensor) {
  return is_batched(tensor) || tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
}

// What PyTorch asks before it takes the CPU's fused kernel, but for whether that is enabled.
bool fits_fused_kernel(const sdp::sdp_params& call) {
  using Check = bool (*)(const sdp::sdp_params&, bool);
  constexpr std::array<Check, 7> checks = {
      sdp::check_nested_tensor,
      sdp::check_for_dropout,
      sdp::check_tensor_shapes,
      sdp::check_batch_size_and_num_heads_dense</*supports_gqa=*/true>,
      sdp::check_attn_mask_shape,
      sdp::check_nonzero_sequence_lengths_dense,
      sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/false>};
  return std::all_of(checks.begin(), checks.end(), [&](Check check) { return check(call, /*debug=*/false); }) &&
      call.query.sym_size(-1) == call.key.sym_size(-1) && call.query.sym_size(-1) == call.value.sym_size(-1);
}

OptionalTensor given(const OptionalTensor& mask) {
  return mask.has_value() && mask->defined() ? mask : std::nullopt;
}

// The CPU's choice looks at CPU views of the tensors, which don't say that a gradient of the mask is wanted; the fused kernel
// gives none.
bool wants_gradient(const OptionalTensor& mask) {
  return mask.has_value() && mask->defined() && mask->requires_grad();
}

bool wants_overrideable(const at::Tensor& query) {
  const at::Context& context = at::globalContext();
  return context.userEnabledOverrideableSDP() && !context.userEnabledFlashSDP() && !is_on_gpu(query);
}

// The kernel for tensors of the device that nothing stands for.
int64_t choose_for_dense(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool grouped) {
  if (wants_gradient(mask)) {
    return kMath;
  }
  if (wants_overrideable(query) && fits_fused_kernel({query, key, value, given(mask), dropout, causal, grouped})) {
    return kOverrideable;
  }
  const auto& op = handle_of<at::_ops::_fused_sdp_choice>();
  const int64_t choice = call_fallback(op, query, key, value, mask, dropout, causal, scale, grouped);
  if (choice != kFlash) {
    return choice;
  }
  // A GPU's kernel takes no mask, and wants rows of whole 16 bytes, to which PyTorch pads the tensors of its own devices
  // alone.
  constexpr int64_t kRow = 8;
  return is_on_gpu(query) && (mask.has_value() || query.size(-1) % kRow != 0) ? kMath : kOverrideable;
}

int64_t choose(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool grouped) {
  if (wants_gradient(mask)) {
    return kMath;
  }
  const std::array<at::Tensor, 4> tensors{query, key, value, given(mask).value_or(query)};
  const bool batched = std::any_of(tensors.begin(), tensors.end(), is_batched);
  if (!batched && std::none_of(tensors.begin(), tensors.end(), is_wrapped)) {
    return at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped);
  }
  if (is_on_gpu(query)) {
    return batched ? kMath : at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped);
  }
  if (wants_overrideable(query) && fits_fused_kernel({query, key, value, given(mask), dropout, causal, grouped})) {
    return batched ? kFlash : kOverrideable;
  }
  const int64_t choice =
      at::native::_fused_sdp_choice_cpp(query, key, value, given(mask), dropout, causal, scale, grouped);
  // The CPU's own operator has a batching rule, and PyTorch knows the strides of its results, which torch.compile asks
  // for; it has neither for the overrideable one.
  const bool is_cpu_operator = batched || query.key_set().has(c10::DispatchKey::Python);
  return choice == kFlash && !is_cpu_operator ? kOverrideable : choice;
}

// Returns output, logsumexp, and what CUDA's kernels would keep for their backward, left undefined.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
fused_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& mask,
    double dropout,
    bool causal,
    bool return_debug_mask,
    std::optional<double> scale) {
  if (is_on_gpu(query)) {
    return at::_scaled_dot_product_flash_attention(query, key, value, dropout, causal, return_debug_mask, scale);
  }
  auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask, scale);
  return {
      output,
      logsumexp,
      at::Tensor(),
      at::Tensor(),
      c10::SymInt(query.size(2)),
      c10::SymInt(key.size(2)),
      at::Tensor(),
      at::Tensor(),
      at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused_attention_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& mask,
    std::array<bool, 4> /*wanted*/,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& cum_seq_q,
    const at::Tensor& cum_seq_k,
    int64_t max_q,
    int64_t max_k,
    double dropout,
    bool causal,
    const at::Tensor& philox_seed,
    const at::Tensor& philox_offset,
    std::optional<double> scale) {
  if (is_on_gpu(query)) {
    auto [for_query, for_key, for_value] = at::_scaled_dot_product_flash_attention_backward(
        gradient,
        query,
        key,
        value,
        output,
        logsumexp,
        cum_seq_q,
        cum_seq_k,
        max_q,
        max_k,
        dropout,
        causal,
        philox_seed,
        philox_offset,
        scale);
    return {for_query, for_key, for_value, at::Tensor()};
  }
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, query, key, value, output, logsumexp, dropout, causal, given(mask), scale);
  return {grad_query, grad_key, grad_value, at::Tensor()};
}

} // namespace

void register_attention() {
  torch::Library& m = kernel_library("aten", c10::DispatchKey::PrivateUse1);
  m.impl("_fused_sdp_choice", choose_for_dense);
  m.impl("_scaled_dot_product_fused_attention_overrideable", fused_attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", fused_attention_backward);
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
}

} // namespace c10::openreg
