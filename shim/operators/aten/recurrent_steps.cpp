// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/aten/recurrent_steps.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>

#include <algorithm>

namespace c10::openreg {
namespace {

using at::Tensor;
using State = RecurrentState;
using Weights = RecurrentWeights;

Tensor linear_hidden(const Tensor& hidden, const Weights& weights) {
  return at::linear(hidden, weights.hidden, weights.hidden_bias);
}

State lstm_step(const Tensor& input, const State& state, const Weights& weights) {
  const auto gates = linear_hidden(state.hidden, weights).add_(input).unsafe_chunk(4, 1);
  const Tensor in = gates[0].sigmoid_();
  const Tensor forget = gates[1].sigmoid_();
  const Tensor fresh = gates[2].tanh_();
  const Tensor out = gates[3].sigmoid_();
  const Tensor cell = (forget * state.cell).add_(in * fresh);
  const Tensor hidden = out * cell.tanh();
  return {weights.projection.defined() ? at::matmul(hidden, weights.projection.t()) : hidden, cell};
}

State gru_step(const Tensor& input, const State& state, const Weights& weights) {
  const auto from_input = input.unsafe_chunk(3, 1);
  const auto from_hidden = linear_hidden(state.hidden, weights).unsafe_chunk(3, 1);
  const Tensor reset = from_hidden[0].add_(from_input[0]).sigmoid_();
  const Tensor update = from_hidden[1].add_(from_input[1]).sigmoid_();
  const Tensor fresh = from_input[2].add(from_hidden[2].mul_(reset)).tanh_();
  return {(state.hidden - fresh).mul_(update).add_(fresh), {}};
}

State part_of(const State& state, int64_t start, int64_t end) {
  return {
      state.hidden.narrow(0, start, end - start),
      state.cell.defined() ? state.cell.narrow(0, start, end - start) : Tensor()};
}

State joined(const std::vector<State>& states) {
  std::vector<Tensor> hidden;
  std::vector<Tensor> cell;
  for (const State& state : states) {
    hidden.push_back(state.hidden);
    cell.push_back(state.cell);
  }
  return {at::cat(hidden, 0), cell[0].defined() ? at::cat(cell, 0) : Tensor()};
}

// One direction of one layer. `input` has been multiplied.
Tensor whole_steps(Recurrence kind, const Tensor& input, State& state, const Weights& weights, bool reverse) {
  auto steps = input.unbind(0);
  if (reverse) {
    std::reverse(steps.begin(), steps.end());
  }
  std::vector<Tensor> outputs;
  for (const Tensor& step : steps) {
    state = recurrent_step(kind, step, state, weights);
    outputs.push_back(state.hidden);
  }
  TORCH_CHECK(!outputs.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (reverse) {
    std::reverse(outputs.begin(), outputs.end());
  }
  return at::stack(outputs, 0);
}

// Of a packed sequence, whose steps have fewer and fewer elements: the states of those that end are put aside.
Tensor packed_steps(
    Recurrence kind, const Tensor& input, c10::IntArrayRef batch_sizes, State& state, const Weights& weights) {
  std::vector<Tensor> outputs;
  std::vector<State> ended;
  int64_t offset = 0;
  int64_t last = batch_sizes[0];
  for (const int64_t size : batch_sizes) {
    const Tensor step = input.narrow(0, offset, size);
    offset += size;
    if (size < last) {
      ended.push_back(part_of(state, size, last));
      state = part_of(state, 0, size);
    }
    last = size;
    state = recurrent_step(kind, step, state, weights);
    outputs.push_back(state.hidden);
  }
  ended.push_back(state);
  std::reverse(ended.begin(), ended.end());
  state = joined(ended);
  return at::cat(outputs, 0);
}

// Backwards the steps have more and more elements: the states of those that begin are added.
Tensor reversed_packed_steps(
    Recurrence kind, const Tensor& input, c10::IntArrayRef batch_sizes, State& state, const Weights& weights) {
  const State first = state;
  std::vector<Tensor> outputs;
  int64_t offset = input.size(0);
  int64_t last = batch_sizes.back();
  state = part_of(first, 0, last);
  for (auto size = batch_sizes.rbegin(); size != batch_sizes.rend(); ++size) {
    if (*size > last) {
      state = joined({state, part_of(first, last, *size)});
    }
    last = *size;
    offset -= last;
    state = recurrent_step(kind, input.narrow(0, offset, last), state, weights);
    outputs.push_back(state.hidden);
  }
  std::reverse(outputs.begin(), outputs.end());
  return at::cat(outputs, 0);
}

} // namespace

size_t recurrent_weights_count(const RecurrentOptions& options, bool has_projections) {
  return (options.has_biases ? 4 : 2) + (has_projections ? 1 : 0);
}

std::vector<RecurrentWeights> recurrent_weights(
    at::TensorList params, const RecurrentOptions& options, bool has_projections) {
  const size_t count = recurrent_weights_count(options, has_projections);
  std::vector<Weights> all;
  for (size_t i = 0; i + count <= params.size(); i += count) {
    Weights weights{params[i], params[i + 1], {}, {}, {}};
    if (options.has_biases) {
      weights.input_bias = params[i + 2];
      weights.hidden_bias = params[i + 3];
    }
    if (has_projections) {
      weights.projection = params[i + count - 1];
    }
    all.push_back(std::move(weights));
  }
  return all;
}

RecurrentState recurrent_step(
    Recurrence kind, const Tensor& input, const RecurrentState& state, const RecurrentWeights& weights) {
  switch (kind) {
    case Recurrence::lstm:
      return lstm_step(input, state, weights);
    case Recurrence::gru:
      return gru_step(input, state, weights);
    case Recurrence::rnn_tanh:
      return {at::tanh(linear_hidden(state.hidden, weights).add_(input)), {}};
    case Recurrence::rnn_relu:
      return {at::relu(linear_hidden(state.hidden, weights).add_(input)), {}};
  }
  return state; // not reached
}

Tensor recurrent_layers(
    Recurrence kind,
    Tensor input,
    c10::IntArrayRef batch_sizes,
    std::vector<RecurrentState>& states,
    const std::vector<RecurrentWeights>& weights,
    const RecurrentOptions& options) {
  const int64_t directions = options.bidirectional ? 2 : 1;
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const auto index = static_cast<size_t>(layer * directions + direction);
      const Weights& own = weights[index];
      const bool reverse = direction > 0;
      const Tensor multiplied = at::linear(input, own.input, own.input_bias);
      if (batch_sizes.empty()) {
        outputs.push_back(whole_steps(kind, multiplied, states[index], own, reverse));
      } else {
        const auto steps = reverse ? reversed_packed_steps : packed_steps;
        outputs.push_back(steps(kind, multiplied, batch_sizes, states[index], own));
      }
    }
    input = outputs.size() == 1 ? outputs[0] : at::cat(outputs, outputs[0].dim() - 1);
    if (options.dropout != 0 && options.train && layer < options.num_layers - 1) {
      input = at::dropout(input, options.dropout, /*train=*/true);
    }
  }
  return input;
}

} // namespace c10::openreg
