// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/group_communicators.h"

#include <c10/util/Exception.h>
#include <openreg/communicators.h>

#include <algorithm>

#include "shim/base/status.h"
#include "shim/optional/distributed/driver_work.h"

namespace c10::openreg {

// Of one group of ranks on one device. The lock is held by the thread that makes the communicator, while it waits for peers.
struct GroupCommunicators::Rendezvous {
  std::mutex lock;
  std::shared_ptr<Communicator> made; // with the group's lock
};

GroupCommunicators::GroupCommunicators(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)),
      rank_(rank),
      size_(size) {}

GroupCommunicators::~GroupCommunicators() = default;

void GroupCommunicators::check_in_use() const {
  TORCH_CHECK_WITH(DistBackendError, !is_over_, "The process group has been shut down or aborted");
}

std::shared_ptr<Communicator> GroupCommunicators::get_or_create(
    c10::DeviceIndex device, const std::string& name, int rank, int size, Timeout timeout) {
  std::shared_ptr<Rendezvous> rendezvous;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    check_in_use();
    auto& known = rendezvous_[std::make_pair(name, device)];
    if (known == nullptr) {
      known = std::make_shared<Rendezvous>();
    }
    if (known->made != nullptr) {
      return known->made;
    }
    rendezvous = known;
  }
  const std::lock_guard<std::mutex> alone(rendezvous->lock);
  std::string key;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    check_in_use(); // the group may have ended while this thread waited for the one that makes it
    if (rendezvous->made != nullptr) {
      return rendezvous->made;
    }
    key = name + "/" + std::to_string(rounds_[name]++);
  }
  const auto id = exchange_id(device, key, rank, size, timeout);
  openreg_communicator handle = nullptr;
  OPENREG_CHECK(openreg_communicator_create(device, rank, size, id.data(), static_cast<uint32_t>(id.size()), &handle));
  auto made = std::make_shared<Communicator>(device, handle);
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (!is_over_) {
      rendezvous->made = made;
      return made;
    }
  }
  fail(*made, "The process group has been aborted", "the communicator \"" + name + "\"");
  made->destroy();
  check_in_use();
  return nullptr;
}

// Ranks count themselves in the store. A rank that times out subtracts kGivenUp, so that the count never reaches `size`:
// ranks that arrive later raise an error, where the library would wait for ever.
std::vector<uint8_t> GroupCommunicators::exchange_id(
    c10::DeviceIndex device, const std::string& key, int rank, int size, Timeout timeout) {
  constexpr int64_t kGivenUp = int64_t{1} << 32;
  const std::string count = key + "/count";
  const std::string complete = key + "/complete";
  const auto here = [&key](int other) { return key + "/" + std::to_string(other); };
  uint32_t id_size = 0;
  OPENREG_CHECK(openreg_communicator_id_size(device, &id_size));
  if (rank == 0) {
    std::vector<uint8_t> id(id_size);
    OPENREG_CHECK(openreg_communicator_id(device, id.data(), id_size));
    store_->set(key, id);
  }
  store_->set(here(rank), std::vector<uint8_t>{1});
  const int64_t arrived = store_->add(count, 1);
  TORCH_CHECK_WITH(
      DistBackendError, arrived > 0, "Another rank has timed out waiting for the communicator \"", key, "\"");
  if (arrived == size) {
    store_->set(complete, std::vector<uint8_t>{1});
  } else {
    try {
      store_->wait({complete}, timeout);
    } catch (const std::exception&) {
      const int64_t left = store_->add(count, -kGivenUp);
      if (left + kGivenUp != size) { // else the last one came in this moment
        std::string missing;
        for (int other = 0; other < size; other++) {
          if (!store_->check({here(other)})) {
            missing += (missing.empty() ? "" : ", ") + std::to_string(other);
          }
        }
        if (missing.empty()) {
          missing = "none, but another has timed out";
        }
        TORCH_CHECK_WITH(
            DistBackendError,
            false,
            "Timed out after ",
            timeout.count(),
            "ms: of the ",
            size,
            " ranks of the communicator \"",
            key,
            "\" these have not come: ",
            missing);
      }
    }
  }
  auto id = store_->get(key);
  TORCH_CHECK_WITH(
      DistBackendError,
      id.size() == id_size,
      "rank 0 has another library of collectives: the id of the communicator \"",
      key,
      "\" has ",
      id.size(),
      " bytes there and ",
      id_size,
      " here");
  return id;
}

std::shared_ptr<Communicator> GroupCommunicators::whole(c10::DeviceIndex device, Timeout timeout) {
  return get_or_create(device, "all", rank_, size_, timeout);
}

std::shared_ptr<Communicator> GroupCommunicators::pair(c10::DeviceIndex device, int peer, Timeout timeout) {
  const int low = std::min(peer, rank_);
  const int high = std::max(peer, rank_);
  return get_or_create(device, std::to_string(low) + ":" + std::to_string(high), rank_ == low ? 0 : 1, 2, timeout);
}

std::vector<std::shared_ptr<Communicator>> GroupCommunicators::end() {
  std::vector<std::shared_ptr<Communicator>> all;
  const std::lock_guard<std::mutex> guard(lock_);
  is_over_ = true;
  for (const auto& [place, rendezvous] : rendezvous_) {
    if (rendezvous->made != nullptr) {
      all.push_back(std::move(rendezvous->made));
    }
  }
  rendezvous_.clear();
  return all;
}

} // namespace c10::openreg
