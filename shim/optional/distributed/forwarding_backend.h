/* SPDX-License-Identifier: BSD-3-Clause */
// What a c10d backend around another one of the same group has from that one.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "shim/base/export.h"

namespace c10::openreg {

class TORCH_OPENREG_API ForwardingBackend : public c10d::Backend {
 public:
  explicit ForwardingBackend(c10::intrusive_ptr<c10d::Backend> inner);
  ~ForwardingBackend() override; // without the GIL: gloo waits for its threads there, which may want it

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

  // around() the inner one's part. Asked again for the same new group, for another device, it is the same backend.
  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override;

 protected:
  // Whether the current device's current stream is captured in a graph: the call is then one of each replay, and the backend
  // lives as long.
  bool capture_call(const char* name, std::function<void()> call);

  c10::intrusive_ptr<c10d::Backend> inner_; // another one never

 private:
  // The backend of a new group whose inner one is `part`; `store` is the new group's.
  virtual c10::intrusive_ptr<Backend> around(
      c10::intrusive_ptr<c10d::Backend> part, const c10::intrusive_ptr<c10d::Store>& store) const = 0;

  // Where the inner one's part finds its peers.
  virtual c10::intrusive_ptr<c10d::Store> store_of_part(const c10::intrusive_ptr<c10d::Store>& store) const;

  std::mutex split_lock_;  // of what follows
  std::string last_split_; // the name of the group that was split off last, and its backend
  c10::weak_intrusive_ptr<Backend> last_part_;
};

} // namespace c10::openreg
