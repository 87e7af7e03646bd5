/* SPDX-License-Identifier: BSD-3-Clause */
// The operators of this extension: openreg_silu::scaled_silu(x, scale) = x * sigmoid(scale * x), and its derivative, for
// the CPU and for openreg.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

#include "shim/device/host_address.h"

namespace {

template <typename T>
void forward(const T* x, T* out, int64_t count, T scale) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = x[i] / (1 + std::exp(-scale * x[i]));
  }
}

template <typename T>
void backward(const T* gradient, const T* x, T* out, int64_t count, T scale) {
  for (int64_t i = 0; i < count; ++i) {
    const T sigmoid = 1 / (1 + std::exp(-scale * x[i]));
    out[i] = gradient[i] * sigmoid * (1 + scale * x[i] * (1 - sigmoid));
  }
}

// On openreg data_ptr() is an address of the device. host_address() waits for the work of the current stream, which may
// still write x, or use what was freed and is now `out`; then the host may read and write both.
template <typename T>
T* address(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.is_privateuseone() ? c10::openreg::host_address(tensor) : tensor.data_ptr());
}

at::Tensor scaled_silu_kernel(const at::Tensor& x, double scale) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "scaled_silu", [&] {
    forward(address<scalar_t>(in), address<scalar_t>(out), in.numel(), static_cast<scalar_t>(scale));
  });
  return out;
}

at::Tensor scaled_silu_backward_kernel(const at::Tensor& gradient, const at::Tensor& x, double scale) {
  TORCH_CHECK(gradient.sizes() == x.sizes() && gradient.dtype() == x.dtype(), "gradient and x differ");
  const at::Tensor from = gradient.contiguous();
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "scaled_silu_backward", [&] {
    backward(
        address<scalar_t>(from),
        address<scalar_t>(in),
        address<scalar_t>(out),
        in.numel(),
        static_cast<scalar_t>(scale));
  });
  return out;
}

// What the dispatcher finds for the device of the arguments.
at::Tensor scaled_silu(const at::Tensor& x, double scale) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("openreg_silu::scaled_silu", "")
                             .typed<at::Tensor(const at::Tensor&, double)>();
  return op.call(x, scale);
}

at::Tensor scaled_silu_backward(const at::Tensor& gradient, const at::Tensor& x, double scale) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("openreg_silu::scaled_silu_backward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>();
  return op.call(gradient, x, scale);
}

struct ScaledSilu : torch::autograd::Function<ScaledSilu> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double scale) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({x});
    context->saved_data["scale"] = scale;
    return scaled_silu(x, scale);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables().at(0);
    return {scaled_silu_backward(gradients.at(0), x, context->saved_data["scale"].toDouble()), at::Tensor()};
  }
};

at::Tensor scaled_silu_autograd(const at::Tensor& x, double scale) {
  return ScaledSilu::apply(x, scale);
}

at::Tensor scaled_silu_meta(const at::Tensor& x, double /*scale*/) {
  return at::empty_like(x.contiguous());
}

at::Tensor scaled_silu_backward_meta(const at::Tensor& /*gradient*/, const at::Tensor& x, double /*scale*/) {
  return at::empty_like(x.contiguous());
}

} // namespace

TORCH_LIBRARY(openreg_silu, m) {
  m.def("scaled_silu(Tensor x, float scale) -> Tensor");
  m.def("scaled_silu_backward(Tensor gradient, Tensor x, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(openreg_silu, CPU, m) {
  m.impl("scaled_silu", scaled_silu_kernel);
  m.impl("scaled_silu_backward", scaled_silu_backward_kernel);
}

TORCH_LIBRARY_IMPL(openreg_silu, PrivateUse1, m) { // openreg
  m.impl("scaled_silu", scaled_silu_kernel);
  m.impl("scaled_silu_backward", scaled_silu_backward_kernel);
}

TORCH_LIBRARY_IMPL(openreg_silu, Autograd, m) {
  m.impl("scaled_silu", scaled_silu_autograd);
}

TORCH_LIBRARY_IMPL(openreg_silu, Meta, m) { // shapes, for torch.compile
  m.impl("scaled_silu", scaled_silu_meta);
  m.impl("scaled_silu_backward", scaled_silu_backward_meta);
}
