// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/forwarding_backend.h"

#include <utility>

#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"

namespace c10::openreg {

ForwardingBackend::ForwardingBackend(c10::intrusive_ptr<c10d::Backend> inner)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      last_part_(c10::intrusive_ptr<Backend>()) {
  pg_uid_ = inner_->getGroupUid(); // of a group that has its name already
  pg_desc_ = inner_->getGroupDesc();
  init();
}

ForwardingBackend::~ForwardingBackend() {
  const WaitScope waiting;
  inner_.reset();
}

c10::intrusive_ptr<c10d::Backend::Options> ForwardingBackend::getBackendOptions() {
  return inner_->getBackendOptions();
}

void ForwardingBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  inner_->monitoredBarrier(options, wait_for_all);
}

void ForwardingBackend::setTimeout(std::chrono::milliseconds timeout) {
  inner_->setTimeout(timeout);
}

void ForwardingBackend::setSequenceNumberForGroup() {
  inner_->setSequenceNumberForGroup();
}

uint64_t ForwardingBackend::getSequenceNumberForGroup() {
  return inner_->getSequenceNumberForGroup();
}

void ForwardingBackend::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  inner_->setGroupUid(uid);
}

void ForwardingBackend::enableCollectivesTiming() {
  inner_->enableCollectivesTiming();
}

c10d::ErrorType ForwardingBackend::getError() {
  return inner_->getError();
}

bool ForwardingBackend::supportsSplitting() const {
  return inner_->supportsSplitting();
}

void ForwardingBackend::abort() {
  inner_->abort();
}

void ForwardingBackend::shutdown() {
  inner_->shutdown();
}

c10::intrusive_ptr<c10d::Store> ForwardingBackend::store_of_part(const c10::intrusive_ptr<c10d::Store>& store) const {
  return store;
}

c10::intrusive_ptr<c10d::Backend> ForwardingBackend::split(
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

bool ForwardingBackend::capture_call(const char* name, std::function<void()> call) {
  auto* const watch = capture_watch();
  if (watch == nullptr) {
    return false;
  }
  const DeviceIndex device = current_device();
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_current_stream(device, &stream));
  auto self = c10::intrusive_ptr<ForwardingBackend>::unsafe_reclaim_from_nonowning(this);
  const auto bind = [self = std::move(self), call = std::move(call)](const std::vector<at::Tensor>&) {
    return [self, call] { call(); };
  };
  return watch->add_call(device, stream, {name, {}, bind, /*is_local=*/false});
}

} // namespace c10::openreg
