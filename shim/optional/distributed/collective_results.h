/* SPDX-License-Identifier: BSD-3-Clause */
// The results of a collective between the host's backend, which has them, and the caller, who wants them in device memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <openreg/openreg.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "shim/base/export.h"

namespace c10::openreg {

// A result of a collective and what shows it on the host. The same tensor twice where it is not an openreg tensor.
struct StagedOutput {
  at::Tensor tensor;
  at::Tensor host;
  bool is_copy; // `host` has memory of its own
};
using StagedOutputs = std::vector<StagedOutput>;

// The caller's tensors.
std::vector<at::Tensor> tensors_of(const StagedOutputs& outputs);

// Of the list of the caller's tensors.
c10::intrusive_ptr<c10::ivalue::Future> make_future(const std::vector<at::Tensor>& results);

// Null where this kind of Work has none, which it says by throwing.
c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work);

// "all_reduce": the name in torch.distributed.
std::string name_of(c10d::OpType operation);

// The properties of a tensor that messages contain; it does not keep the tensor.
struct SeenTensor {
  explicit SeenTensor(const at::Tensor& tensor)
      : type(tensor.scalar_type()),
        device(tensor.device()),
        sizes(tensor.sizes().vec()) {}

  at::ScalarType type;
  c10::Device device;
  std::vector<int64_t> sizes;
};

// "all_reduce in rank 0 of 2: float32[3] on openreg:0"
std::string description_of(c10d::OpType operation, int rank, int size, const std::vector<SeenTensor>& tensors);

// Without the places in the source that made it.
std::string text_of(const std::exception_ptr& error);

// An error of the host's backend, with a text such as
// "Connection closed by peer\nIn all_reduce in rank 0 of 2: float32[3] on openreg:0.". Those that have a class of their own in Python are left as they are.
std::exception_ptr with_context(const std::exception_ptr& error, const std::string& context);

// Says that a thread which is not Python's has still to do with a collective: a member of what that thread owns, the first
// one, so that it goes when the caller's tensors have gone. A tensor that Python knows takes the GIL then, and a thread
// that asks for it while the interpreter ends is unwound by Python, which aborts the process.
class ResultsInFlight {
 public:
  ResultsInFlight();
  ~ResultsInFlight();
  ResultsInFlight(const ResultsInFlight&) = delete;
  ResultsInFlight& operator=(const ResultsInFlight&) = delete;
};

// Returns when there are none, or the time is over: whether there are none. Any thread, without the GIL.
TORCH_OPENREG_API bool settle_results_in_flight(std::chrono::duration<double> longest);

// Makes a stream of each device current in this thread, and those of before at the end.
class CurrentStreams {
 public:
  using Streams = std::vector<std::pair<c10::DeviceIndex, openreg_stream>>;

  explicit CurrentStreams(const Streams& streams);
  ~CurrentStreams();
  CurrentStreams(const CurrentStreams&) = delete;
  CurrentStreams& operator=(const CurrentStreams&) = delete;

 private:
  Streams befores_;
};

} // namespace c10::openreg
