/* SPDX-License-Identifier: BSD-3-Clause */
// A communicator of a driver's library as torch.distributed uses it, and the Work of what is queued on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <openreg/communicators.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace c10::openreg {

// One communicator of a device with a stream of its own. The destructor leaves it to the end of the process: peers may still
// be in a call. Any thread. No function but destroy() waits for one that is in the driver on behalf of another thread.
class Communicator {
 public:
  Communicator(c10::DeviceIndex device, openreg_communicator handle);

  const c10::DeviceIndex device;
  openreg_stream stream = OPENREG_STREAM_DEFAULT;

  void follow_current_stream(); // of this thread: the communicator's stream waits for what is on it

  // Queues a group on the communicator's stream, on behalf of one thread at a time. Throws the error of a communicator that
  // has failed, and that of the call.
  void queue(const std::vector<openreg_collective>& group);

  // What the driver says has gone wrong since; OPENREG_OK: nothing, or it is ending.
  std::pair<openreg_status, std::string> background_error();
  std::exception_ptr failure() const;
  bool was_aborted() const; // or is about to be: work that completes on the stream now may have undefined results

  // The steps of a failure: begin_failure() (whether it is the first), reports to those that wait, abort() of what is queued.
  bool begin_failure(std::exception_ptr error);
  void abort();

  void destroy(); // after what is queued

 private:
  const openreg_communicator handle_;
  std::mutex calling_; // held in a call that queues; before the next
  std::mutex ending_;  // held in get_error(), abort() and destroy() of the driver; of the next member
  bool is_destroyed_ = false;
  mutable std::mutex lock_; // never held while the driver is called; of the two below
  std::exception_ptr failure_;
  bool was_aborted_ = false;
};

// What is known of a collective by those who wait for it, and by the thread that watches. It owns no tensors: that thread is not
// Python's, and may be the last to have it.
class Progress;

// From now on a thread watches: when a peer has ended, or `timeout` is over, the communicator is aborted. To be called before
// anything is queued, as that may wait for peers, too. `description`: "all_reduce in rank 0 of 2: float32[3] on openreg:0".
std::shared_ptr<Progress> watch(
    std::shared_ptr<Communicator> communicator, std::string description, std::chrono::milliseconds timeout);

// The Work, of `results`, of everything that is on the communicator's stream now.
c10::intrusive_ptr<c10d::Work> work_of(
    std::shared_ptr<Progress> progress, c10d::OpType operation, const std::vector<at::Tensor>& results);

// Nothing was queued.
void forget(Progress& progress);

// Ends what is queued on a communicator; what waits for it has the error, streams with `code`. The first failure counts.
void fail(
    Communicator& communicator,
    const std::string& reason,
    const std::string& description,
    openreg_status code = OPENREG_E_INTERNAL);

} // namespace c10::openreg
