/* SPDX-License-Identifier: BSD-3-Clause */
// The tensors of one collective on the host, and the Work that brings its results back.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "shim/optional/distributed/collective_results.h"
#include "shim/optional/distributed/queued_work.h"

namespace c10::openreg {

// Returns unless OPENREG_ENABLE_GLOO_COLLECTIVES switches collectives of openreg tensors off. Throws c10::Error that
// names it if it is 0, and for any value but 0, 1 and the empty one. Read at every call.
void require_gloo_collectives();

enum class TensorRole : uint8_t {
  input,
  output, // its contents before the collective don't matter
  in_out,
  kept, // an input that is a result, too, as it is: what the root of a broadcast has
  used, // an input that is a result, too, whose contents afterwards don't matter: what a rank gives to another one's reduce
};

// Shows the tensors of one collective to a backend that knows host memory only:
//   in place     a dense tensor whose device runs operators on its memory (ExecutionMode::aliased); nothing is copied.
//                Not under OPENREG_SIM_SEED: the copy of a result is then made when the seed says, or at the latest when
//                something waits for it.
//   as a copy    any other openreg tensor, in pinned memory.
//   as it is     a tensor of another device.
// Memory stays alive as long as a host tensor that shows it. One object serves one call in one thread.
class StagedTensors {
 public:
  using Tensors = std::vector<at::Tensor>;

  // Of a backend: for texts of errors, and its streams.
  StagedTensors(int rank, int size, CommunicationStreams& streams) : streams_(streams), rank_(rank), size_(size) {}
  ~StagedTensors();
  StagedTensors(const StagedTensors&) = delete;
  StagedTensors& operator=(const StagedTensors&) = delete;

  // Waits for the calling thread's current stream of the tensor's device; the current device stays as it is. Throws
  // c10::Error for a tensor that can't be copied, and where require_gloo_collectives() does.
  at::Tensor show(const at::Tensor& tensor, TensorRole role);

  template <class Item>
  std::vector<Item> show(const std::vector<Item>& items, TensorRole role) {
    std::vector<Item> shown;
    shown.reserve(items.size());
    for (const Item& item : items) {
      shown.push_back(show(item, role));
    }
    return shown;
  }

  // As show() of openreg's tensors of one type, inputs or outputs, in one piece of the host's memory, one after another. An
  // input is copied once.
  at::Tensor show_in_a_row(const Tensors& tensors, TensorRole role);

  // As show() of an output and of inputs, of which the host's backend may write to each. What is shown for input `own`
  // becomes the output. An input is copied once.
  Tensors show_to_use_up(const Tensors& inputs, size_t own, const at::Tensor& output);

  // As show() of outputs, of which the one of this rank has the input's elements from the start.
  Tensors show_with_own(const at::Tensor& input, const Tensors& outputs, size_t own);

  // Of the first tensor that is openreg's; the host: there is none.
  c10::Device device() const {
    return seen_.empty() ? c10::Device(c10::kCPU) : seen_.front().device;
  }

  // What the host's backend returned, as the Work of the tensors that were shown. To be called once, at the end. Unknown:
  // the operation that `host_work` names.
  //
  // It is queued on a stream (queue_work()) where that can be. Else the host waits: wait() returns when its results are in
  // device memory, in order before whatever its waiter does next, on any stream; its future, if the host's has one, holds
  // the list of the output tensors; errors and timeouts are those of `host_work`, with a line that says which collective
  // of which tensors it was, and results are not brought back then. A Work without a future brings them back in wait().
  c10::intrusive_ptr<c10d::Work> finish(
      c10::intrusive_ptr<c10d::Work> host_work, c10d::OpType operation = c10d::OpType::UNKNOWN, bool is_async = true);

 private:
  // What each way to show an openreg tensor begins with. The result says that the detector's notes have been made.
  bool see(const at::Tensor& tensor, TensorRole role);
  at::Tensor show_filled(const at::Tensor& output, const at::Tensor& input);

  CommunicationStreams& streams_;
  const int rank_;
  const int size_;
  std::vector<SeenTensor> seen_; // openreg's
  StagedOutputs outputs_;
  bool is_finished_ = false;
};

} // namespace c10::openreg
