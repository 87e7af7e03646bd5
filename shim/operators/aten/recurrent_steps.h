/* SPDX-License-Identifier: BSD-3-Clause */
// Recurrent layers step by step, with the operators and in the order in which PyTorch runs them on CPU tensors (on other
// devices it multiplies each step's input alone), so that results and gradients are the CPU's bit for bit.
// Formulas: aten/src/ATen/native/RNN.cpp. Everything here is made of operators that have gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <vector>

namespace c10::openreg {

enum class Recurrence { lstm, gru, rnn_tanh, rnn_relu };

struct RecurrentOptions {
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
};

// The state after a step; `cell` is an LSTM's alone.
struct RecurrentState {
  at::Tensor hidden;
  at::Tensor cell;
};

// The parameters of one direction of one layer; undefined where the layer has none.
struct RecurrentWeights {
  at::Tensor input;
  at::Tensor hidden;
  at::Tensor input_bias;
  at::Tensor hidden_bias;
  at::Tensor projection;
};

// How many tensors of PyTorch's flat list of parameters belong to one direction of one layer.
size_t recurrent_weights_count(const RecurrentOptions& options, bool has_projections);
// The flat list by layer and direction. Its length must be a multiple of that number.
std::vector<RecurrentWeights> recurrent_weights(
    at::TensorList params, const RecurrentOptions& options, bool has_projections);

// One step; `input` has been multiplied with the input's weights.
RecurrentState recurrent_step(
    Recurrence kind, const at::Tensor& input, const RecurrentState& state, const RecurrentWeights& weights);

// input: (length, batch, features), or of a packed sequence the data (elements, features) with its batch sizes, which
// are otherwise empty. states: one for each layer and direction, replaced by the last ones. Returns the outputs of all
// steps, in the form of `input`. Throws c10::Error for a sequence of no steps.
at::Tensor recurrent_layers(
    Recurrence kind,
    at::Tensor input,
    c10::IntArrayRef batch_sizes,
    std::vector<RecurrentState>& states,
    const std::vector<RecurrentWeights>& weights,
    const RecurrentOptions& options);

} // namespace c10::openreg
