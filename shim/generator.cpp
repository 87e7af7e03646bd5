#include "shim/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <array>
#include <mutex>

#include "shim/device.h"
#include "shim/operators/gpu_kernels.h"
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

at::Generator OpenRegGeneratorImpl::gpu() const {
  const std::lock_guard<std::mutex> guard(gpu_lock_);
  if (!gpu_.defined()) {
    const auto& hooks = at::detail::getCUDAHooks();
    const DeviceIndex gpu = gpu_of(device().index()).index();
    at::Generator made = is_default_ ? hooks.getDefaultGenerator(gpu) : hooks.getNewGenerator(gpu);
    const std::lock_guard<std::mutex> lock(made.mutex());
    made.set_current_seed(inner_.current_seed());
    gpu_ = made;
  }
  return gpu_;
}

at::Generator OpenRegGeneratorImpl::existing_gpu() const {
  const std::lock_guard<std::mutex> guard(gpu_lock_);
  return gpu_;
}

at::Generator OpenRegGeneratorImpl::drawn_from() const {
  // Opens no driver where PyTorch has no kernels for GPUs.
  return torch_has_gpus() && has_gpu_kernels(device().index()) ? gpu() : inner_;
}

void OpenRegGeneratorImpl::set_current_seed(uint64_t seed) {
  for (const at::Generator& generator : {inner_, existing_gpu()}) {
    if (generator.defined()) {
      const std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
      generator.unsafeGetGeneratorImpl()->set_current_seed(seed);
    }
  }
}

uint64_t OpenRegGeneratorImpl::current_seed() const {
  const at::Generator gpu = existing_gpu();
  const at::Generator& generator = gpu.defined() ? gpu : inner_; // the state that was set may be of another seed
  const std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
  return generator.current_seed();
}

uint64_t OpenRegGeneratorImpl::seed() {
  uint64_t seed = 0;
  {
    const std::lock_guard<std::mutex> lock(inner_.mutex());
    seed = inner_.seed();
  }
  set_current_seed(seed);
  return seed;
}

void OpenRegGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  const at::Generator generator = drawn_from();
  const std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
  generator.unsafeGetGeneratorImpl()->set_state(new_state);
}

c10::intrusive_ptr<c10::TensorImpl> OpenRegGeneratorImpl::get_state() const {
  const at::Generator generator = drawn_from();
  const std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
  return generator.unsafeGetGeneratorImpl()->get_state();
}

void OpenRegGeneratorImpl::set_offset(uint64_t offset) {
  const at::Generator generator = drawn_from();
  if (generator.device().is_cpu()) {
    refuse_offset();
  }
  const std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
  generator.unsafeGetGeneratorImpl()->set_offset(offset);
}

uint64_t OpenRegGeneratorImpl::get_offset() const {
  const at::Generator generator = drawn_from();
  if (generator.device().is_cpu()) {
    refuse_offset();
  }
  const std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
  return generator.unsafeGetGeneratorImpl()->get_offset();
}

OpenRegGeneratorImpl* OpenRegGeneratorImpl::clone_impl() const {
  const at::Generator gpu = existing_gpu();
  const std::lock_guard<std::mutex> lock(inner_.unsafeGetGeneratorImpl()->mutex_);
  auto* clone = new OpenRegGeneratorImpl(device().index(), inner_.clone());
  if (gpu.defined()) {
    const std::lock_guard<std::mutex> gpu_lock(gpu.unsafeGetGeneratorImpl()->mutex_);
    clone->gpu_ = gpu.clone();
  }
  return clone;
}

at::Generator inner_cpu_generator(const at::Generator& generator) {
  const Device device = generator.device();
  if (device.is_privateuseone()) {
    return generator.get<OpenRegGeneratorImpl>()->inner();
  }
  TORCH_CHECK(device.is_cpu(), "Expected a generator of a PrivateUse1 device, but got one of ", device);
  return generator;
}

at::Generator inner_gpu_generator(const at::Generator& generator) {
  return generator.device().is_privateuseone() ? generator.get<OpenRegGeneratorImpl>()->gpu() : generator;
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
    created.get<OpenRegGeneratorImpl>()->be_default();
    created.seed();
    slot.generator = std::move(created);
  });
  return slot.generator;
}

at::Generator make_generator(DeviceIndex device) {
  return at::make_generator<OpenRegGeneratorImpl>(existing_device(device));
}

} // namespace c10::openreg
