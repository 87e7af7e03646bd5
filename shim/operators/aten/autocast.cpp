// SPDX-License-Identifier: BSD-3-Clause
// torch.autocast("openreg"): PyTorch's own lists of operators, with its usual rule for each. Without the fallthrough
// every operator that is in no list would be an error under autocast.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at::autocast {

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SINGLE_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SINGLE_PRECISION_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

namespace {

// The text is PyTorch's for its own devices.
at::Tensor refuse_binary_cross_entropy(
    const at::Tensor& /*input*/,
    const at::Tensor& /*target*/,
    const std::optional<at::Tensor>& /*weight*/,
    int64_t /*reduction*/) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
      "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
      "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
      "safe to autocast.");
}

} // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(SINGLE_PRECISION)
  AT_FORALL_FP32_SET_OPT_DTYPE(SINGLE_PRECISION_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST_PRECISION)
  m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

} // namespace at::autocast
