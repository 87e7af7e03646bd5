// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/kernel_tensor_cache.h"

#include <atomic>

#include "shim/operators/fallback/cpu_allocations.h"
#include "shim/operators/fallback/gpu_allocations.h"

namespace c10::openreg {
namespace {

std::atomic<uint64_t> made{0};

c10::intrusive_ptr<c10::StorageImpl> empty_storage(Kernels kernels) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      0,
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)),
      kernels == Kernels::gpu ? gpu_allocator() : cpu_allocations(),
      /*resizable=*/true);
}

} // namespace

KernelTensor::KernelTensor(Kernels kernels)
    : TensorImpl(
          c10::Storage(empty_storage(kernels)),
          c10::DispatchKeySet(c10::DispatchKey::CPU),
          caffe2::TypeMeta::Make<float>()),
      own_storage_(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_.unsafeGetStorageImpl())),
      own_keys_(
          kernels == Kernels::gpu ? keys_moved(key_set_, c10::BackendComponent::CPUBit, c10::BackendComponent::CUDABit)
                                  : key_set_) {}

KernelTensorCache& KernelTensorCache::of_this_thread(Kernels kernels) {
  // One variable, so that a call asks once whether it is made already.
  struct Both {
    KernelTensorCache cpu{Kernels::cpu};
    KernelTensorCache gpu{Kernels::gpu};
  };
  static thread_local Both mine;
  return C10_LIKELY(kernels == Kernels::cpu) ? mine.cpu : mine.gpu;
}

c10::intrusive_ptr<KernelTensor> KernelTensorCache::make() const {
  // Wrappers outlive the mode that they were made in; those of inference mode would lack a version counter.
  const c10::InferenceMode normal_mode(false);
  made.fetch_add(1, std::memory_order_relaxed);
  return c10::make_intrusive<KernelTensor>(kernels_);
}

uint64_t kernel_tensors_made() noexcept {
  return made.load(std::memory_order_relaxed);
}

} // namespace c10::openreg
