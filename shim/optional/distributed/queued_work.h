/* SPDX-License-Identifier: BSD-3-Clause */
// A collective as work of a stream: queued on a stream for communication, so that who waits for it makes a stream wait, and
// not the host.
//
// The host's backend has been given the collective already, in the order of the calls, which is what it asks for. On the
// stream a host function waits until it is done; behind that come the copies of results that are not in place, and an event.
// What peers do never depends on these streams, so host functions that wait can't make ranks wait in a circle.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shim/base/export.h"
#include "shim/optional/distributed/collective_results.h"

namespace c10::openreg {

// Runs functions one after another, in a thread that is there while there are some and a little longer. A copy is the same
// queue. Any thread.
class TORCH_OPENREG_API HostQueue {
 public:
  // The function must not throw. It is destroyed before the next one runs. What is queued runs even if the queue is
  // destroyed.
  void push(std::function<void()> function) const;

  // From now on the thread ends with the last function.
  void finish() const;

 private:
  struct State {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> waiting;
    bool has_thread = false;
    bool is_over = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Of the streams of collectives: the runtime clamps it to the highest that there is.
constexpr int32_t kHighestPriority = INT32_MIN;

// A process group's streams for communication, one a device, of the pool of high priority. Any thread.
class TORCH_OPENREG_API CommunicationStreams {
 public:
  CommunicationStreams() = default;
  ~CommunicationStreams();
  CommunicationStreams(const CommunicationStreams&) = delete;
  CommunicationStreams& operator=(const CommunicationStreams&) = delete;

  openreg_stream of(c10::DeviceIndex device);

  // Of the group: what messages hold is dropped there.
  const HostQueue& host_queue() const {
    return host_queue_;
  }

 private:
  HostQueue host_queue_;
  std::mutex lock_;
  CurrentStreams::Streams streams_;
};

// What the host's backend returned, as the Work of `outputs`. Null, and nothing is queued: the host must wait for it, as
// a driver queues no host functions, a result has gaps between its elements and is no plain copy, it has no future and is no
// message, or it is a message from any rank, whose receiver asks for the sender.
//
// A message's `host_work` has no future: its wait() ends it. The stream that waits for the message first calls that, and
// nothing is queued before: on the group's stream a message would hold back what comes behind, which the peer may want
// before it answers.
//
// Not `is_async`: the caller's next step is wait(). Where no copies follow, nothing is queued before, and the host waits
// up to a millisecond there: most small collectives end within it, and then no stream waits.
//
//   wait()         makes the current streams of `devices` wait, unless it gets a timeout or OPENREG_BLOCKING_WAIT=1 is
//                  set: then the host waits, too. Throws the error of a collective that has failed already.
//   errors         that come later are left on the streams that wait for the collective (openreg/host_work.h); its
//                  future has them.
//   isCompleted()  once the results are in device memory.
//   getFuture()    of the list of outputs; done when the host's part is, with events behind the copies. After wait() it
//                  waits for that: its caller finds a value. A message has none.
// Memory of tensors is kept until the host's backend has done with it. Throws c10::Error.
c10::intrusive_ptr<c10d::Work> queue_work(
    const c10::intrusive_ptr<c10d::Work>& host_work,
    c10d::OpType operation,
    const StagedOutputs& outputs,
    const std::string& description,
    const std::vector<c10::DeviceIndex>& devices,
    CommunicationStreams& streams,
    bool is_async);

// Whether OPENREG_BLOCKING_WAIT=1 has wait() hold the host up. Throws c10::Error for any value but 0, 1 and the empty one.
bool host_is_to_wait();

} // namespace c10::openreg
