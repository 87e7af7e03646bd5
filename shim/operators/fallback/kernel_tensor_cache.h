/* SPDX-License-Identifier: BSD-3-Clause */
// CPU or GPU tensors over memory that isn't theirs, which a thread uses again for one operator call after another: a call
// needs no new TensorImpl or StorageImpl once its thread is warm.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "shim/base/export.h"
#include "shim/operators/fallback/gpu_kernels.h"

namespace c10::openreg {

// What a tensor's keys say of its values besides its memory: to be read as conjugated, as negated, or as zeros, for which
// there is no memory. Kernels that know ZeroTensors see them as such; before all others PyTorch has made them ordinary.
constexpr c10::DispatchKeySet kLazyBits(
    {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

// `keys` of a tensor of one type of device as those of another. They depend on inference mode too: so only what differs
// between the types is exchanged.
inline c10::DispatchKeySet keys_moved(c10::DispatchKeySet keys, c10::BackendComponent from, c10::BackendComponent to) {
  return (keys.remove_backend(from) - c10::getAutocastRelatedKeySetFromBackend(from)) | c10::DispatchKeySet(to) |
      c10::getAutocastRelatedKeySetFromBackend(to);
}

// While it lives, new tensors are inference tensors (without a version and a gradient) exactly if `like` is one. A view
// is an inference tensor exactly if its base is, whichever mode it is made in.
class MadeLike {
 public:
  explicit MadeLike(const at::TensorBase& like) {
    if (C10_UNLIKELY(like.is_inference() != c10::InferenceMode::is_enabled())) {
      mode_.emplace(like.is_inference());
    }
  }

 private:
  std::optional<c10::InferenceMode> mode_;
};

// A tensor of the type that `kernels` work on, with a storage of its own, which can be pointed at other memory with another
// tensor's metadata.
class KernelTensor final : public c10::TensorImpl {
 public:
  explicit KernelTensor(Kernels kernels);

  // Sizes, strides, offset, dtype and lazy bits of `original`, on a device of the wrapper's type.
  void show(const c10::TensorImpl& original, c10::Device device) {
    copy_generic_tensor_metadata(&original, this);
    device_opt_ = device;
    key_set_ = own_keys_ | (original.key_set() & kLazyBits);
  }

  c10::StorageImpl& own_storage() {
    return *own_storage_;
  }
  bool shows_own_storage() const {
    return storage_.unsafeGetStorageImpl() == own_storage_.get();
  }
  void show_storage_of(const KernelTensor& other) {
    storage_ = other.own_storage_;
  }
  // Whether somebody else refers to the own storage: another tensor, or what a kernel has kept.
  bool own_storage_is_shared() const {
    return own_storage_.use_count() > (shows_own_storage() ? 2U : 1U);
  }

  // Undoes show_storage_of() and whatever a kernel did to the tensor's storage. False if a kernel gave the tensor, of
  // which the caller has the only reference, state of its own, so that it can't be used again.
  bool restore() {
    if (!shows_own_storage()) {
      storage_ = own_storage_;
    }
    return autograd_meta() == nullptr && !is_python_dispatch();
  }

 private:
  c10::intrusive_ptr<c10::StorageImpl> own_storage_; // beside storage_, so that neither reference is made for a call
  const c10::DispatchKeySet own_keys_;
};

// The calling thread's wrappers for one kind of kernels that no call uses.
class KernelTensorCache {
 public:
  static KernelTensorCache& of_this_thread(Kernels kernels);

  c10::intrusive_ptr<KernelTensor> take() {
    if (C10_UNLIKELY(free_.empty())) {
      return make();
    }
    auto wrapper = std::move(free_.back());
    free_.pop_back();
    return wrapper;
  }

  // `wrapper` has been restored, nobody else refers to it or its storage, and that owns no memory.
  void give_back(c10::intrusive_ptr<KernelTensor>&& wrapper) {
    if (C10_LIKELY(free_.size() < kKept)) {
      free_.push_back(std::move(wrapper));
    }
  }

 private:
  static constexpr size_t kKept = 2048; // what an optimizer shows of a large model's parameters at once

  explicit KernelTensorCache(Kernels kernels) : kernels_(kernels) {}
  c10::intrusive_ptr<KernelTensor> make() const;

  const Kernels kernels_;
  std::vector<c10::intrusive_ptr<KernelTensor>> free_;
};

// Wrappers made so far, in all threads.
TORCH_OPENREG_API uint64_t kernel_tensors_made() noexcept;

} // namespace c10::openreg
