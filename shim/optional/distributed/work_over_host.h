/* SPDX-License-Identifier: BSD-3-Clause */
// What every Work of openreg tensors has from the Work of the host's backend that does it.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <exception>
#include <string>

namespace c10::openreg {

class WorkOverHost : public c10d::Work {
 public:
  // `description` is for texts of errors: "all_reduce in rank 0 of 2: float32[3] on openreg:0".
  WorkOverHost(c10::intrusive_ptr<c10d::Work> host_work, c10d::OpType operation, std::string description);

  int sourceRank() const override;
  uint64_t getSequencenumber() const override;
  void abort() override;
  bool isSuccess() const override; // there is no exception()

 protected:
  c10d::Work& host_work() const {
    return *host_work_;
  }

  const std::string& description() const {
    return description_;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> host_work_;
  const std::string description_;
};

// Waits for the host's part of what is described: whether it is done; false: aborted. Throws its error, with the
// description, and has the flight recorder write. Any thread.
bool wait_for_host_work(c10d::Work& host_work, const std::string& description, std::chrono::milliseconds timeout);

// For who notices that the host's part of what is described has failed, outside of locks: has the flight recorder write,
// and returns the error with the description.
std::exception_ptr noticed_failure(const std::exception_ptr& error, const std::string& description);

} // namespace c10::openreg
