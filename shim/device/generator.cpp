// SPDX-License-Identifier: BSD-3-Clause
#include "shim/device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <array>
#include <cstring>
#include <mutex>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"

namespace c10::openreg {

namespace {

// Throws where the device's current stream is captured: replays draw from the generator as they find it.
void check_not_captured(DeviceIndex device, const char* call) {
  if (auto* const watch = capture_watch()) {
    watch->refuse(device, current_stream(device).id(), call, "each replay draws from the generator as it is then");
  }
}

// `device`, or the current one for -1; throws for an index out of range.
DeviceIndex existing_device(DeviceIndex device) {
  const DeviceIndex index = index_or_current(device);
  const DeviceIndex count = device_count_ensure_non_zero();
  if (index < 0 || index >= count) {
    throw_index_out_of_range(std::to_string(index));
  }
  return index;
}

// The appendix of a state whose offset is not 0.
struct Position {
  uint64_t seed;
  uint64_t offset;
};

// The mixing function of SplitMix64: neighbouring numbers give unlike ones.
uint64_t mixed(uint64_t number) {
  number += UINT64_C(0x9E3779B97F4A7C15);
  number = (number ^ (number >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  number = (number ^ (number >> 27)) * UINT64_C(0x94D049BB133111EB);
  return number ^ (number >> 31);
}

// What the inner generator is seeded with. Sequence 0 of a seed is the CPU's.
uint64_t inner_seed(uint64_t seed, uint64_t offset) {
  return offset == 0 ? seed : mixed(seed ^ mixed(offset));
}

GpuLookup gpu_lookup = nullptr;

// Bytes of a CPU generator's state.
size_t inner_state_size() {
  static const size_t size = at::detail::createCPUGenerator().get_state().nbytes();
  return size;
}

} // namespace

void set_gpu_lookup(GpuLookup lookup) noexcept {
  gpu_lookup = lookup;
}

OpenRegGeneratorImpl::OpenRegGeneratorImpl(DeviceIndex device)
    : OpenRegGeneratorImpl(
          device, std::make_shared<Sequence>(at::detail::createCPUGenerator(), c10::default_rng_seed_val, 0)) {}

OpenRegGeneratorImpl::OpenRegGeneratorImpl(DeviceIndex device, std::shared_ptr<Sequence> sequence)
    : c10::GeneratorImpl(Device(DeviceType::PrivateUse1, device), DispatchKeySet(DispatchKey::PrivateUse1)),
      sequence_(std::move(sequence)) {}

at::Generator OpenRegGeneratorImpl::gpu(c10::Device device) const {
  const auto sequence = sequence_.load();
  const std::lock_guard<std::mutex> guard(sequence->gpu_lock);
  if (!sequence->gpu.defined()) {
    const auto& hooks = at::detail::getCUDAHooks();
    at::Generator made =
        sequence->is_default ? hooks.getDefaultGenerator(device.index()) : hooks.getNewGenerator(device.index());
    const std::scoped_lock locks(made.mutex(), sequence->inner.mutex());
    made.set_current_seed(sequence->seed);
    sequence->gpu = made;
  }
  return sequence->gpu;
}

std::optional<at::Generator> OpenRegGeneratorImpl::drawn_from_gpu() const {
  const auto device_of_gpu = gpu_lookup(device().index());
  return device_of_gpu.has_value() ? std::optional(gpu(*device_of_gpu)) : std::nullopt;
}

void OpenRegGeneratorImpl::set_current_seed(uint64_t seed) {
  check_not_captured(device().index(), "seeding a generator");
  begin(seed);
}

void OpenRegGeneratorImpl::begin(uint64_t seed) {
  const auto sequence = sequence_.load();
  {
    const std::lock_guard<std::mutex> lock(sequence->inner.mutex());
    sequence->inner.set_current_seed(seed);
    sequence->seed = seed;
    sequence->offset = 0;
  }
  if (at::Generator gpu = sequence->existing_gpu(); gpu.defined()) {
    const std::lock_guard<std::mutex> lock(gpu.mutex());
    gpu.set_current_seed(seed);
  }
}

uint64_t OpenRegGeneratorImpl::current_seed() const {
  const auto sequence = sequence_.load();
  if (at::Generator gpu = sequence->existing_gpu(); gpu.defined()) {
    const std::lock_guard<std::mutex> lock(gpu.mutex());
    return gpu.current_seed(); // a state that was set may come from another seed
  }
  const std::lock_guard<std::mutex> lock(sequence->inner.mutex());
  return sequence->seed;
}

uint64_t OpenRegGeneratorImpl::seed() {
  const auto sequence = sequence_.load();
  uint64_t seed = 0;
  {
    const std::lock_guard<std::mutex> lock(sequence->inner.mutex());
    seed = sequence->inner.seed();
  }
  set_current_seed(seed);
  return seed;
}

void OpenRegGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  if (auto* const watch = capture_watch()) {
    watch->set_state(*this, new_state);
  }
  if (auto generator = drawn_from_gpu()) {
    const std::lock_guard<std::mutex> lock(generator->mutex());
    generator->unsafeGetGeneratorImpl()->set_state(new_state);
    return;
  }
  const auto sequence = sequence_.load();
  const std::lock_guard<std::mutex> lock(sequence->inner.mutex());
  auto* inner = sequence->inner.unsafeGetGeneratorImpl();
  const size_t inner_size = inner_state_size();
  if (static_cast<size_t>(new_state.numel()) != inner_size + sizeof(Position)) {
    inner->set_state(new_state); // refuses what is no state
    sequence->seed = inner->current_seed();
    sequence->offset = 0;
    return;
  }
  const auto* bytes = static_cast<const uint8_t*>(new_state.data());
  const at::Tensor inner_state(at::detail::empty_cpu({static_cast<int64_t>(inner_size)}, at::kByte));
  std::memcpy(inner_state.data_ptr(), bytes, inner_size);
  Position position{};
  std::memcpy(&position, bytes + inner_size, sizeof position);
  inner->set_state(*inner_state.unsafeGetTensorImpl());
  sequence->seed = position.seed;
  sequence->offset = position.offset;
}

c10::intrusive_ptr<c10::TensorImpl> OpenRegGeneratorImpl::get_state() const {
  auto state = state_now();
  if (auto* const watch = capture_watch()) {
    watch->got_state(const_cast<OpenRegGeneratorImpl&>(*this), *state);
  }
  return state;
}

c10::intrusive_ptr<c10::TensorImpl> OpenRegGeneratorImpl::state_now() const {
  if (auto generator = drawn_from_gpu()) {
    const std::lock_guard<std::mutex> lock(generator->mutex());
    return generator->unsafeGetGeneratorImpl()->get_state();
  }
  const auto sequence = sequence_.load();
  const std::lock_guard<std::mutex> lock(sequence->inner.mutex());
  auto inner_state = sequence->inner.unsafeGetGeneratorImpl()->get_state();
  if (sequence->offset == 0) {
    return inner_state;
  }
  const size_t inner_size = inner_state_size();
  const Position position{sequence->seed, sequence->offset};
  const at::Tensor state(at::detail::empty_cpu({static_cast<int64_t>(inner_size + sizeof position)}, at::kByte));
  auto* bytes = static_cast<uint8_t*>(state.data_ptr());
  std::memcpy(bytes, inner_state->data(), inner_size);
  std::memcpy(bytes + inner_size, &position, sizeof position);
  return state.getIntrusivePtr();
}

void OpenRegGeneratorImpl::set_offset(uint64_t offset) {
  check_not_captured(device().index(), "setting the offset of a generator");
  if (auto generator = drawn_from_gpu()) {
    const std::lock_guard<std::mutex> lock(generator->mutex());
    generator->unsafeGetGeneratorImpl()->set_offset(offset);
    return;
  }
  const auto sequence = sequence_.load();
  const std::lock_guard<std::mutex> lock(sequence->inner.mutex());
  sequence->inner.set_current_seed(inner_seed(sequence->seed, offset));
  sequence->offset = offset;
}

uint64_t OpenRegGeneratorImpl::get_offset() const {
  if (auto generator = drawn_from_gpu()) {
    const std::lock_guard<std::mutex> lock(generator->mutex());
    return generator->unsafeGetGeneratorImpl()->get_offset();
  }
  const auto sequence = sequence_.load();
  const std::lock_guard<std::mutex> lock(sequence->inner.mutex());
  return sequence->offset;
}

c10::intrusive_ptr<c10::GeneratorImpl> OpenRegGeneratorImpl::graphsafe_get_state() const {
  return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(new OpenRegGeneratorImpl(device().index(), sequence_.load()));
}

void OpenRegGeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) {
  const auto* other = dynamic_cast<const OpenRegGeneratorImpl*>(new_state.get());
  TORCH_CHECK(other != nullptr, "graphsafe_set_state() expects a generator of ", a_device_name(), " device.");
  check_not_captured(device().index(), "setting the state of a generator");
  sequence_.store(other->sequence_.load());
}

OpenRegGeneratorImpl* OpenRegGeneratorImpl::clone_impl() const {
  const auto sequence = sequence_.load();
  std::shared_ptr<Sequence> copy;
  {
    const std::lock_guard<std::mutex> lock(sequence->inner.mutex());
    copy = std::make_shared<Sequence>(sequence->inner.clone(), sequence->seed, sequence->offset);
  }
  if (at::Generator gpu = sequence->existing_gpu(); gpu.defined()) {
    const std::lock_guard<std::mutex> lock(gpu.mutex());
    copy->gpu = gpu.clone();
  }
  return new OpenRegGeneratorImpl(device().index(), std::move(copy));
}

at::Generator inner_cpu_generator(const at::Generator& generator) {
  const Device device = generator.device();
  if (device.is_privateuseone()) {
    return generator.get<OpenRegGeneratorImpl>()->inner();
  }
  TORCH_CHECK(device.is_cpu(), "Expected a generator of a PrivateUse1 device, but got one of ", device);
  return generator;
}

at::Generator inner_gpu_generator(const at::Generator& generator, c10::Device gpu) {
  return generator.device().is_privateuseone() ? generator.get<OpenRegGeneratorImpl>()->gpu(gpu) : generator;
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
    created.get<OpenRegGeneratorImpl>()->be_default(c10::detail::getNonDeterministicRandom());
    slot.generator = std::move(created);
  });
  return slot.generator;
}

at::Generator make_generator(DeviceIndex device) {
  return at::make_generator<OpenRegGeneratorImpl>(existing_device(device));
}

} // namespace c10::openreg
