// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "shim/optional/distributed/driver_collectives.h"
#include "shim/optional/distributed/entry.h"
#include "shim/optional/distributed/premultiplied_sum.h"
#include "shim/optional/distributed/staged_backend.h"

namespace c10::openreg {
namespace {

// The process group among the arguments of an operator of c10d.
c10::intrusive_ptr<c10d::ProcessGroup> group_among(c10::ArrayRef<c10::IValue> arguments) {
  static const auto type = c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  for (const auto& argument : arguments) {
    if (argument.isObject() && argument.type()->isSubtypeOf(*type)) {
      return argument.toCustomClass<c10d::ProcessGroup>();
    }
  }
  return nullptr;
}

bool contains(const std::vector<c10::Device>& devices, c10::DeviceType type) {
  return std::any_of(devices.begin(), devices.end(), [type](c10::Device device) { return device.type() == type; });
}

// The group's backend for a type of device if it has one that is plain gloo, else null.
c10::intrusive_ptr<c10d::Backend> gloo_for(
    c10d::ProcessGroup& group, const std::vector<c10::Device>& devices, c10::DeviceType type) {
  if (!contains(devices, type)) {
    return nullptr;
  }
  auto backend = group.getBackend(type);
  if (backend->getBackendName() != "gloo") {
    return nullptr;
  }
  const auto options = backend->getBackendOptions();
  if (options->global_ranks_in_group.empty()) {
    // Of the default group PyTorch leaves it empty, and gloo's split() reads beyond its end where the default group is
    // not the first gloo of the process.
    options->global_ranks_in_group.resize(static_cast<size_t>(group.getSize()));
    std::iota(options->global_ranks_in_group.begin(), options->global_ranks_in_group.end(), uint64_t{0});
  }
  return backend;
}

// A group without a store has no place where the ranks of a driver's communicators could meet.
c10::intrusive_ptr<c10d::Backend> backend_over(const HostBackend& host, const c10::intrusive_ptr<c10d::Store>& store) {
  if (store != nullptr && driver_collectives_are_wanted()) {
    return c10::make_intrusive<DriverBackend>(host, store);
  }
  return c10::make_intrusive<StagedBackend>(host);
}

} // namespace

void serve_process_group(c10d::ProcessGroup& group, const std::optional<HostBackend>& own) {
  static std::mutex lock;
  const std::lock_guard<std::mutex> guard(lock);
  using Type = c10d::ProcessGroup::BackendType;
  constexpr auto kOpenreg = c10::DeviceType::PrivateUse1;
  const auto devices = group.getDeviceTypes();
  const auto cpu = gloo_for(group, devices, c10::DeviceType::CPU);
  const auto host = contains(devices, kOpenreg) ? gloo_for(group, devices, kOpenreg) : cpu;
  if ((cpu != nullptr || host != nullptr) && group.getBackendType() == Type::UNDEFINED) {
    group.setDefaultBackend(Type::GLOO); // PyTorch chooses none for "cpu:gloo,openreg:..." and warns of that later
  }
  if (host == nullptr) {
    return;
  }
  auto staged = backend_over(own.has_value() ? *own : HostBackend(host), group.getStore());
  staged->setBoundDeviceId(group.getBoundDeviceId());
  staged->setGroupUid(group.getGroupName()); // the group takes its name from one of its backends
  staged->setGroupDesc(group.getGroupDesc());
  group.setBackend(kOpenreg, Type::CUSTOM, staged);
  if (gloo_for(group, devices, c10::DeviceType::CUDA) == host) {
    // "gloo" is for CUDA, too, also where there is none. splitGroup() splits the backend of each device, and two of one
    // gloo would meet at the same keys of the store: ranks hang there, or talk to the wrong one.
    group.setBackend(c10::DeviceType::CUDA, Type::CUSTOM, staged);
  }
}

} // namespace c10::openreg

void openreg_choose_backend(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (keys.has(c10::DispatchKey::PrivateUse1)) {
    if (const auto group = c10::openreg::group_among(torch::jit::last(*stack, op.schema().arguments().size()))) {
      c10::openreg::serve_process_group(*group);
    }
    c10::openreg::premultiply(op, *stack);
  }
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect), stack);
}
