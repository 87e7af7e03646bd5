// lstm() over whole layers. PyTorch's own hands an LSTM to oneDNN on CPU tensors alone and takes it apart into steps on
// all others. Here it goes to oneDNN wherever it would on the CPU: a layer is one operator, with PyTorch's own gradient.
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
#include <torch/library.h>

#include <algorithm>
#include <vector>

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

bool on_openreg(TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return tensor.is_privateuseone() && tensor.layout() == c10::kStrided;
  });
}

// Autocast has rules for the operators of a step and none for a layer.
bool is_for_one_dnn(const Tensor& input, TensorList hidden, TensorList params) {
  return hidden.size() == 2 && at::globalContext().hasMKLDNN() && at::globalContext().userEnabledMkldnn() &&
      on_openreg(input) && on_openreg(params) && on_openreg(hidden) && one_dnn_computes_in(input.scalar_type()) &&
      !hidden[0].unsafeGetTensorImpl()->has_symbolic_sizes_strides() && input.numel() != 0 &&
      hidden[0].size(2) == hidden[1].size(2) && // else there are projections
      !at::autocast::is_autocast_enabled(c10::DeviceType::PrivateUse1);
}

struct Options {
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;
};

// One direction of one layer. weights: of the input and of the hidden state, then the biases. Returns the outputs of
// all steps and the last states.
std::tuple<Tensor, Tensor, Tensor> one_layer(
    const Tensor& input,
    TensorList weights,
    const Tensor& hx,
    const Tensor& cx,
    bool reverse,
    const Options& options) {
  const auto result = at::mkldnn_rnn_layer(
      input,
      weights[0],
      weights[1],
      options.has_biases ? weights[2] : at::zeros_like(weights[0]),
      options.has_biases ? weights[3] : at::zeros_like(weights[1]),
      hx,
      cx,
      reverse,
      /*batch_sizes=*/{},
      kLstm,
      /*hidden_size=*/hx.size(-1),
      options.num_layers,
      options.has_biases,
      options.bidirectional,
      options.batch_first,
      options.train);
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

std::tuple<Tensor, Tensor, Tensor> by_layers(
    const Tensor& input,
    const Tensor& first_hx,
    const Tensor& first_cx,
    TensorList params,
    const Options& options) {
  const size_t of_a_layer = options.has_biases ? 4 : 2;
  const int64_t directions = options.bidirectional ? 2 : 1;
  TORCH_CHECK(
      params.size() == of_a_layer * static_cast<size_t>(options.num_layers * directions), "got an incorrect number of RNN parameters");
  const Tensor hx = first_hx.contiguous();
  const Tensor cx = first_cx.contiguous();
  Tensor output = (options.batch_first ? input.transpose(0, 1) : input).contiguous();
  std::vector<Tensor> last_hx;
  std::vector<Tensor> last_cx;
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      const TensorList weights = params.slice(static_cast<size_t>(index) * of_a_layer, of_a_layer);
      auto [out, hy, cy] = one_layer(output, weights, hx[index], cx[index], direction > 0, options);
      outputs.push_back(std::move(out));
      last_hx.push_back(std::move(hy));
      last_cx.push_back(std::move(cy));
    }
    output = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    if (options.dropout != 0 && options.train && layer < options.num_layers - 1) {
      output = at::dropout(output, options.dropout, /*train=*/true);
    }
  }
  return {
      options.batch_first ? output.transpose(0, 1) : output, at::stack(last_hx, 0), at::stack(last_cx, 0)};
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
  if (!is_for_one_dnn(input, hidden, params)) {
    return at::native::lstm(
        input, hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  return by_layers(
      input,
      hidden[0],
      hidden[1],
      params,
      {has_biases, num_layers, dropout, train, bidirectional, batch_first});
}

// It is made of operators that have gradients, so it is what autograd sees too.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("lstm.input", lstm);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("lstm.input", lstm);
}

} // namespace
} // namespace c10::openreg
