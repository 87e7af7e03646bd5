// SPDX-License-Identifier: BSD-3-Clause
// An LSTM in oneDNN's layers where PyTorch would run it so on CPU tensors: about twice as fast as step by step, and the CPU's
// results to the last bit. All other recurrent layers are PyTorch's own functions, over the cells of recurrent_cells.cpp.
// Formula: aten/src/ATen/native/RNN.cpp (use_mkldnn) and mkldnn/RNN.cpp (mkldnn_rnn).
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "shim/base/kernel_library.h"
#include "shim/operators/aten/registrations.h"
#include "shim/operators/fallback/route.h"

namespace c10::openreg {
namespace {

using at::Tensor;
using at::TensorList;

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

// Whether the call is all of one openreg device, whole, and oneDNN's: PyTorch's own function tells what is wrong with any
// other. Autocast has rules for the operators that it calls, and a GPU has kernels for some of them.
bool is_for_one_dnn(const Tensor& input, TensorList states, TensorList params, size_t weights, size_t directions) {
  const auto fits = [&input](const Tensor& tensor) {
    return tensor.defined() && tensor.is_privateuseone() && tensor.device() == input.device() &&
        tensor.layout() == c10::kStrided && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  };
  // In the capture of a graph nothing runs, and what a layer leaves for its backward has a size that oneDNN alone knows.
  return states.size() == 2 && params.size() == directions * weights && fits(input) &&
      std::all_of(states.begin(), states.end(), fits) && std::all_of(params.begin(), params.end(), fits) &&
      input.dim() == 3 && states[0].sizes() == states[1].sizes() &&
      states[0].dim() == 3 && // projections make the hidden state smaller
      states[0].size(0) == static_cast<int64_t>(directions) && input.numel() != 0 &&
      one_dnn_computes_in(input.scalar_type()) && at::globalContext().hasMKLDNN() &&
      at::globalContext().userEnabledMkldnn() && !at::autocast::is_autocast_enabled(c10::DeviceType::PrivateUse1) &&
      !has_gpu_kernels(input.device().index());
}

std::tuple<Tensor, Tensor, Tensor> lstm(
    const Tensor& input,
    TensorList hidden,
    TensorList params,
    bool has_biases,
    int64_t num_layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  const size_t directions = bidirectional ? 2 : 1; // of a layer
  const size_t all = static_cast<size_t>(num_layers) * directions;
  const size_t weights = has_biases ? 4 : 2; // of a direction: the input's and the hidden state's, and their biases
  if (!is_for_one_dnn(input, hidden, params, weights, all)) {
    return at::native::lstm(input, hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  const auto hiddens = hidden[0].contiguous().unbind(0);
  const auto cells = hidden[1].contiguous().unbind(0);
  std::vector<Tensor> last_hiddens;
  std::vector<Tensor> last_cells;
  Tensor output = (batch_first ? input.transpose(0, 1) : input).contiguous(); // (length, batch, features)
  for (size_t first = 0; first < all; first += directions) {
    std::vector<Tensor> outputs;
    for (size_t i = first; i < first + directions; ++i) {
      const auto weight = [&](size_t n) { return params[i * weights + n]; };
      auto [steps, last_hidden, last_cell, workspace] = at::mkldnn_rnn_layer(
          output,
          weight(0),
          weight(1),
          has_biases ? weight(2) : at::zeros_like(weight(0)),
          has_biases ? weight(3) : at::zeros_like(weight(1)),
          hiddens[i],
          cells[i],
          /*reverse=*/i > first,
          /*batch_sizes=*/{},
          kLstm,
          /*hidden_size=*/hiddens[i].size(-1),
          num_layers,
          has_biases,
          bidirectional,
          batch_first,
          train);
      outputs.push_back(std::move(steps));
      last_hiddens.push_back(std::move(last_hidden));
      last_cells.push_back(std::move(last_cell));
    }
    output = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (dropout != 0 && train && first + directions < all) {
      output = at::dropout(output, dropout, /*train=*/true);
    }
  }
  return {batch_first ? output.transpose(0, 1) : output, at::stack(last_hiddens, 0), at::stack(last_cells, 0)};
}

} // namespace

void register_lstm() {
  // It is made of operators that have gradients, so that it is what autograd sees too.
  for (const auto key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    kernel_library("aten", key).impl("lstm.input", lstm);
  }
}

} // namespace c10::openreg
