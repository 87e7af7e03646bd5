/* SPDX-License-Identifier: BSD-3-Clause */
// A c10d backend for openreg tensors around one for host memory.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "shim/base/export.h"
#include "shim/optional/distributed/forwarding_backend.h"
#include "shim/optional/distributed/queued_work.h"
#include "shim/optional/distributed/staged_work.h"

namespace c10::openreg {

// Shows tensors of openreg to `host` as StagedTensors does; other tensors reach it as they are. What gloo can't do with
// those of openreg is refused at the call (gloo_limits.h), anything else is an error of `host`. Collectives of both go through `host` in the order of the calls. A collective of an openreg
// tensor throws c10::Error where require_gloo_collectives() does.
class TORCH_OPENREG_API StagedBackend final : public ForwardingBackend {
 public:
  using Work = c10d::Work;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;

  explicit StagedBackend(c10::intrusive_ptr<c10d::Backend> host);
  const std::string getBackendName() const override;
  c10::intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<Work> allgather(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> allgather_coalesced(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<Work> scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<Work> reduce_scatter(
      Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<Work> send(Tensors& tensors, int rank, int tag) override;
  c10::intrusive_ptr<Work> recv(Tensors& tensors, int rank, int tag) override;
  c10::intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override;

  // A block of calls, as batch_isend_irecv() and torch.distributed's coalescing manager with a device make it: each call
  // is made at once, and the Work of the block waits for all of them.
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  c10::intrusive_ptr<Work> endCoalescing() override;

  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  c10::intrusive_ptr<Backend> around(
      c10::intrusive_ptr<c10d::Backend> part, const c10::intrusive_ptr<c10d::Store>& store) const override;

  // With keys of its own: the group's backend for the CPU may be split, too.
  c10::intrusive_ptr<c10d::Store> store_of_part(const c10::intrusive_ptr<c10d::Store>& store) const override;

  c10::intrusive_ptr<Work> note(c10::intrusive_ptr<Work> work);
  c10::intrusive_ptr<Work> planned(const c10::Device& device);
  c10::intrusive_ptr<Work> allgather_unevenly(
      Tensors& outputs, const at::Tensor& input, const c10d::AllgatherOptions& options);
  c10::intrusive_ptr<Work> reduce_scatter_unevenly(
      at::Tensor& output, Tensors& inputs, const c10d::ReduceScatterOptions& options);

  // `name` is the event's in a profile, and lives for ever.
  template <class Call>
  c10::intrusive_ptr<Work> in_place(
      const char* name, const Tensors& tensors, const Call& call, TensorRole role = TensorRole::in_out);
  template <class Inputs, class Outputs, class Call>
  c10::intrusive_ptr<Work> from_to(
      const char* name,
      const Inputs& inputs,
      const Outputs& outputs,
      const Call& call,
      c10d::OpType operation = c10d::OpType::UNKNOWN, // unknown: as its Work says
      bool has_complex = true);                       // gloo takes complex numbers

  CommunicationStreams streams_;
  std::mutex block_lock_; // of what follows
  bool is_in_block_ = false;
  std::vector<c10::intrusive_ptr<Work>> block_;
};

} // namespace c10::openreg
