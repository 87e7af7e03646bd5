/* SPDX-License-Identifier: BSD-3-Clause */
// A c10d backend over the collectives of the devices' own driver (openreg/communicators.h), as NCCL for GPUs. NCCL and RCCL
// themselves have not run under it yet, so it is used with OPENREG_COMM=1 alone.
#pragma once

#include <openreg/comm.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <mutex>
#include <string>
#include <vector>

#include "shim/base/export.h"
#include "shim/optional/distributed/group_communicators.h"
#include "shim/optional/distributed/staged_backend.h"

namespace c10::openreg {

// Whether OPENREG_COMM=1 asks for it. Throws c10::Error for any value but 0, 1 and the empty one.
TORCH_OPENREG_API bool driver_collectives_are_wanted();

// Collectives of openreg tensors whose driver has its own run there, on a stream for communication of each communicator;
// everything else is staged through `host`: other tensors, barriers, gather, scatter, receives from any rank.
//   Communicators  are made at the first call on a device: one of the group, and one of two ranks for send() and recv()
//                  outside a block. Ranks meet in the store first, so that one which doesn't come is named.
//   Work           wait() makes the current stream wait. Memory is kept until the call is complete on the communication stream.
//   Errors         of a peer, and timeouts, are detected by a watching thread: it aborts the communicator; the streams that
//                  wait, later calls and the Work report the error, with the call, the ranks and the shapes.
//   Types          sums of bool are "or"; complex sums are those of their parts; where the library lacks a type its bytes are
//                  moved; what can't be reduced is TypeError, and bit operations NotImplementedError.
class TORCH_OPENREG_API DriverBackend final : public StagedBackend {
 public:
  DriverBackend(HostBackend host, c10::intrusive_ptr<c10d::Store> store);
  ~DriverBackend() override;

  c10::intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<Work> allgather(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
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

  // abort() ends what is queued; shutdown() waits for it, and frees the communicators. A backend that is dropped without
  // either leaves them to the end of the process: peers may still be in a call.
  void abort() override;
  void shutdown() override;

 private:
  struct Call;

  void start_block() override;
  c10::intrusive_ptr<Work> end_block() override;
  c10::intrusive_ptr<Backend> around(
      c10::intrusive_ptr<c10d::Backend> part, const c10::intrusive_ptr<c10d::Store>& store) const override;

  bool is_ours(const at::Tensor& tensor);
  c10::intrusive_ptr<Work> make(Call call);
  c10::intrusive_ptr<Work> launch(std::vector<Call> calls, bool is_block);

  GroupCommunicators communicators_;
  std::mutex lock_; // of what follows
  bool is_in_block_ = false;
  std::vector<Call> block_;
};

} // namespace c10::openreg
