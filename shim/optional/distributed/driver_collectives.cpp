// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/driver_collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

#include "shim/base/status.h"
#include "shim/operators/policy/kernel_keys.h"
#include "shim/optional/distributed/collective_arguments.h"
#include "shim/optional/distributed/collective_results.h"
#include "shim/optional/distributed/driver_work.h"
#include "shim/optional/distributed/gloo_limits.h"
#include "shim/optional/distributed/staged_work.h"
#include "shim/optional/distributed/switch_variable.h"
#include "shim/optional/distributed/work_over_host.h"

namespace c10::openreg {

using c10d::OpType;
using c10d::Work;

namespace {

uint64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.nbytes());
}

bool is_plain_contiguous(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor copy_in_a_row(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels); // it is no step of autograd
  return tensor.resolve_conj().resolve_neg().contiguous();
}

void check_same(const at::Tensor& one, const at::Tensor& other, int64_t times, c10d::OpType operation) {
  TORCH_CHECK(
      one.scalar_type() == other.scalar_type() && one.numel() == other.numel() * times,
      name_of(operation),
      ": ",
      one.scalar_type(),
      one.sizes(),
      " must have the type of ",
      other.scalar_type(),
      other.sizes(),
      times == 1 ? " and as many elements" : " and as many elements for each rank");
}

} // namespace

// A collective before it is queued. Tensors are in a row; `copies` are brought back to those of the caller behind it.
struct DriverBackend::Call {
  explicit Call(OpType what, std::chrono::milliseconds limit, int other = -1)
      : operation(what),
        timeout(limit),
        peer(other) {}

  OpType operation;
  std::chrono::milliseconds timeout;
  int peer; // of send and recv, else -1
  std::vector<at::Tensor> used;
  std::vector<at::Tensor> temporaries;
  std::vector<at::Tensor> results;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies; // to, from
  std::vector<openreg_collective> parts;
  std::vector<std::vector<uint64_t>> counts; // that parts point to

  // The bytes of each rank's part, for send_counts and recv_counts.
  const uint64_t* keep(std::vector<uint64_t> bytes) {
    counts.push_back(std::move(bytes));
    return counts.back().data();
  }

  at::Tensor input(const at::Tensor& tensor) {
    used.push_back(tensor);
    if (is_plain_contiguous(tensor)) {
      return tensor;
    }
    temporaries.push_back(copy_in_a_row(tensor));
    return temporaries.back();
  }

  at::Tensor output(const at::Tensor& tensor, bool with_contents = false) {
    used.push_back(tensor);
    results.push_back(tensor);
    if (is_plain_contiguous(tensor)) {
      return tensor;
    }
    at::Tensor copy = with_contents ? copy_in_a_row(tensor) : at::empty(tensor.sizes(), tensor.options());
    temporaries.push_back(copy);
    copies.emplace_back(tensor, copy);
    return copy;
  }

  std::string description(int rank, int size) const {
    return description_of(operation, rank, size, {used.begin(), used.end()});
  }
};

bool driver_collectives_are_wanted() {
  return switch_variable("OPENREG_COMM", false);
}

DriverBackend::DriverBackend(HostBackend host, c10::intrusive_ptr<c10d::Store> store)
    : StagedBackend(std::move(host)),
      communicators_(c10::make_intrusive<c10d::PrefixStore>("openreg_comm", std::move(store)), getRank(), getSize()) {}

DriverBackend::~DriverBackend() = default;

bool DriverBackend::is_ours(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone() || tensor.layout() != at::kStrided || tensor.is_nested()) {
    return false;
  }
  int32_t has = 0;
  OPENREG_CHECK(openreg_device_has_communicators(tensor.device().index(), &has));
  if (has != 0) {
    require_gloo_collectives(); // the variable applies to collectives of openreg tensors by any backend
  }
  return has != 0;
}

void DriverBackend::abort() {
  for (const auto& communicator : communicators_.end()) {
    fail(
        *communicator,
        "The process group has been aborted",
        "rank " + std::to_string(getRank()) + " of " + std::to_string(getSize()));
    communicator->destroy();
  }
  StagedBackend::abort();
}

void DriverBackend::shutdown() {
  for (const auto& communicator : communicators_.end()) {
    communicator->destroy();
  }
  StagedBackend::shutdown();
}

// --------------------------------------------------------------------------------------------------------- queueing

// Calls of one block are one group of the library. Messages of a block are the group's communicator's, also where this rank
// has only one: its peer may have several.
c10::intrusive_ptr<Work> DriverBackend::launch(std::vector<Call> calls, bool is_block) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  const auto device = calls.front().used.front().device();
  const auto set = calls.front().timeout;
  const auto timeout = set == c10d::kUnsetTimeout || set == kNoTimeout ? this->timeout() : set;
  const bool is_of_two = !is_block && calls.front().peer >= 0;
  const auto operation = is_block ? OpType::COALESCED : calls.front().operation;
  std::vector<at::Tensor> results;
  std::string description;
  for (const auto& call : calls) {
    results.insert(results.end(), call.results.begin(), call.results.end());
    description += (description.empty() ? "" : "; ") + call.description(getRank(), getSize());
  }
  std::shared_ptr<Communicator> communicator;
  try {
    communicator = is_of_two ? communicators_.pair(device.index(), calls.front().peer, timeout)
                             : communicators_.whole(device.index(), timeout);
  } catch (const c10::DistBackendError& error) {
    TORCH_CHECK_WITH(DistBackendError, false, error.what_without_backtrace(), "\nIn ", description, ".");
  } catch (...) {
    std::rethrow_exception(noticed_failure(std::current_exception(), description));
  }
  // First of all, as it is needed however this ends.
  const c10::Stream stream(c10::Stream::UNSAFE, device, communicator->stream);
  for (const auto& call : calls) {
    for (const auto& tensors : {call.used, call.temporaries}) {
      for (const auto& tensor : tensors) {
        tensor.record_stream(stream);
      }
    }
  }
  const auto progress = watch(communicator, description, timeout);
  try {
    communicator->follow_current_stream();
    const CurrentStreams on({{device.index(), communicator->stream}});
    std::vector<openreg_collective> group;
    for (auto& call : calls) {
      for (auto& part : call.parts) {
        if (is_of_two) {
          part.peer = getRank() < call.peer ? 1 : 0;
        }
        group.push_back(part);
      }
    }
    communicator->queue(group);
    for (auto& call : calls) {
      for (const auto& [to, from] : call.copies) {
        to.copy_(from, /*non_blocking=*/true);
      }
    }
    return work_of(progress, operation, results);
  } catch (const c10::NotImplementedError&) { // a type or reduction that this version of the library lacks
    forget(*progress);
    throw;
  } catch (...) {
    fail(*communicator, text_of(std::current_exception()), description);
    forget(*progress);
    std::rethrow_exception(communicator->failure());
  }
}

// In a block the call is kept for its end, and has no Work of its own.
c10::intrusive_ptr<Work> DriverBackend::make(Call call) {
  const auto device = call.used.front().device();
  for (const auto& tensor : call.used) {
    TORCH_CHECK(
        tensor.device() == device,
        name_of(call.operation),
        ": all tensors must be on one device, but they are on ",
        device,
        " and ",
        tensor.device());
  }
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (is_in_block_) {
      block_.push_back(std::move(call));
      return nullptr;
    }
  }
  std::vector<Call> calls;
  calls.push_back(std::move(call));
  return launch(std::move(calls), /*is_block=*/false);
}

void DriverBackend::start_block() {
  std::vector<Call> left; // of a block that an exception has left open: tensors that Python knows end without the lock
  {
    const std::lock_guard<std::mutex> guard(lock_);
    is_in_block_ = true;
    left.swap(block_);
  }
  StagedBackend::start_block();
}

c10::intrusive_ptr<Work> DriverBackend::end_block() {
  std::vector<Call> calls;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    is_in_block_ = false;
    calls.swap(block_);
  }
  auto staged = StagedBackend::end_block();
  if (calls.empty()) {
    return staged;
  }
  auto work = launch(std::move(calls), /*is_block=*/true);
  staged->wait(kNoTimeout); // of what gloo does of the same block, if anything
  return work;
}

// ------------------------------------------------------------------------------------------------------ collectives

c10::intrusive_ptr<Work> DriverBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  if (!is_ours(tensors.at(0))) {
    return StagedBackend::broadcast(tensors, options);
  }
  Call call(OpType::BROADCAST, options.timeout);
  const auto data = call.output(tensors[0], /*with_contents=*/true);
  call.parts.push_back(
      moved(OPENREG_COLLECTIVE_BROADCAST, data, data, bytes_of(data), static_cast<int>(options.rootRank)));
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (!is_ours(tensors.at(0))) {
    return StagedBackend::allreduce(tensors, options);
  }
  Call call(OpType::ALLREDUCE, options.timeout);
  for (const auto& tensor : tensors) {
    const auto data = call.output(tensor, /*with_contents=*/true);
    call.parts.push_back(reduced(OPENREG_COLLECTIVE_ALL_REDUCE, data, data, data.numel(), options.reduceOp));
  }
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return is_ours(tensors.at(0)) ? allreduce(tensors, options) : StagedBackend::allreduce_coalesced(tensors, options);
}

c10::intrusive_ptr<Work> DriverBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  if (!is_ours(tensors.at(0))) {
    return StagedBackend::reduce(tensors, options);
  }
  Call call(OpType::REDUCE, options.timeout);
  const auto data = call.output(tensors[0], /*with_contents=*/true);
  const int root = static_cast<int>(options.rootRank);
  call.parts.push_back(reduced(OPENREG_COLLECTIVE_REDUCE, data, data, data.numel(), options.reduceOp, root));
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  if (!is_ours(input)) {
    return StagedBackend::_allgather_base(output, input, options);
  }
  Tensors outputs = {output};
  Tensors inputs = {input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

c10::intrusive_ptr<Work> DriverBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (!is_ours(inputs.at(0))) {
    return StagedBackend::allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  Call call(OpType::_ALLGATHER_BASE, options.timeout);
  for (size_t i = 0; i < inputs.size(); i++) {
    check_same(outputs.at(i), inputs[i], getSize(), call.operation);
    const auto from = call.input(inputs[i]);
    call.parts.push_back(moved(OPENREG_COLLECTIVE_ALL_GATHER, from, call.output(outputs[i]), bytes_of(from)));
  }
  return make(std::move(call));
}

// Into one piece of memory and from there: outputs may lie anywhere, and may differ in size, as each rank's input.
c10::intrusive_ptr<Work> DriverBackend::allgather(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (!is_ours(inputs.at(0))) {
    return StagedBackend::allgather(outputs, inputs, options);
  }
  Call call(OpType::ALLGATHER, options.timeout);
  TORCH_CHECK(
      outputs.at(0).size() == static_cast<size_t>(getSize()), "all_gather: there must be an output for each rank");
  const auto from = call.input(inputs[0]);
  check_same(outputs[0][static_cast<size_t>(getRank())], inputs[0], 1, call.operation);
  std::vector<uint64_t> bytes;
  int64_t total = 0;
  for (const auto& output : outputs[0]) {
    TORCH_CHECK(output.scalar_type() == from.scalar_type(), "all_gather: all tensors must have one type");
    bytes.push_back(bytes_of(output));
    total += output.numel();
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  const auto all = at::empty({total}, from.options());
  call.temporaries.push_back(all);
  int64_t before = 0;
  for (const auto& output : outputs[0]) {
    call.used.push_back(output);
    call.results.push_back(output);
    call.copies.emplace_back(output, all.narrow(0, before, output.numel()).view(output.sizes()));
    before += output.numel();
  }
  const bool is_even = std::all_of(bytes.begin(), bytes.end(), [&](uint64_t part) { return part == bytes[0]; });
  call.parts.push_back(moved(OPENREG_COLLECTIVE_ALL_GATHER, from, all, bytes_of(from)));
  call.parts.back().recv_counts = is_even ? nullptr : call.keep(std::move(bytes));
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  if (!is_ours(outputs.at(0))) {
    return StagedBackend::reduce_scatter(outputs, inputs, options);
  }
  Call call(OpType::REDUCE_SCATTER, options.timeout);
  Tensors rows;
  TORCH_CHECK(
      inputs.at(0).size() == static_cast<size_t>(getSize()), "reduce_scatter: there must be an input for each rank");
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  for (const auto& input : inputs[0]) {
    check_same(input, outputs[0], 1, call.operation);
    call.used.push_back(input);
    rows.push_back(copy_in_a_row(input).view({-1}));
  }
  const auto from = at::cat(rows);
  call.temporaries.push_back(from);
  const auto to = call.output(outputs[0]);
  call.parts.push_back(reduced(OPENREG_COLLECTIVE_REDUCE_SCATTER, from, to, to.numel(), options.reduceOp));
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  if (!is_ours(input)) {
    return StagedBackend::_reduce_scatter_base(output, input, options);
  }
  Tensors outputs = {output};
  Tensors inputs = {input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

c10::intrusive_ptr<Work> DriverBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  if (!is_ours(inputs.at(0))) {
    return StagedBackend::reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  Call call(OpType::_REDUCE_SCATTER_BASE, options.timeout);
  for (size_t i = 0; i < inputs.size(); i++) {
    check_same(inputs[i], outputs.at(i), getSize(), call.operation);
    const auto from = call.input(inputs[i]);
    const auto to = call.output(outputs[i]);
    call.parts.push_back(reduced(OPENREG_COLLECTIVE_REDUCE_SCATTER, from, to, to.numel(), options.reduceOp));
  }
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_sizes,
    std::vector<int64_t>& input_sizes,
    const c10d::AllToAllOptions& options) {
  if (!is_ours(input)) {
    return StagedBackend::alltoall_base(output, input, output_sizes, input_sizes, options);
  }
  Call call(OpType::ALLTOALL_BASE, options.timeout);
  const auto from = call.input(input);
  const auto to = call.output(output);
  TORCH_CHECK(from.scalar_type() == to.scalar_type(), "all_to_all_single: both tensors must have one type");
  require_parts(from, input_sizes, getSize());
  require_parts(to, output_sizes, getSize());
  const auto parts_of = [this](const at::Tensor& tensor, const std::vector<int64_t>& sizes) {
    const auto row = tensor.size(0) == 0 ? 0 : bytes_of(tensor) / static_cast<uint64_t>(tensor.size(0));
    std::vector<uint64_t> bytes(static_cast<size_t>(getSize()), bytes_of(tensor) / static_cast<uint64_t>(getSize()));
    for (size_t rank = 0; rank < sizes.size(); rank++) {
      bytes[rank] = static_cast<uint64_t>(sizes[rank]) * row;
    }
    return bytes;
  };
  auto sent = parts_of(from, input_sizes);
  auto received = parts_of(to, output_sizes);
  const auto own = static_cast<size_t>(getRank());
  TORCH_CHECK(
      sent[own] == received[own],
      "all_to_all_single: rank ",
      own,
      " sends itself ",
      sent[own],
      " bytes and expects ",
      received[own]);
  call.parts.push_back(moved(OPENREG_COLLECTIVE_ALL_TO_ALL, from, to, sent[0]));
  // Always with counts: another rank may have parts of other sizes.
  call.parts.back().send_counts = call.keep(std::move(sent));
  call.parts.back().recv_counts = call.keep(std::move(received));
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  if (!is_ours(inputs.at(0))) {
    return StagedBackend::alltoall(outputs, inputs, options);
  }
  Call call(OpType::ALLTOALL, options.timeout);
  TORCH_CHECK(
      inputs.size() == static_cast<size_t>(getSize()) && outputs.size() == inputs.size(),
      "all_to_all: there must be an input and an output for each rank");
  const auto own = static_cast<size_t>(getRank());
  check_same(inputs[own], outputs[own], 1, call.operation);
  for (int rank = 0; rank < getSize(); rank++) {
    const auto from = call.input(inputs[static_cast<size_t>(rank)]);
    const auto to = call.output(outputs[static_cast<size_t>(rank)]);
    TORCH_CHECK(
        from.scalar_type() == inputs[own].scalar_type() && to.scalar_type() == from.scalar_type(),
        "all_to_all: all tensors must have one type");
    call.parts.push_back(moved(OPENREG_COLLECTIVE_SEND, from, {}, bytes_of(from), rank));
    call.parts.push_back(moved(OPENREG_COLLECTIVE_RECV, {}, to, bytes_of(to), rank));
  }
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::send(Tensors& tensors, int rank, int tag) {
  if (!is_ours(tensors.at(0))) {
    return StagedBackend::send(tensors, rank, tag);
  }
  require_peer(tensors, rank, getRank(), getSize());
  Call call(OpType::SEND, c10d::kUnsetTimeout, rank);
  const auto from = call.input(tensors[0]);
  call.parts.push_back(moved(OPENREG_COLLECTIVE_SEND, from, {}, bytes_of(from), rank));
  return make(std::move(call));
}

c10::intrusive_ptr<Work> DriverBackend::recv(Tensors& tensors, int rank, int tag) {
  if (!is_ours(tensors.at(0))) {
    return StagedBackend::recv(tensors, rank, tag);
  }
  require_peer(tensors, rank, getRank(), getSize());
  Call call(OpType::RECV, c10d::kUnsetTimeout, rank);
  const auto to = call.output(tensors[0]);
  call.parts.push_back(moved(OPENREG_COLLECTIVE_RECV, {}, to, bytes_of(to), rank));
  return make(std::move(call));
}

c10::intrusive_ptr<c10d::Backend> DriverBackend::around(
    c10::intrusive_ptr<c10d::Backend> part, const c10::intrusive_ptr<c10d::Store>& store) const {
  return c10::make_intrusive<DriverBackend>(std::move(part), store);
}

} // namespace c10::openreg
