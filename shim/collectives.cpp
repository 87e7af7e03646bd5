// SPDX-License-Identifier: BSD-3-Clause
#include "shim/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <openreg/openreg.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include "shim/staged_work.h"

namespace c10::openreg {
namespace {

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

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

  bool wait(std::chrono::milliseconds timeout) override {
    bool is_good = true;
    for (const auto& work : works_) {
      is_good = work->wait(timeout) && is_good;
    }
    return is_good;
  }

 private:
  const std::vector<c10::intrusive_ptr<Work>> works_;
};

class StagedBackend final : public c10d::Backend {
 public:
  explicit StagedBackend(c10::intrusive_ptr<c10d::Backend> host)
      : Backend(host->getRank(), host->getSize()),
        host_(std::move(host)) {
    pg_uid_ = host_->getGroupUid(); // of a group that stands already
    pg_desc_ = host_->getGroupDesc();
    init();
  }

  const std::string getBackendName() const override {
    return "openreg_" + host_->getBackendName();
  }

  c10::intrusive_ptr<Options> getBackendOptions() override {
    return host_->getBackendOptions();
  }

  c10::intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return in_place(tensors, [&](Tensors& host) { return host_->broadcast(host, options); });
  }

  c10::intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return in_place(tensors, [&](Tensors& host) { return host_->allreduce(host, options); });
  }

  c10::intrusive_ptr<Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return in_place(tensors, [&](Tensors& host) { return host_->allreduce_coalesced(host, options); });
  }

  c10::intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return in_place(tensors, [&](Tensors& host) { return host_->reduce(host, options); });
  }

  c10::intrusive_ptr<Work> allgather(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return from_to(
        inputs, outputs, [&](Tensors& from, TensorLists& to) { return host_->allgather(to, from, options); });
  }

  c10::intrusive_ptr<Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return from_to(
        input, output, [&](at::Tensor& from, at::Tensor& to) { return host_->_allgather_base(to, from, options); });
  }

  c10::intrusive_ptr<Work> allgather_coalesced(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return from_to(
        inputs, outputs, [&](Tensors& from, TensorLists& to) { return host_->allgather_coalesced(to, from, options); });
  }

  c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return from_to(inputs, outputs, [&](Tensors& from, Tensors& to) {
      return host_->allgather_into_tensor_coalesced(to, from, options);
    });
  }

  c10::intrusive_ptr<Work> gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return from_to(inputs, outputs, [&](Tensors& from, TensorLists& to) { return host_->gather(to, from, options); });
  }

  c10::intrusive_ptr<Work> scatter(
      Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
    return from_to(inputs, outputs, [&](TensorLists& from, Tensors& to) { return host_->scatter(to, from, options); });
  }

  c10::intrusive_ptr<Work> reduce_scatter(
      Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override {
    return from_to(
        inputs, outputs, [&](TensorLists& from, Tensors& to) { return host_->reduce_scatter(to, from, options); });
  }

  c10::intrusive_ptr<Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return from_to(input, output, [&](at::Tensor& from, at::Tensor& to) {
      return host_->_reduce_scatter_base(to, from, options);
    });
  }

  c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    return from_to(inputs, outputs, [&](Tensors& from, Tensors& to) {
      return host_->reduce_scatter_tensor_coalesced(to, from, options);
    });
  }

  c10::intrusive_ptr<Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    return from_to(input, output, [&](at::Tensor& from, at::Tensor& to) {
      return host_->alltoall_base(to, from, output_sizes, input_sizes, options);
    });
  }

  c10::intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return from_to(inputs, outputs, [&](Tensors& from, Tensors& to) { return host_->alltoall(to, from, options); });
  }

  c10::intrusive_ptr<Work> send(Tensors& tensors, int rank, int tag) override {
    StagedTensors staged;
    auto host = staged.show(tensors, TensorRole::input);
    return note(staged.finish(host_->send(host, rank, tag)));
  }

  c10::intrusive_ptr<Work> recv(Tensors& tensors, int rank, int tag) override {
    StagedTensors staged;
    auto host = staged.show(tensors, TensorRole::output);
    return note(staged.finish(host_->recv(host, rank, tag)));
  }

  c10::intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override {
    StagedTensors staged;
    auto host = staged.show(tensors, TensorRole::output);
    return note(staged.finish(host_->recvAnysource(host, tag)));
  }

  // torch.distributed's coalescing manager, with a device: each call of the block is made at once, and its end waits for
  // all. supportsCoalescing() stays false: it would send batches of P2P calls this way, to no advantage.
  void startCoalescing() override {
    const std::lock_guard<std::mutex> guard(block_lock_);
    is_in_block_ = true;
    block_.clear();
  }

  c10::intrusive_ptr<Work> endCoalescing() override {
    const std::lock_guard<std::mutex> guard(block_lock_);
    is_in_block_ = false;
    return c10::make_intrusive<WorkOfAll>(std::exchange(block_, {}));
  }

  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override {
    return host_->barrier(options);
  }

  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override {
    host_->monitoredBarrier(options, wait_for_all);
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    host_->setTimeout(timeout);
  }

  void setSequenceNumberForGroup() override {
    host_->setSequenceNumberForGroup();
  }

  uint64_t getSequenceNumberForGroup() override {
    return host_->getSequenceNumberForGroup();
  }

  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    host_->setGroupUid(uid);
  }

  void enableCollectivesTiming() override {
    host_->enableCollectivesTiming();
  }

  c10d::ErrorType getError() override {
    return host_->getError();
  }

  void abort() override {
    host_->abort();
  }

  void shutdown() override {
    host_->shutdown();
  }

 private:
  // Between startCoalescing() and endCoalescing() a work is kept for the block's.
  c10::intrusive_ptr<Work> note(c10::intrusive_ptr<Work> work) {
    const std::lock_guard<std::mutex> guard(block_lock_);
    if (is_in_block_) {
      block_.push_back(work);
    }
    return work;
  }

  template <class Call>
  c10::intrusive_ptr<Work> in_place(const Tensors& tensors, const Call& call) {
    StagedTensors staged;
    auto host = staged.show(tensors, TensorRole::in_out);
    return note(staged.finish(call(host)));
  }

  template <class Inputs, class Outputs, class Call>
  c10::intrusive_ptr<Work> from_to(const Inputs& inputs, const Outputs& outputs, const Call& call) {
    StagedTensors staged;
    auto from = staged.show(inputs, TensorRole::input);
    auto to = staged.show(outputs, TensorRole::output);
    return note(staged.finish(call(from, to)));
  }

  const c10::intrusive_ptr<c10d::Backend> host_;
  std::mutex block_lock_; // of what follows
  bool is_in_block_ = false;
  std::vector<c10::intrusive_ptr<Work>> block_;
};

// The process group among the arguments of an operator of c10d.
c10::intrusive_ptr<c10d::ProcessGroup> group_among(c10::ArrayRef<c10::IValue> arguments) {
  static const auto type = c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  for (const auto& argument : arguments) {
    if (argument.isObject() && argument.type()->isSubtypeOf(*type)) {
      return argument.toCustomClass<c10d::ProcessGroup>();
    }
  }
  return nullptr;
}

bool contains(const std::vector<c10::Device>& devices, c10::DeviceType type) {
  return std::any_of(devices.begin(), devices.end(), [type](c10::Device device) { return device.type() == type; });
}

// Gives a group with gloo for CPU tensors what it needs for those of openreg. Any other group without a backend for
// openreg is left to PyTorch, which says that there is none.
void serve_openreg(c10d::ProcessGroup& group) {
  static std::mutex lock;
  const std::lock_guard<std::mutex> guard(lock);
  constexpr auto kCustom = c10d::ProcessGroup::BackendType::CUSTOM;
  const auto devices = group.getDeviceTypes();
  if (contains(devices, c10::DeviceType::PrivateUse1)) {
    if (devices.size() == 1 && group.getBackendType() != kCustom) {
      // init_process_group() without a backend names gloo as the default even where the group has none.
      group.setDefaultBackend(kCustom);
    }
  } else if (contains(devices, c10::DeviceType::CPU)) {
    const auto host = group.getBackend(c10::DeviceType::CPU);
    if (host->getBackendName() == "gloo") {
      require_gloo_collectives();
      group.setBackend(c10::DeviceType::PrivateUse1, kCustom, staged_backend(host));
    }
  }
}

// In front of c10d's kernels, which look the group's backend up: the key for choosing a backend by arguments. Below
// autograd, so that it is asked in inference mode, too.
void choose_backend(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (keys.has(c10::DispatchKey::PrivateUse1)) {
    if (const auto group = group_among(torch::jit::last(*stack, op.schema().arguments().size()))) {
      serve_openreg(*group);
    }
  }
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect), stack);
}

TORCH_LIBRARY_IMPL(c10d, BackendSelect, m) {
  for (const char* name :
       {"allgather_",
        "_allgather_base_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
        "allreduce_",
        "allreduce_coalesced_",
        "alltoall_",
        "alltoall_base_",
        "barrier",
        "broadcast_",
        "gather_",
        "recv_",
        "recv_any_source_",
        "reduce_",
        "reduce_scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
        "scatter_",
        "send"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&choose_backend>());
  }
}

} // namespace

void require_gloo_collectives() {
  const char* value = openreg_variable("OPENREG_ENABLE_GLOO_COLLECTIVES");
  const bool is_off = value == nullptr || *value == '\0' || std::strcmp(value, "0") == 0;
  TORCH_CHECK(
      !is_off,
      "Collectives of openreg tensors are off. OPENREG_ENABLE_GLOO_COLLECTIVES=1, in every process, runs them in gloo, "
      "staged through host memory. For collectives of CPU tensors alone name the backend \"gloo\".");
  TORCH_CHECK(
      std::strcmp(value, "1") == 0, "OPENREG_ENABLE_GLOO_COLLECTIVES must be '0' or '1', but is '", value, "'.");
}

c10::intrusive_ptr<c10d::Backend> staged_backend(c10::intrusive_ptr<c10d::Backend> host) {
  return c10::make_intrusive<StagedBackend>(std::move(host));
}

} // namespace c10::openreg
