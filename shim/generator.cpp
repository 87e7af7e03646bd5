#include "shim/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <mutex>

#include "shim/device.h"
#include "shim/status.h"

namespace c10::openreg {

namespace {

// `device`, or the current one for -1; throws for an index out of range.
DeviceIndex existing_device(DeviceIndex device) {
  const DeviceIndex index = index_or_current(device);
  const DeviceIndex count = device_count_ensure_non_zero();
  TORCH_CHECK(
      index >= 0 && index < count,
      "The device index is out of range. It must be in [0, ",
      static_cast<int>(count),
      "), but got ",
      static_cast<int>(index),
      ".");
  return index;
}

[[noreturn]] void refuse_offset() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "An openreg generator is a Mersenne Twister, as the CPU's: it has a seed and a state, but no offset. "
      "Use get_state() and set_state().");
}

} // namespace

OpenRegGeneratorImpl::OpenRegGeneratorImpl(DeviceIndex device)
    : OpenRegGeneratorImpl(device, at::detail::createCPUGenerator()) {}

OpenRegGeneratorImpl::OpenRegGeneratorImpl(DeviceIndex device, at::Generator inner)
    : c10::GeneratorImpl(Device(DeviceType::PrivateUse1, device), DispatchKeySet(DispatchKey::PrivateUse1)),
      inner_(std::move(inner)) {}

void OpenRegGeneratorImpl::set_current_seed(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(inner_.mutex());
  inner_.set_current_seed(seed);
}

uint64_t OpenRegGeneratorImpl::current_seed() const {
  const std::lock_guard<std::mutex> lock(inner_.unsafeGetGeneratorImpl()->mutex_);
  return inner_.current_seed();
}

uint64_t OpenRegGeneratorImpl::seed() {
  const std::lock_guard<std::mutex> lock(inner_.mutex());
  return inner_.seed();
}

void OpenRegGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  const std::lock_guard<std::mutex> lock(inner_.mutex());
  inner_.unsafeGetGeneratorImpl()->set_state(new_state);
}

c10::intrusive_ptr<c10::TensorImpl> OpenRegGeneratorImpl::get_state() const {
  const std::lock_guard<std::mutex> lock(inner_.unsafeGetGeneratorImpl()->mutex_);
  return inner_.unsafeGetGeneratorImpl()->get_state();
}

void OpenRegGeneratorImpl::set_offset(uint64_t /*offset*/) {
  refuse_offset();
}

uint64_t OpenRegGeneratorImpl::get_offset() const {
  refuse_offset();
}

OpenRegGeneratorImpl* OpenRegGeneratorImpl::clone_impl() const {
  const std::lock_guard<std::mutex> lock(inner_.unsafeGetGeneratorImpl()->mutex_);
  return new OpenRegGeneratorImpl(device().index(), inner_.clone());
}

at::Generator inner_cpu_generator(const at::Generator& generator) {
  const Device device = generator.device();
  if (device.is_privateuseone()) {
    return generator.get<OpenRegGeneratorImpl>()->inner();
  }
  TORCH_CHECK(device.is_cpu(), "Expected a generator of a PrivateUse1 device, but got one of ", device);
  return generator;
}

const at::Generator& default_generator(DeviceIndex device) {
  // Sized for any device table, so that references stay valid; never destroyed.
  struct Slot {
    std::once_flag once;
    at::Generator generator;
  };
  static auto& slots = *new std::array<Slot, OPENREG_MAX_DEVICES>;
  const DeviceIndex index = existing_device(device);
  Slot& slot = slots[static_cast<size_t>(index)];
  std::call_once(slot.once, [&] {
    at::Generator created = at::make_generator<OpenRegGeneratorImpl>(index);
    created.seed();
    slot.generator = std::move(created);
  });
  return slot.generator;
}

at::Generator make_generator(DeviceIndex device) {
  return at::make_generator<OpenRegGeneratorImpl>(existing_device(device));
}

} // namespace c10::openreg
