// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/gpu_kernels.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <optional>

#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/device/generator.h"
#include "shim/memory/device_allocator.h"
#include "shim/operators/fallback/gpu_allocations.h"
#include "shim/operators/fallback/non_dense.h"
#include "shim/operators/fallback/route.h"

namespace c10::openreg {
namespace {

constexpr c10::DeviceType kGpu = c10::DeviceType::CUDA;

// Written before has_gpu_kernels() of the device gives true.
std::array<std::atomic<DeviceIndex>, OPENREG_MAX_DEVICES> gpus;

thread_local GpuScope* innermost = nullptr;

const c10::impl::DeviceGuardImplInterface& guard() {
  return *c10::impl::getDeviceGuardImpl(kGpu);
}

// PyTorch's device whose memory this is, as the vendor's library that PyTorch uses sees it: a driver's numbers are right
// only where both see the same devices, and a driver for HIP has devices that a PyTorch for CUDA knows nothing of.
std::optional<c10::Device> owner_of(void* memory) {
  try {
    return at::detail::getCUDAHooks().getDeviceFromPtr(memory);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

void* native_stream_of(DeviceIndex device) {
  void* native = nullptr;
  OPENREG_CHECK(openreg_stream_native(device, current_stream(device).id(), &native));
  return native;
}

// cuDNN's benchmarks ask PyTorch's allocator for its largest free block, which an allocator in its place does not know:
// every new convolution would raise. The switch is the process's, and so is the allocator.
void keep_from_benchmarks() {
  at::Context& context = at::globalContext();
  if (C10_LIKELY(!context.benchmarkCuDNN()) || gpu_allocator_in_place() != GpuAllocator::openreg) {
    return;
  }
  context.setBenchmarkCuDNN(false);
  TORCH_WARN_ONCE(
      "torch.backends.cudnn.benchmark is switched off: its benchmarks need PyTorch's own allocator, which "
      "torch_openreg's "
      "replaces. cuDNN chooses its algorithms by its heuristics.");
}

} // namespace

bool torch_has_gpus() {
  static const bool has_kernels = [] {
    const auto op = c10::Dispatcher::singleton().findOp({"aten::add", "out"});
    return op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  }();
  return has_kernels && c10::impl::hasDeviceGuardImpl(kGpu) && at::detail::getCUDAHooks().hasCUDA() &&
      guard().deviceCount() > 0;
}

c10::Device gpu_of(DeviceIndex device) {
  return {kGpu, gpus[static_cast<size_t>(device)].load(std::memory_order_relaxed)};
}

bool find_gpu(DeviceIndex device, const openreg_device_properties& properties) {
  if (std::strcmp(properties.torch_device_type, "cuda") != 0 || !torch_has_gpus()) {
    return false;
  }
  install_gpu_allocations(); // before PyTorch makes its own allocator ready
  at::globalContext().lazyInitDevice(kGpu);
  const c10::DataPtr block = device_allocator().allocate_on(device, 1);
  const std::optional<c10::Device> owner = owner_of(block.get());
  if (!owner.has_value() || owner->type() != kGpu) {
    return false;
  }
  gpus[static_cast<size_t>(device)].store(owner->index(), std::memory_order_relaxed);
  note_gpu(owner->index(), device);
  // Kernels without a generator argument draw from PyTorch's default one, which openreg's seed is to mean.
  (void)inner_gpu_generator(default_generator(device), *owner);
  return true;
}

c10::DispatchKeySet kernel_keys_of(Kernels kernels, c10::DispatchKeySet keys) {
  constexpr c10::DispatchKeySet kinds = kNonDense | c10::DispatchKeySet(c10::DispatchKey::Dense);
  const auto backend = kernels == Kernels::gpu ? c10::BackendComponent::CUDABit : c10::BackendComponent::CPUBit;
  return (keys & kinds) | c10::DispatchKeySet(backend);
}

bool has_gpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  const c10::DispatchKey key = kernel_keys_of(Kernels::gpu, keys).highestPriorityTypeId();
  if (C10_LIKELY(op.hasKernelForDispatchKey(key))) { // one look-up for nearly all that is called
    return true;
  }
  // What PyTorch makes of an operator's out= variant is of use only where that has a kernel, and then the operator has one.
  const bool is_made_of_out = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  return !is_made_of_out && op.hasComputedKernelForDispatchKey(key);
}

GpuScope::GpuScope(DeviceIndex device)
    : gpu_(gpu_of(device)),
      device_(device),
      native_stream_(native_stream_of(device)),
      outer_(innermost),
      previous_device_(guard().exchangeDevice(gpu_)),
      // PyTorch's number of a stream that it didn't make is the vendor's handle; that of a default stream is 0, as null.
      previous_stream_(guard().exchangeStream(
          c10::Stream(c10::Stream::UNSAFE, gpu_, reinterpret_cast<c10::StreamId>(native_stream_)))) {
  innermost = this;
  keep_from_benchmarks();
}

GpuScope::~GpuScope() {
  innermost = outer_;
  try {
    guard().exchangeStream(previous_stream_);
  } catch (...) { // it was the current one before
  }
  // Setting a device asks CUDA for the present one, which throws after an asynchronous error, here where nothing may.
  if (previous_device_ != gpu_) {
    guard().uncheckedSetDevice(previous_device_);
  }
}

DeviceIndex GpuScope::device_of(DeviceIndex gpu, const void* native_stream) noexcept {
  for (const GpuScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->gpu_.index() == gpu && scope->native_stream_ == native_stream) {
      return scope->device_;
    }
  }
  return -1;
}

void register_gpu_lookup() {
  set_gpu_lookup([](DeviceIndex device) { // opens no driver where PyTorch has no kernels for GPUs
    return torch_has_gpus() && has_gpu_kernels(device) ? std::optional(gpu_of(device)) : std::nullopt;
  });
}

} // namespace c10::openreg
