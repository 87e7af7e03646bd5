// SPDX-License-Identifier: BSD-3-Clause
// LSTM, GRU and plain recurrent layers as PyTorch runs them on CPU tensors: an LSTM in oneDNN's layers where that would
// take it, all others over inputs that are multiplied at once (recurrent_steps.h). PyTorch's own functions, which serve
// whatever is not all of this device, take neither way for other devices than the CPU.
// Formula: aten/src/ATen/native/RNN.cpp (use_mkldnn) and mkldnn/RNN.cpp (mkldnn_rnn).
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_cell_native.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm_cell_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "shim/operators/aten/recurrent_steps.h"
#include "shim/operators/fallback/gpu_kernels.h"

namespace c10::openreg {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;
using Options = RecurrentOptions;
using Lstm = std::tuple<Tensor, Tensor, Tensor>;
using Simple = std::tuple<Tensor, Tensor>;

constexpr int64_t kLstm = 2; // ideep::rnn_kind

// Whether this machine's oneDNN computes in a type of reduced precision: one of PyTorch's operators of that name says so.
bool one_dnn_supports(const char* question) {
  const auto op = c10::Dispatcher::singleton().findSchema({question, ""});
  return op.has_value() && op->typed<bool()>().call();
}

bool one_dnn_computes_in(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return true;
    case c10::kBFloat16: {
      static const bool supported = one_dnn_supports("mkldnn::_is_mkldnn_bf16_supported");
      return supported;
    }
    case c10::kHalf: {
      static const bool supported = one_dnn_supports("mkldnn::_is_mkldnn_fp16_supported");
      return supported && !c10::GradMode::is_enabled();
    }
    default:
      return false;
  }
}

// Whether the call is all of one openreg device and nothing else is to be seen to: PyTorch's own function tells what is
// wrong with any other. Autocast has rules for the operators that it calls, and a GPU has kernels for some of them.
bool is_ours(const Tensor& input, TensorList states, TensorList params, size_t expected_params) {
  const auto fits = [&input](const Tensor& tensor) {
    return tensor.defined() && tensor.is_privateuseone() && tensor.device() == input.device() &&
        tensor.layout() == c10::kStrided && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  };
  return params.size() == expected_params && fits(input) && std::all_of(states.begin(), states.end(), fits) &&
      std::all_of(params.begin(), params.end(), fits) &&
      !at::autocast::is_autocast_enabled(c10::DeviceType::PrivateUse1) && !has_gpu_kernels(input.device().index());
}

size_t directions_of(const Options& options) {
  return static_cast<size_t>(options.num_layers) * (options.bidirectional ? 2 : 1);
}

// Whether the whole layers' call is_ours(), with a state for each layer and direction.
bool are_ours(
    const Tensor& input, TensorList states, TensorList params, const Options& options, bool has_projections = false) {
  const size_t directions = directions_of(options);
  return is_ours(input, states, params, directions * recurrent_weights_count(options, has_projections)) &&
      std::all_of(states.begin(), states.end(), [directions](const Tensor& state) {
           return state.dim() > 0 && state.size(0) == static_cast<int64_t>(directions);
         });
}

// Projections have made the hidden state smaller than the cell's.
bool are_projected(TensorList states) {
  return states.size() == 2 && states[0].sym_size(2) != states[1].sym_size(2);
}

std::vector<RecurrentState> states_of(const Tensor& hidden, const Tensor& cell) {
  std::vector<RecurrentState> states;
  const auto hiddens = hidden.unbind(0);
  const auto cells = cell.defined() ? cell.unbind(0) : std::vector<Tensor>(hiddens.size());
  for (size_t i = 0; i < hiddens.size(); ++i) {
    states.push_back({hiddens[i], cells[i]});
  }
  return states;
}

Tensor stacked(const std::vector<RecurrentState>& states, Tensor RecurrentState::* part) {
  std::vector<Tensor> parts;
  for (const RecurrentState& state : states) {
    parts.push_back(state.*part);
  }
  return at::stack(parts, 0);
}

c10::IntArrayRef sizes_in(const Tensor& batch_sizes) {
  return {batch_sizes.const_data_ptr<int64_t>(), static_cast<size_t>(batch_sizes.numel())};
}

// ----------------------------------------------------------------------------------------------------------- oneDNN

bool is_for_one_dnn(const Tensor& input) {
  return at::globalContext().hasMKLDNN() && at::globalContext().userEnabledMkldnn() &&
      one_dnn_computes_in(input.scalar_type()) && input.numel() != 0;
}

// One direction of one layer. Returns the outputs of all steps; the state becomes the last one.
Tensor one_dnn_layer(
    const Tensor& input,
    RecurrentState& state,
    const RecurrentWeights& weights,
    bool reverse,
    bool batch_first,
    const Options& options) {
  const auto bias = [&options](const Tensor& own, const Tensor& multiplies) {
    return options.has_biases ? own : at::zeros_like(multiplies);
  };
  auto result = at::mkldnn_rnn_layer(
      input,
      weights.input,
      weights.hidden,
      bias(weights.input_bias, weights.input),
      bias(weights.hidden_bias, weights.hidden),
      state.hidden,
      state.cell,
      reverse,
      /*batch_sizes=*/{},
      kLstm,
      /*hidden_size=*/state.hidden.size(-1),
      options.num_layers,
      options.has_biases,
      options.bidirectional,
      batch_first,
      options.train);
  state = {std::get<1>(std::move(result)), std::get<2>(std::move(result))};
  return std::get<0>(std::move(result));
}

// input: (length, batch, features).
Tensor one_dnn_layers(
    const Tensor& input,
    std::vector<RecurrentState>& states,
    const std::vector<RecurrentWeights>& weights,
    bool batch_first,
    const Options& options) {
  Tensor output = input.contiguous();
  const size_t directions = options.bidirectional ? 2 : 1;
  for (size_t first = 0; first < states.size(); first += directions) {
    std::vector<Tensor> outputs;
    for (size_t i = first; i < first + directions; ++i) {
      outputs.push_back(one_dnn_layer(output, states[i], weights[i], /*reverse=*/i > first, batch_first, options));
    }
    output = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (options.dropout != 0 && options.train && first + directions < states.size()) {
      output = at::dropout(output, options.dropout, /*train=*/true);
    }
  }
  return output;
}

// -------------------------------------------------------------------------------------------------------- operators

Lstm lstm_input(
    const Tensor& input,
    TensorList hidden,
    TensorList params,
    bool has_biases,
    int64_t num_layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  const Options options{has_biases, num_layers, dropout, train, bidirectional};
  const bool has_projections = are_projected(hidden);
  if (hidden.size() != 2 || !are_ours(input, hidden, params, options, has_projections)) {
    return at::native::lstm(input, hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  const Tensor steps = batch_first ? input.transpose(0, 1) : input;
  const auto weights = recurrent_weights(params, options, has_projections);
  Tensor output;
  std::vector<RecurrentState> states;
  if (!has_projections && is_for_one_dnn(input)) {
    states = states_of(hidden[0].contiguous(), hidden[1].contiguous());
    output = one_dnn_layers(steps, states, weights, batch_first, options);
  } else {
    states = states_of(hidden[0], hidden[1]);
    output = recurrent_layers(Recurrence::lstm, steps, {}, states, weights, options);
  }
  return {
      batch_first ? output.transpose(0, 1) : output,
      stacked(states, &RecurrentState::hidden),
      stacked(states, &RecurrentState::cell)};
}

Lstm lstm_data(
    const Tensor& data,
    const Tensor& batch_sizes,
    TensorList hidden,
    TensorList params,
    bool has_biases,
    int64_t num_layers,
    double dropout,
    bool train,
    bool bidirectional) {
  const Options options{has_biases, num_layers, dropout, train, bidirectional};
  const bool has_projections = are_projected(hidden);
  if (hidden.size() != 2 || !are_ours(data, hidden, params, options, has_projections)) {
    return at::native::lstm(data, batch_sizes, hidden, params, has_biases, num_layers, dropout, train, bidirectional);
  }
  auto states = states_of(hidden[0], hidden[1]);
  Tensor output = recurrent_layers(
      Recurrence::lstm,
      data,
      sizes_in(batch_sizes),
      states,
      recurrent_weights(params, options, has_projections),
      options);
  return {std::move(output), stacked(states, &RecurrentState::hidden), stacked(states, &RecurrentState::cell)};
}

// The layers of one state: GRU and plain ones. `theirs` is PyTorch's own function.
template <Recurrence kind, auto theirs>
Simple simple_input(
    const Tensor& input,
    const Tensor& hidden,
    TensorList params,
    bool has_biases,
    int64_t num_layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  const Options options{has_biases, num_layers, dropout, train, bidirectional};
  if (!are_ours(input, hidden, params, options)) {
    return theirs(input, hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  auto states = states_of(hidden, {});
  Tensor output = recurrent_layers(
      kind,
      batch_first ? input.transpose(0, 1) : input,
      {},
      states,
      recurrent_weights(params, options, false),
      options);
  return {batch_first ? output.transpose_(0, 1) : output, stacked(states, &RecurrentState::hidden)};
}

template <Recurrence kind, auto theirs>
Simple simple_data(
    const Tensor& data,
    const Tensor& batch_sizes,
    const Tensor& hidden,
    TensorList params,
    bool has_biases,
    int64_t num_layers,
    double dropout,
    bool train,
    bool bidirectional) {
  const Options options{has_biases, num_layers, dropout, train, bidirectional};
  if (!are_ours(data, hidden, params, options)) {
    return theirs(data, batch_sizes, hidden, params, has_biases, num_layers, dropout, train, bidirectional);
  }
  auto states = states_of(hidden, {});
  Tensor output =
      recurrent_layers(kind, data, sizes_in(batch_sizes), states, recurrent_weights(params, options, false), options);
  return {std::move(output), stacked(states, &RecurrentState::hidden)};
}

// PyTorch's own functions are overloaded.
using SimpleInput = Simple (*)(const Tensor&, const Tensor&, TensorList, bool, int64_t, double, bool, bool, bool);
using SimpleData =
    Simple (*)(const Tensor&, const Tensor&, const Tensor&, TensorList, bool, int64_t, double, bool, bool);

RecurrentWeights weights_of_cell(
    const Tensor& input, const Tensor& hidden, const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  return {input, hidden, input_bias.value_or(Tensor()), hidden_bias.value_or(Tensor()), {}};
}

Simple lstm_cell(
    const Tensor& input,
    TensorList hidden,
    const Tensor& input_weight,
    const Tensor& hidden_weight,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  if (hidden.size() != 2 || !is_ours(input, hidden, {input_weight, hidden_weight}, 2)) {
    return at::native::lstm_cell(input, hidden, input_weight, hidden_weight, input_bias, hidden_bias);
  }
  const auto weights = weights_of_cell(input_weight, hidden_weight, input_bias, hidden_bias);
  const Tensor multiplied = at::linear(input, weights.input, weights.input_bias);
  auto state = recurrent_step(Recurrence::lstm, multiplied, {hidden[0], hidden[1]}, weights);
  return {std::move(state.hidden), std::move(state.cell)};
}

Tensor gru_cell(
    const Tensor& input,
    const Tensor& hidden,
    const Tensor& input_weight,
    const Tensor& hidden_weight,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  if (!is_ours(input, hidden, {input_weight, hidden_weight}, 2)) {
    return at::native::gru_cell(input, hidden, input_weight, hidden_weight, input_bias, hidden_bias);
  }
  const auto weights = weights_of_cell(input_weight, hidden_weight, input_bias, hidden_bias);
  const Tensor multiplied = at::linear(input, weights.input, weights.input_bias);
  return recurrent_step(Recurrence::gru, multiplied, {hidden, {}}, weights).hidden;
}

void register_all(torch::Library& m) {
  m.impl("lstm.input", lstm_input);
  m.impl("lstm.data", lstm_data);
  m.impl("gru.input", simple_input<Recurrence::gru, static_cast<SimpleInput>(&at::native::gru)>);
  m.impl("gru.data", simple_data<Recurrence::gru, static_cast<SimpleData>(&at::native::gru)>);
  m.impl("rnn_tanh.input", simple_input<Recurrence::rnn_tanh, static_cast<SimpleInput>(&at::native::rnn_tanh)>);
  m.impl("rnn_tanh.data", simple_data<Recurrence::rnn_tanh, static_cast<SimpleData>(&at::native::rnn_tanh)>);
  m.impl("rnn_relu.input", simple_input<Recurrence::rnn_relu, static_cast<SimpleInput>(&at::native::rnn_relu)>);
  m.impl("rnn_relu.data", simple_data<Recurrence::rnn_relu, static_cast<SimpleData>(&at::native::rnn_relu)>);
  m.impl("lstm_cell", lstm_cell);
  m.impl("gru_cell", gru_cell);
}

// They are made of operators that have gradients, so that they are what autograd sees too.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  register_all(m);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_all(m);
}

} // namespace
} // namespace c10::openreg
