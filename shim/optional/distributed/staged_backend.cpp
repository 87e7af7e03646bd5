// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/staged_backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/faults.h>
#include <openreg/flight_recorder.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/optional/distributed/gloo_limits.h"
#include "shim/optional/distributed/recorded_call.h"
#include "shim/optional/distributed/work_over_host.h"

namespace c10::openreg {

using c10d::Work;

namespace {

// The works of a block of collectives, as one.
class WorkOfAll final : public Work {
 public:
  explicit WorkOfAll(std::vector<c10::intrusive_ptr<Work>> works) : works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
  }

  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
  }

  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (auto error = work->exception()) {
        return error;
      }
    }
    return nullptr;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    bool is_good = true;
    for (const auto& work : works_) {
      is_good = work->wait(timeout) && is_good;
    }
    return is_good;
  }

  void synchronize() override {
    for (const auto& work : works_) {
      work->synchronize();
    }
  }

  void abort() override {
    for (const auto& work : works_) {
      work->abort();
    }
  }

  // Of all works, in the order of the calls.
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> results;
    for (const auto& work : works_) {
      const auto some = work->result();
      results.insert(results.end(), some.begin(), some.end());
    }
    return results;
  }

  // Completed with the last one, with the list of futures of the works.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(c10::ListType::ofTensors()));
    for (const auto& work : works_) {
      futures.push_back(work->getFuture());
    }
    return c10::collectAll(futures);
  }

 private:
  const std::vector<c10::intrusive_ptr<Work>> works_;
};

// A rank's part of what an all_reduce makes of the inputs in a row: gloo's own reduce_scatter is that, too, but its Work ends in
// wait() alone.
class PartWork final : public WorkOverHost {
 public:
  PartWork(const c10::intrusive_ptr<Work>& reduce, const at::Tensor& part, const at::Tensor& output)
      : WorkOverHost(reduce, c10d::OpType::REDUCE_SCATTER, ""),
        future_(reduce->getFuture()->then(
            [part, output](c10::ivalue::Future& sum) {
              (void)sum.value(); // throws its error
              const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
              output.copy_(part);
              return c10::IValue(std::vector<at::Tensor>{output});
            },
            c10::ListType::ofTensors())) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (!host_work().wait(timeout)) {
      return false; // aborted
    }
    future_->waitAndThrow();
    return true;
  }

  bool isCompleted() override {
    return future_->completed();
  }

  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : nullptr;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Whether a list with a tensor for each rank has openreg's of more than one size.
bool is_uneven(const std::vector<at::Tensor>& tensors, int size) {
  return tensors.size() == static_cast<size_t>(size) && tensors.front().is_privateuseone() &&
      std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& each) {
           return each.is_privateuseone() && each.numel() != tensors.front().numel();
         });
}

// Elements of the part that a rank has for itself; `sizes` of the first dimension, none for equal ones.
int64_t own_part(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int rank, int size) {
  if (sizes.empty() || tensor.size(0) == 0) {
    return tensor.numel() / size;
  }
  return sizes[static_cast<size_t>(rank)] * (tensor.numel() / tensor.size(0));
}

std::vector<int64_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> sizes;
  for (const auto& tensor : tensors) {
    sizes.push_back(tensor.numel());
  }
  return sizes;
}

// One collective for each rank, of its part, as one Work.
template <class Call>
c10::intrusive_ptr<Work> for_each_rank(const std::vector<at::Tensor>& parts, const Call& call) {
  std::vector<c10::intrusive_ptr<Work>> works;
  for (size_t rank = 0; rank < parts.size(); rank++) {
    std::vector<at::Tensor> part{parts[rank]};
    works.push_back(call(part, static_cast<int>(rank)));
  }
  return c10::make_intrusive<WorkOfAll>(std::move(works));
}

// Of a collective whose peer is dead, or silent until the group's timeout, because a plan of faults says so.
class FailedPeerWork final : public Work {
 public:
  explicit FailedPeerWork(int rank)
      : Work(rank),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

  void fail(const std::string& text) {
    openreg_flight_recorder_alarm();
    auto error = std::make_exception_ptr(c10::DistNetworkError({__func__, __FILE__, __LINE__}, text));
    future_->setError(error);
    finish(error);
  }

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

c10::intrusive_ptr<Work> plan_for(const c10::Device& device, int rank, std::chrono::milliseconds timeout) {
  const int32_t peer = openreg_faults_of_collective(device.is_privateuseone() ? device.index() : OPENREG_HOST);
  if (peer == OPENREG_PEER_OK) {
    return nullptr;
  }
  auto work = c10::make_intrusive<FailedPeerWork>(rank);
  const std::string whose = device_name() + ": rank " + std::to_string(rank) + ", by a plan of faults: ";
  if (peer == OPENREG_PEER_DIES) {
    work->fail(whose + "Connection closed by peer");
  } else { // detached: it holds what it needs
    std::thread([work, whose, timeout] {
      std::this_thread::sleep_for(timeout);
      work->fail(whose + "Timed out waiting " + std::to_string(timeout.count()) + "ms for the peer");
    }).detach();
  }
  return work;
}

} // namespace

// What a plan of faults makes of a collective on the device; null: nothing.
c10::intrusive_ptr<Work> StagedBackend::planned(const c10::Device& device) {
  return C10_LIKELY(openreg_is_instrumented() == 0) ? nullptr : plan_for(device, getRank(), timeout());
}

// Between startCoalescing() and endCoalescing() a work is kept for the block's.
c10::intrusive_ptr<Work> StagedBackend::note(c10::intrusive_ptr<Work> work) {
  const std::lock_guard<std::mutex> guard(block_lock_);
  if (is_in_block_) {
    block_.push_back(work);
  }
  return work;
}

template <class Recorded, class Show, class Call>
c10::intrusive_ptr<Work> StagedBackend::carry(
    const char* name,
    bool is_async,
    const Recorded& recorded,
    const Show& show,
    const Call& call,
    c10d::OpType operation) {
  StagedTensors staged(getRank(), getSize(), streams_);
  auto shown = show(staged);
  if (auto work = planned(staged.device())) {
    return note(work);
  }
  const RecordedCall record(name, recorded, staged.device().is_privateuseone());
  return note(staged.finish(call(shown), operation, is_async));
}

template <class Call>
c10::intrusive_ptr<Work> StagedBackend::in_place(
    const char* name, bool is_async, const Tensors& tensors, const Call& call, TensorRole role) {
  GlooLimits(/*has_complex=*/true).see(tensors);
  return carry(name, is_async, tensors, [&](StagedTensors& staged) { return staged.show(tensors, role); }, call);
}

template <class Inputs, class Outputs, class Call>
c10::intrusive_ptr<Work> StagedBackend::from_to(
    const char* name,
    bool is_async,
    const Inputs& inputs,
    const Outputs& outputs,
    const Call& call,
    c10d::OpType operation,
    bool has_complex) {
  GlooLimits limits(has_complex);
  limits.see(inputs);
  limits.see(outputs);
  return carry(
      name,
      is_async,
      inputs,
      [&](StagedTensors& staged) {
        auto from = staged.show(inputs, TensorRole::input);
        return std::pair(std::move(from), staged.show(outputs, TensorRole::output));
      },
      [&](auto& shown) { return call(shown.first, shown.second); },
      operation);
}

StagedBackend::StagedBackend(HostBackend host)
    : Backend(host.rank(), host.size()),
      last_part_(c10::intrusive_ptr<Backend>()),
      host_(std::move(host)) {
  init();
}

const std::string StagedBackend::getBackendName() const {
  return device_name() + "_gloo";
}

c10::intrusive_ptr<Work> StagedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return in_place(
      "gloo:broadcast",
      options.asyncOp,
      tensors,
      [&](Tensors& host) { return host_->broadcast(host, options); },
      options.rootRank == getRank() ? TensorRole::kept : TensorRole::output);
}

c10::intrusive_ptr<Work> StagedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  require_reduction(tensors, options.reduceOp);
  return in_place(
      "gloo:all_reduce", options.asyncOp, tensors, [&](Tensors& host) { return host_->allreduce(host, options); });
}

c10::intrusive_ptr<Work> StagedBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  require_reduction(tensors, options.reduceOp);
  return in_place("gloo:all_reduce", options.asyncOp, tensors, [&](Tensors& host) {
    return host_->allreduce_coalesced(host, options);
  });
}

c10::intrusive_ptr<Work> StagedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  require_reduction(tensors, options.reduceOp);
  return in_place(
      "gloo:reduce",
      options.asyncOp,
      tensors,
      [&](Tensors& host) { return host_->reduce(host, options); },
      options.rootRank == getRank() ? TensorRole::in_out : TensorRole::used);
}

// A broadcast of each rank.
c10::intrusive_ptr<Work> StagedBackend::allgather_unevenly(
    Tensors& outputs, const at::Tensor& input, const c10d::AllgatherOptions& options) {
  GlooLimits limits(/*has_complex=*/true);
  limits.see(input);
  limits.see(outputs);
  const auto own = static_cast<size_t>(getRank());
  require_one_type(input, outputs);
  require_own(input.numel(), outputs[own].numel(), "input", "output");
  return carry(
      "gloo:all_gather",
      options.asyncOp,
      input,
      [&](StagedTensors& staged) { return staged.show_with_own(input, outputs, own); },
      [&](const Tensors& parts) {
        return for_each_rank(parts, [&](Tensors& part, int rank) {
          c10d::BroadcastOptions broadcast_options;
          broadcast_options.rootRank = rank;
          broadcast_options.timeout = options.timeout;
          return host_->broadcast(part, broadcast_options);
        });
      },
      c10d::OpType::ALLGATHER);
}

c10::intrusive_ptr<Work> StagedBackend::allgather(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (outputs.size() == 1 && inputs.size() == 1 && is_uneven(outputs.front(), getSize())) {
    return allgather_unevenly(outputs.front(), inputs.front(), options);
  }
  return from_to("gloo:all_gather", options.asyncOp, inputs, outputs, [&](Tensors& from, TensorLists& to) {
    return host_->allgather(to, from, options);
  });
}

c10::intrusive_ptr<Work> StagedBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  return from_to("gloo:all_gather", options.asyncOp, input, output, [&](at::Tensor& from, at::Tensor& to) {
    // NCCL asks for the number of elements alone, and programs rely on it, while gloo compares sizes.
    const bool are_rows = from.is_contiguous() && to.is_contiguous();
    auto row_from = are_rows ? from.view({-1}) : from;
    auto row_to = are_rows ? to.view({-1}) : to;
    return host_->_allgather_base(row_to, row_from, options);
  });
}

c10::intrusive_ptr<Work> StagedBackend::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return from_to("gloo:all_gather", options.asyncOp, inputs, outputs, [&](Tensors& from, TensorLists& to) {
    return host_->allgather_coalesced(to, from, options);
  });
}

c10::intrusive_ptr<Work> StagedBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return from_to("gloo:all_gather", options.asyncOp, inputs, outputs, [&](Tensors& from, Tensors& to) {
    return host_->allgather_into_tensor_coalesced(to, from, options);
  });
}

c10::intrusive_ptr<Work> StagedBackend::gather(
    TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return from_to(
      "gloo:gather",
      options.asyncOp,
      inputs,
      outputs,
      [&](Tensors& from, TensorLists& to) { return host_->gather(to, from, options); },
      c10d::OpType::UNKNOWN,
      /*has_complex=*/false);
}

c10::intrusive_ptr<Work> StagedBackend::scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  return from_to("gloo:scatter", options.asyncOp, inputs, outputs, [&](TensorLists& from, Tensors& to) {
    return host_->scatter(to, from, options);
  });
}

// A reduce to each rank, as gloo's own but with a future, in copies of the inputs: gloo writes to the tensors of all ranks.
c10::intrusive_ptr<Work> StagedBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  if (outputs.size() != 1 || inputs.size() != 1 || inputs.front().size() != static_cast<size_t>(getSize()) ||
      !outputs.front().is_privateuseone()) {
    return host_->reduce_scatter(outputs, inputs, options); // which refuses it
  }
  auto& output = outputs.front();
  auto& parts = inputs.front();
  const auto own = static_cast<size_t>(getRank());
  GlooLimits limits(/*has_complex=*/true);
  limits.see(parts);
  limits.see(output);
  require_reduction(output, options.reduceOp);
  require_one_type(output, parts);
  require_own(output.numel(), parts[own].numel(), "output", "input");
  return carry(
      "gloo:reduce_scatter",
      options.asyncOp,
      parts,
      [&](StagedTensors& staged) { return staged.show_to_use_up(parts, own, output); },
      [&](const Tensors& shown) {
        return for_each_rank(shown, [&](Tensors& part, int rank) {
          c10d::ReduceOptions reduce_options;
          reduce_options.reduceOp = options.reduceOp;
          reduce_options.rootRank = rank;
          reduce_options.timeout = options.timeout;
          return host_->reduce(part, reduce_options);
        });
      },
      c10d::OpType::REDUCE_SCATTER);
}

// An all_reduce of the inputs, and this rank's part of it.
c10::intrusive_ptr<Work> StagedBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  if (!output.is_privateuseone() && !input.is_privateuseone()) {
    return host_->_reduce_scatter_base(output, input, options);
  }
  GlooLimits limits(/*has_complex=*/true);
  limits.see(input);
  limits.see(output);
  require_reduction(output, options.reduceOp);
  require_one_type(output, {input});
  TORCH_CHECK(
      input.numel() == output.numel() * getSize(),
      "The input must have as many elements as the outputs of all ranks: ",
      output.numel() * getSize(),
      ", and not ",
      input.numel());
  return carry(
      "gloo:reduce_scatter",
      options.asyncOp,
      input,
      [&](StagedTensors& staged) {
        auto sums = staged.show_in_a_row({input}, TensorRole::input);
        return std::pair(std::move(sums), staged.show(output, TensorRole::output));
      },
      [&](auto& shown) {
        auto& [sums, result] = shown;
        c10d::AllreduceOptions reduce_options;
        reduce_options.reduceOp = options.reduceOp;
        reduce_options.timeout = options.timeout;
        Tensors row{sums};
        const auto count = output.numel();
        const auto part = sums.narrow(0, getRank() * count, count).view(output.sizes());
        return c10::make_intrusive<PartWork>(host_->allreduce(row, reduce_options), part, result);
      },
      c10d::OpType::_REDUCE_SCATTER_BASE);
}

c10::intrusive_ptr<Work> StagedBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(
      outputs.size() == inputs.size(), "There are ", inputs.size(), " inputs for ", outputs.size(), " outputs.");
  std::vector<c10::intrusive_ptr<Work>> works;
  for (size_t i = 0; i < outputs.size(); i++) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<WorkOfAll>(std::move(works));
}

c10::intrusive_ptr<Work> StagedBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_sizes,
    std::vector<int64_t>& input_sizes,
    const c10d::AllToAllOptions& options) {
  require_one_type(input, {output});
  require_parts(output, output_sizes, getSize());
  require_parts(input, input_sizes, getSize());
  if (input.is_privateuseone()) {
    require_own(
        own_part(input, input_sizes, getRank(), getSize()),
        own_part(output, output_sizes, getRank(), getSize()),
        "part of the input",
        "part of the output");
  }
  return from_to("gloo:all_to_all", options.asyncOp, input, output, [&](at::Tensor& from, at::Tensor& to) {
    return host_->alltoall_base(to, from, output_sizes, input_sizes, options);
  });
}

// As all_to_all_single() of what the lists have in a row: there each rank may say of its own how many elements it has.
c10::intrusive_ptr<Work> StagedBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  GlooLimits limits(/*has_complex=*/true);
  limits.see(inputs);
  limits.see(outputs);
  const auto size = static_cast<size_t>(getSize());
  if (inputs.size() != size || outputs.size() != size || !inputs.front().is_privateuseone()) {
    return host_->alltoall(outputs, inputs, options);
  }
  require_one_type(inputs.front(), inputs);
  require_one_type(inputs.front(), outputs);
  const auto own = static_cast<size_t>(getRank());
  require_own(inputs[own].numel(), outputs[own].numel(), "input", "output");
  return carry(
      "gloo:all_to_all",
      options.asyncOp,
      inputs,
      [&](StagedTensors& staged) {
        auto from = staged.show_in_a_row(inputs, TensorRole::input);
        return std::pair(std::move(from), staged.show_in_a_row(outputs, TensorRole::output));
      },
      [&](auto& shown) {
        auto input_sizes = sizes_of(inputs);
        auto output_sizes = sizes_of(outputs);
        return host_->alltoall_base(shown.second, shown.first, output_sizes, input_sizes, options);
      },
      c10d::OpType::ALLTOALL);
}

c10::intrusive_ptr<Work> StagedBackend::send(Tensors& tensors, int rank, int tag) {
  require_peer(tensors, rank, getRank(), getSize());
  return carry(
      "gloo:send",
      /*is_async=*/true,
      tensors,
      [&](StagedTensors& staged) { return staged.show(tensors, TensorRole::input); },
      [&](Tensors& shown) { return host_->send(shown, rank, tag); });
}

c10::intrusive_ptr<Work> StagedBackend::recv(Tensors& tensors, int rank, int tag) {
  require_peer(tensors, rank, getRank(), getSize());
  return carry(
      "gloo:recv",
      /*is_async=*/true,
      tensors,
      [&](StagedTensors& staged) { return staged.show(tensors, TensorRole::output); },
      [&](Tensors& shown) { return host_->recv(shown, rank, tag); });
}

c10::intrusive_ptr<Work> StagedBackend::recvAnysource(Tensors& tensors, int tag) {
  StagedTensors staged(getRank(), getSize(), streams_);
  auto host = staged.show(tensors, TensorRole::output);
  const RecordedCall record("gloo:recvAnySource", tensors, staged.device().is_privateuseone());
  return note(staged.finish(host_->recvAnysource(host, tag)));
}

bool StagedBackend::supportsCoalescing() const {
  return true;
}

bool StagedBackend::capture_call(const char* name, std::function<void()> call) {
  auto* const watch = capture_watch();
  if (watch == nullptr) {
    return false;
  }
  const DeviceIndex device = current_device();
  const openreg_stream stream = current_stream(device).id();
  auto self = c10::intrusive_ptr<StagedBackend>::unsafe_reclaim_from_nonowning(this);
  const auto bind = [self = std::move(self), call = std::move(call)](const std::vector<at::Tensor>&) {
    return [self, call] { call(); };
  };
  return watch->add_call(device, stream, {name, {}, bind, /*is_local=*/false});
}

void StagedBackend::startCoalescing() {
  if (!capture_call("start of a block of calls", [this] { startCoalescing(); })) {
    start_block();
  }
}

c10::intrusive_ptr<Work> StagedBackend::endCoalescing() {
  if (capture_call("end of a block of calls", [this] { endCoalescing()->wait(); })) {
    return c10::make_intrusive<WorkOfAll>(std::vector<c10::intrusive_ptr<Work>>());
  }
  return end_block();
}

void StagedBackend::start_block() {
  std::vector<c10::intrusive_ptr<Work>> left; // of a block that an exception has left open: they end without the lock
  const std::lock_guard<std::mutex> guard(block_lock_);
  is_in_block_ = true;
  left.swap(block_);
}

c10::intrusive_ptr<Work> StagedBackend::end_block() {
  const std::lock_guard<std::mutex> guard(block_lock_);
  is_in_block_ = false;
  return c10::make_intrusive<WorkOfAll>(std::exchange(block_, {}));
}

c10::intrusive_ptr<Work> StagedBackend::barrier(const c10d::BarrierOptions& options) {
  if (auto work = planned(c10::Device(c10::kCPU))) {
    return work;
  }
  return host_->barrier(options);
}

c10::intrusive_ptr<c10d::Backend> StagedBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  const std::lock_guard<std::mutex> guard(split_lock_);
  if (!options->group_name.empty() && options->group_name == last_split_) {
    if (auto part = last_part_.lock()) {
      return part;
    }
  }
  // With keys of its own: the group's backend for the CPU may be split, too.
  auto host_part = host_->split(c10::make_intrusive<c10d::PrefixStore>("openreg", store), ranks, options);
  if (host_part == nullptr) {
    return nullptr; // this rank is not in the new group
  }
  auto part = around(std::move(host_part), store);
  last_split_ = options->group_name;
  last_part_ = c10::weak_intrusive_ptr<Backend>(part);
  return part;
}

c10::intrusive_ptr<c10d::Backend> StagedBackend::around(
    c10::intrusive_ptr<c10d::Backend> part, const c10::intrusive_ptr<c10d::Store>& /*store*/) const {
  return c10::make_intrusive<StagedBackend>(std::move(part));
}

c10::intrusive_ptr<c10d::Backend::Options> StagedBackend::getBackendOptions() {
  return host_.options();
}

void StagedBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  host_->monitoredBarrier(options, wait_for_all);
}

std::chrono::milliseconds StagedBackend::timeout() const {
  return host_.timeout();
}

void StagedBackend::setTimeout(std::chrono::milliseconds timeout) {
  host_.set_timeout(timeout);
}

void StagedBackend::setSequenceNumberForGroup() {
  if (auto* const known = host_.known()) { // else the thread that makes it does
    known->setSequenceNumberForGroup();
  }
}

uint64_t StagedBackend::getSequenceNumberForGroup() {
  return host_->getSequenceNumberForGroup();
}

void StagedBackend::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  host_.set_uid(uid);
}

void StagedBackend::enableCollectivesTiming() {
  host_->enableCollectivesTiming();
}

c10d::ErrorType StagedBackend::getError() {
  auto* const known = host_.known();
  return known != nullptr ? known->getError() : c10d::ErrorType::SUCCESS;
}

bool StagedBackend::supportsSplitting() const {
  const auto* const known = host_.known();
  return known == nullptr || known->supportsSplitting(); // gloo can
}

void StagedBackend::abort() {
  if (auto* const known = host_.known()) {
    known->abort();
  }
}

void StagedBackend::shutdown() {
  if (auto* const known = host_.known()) {
    known->shutdown();
  }
}

} // namespace c10::openreg
