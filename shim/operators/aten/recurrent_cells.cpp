// SPDX-License-Identifier: BSD-3-Clause
// The fused cells of LSTM and GRU, which PyTorch calls for this device and for which the CPU has no kernel. Written
// with ATen operators, so that they run whichever way the device's operators run, and compilers know their parts.
// Formulas and layouts: aten/src/ATen/native/cuda/RNN.cu and torch/nn/modules/rnn.py.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros_like.h>

#include "shim/base/kernel_library.h"
#include "shim/operators/aten/registrations.h"

namespace c10::openreg {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

at::Tensor bias_gradient(const at::Tensor& gates, bool wanted) {
  return wanted ? gates.sum({0}) : at::Tensor();
}

// input_gates and hidden_gates: (batch, 4*hidden), in the order input, forget, cell, output; cx: (batch, hidden).
// Returns hy, cy and the workspace of the backward: the four activated gates, (batch, 4*hidden).
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& cx,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const at::Tensor input = at::sigmoid(gates[0]);
  const at::Tensor forget = at::sigmoid(gates[1]);
  const at::Tensor cell = at::tanh(gates[2]);
  const at::Tensor output = at::sigmoid(gates[3]);
  const at::Tensor cy = forget * cx + input * cell;
  return {output * at::tanh(cy), cy, at::cat({input, forget, cell, output}, 1)};
}

// Returns the gradients of the gates (input's and hidden's are equal), of cx, and of the bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hy,
    const OptionalTensor& grad_cy,
    const at::Tensor& cx,
    const at::Tensor& cy,
    const at::Tensor& workspace,
    bool has_bias) {
  const bool has_hy = grad_hy.has_value() && grad_hy->defined();
  const bool has_cy = grad_cy.has_value() && grad_cy->defined();
  if (!has_hy && !has_cy) {
    return {};
  }
  const auto gates = workspace.chunk(4, 1);
  const at::Tensor &input = gates[0], &forget = gates[1], &cell = gates[2], &output = gates[3];
  const at::Tensor activated = at::tanh(cy);
  const at::Tensor from_hy = has_hy ? *grad_hy : at::zeros_like(cx);
  at::Tensor grad_cell_state = at::tanh_backward(from_hy * output, activated);
  if (has_cy) {
    grad_cell_state = grad_cell_state + *grad_cy;
  }
  const at::Tensor grad_gates = at::cat(
      {at::sigmoid_backward(grad_cell_state * cell, input),
       at::sigmoid_backward(grad_cell_state * cx, forget),
       at::tanh_backward(grad_cell_state * input, cell),
       at::sigmoid_backward(from_hy * activated, output)},
      1);
  return {grad_gates, grad_cell_state * forget, bias_gradient(grad_gates, has_bias)};
}

// input_gates and hidden_gates: (batch, 3*hidden), in the order reset, update, new; hx: (batch, hidden).
// Returns hy and the workspace of the backward: reset, update, new, hx and the new gate's hidden part,
// (batch, 5*hidden).
std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& hx,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = at::sigmoid(from_input[0] + from_hidden[0]);
  const at::Tensor update = at::sigmoid(from_input[1] + from_hidden[1]);
  const at::Tensor fresh = at::tanh(from_input[2] + reset * from_hidden[2]);
  return {(hx - fresh) * update + fresh, at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

// Returns the gradients of input_gates, hidden_gates, hx, and of the two biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const at::Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden = saved[4];
  const at::Tensor grad_update = at::sigmoid_backward(grad_hy * (hx - fresh), update);
  const at::Tensor grad_fresh = at::tanh_backward(grad_hy * (1 - update), fresh);
  const at::Tensor grad_reset = at::sigmoid_backward(grad_fresh * hidden, reset);
  const at::Tensor grad_input_gates = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const at::Tensor grad_hidden_gates = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  return {
      grad_input_gates,
      grad_hidden_gates,
      grad_hy * update,
      bias_gradient(grad_input_gates, has_bias),
      bias_gradient(grad_hidden_gates, has_bias)};
}

} // namespace

void register_recurrent_cells() {
  torch::Library& m = kernel_library("aten", c10::DispatchKey::CompositeImplicitAutograd);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

} // namespace c10::openreg
