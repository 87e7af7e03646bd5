/* SPDX-License-Identifier: BSD-3-Clause */
// A c10d backend for openreg tensors around one for host memory.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "shim/base/export.h"
#include "shim/optional/distributed/host_backend.h"
#include "shim/optional/distributed/queued_work.h"
#include "shim/optional/distributed/staged_work.h"

namespace c10::openreg {

// Shows tensors of openreg to `host` as StagedTensors does; other tensors reach it as they are. What gloo can't do with
// those of openreg is refused at the call (gloo_limits.h), anything else is an error of `host`. Collectives of both go through `host` in the order of the calls. A collective of an openreg
// tensor throws c10::Error where require_gloo_collectives() does.
class TORCH_OPENREG_API StagedBackend : public c10d::Backend {
 public:
  using Work = c10d::Work;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;

  explicit StagedBackend(HostBackend host);

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
  // is made at once, and the Work of the block waits for all of them. Within a capture start and end are calls of each replay.
  bool supportsCoalescing() const override;
  void startCoalescing() final;
  c10::intrusive_ptr<Work> endCoalescing() final;

  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override;

  // As the host's. What only describes the group is answered without making it.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;
  void setGroupUid(const std::string& uid) override;
  void enableCollectivesTiming() override;
  c10d::ErrorType getError() override;
  bool supportsSplitting() const override;
  void abort() override;
  void shutdown() override;

  // around() the host's part. Asked again for the same new group, for another device, it is the same backend.
  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override;

 protected:
  std::chrono::milliseconds timeout() const;

  // Of a block outside a capture.
  virtual void start_block();
  virtual c10::intrusive_ptr<Work> end_block();

 private:
  // The backend of a new group whose host's one is `part`; `store` is the new group's.
  virtual c10::intrusive_ptr<Backend> around(
      c10::intrusive_ptr<c10d::Backend> part, const c10::intrusive_ptr<c10d::Store>& store) const;

  // Whether the current device's current stream is captured in a graph: the call is then one of each replay, and the backend
  // lives as long.
  bool capture_call(const char* name, std::function<void()> call);

  c10::intrusive_ptr<Work> note(c10::intrusive_ptr<Work> work);
  c10::intrusive_ptr<Work> planned(const c10::Device& device);
  c10::intrusive_ptr<Work> allgather_unevenly(
      Tensors& outputs, const at::Tensor& input, const c10d::AllgatherOptions& options);

  // What `show(staged)` shows, given to `call`. `name` is the event's in a profile, of the tensors `recorded`, and lives for ever.
  // Not `is_async`: its caller's next step is wait().
  template <class Recorded, class Show, class Call>
  c10::intrusive_ptr<Work> carry(
      const char* name,
      bool is_async,
      const Recorded& recorded,
      const Show& show,
      const Call& call,
      c10d::OpType operation = c10d::OpType::UNKNOWN); // unknown: as its Work says
  template <class Call>
  c10::intrusive_ptr<Work> in_place(
      const char* name, bool is_async, const Tensors& tensors, const Call& call, TensorRole role = TensorRole::in_out);
  template <class Inputs, class Outputs, class Call>
  c10::intrusive_ptr<Work> from_to(
      const char* name,
      bool is_async,
      const Inputs& inputs,
      const Outputs& outputs,
      const Call& call,
      c10d::OpType operation = c10d::OpType::UNKNOWN,
      bool has_complex = true); // gloo takes complex numbers

  CommunicationStreams streams_;
  std::mutex block_lock_; // of what follows
  bool is_in_block_ = false;
  std::vector<c10::intrusive_ptr<Work>> block_;
  std::mutex split_lock_;  // of what follows
  std::string last_split_; // the name of the group that was split off last, and its backend
  c10::weak_intrusive_ptr<Backend> last_part_;
  const HostBackend host_; // ends before what its threads may use
};

} // namespace c10::openreg
