// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/backend_over_backend.h"

#include <utility>

#include "shim/base/wait_hook.h"

namespace c10::openreg {

BackendOverBackend::BackendOverBackend(c10::intrusive_ptr<c10d::Backend> inner)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      last_part_(c10::intrusive_ptr<Backend>()) {
  pg_uid_ = inner_->getGroupUid(); // of a group that has its name already
  pg_desc_ = inner_->getGroupDesc();
  init();
}

BackendOverBackend::~BackendOverBackend() {
  const WaitScope waiting;
  inner_.reset();
}

c10::intrusive_ptr<c10d::Backend::Options> BackendOverBackend::getBackendOptions() {
  return inner_->getBackendOptions();
}

void BackendOverBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  inner_->monitoredBarrier(options, wait_for_all);
}

void BackendOverBackend::setTimeout(std::chrono::milliseconds timeout) {
  inner_->setTimeout(timeout);
}

void BackendOverBackend::setSequenceNumberForGroup() {
  inner_->setSequenceNumberForGroup();
}

uint64_t BackendOverBackend::getSequenceNumberForGroup() {
  return inner_->getSequenceNumberForGroup();
}

void BackendOverBackend::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  inner_->setGroupUid(uid);
}

void BackendOverBackend::enableCollectivesTiming() {
  inner_->enableCollectivesTiming();
}

c10d::ErrorType BackendOverBackend::getError() {
  return inner_->getError();
}

bool BackendOverBackend::supportsSplitting() const {
  return inner_->supportsSplitting();
}

void BackendOverBackend::abort() {
  inner_->abort();
}

void BackendOverBackend::shutdown() {
  inner_->shutdown();
}

c10::intrusive_ptr<c10d::Store> BackendOverBackend::store_of_part(const c10::intrusive_ptr<c10d::Store>& store) const {
  return store;
}

c10::intrusive_ptr<c10d::Backend> BackendOverBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  const std::lock_guard<std::mutex> guard(split_lock_);
  if (!options->group_name.empty() && options->group_name == last_split_) {
    if (auto part = last_part_.lock()) {
      return part;
    }
  }
  auto inner_part = inner_->split(store_of_part(store), ranks, options);
  if (inner_part == nullptr) {
    return nullptr; // this rank is not in the new group
  }
  auto part = around(std::move(inner_part), store);
  last_split_ = options->group_name;
  last_part_ = c10::weak_intrusive_ptr<Backend>(part);
  return part;
}

} // namespace c10::openreg
