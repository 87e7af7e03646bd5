/* SPDX-License-Identifier: BSD-3-Clause */
// The communicators of one process group: how its ranks meet in the group's store, and their end.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace c10::openreg {

class Communicator;

// Each is made when it is first asked for, by all of its ranks. Ranks meet in the store first, so that one which doesn't come
// within the timeout is named: c10::DistBackendError, as after end(). Any thread; the lock is never held while a peer is
// waited for.
class GroupCommunicators {
 public:
  using Timeout = std::chrono::milliseconds;

  GroupCommunicators(c10::intrusive_ptr<c10d::Store> store, int rank, int size);
  ~GroupCommunicators();

  std::shared_ptr<Communicator> whole(c10::DeviceIndex device, Timeout timeout); // of the group

  // Of this rank and another one alone, as the others may make no call; the lower rank is 0.
  std::shared_ptr<Communicator> pair(c10::DeviceIndex device, int peer, Timeout timeout);

  // None is made from now on. Returns those that there are.
  std::vector<std::shared_ptr<Communicator>> end();

 private:
  struct Rendezvous;

  std::shared_ptr<Communicator> get_or_create(
      c10::DeviceIndex device, const std::string& name, int rank, int size, Timeout timeout);
  std::vector<uint8_t> exchange_id(
      c10::DeviceIndex device, const std::string& key, int rank, int size, Timeout timeout);
  void check_in_use() const; // with the lock held

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  std::mutex lock_; // of what follows
  std::map<std::pair<std::string, c10::DeviceIndex>, std::shared_ptr<Rendezvous>> rendezvous_;
  std::map<std::string, int> rounds_; // how often ranks of a name have met
  bool is_over_ = false;
};

} // namespace c10::openreg
