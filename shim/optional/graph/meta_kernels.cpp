// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/meta_kernels.h"

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>

#include <unordered_map>

#include "shim/optional/graph/cpu_shapes.h"

namespace c10::openreg {
namespace {

using MetaKernels = std::unordered_map<c10::OperatorName, c10::KernelFunction>;

// The function of at::meta with the operator's signature.
#define KERNEL(op, function)                                           \
  {c10::OperatorName(at::_ops::op::name, at::_ops::op::overload_name), \
   c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(static_cast<at::_ops::op::schema*>(function)))}
#define META(op, function) KERNEL(op, at::meta::function)

// Its kernel is that of clamp_min(), and it has none for the meta device in C++.
at::Tensor relu(const at::Tensor& self) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "Boolean inputs not supported for relu");
  return at::meta::clamp_min(self, 0);
}

// Of kernels for the CPU that differ from those for GPUs.
const MetaKernels& kernels_of_cpu() {
  static const MetaKernels& all = *new MetaKernels{
      KERNEL(native_layer_norm, cpu_shapes::native_layer_norm),
      KERNEL(native_layer_norm_backward, cpu_shapes::native_layer_norm_backward),
      KERNEL(native_batch_norm, cpu_shapes::native_batch_norm),
      KERNEL(native_batch_norm_backward, cpu_shapes::native_batch_norm_backward),
      KERNEL(_embedding_bag, cpu_shapes::embedding_bag<true>),
      KERNEL(_embedding_bag_forward_only, cpu_shapes::embedding_bag<false>),
  };
  return all;
}

const MetaKernels& kernels() {
  static const MetaKernels& all = *new MetaKernels{
      META(add_Tensor, add),
      META(add__Tensor, add_),
      META(sub_Tensor, sub),
      META(sub__Tensor, sub_),
      META(mul_Tensor, mul),
      META(mul__Tensor, mul_),
      META(div_Tensor, div),
      META(div__Tensor, div_),
      META(div_Tensor_mode, div),
      META(pow_Tensor_Scalar, pow),
      META(pow_Tensor_Tensor, pow),
      META(addcmul, addcmul),
      META(addcmul_, addcmul_),
      META(addcdiv, addcdiv),
      META(addcdiv_, addcdiv_),
      META(lerp_Scalar, lerp),
      META(lerp__Scalar, lerp_),
      META(lerp_Tensor, lerp),
      META(maximum, maximum),
      META(minimum, minimum),
      META(clamp, clamp),
      META(clamp_min, clamp_min),
      META(fill__Scalar, fill_),
      META(fill__Tensor, fill_),
      META(zero_, zero_),
      KERNEL(relu, relu),
      META(threshold_backward, threshold_backward),
      META(sigmoid, sigmoid),
      META(sigmoid_backward, sigmoid_backward),
      META(tanh, tanh),
      META(tanh_backward, tanh_backward),
      META(gelu, gelu),
      META(gelu_backward, gelu_backward),
      META(silu, silu),
      META(silu_backward, silu_backward),
      META(leaky_relu, leaky_relu),
      META(leaky_relu_backward, leaky_relu_backward),
      META(softplus, softplus),
      META(softplus_backward, softplus_backward),
      META(elu, elu),
      META(hardsigmoid, hardsigmoid),
      META(mish, mish),
      META(exp, exp),
      META(log, log),
      META(log1p, log1p),
      META(sqrt, sqrt),
      META(sqrt_, sqrt_),
      META(rsqrt, rsqrt),
      META(neg, neg),
      META(reciprocal, reciprocal),
      META(sin, sin),
      META(cos, cos),
      META(erf, erf),
      META(floor, floor),
      META(eq_Scalar, eq),
      META(eq_Tensor, eq),
      META(ne_Scalar, ne),
      META(ne_Tensor, ne),
      META(lt_Scalar, lt),
      META(lt_Tensor, lt),
      META(le_Scalar, le),
      META(le_Tensor, le),
      META(gt_Scalar, gt),
      META(gt_Tensor, gt),
      META(ge_Scalar, ge),
      META(ge_Tensor, ge),
      META(bitwise_and_Tensor, bitwise_and),
      META(bitwise_or_Tensor, bitwise_or),
      META(bitwise_not, bitwise_not),
      META(mm, mm),
      META(bmm, bmm),
      META(addmm, addmm),
      META(baddbmm, baddbmm),
      META(_softmax, _softmax),
      META(_softmax_backward_data, _softmax_backward_data),
      META(_log_softmax, _log_softmax),
      META(_log_softmax_backward_data, _log_softmax_backward_data),
      META(nll_loss_forward, nll_loss_forward_symint),
      META(nll_loss_backward, nll_loss_backward_symint),
      META(mse_loss, mse_loss),
      META(sum_dim_IntList, sum),
      META(mean_dim, mean),
      META(amax, amax),
      META(amin, amin),
      META(argmax, argmax),
      META(max_dim, max),
      META(any_dim, any),
      META(all_dim, all),
      META(cumsum, cumsum),
      META(cat, cat),
      META(gather, gather),
      META(scatter_src, scatter),
      META(scatter_value, scatter),
      META(scatter_add, scatter_add),
      META(avg_pool2d, avg_pool2d),
      META(avg_pool2d_backward, avg_pool2d_backward),
      META(max_pool2d_with_indices, max_pool2d_with_indices),
      META(max_pool2d_with_indices_backward, max_pool2d_with_indices_backward),
      META(topk, topk_symint),
      META(triu, triu_symint),
      META(tril, tril_symint),
  };
  return all;
}
#undef META
#undef KERNEL

} // namespace

const c10::KernelFunction* meta_kernel_of(const c10::OperatorHandle& op, bool runs_on_cpu) {
  if (runs_on_cpu) {
    if (const auto found = kernels_of_cpu().find(op.operator_name()); found != kernels_of_cpu().end()) {
      return &found->second;
    }
  }
  const auto found = kernels().find(op.operator_name());
  return found == kernels().end() ? nullptr : &found->second;
}

} // namespace c10::openreg
