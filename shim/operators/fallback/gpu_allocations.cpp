// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/gpu_allocations.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dlfcn.h>
#include <openreg/openreg.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/memory/device_allocator.h"
#include "shim/memory/host_allocator.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/fallback/route.h"

// Named as in PyTorch's headers, which need CUDA's.
struct CUstream_st;
namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator;
}

namespace c10::openreg {
namespace {

using Allocate = std::function<void*(size_t, int, CUstream_st*)>;
using Free = std::function<void(void*, size_t, int, CUstream_st*)>;
using AllocatorPointer = std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>;

// torch::cuda::CUDAPluggableAllocator::createCustomAllocator() and changeCurrentAllocator(), exported for
// torch.cuda.memory.CUDAPluggableAllocator.
constexpr char kCreate[] =
    "_ZN5torch4cuda22CUDAPluggableAllocator21createCustomAllocator"
    "ESt8functionIFPvmiP11CUstream_stEES2_IFvS3_miS5_EE";
constexpr char kChange[] =
    "_ZN5torch4cuda22CUDAPluggableAllocator22changeCurrentAllocator"
    "ERKSt10shared_ptrIN3c104cuda20CUDACachingAllocator13CUDAAllocatorEE";
using Create = AllocatorPointer (*)(Allocate, Free);
using Change = void (*)(const AllocatorPointer&);

std::array<std::atomic<DeviceIndex>, OPENREG_MAX_DEVICES> devices; // by GPU; one more than the index, 0: none

// Blocks for streams that the runtime doesn't know, and their devices.
struct OutsideBlocks {
  std::mutex lock;
  std::unordered_map<void*, DeviceIndex> devices;
};

OutsideBlocks& outside_blocks() {
  static auto& blocks = *new OutsideBlocks; // leaked: blocks outlive everything
  return blocks;
}
std::atomic<size_t> outside_count{0};

bool is_outside(void* block) {
  if (C10_LIKELY(outside_count.load(std::memory_order_relaxed) == 0)) {
    return false;
  }
  const std::lock_guard<std::mutex> guard(outside_blocks().lock);
  return outside_blocks().devices.count(block) != 0;
}

// The openreg device that the GPU is, where operators have not met it yet; -1: none is.
DeviceIndex look_for_device_of(DeviceIndex gpu) {
  for (DeviceIndex device = 0; device < device_count(); ++device) {
    if (has_gpu_kernels(device) && gpu_of(device).index() == gpu) {
      return device;
    }
  }
  return -1;
}

void* release(c10::DataPtr&& block) {
  return block.release_context();
}

// For code that uses PyTorch's "cuda" itself: the block may go to any stream, so its earlier use must have ended.
void* allocate_outside(DeviceIndex gpu, size_t size) {
  DeviceIndex device =
      gpu >= 0 && gpu < OPENREG_MAX_DEVICES ? static_cast<DeviceIndex>(devices[gpu].load() - 1) : DeviceIndex{-1};
  if (device < 0) {
    device = look_for_device_of(gpu);
  }
  TORCH_CHECK(
      device >= 0,
      "cuda:",
      static_cast<int>(gpu),
      " has no memory in this process: torch_openreg has taken the place of PyTorch's allocator, and no ",
      device_name(),
      " device is that GPU.");
  void* block = nullptr;
  OPENREG_CHECK(openreg_malloc(device, OPENREG_STREAM_DEFAULT, size, &block));
  if (block != nullptr) {
    OPENREG_CHECK(openreg_stream_synchronize(device, OPENREG_STREAM_DEFAULT));
    const std::lock_guard<std::mutex> guard(outside_blocks().lock);
    outside_blocks().devices.emplace(block, device);
    outside_count.fetch_add(1, std::memory_order_relaxed);
  }
  return block;
}

void* allocate_block(size_t size, int gpu, CUstream_st* stream) {
  const DeviceIndex device = GpuScope::device_of(static_cast<DeviceIndex>(gpu), stream);
  // In a scope the current stream of the device is `stream`.
  return device >= 0 ? release(device_allocator().allocate_on(device, size))
                     : allocate_outside(static_cast<DeviceIndex>(gpu), size);
}

// The block that openreg takes out of PyTorch's books, which PyTorch does by freeing it.
thread_local const void* taken = nullptr;

void free_block(void* block, size_t /*size*/, int /*gpu*/, CUstream_st* /*stream*/) {
  if (block == taken) {
    return;
  }
  if (C10_UNLIKELY(outside_count.load(std::memory_order_relaxed) > 0)) {
    const std::lock_guard<std::mutex> guard(outside_blocks().lock);
    const auto found = outside_blocks().devices.find(block);
    if (found != outside_blocks().devices.end()) {
      (void)openreg_device_synchronize(found->second);
      outside_blocks().devices.erase(found);
      outside_count.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  device_allocator().raw_deleter()(block);
}

// PyTorch's library with the kernels for GPUs; null where this PyTorch has none. It is in the process from the start, but
// not where dlsym(RTLD_DEFAULT) looks.
void* torch_library() noexcept {
  static void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD); // never closed, as PyTorch's own
  return library;
}

void* symbol_of_torch(const char* name) noexcept {
  return torch_library() != nullptr ? dlsym(torch_library(), name) : nullptr;
}

// A stream of CUDA's as one of openreg's, for pinned memory that is in use there: the scope's that a kernel of PyTorch's
// runs in. Another one is waited for here, and any stream of openreg's is then as good.
c10::Stream stream_for_pinned(c10::Stream stream) {
  DeviceIndex device =
      GpuScope::device_of(stream.device_index(), reinterpret_cast<const void*>(static_cast<intptr_t>(stream.id())));
  if (device < 0) {
    c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->synchronizeStream(stream);
    device = current_device();
  }
  return current_stream(device);
}

// Above the priority of PyTorch's own, which is 0.
constexpr uint8_t kHostAllocatorPriority = 1;

bool install() {
  const auto create = reinterpret_cast<Create>(symbol_of_torch(kCreate));
  const auto change = reinterpret_cast<Change>(symbol_of_torch(kChange));
  std::string reason = "this PyTorch has no interface for that";
  if (create != nullptr && change != nullptr) {
    try {
      // PyTorch's reference to it ends with its static objects, and tensors may be freed after that: this one never ends.
      static const auto& kept = *new AllocatorPointer(create(&allocate_block, &free_block));
      change(kept);
      set_stream_translation(c10::DeviceType::CUDA, &stream_for_pinned);
      at::setHostAllocator(c10::DeviceType::CUDA, &host_allocator(), kHostAllocatorPriority);
      return true;
    } catch (const c10::Error& error) {
      reason = error.what_without_backtrace();
    }
  }
  TORCH_WARN(
      "PyTorch keeps its own allocator for CUDA beside torch_openreg's (",
      reason,
      "): each result of an operator is copied, and temporary memory of kernels is not in its statistics. Use "
      "torch_openreg before anything uses \"cuda\" in the process.");
  return false;
}

std::atomic<GpuAllocator> in_place{GpuAllocator::undecided};

bool is_of_torch_gpu(DeviceIndex device) {
  return std::strcmp(properties_of(device).torch_device_type, "cuda") == 0;
}

c10::Device device_of(DeviceIndex device) {
  return {c10::DeviceType::PrivateUse1, device};
}

// Bytes of the GPU's memory as a tensor that owns nothing.
at::Tensor bytes_at(void* address, size_t size, c10::Device gpu) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(size), c10::DataPtr(address, gpu), nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(size)});
  return tensor;
}

} // namespace

GpuAllocator gpu_allocator_in_place() noexcept {
  return in_place.load(std::memory_order_acquire);
}

void install_gpu_allocations() {
  if (in_place.load(std::memory_order_acquire) != GpuAllocator::undecided) {
    return;
  }
  static std::mutex lock;
  const std::lock_guard<std::mutex> guard(lock);
  if (in_place.load(std::memory_order_relaxed) == GpuAllocator::undecided && torch_library() != nullptr) {
    in_place.store(install() ? GpuAllocator::openreg : GpuAllocator::torch, std::memory_order_release);
  }
}

void prepare_gpu_allocations() {
  if (in_place.load(std::memory_order_acquire) != GpuAllocator::undecided || torch_library() == nullptr) {
    return;
  }
  for (DeviceIndex device = 0; device < device_count(); ++device) {
    if (is_of_torch_gpu(device)) {
      return install_gpu_allocations();
    }
  }
}

void note_gpu(DeviceIndex gpu, DeviceIndex device) {
  devices[static_cast<size_t>(gpu)].store(static_cast<DeviceIndex>(device + 1));
}

c10::Allocator* gpu_allocator() {
  static c10::Allocator* const allocator = at::detail::getCUDAHooks().getCUDADeviceAllocator();
  return allocator;
}

c10::DataPtr adopt_gpu_memory(c10::DataPtr& data, size_t size, DeviceIndex device) {
  if (gpu_allocator_in_place() == GpuAllocator::openreg && data.get_deleter() == gpu_allocator()->raw_deleter()) {
    if (is_outside(data.get())) { // to be waited for when it is freed
      data.unsafe_set_device(device_of(device));
      return std::move(data);
    }
    // PyTorch's books have an address once, and a replay of a graph gives a kernel the one that the capture's result has.
    c10::DataPtr block(data.get(), data.get(), device_allocator().raw_deleter(), device_of(device));
    taken = block.get();
    data.clear();
    taken = nullptr;
    return block;
  }
  c10::DataPtr block = device_allocator().allocate_on(device, size);
  const c10::Device gpu = gpu_of(device);
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  at::Tensor target = bytes_at(block.get(), size, gpu);
  target.copy_(bytes_at(data.get(), size, gpu), /*non_blocking=*/true);
  data.clear(); // to its own allocator, which reuses it behind the copy
  return block;
}

} // namespace c10::openreg
