/* SPDX-License-Identifier: BSD-3-Clause */
// openreg tensors as tensors of a type that PyTorch has kernels for, for the length of one operator call: as CPU tensors,
// or as those of the GPU that their device is (gpu_kernels.h).
//
// The recipe and its traps are those of PyTorch's own overlap, identity and resize checks: there is one CPU storage per
// openreg storage and one CPU tensor per openreg tensor, with the same sizes, strides, offset, dtype and lazy bits,
// so that a kernel gets exactly what it would get on the CPU, or on the GPU. Tensors passed to a kernel are called shown.
//   aliased  the CPU storage lies over the device's memory (openreg_host_alias()); nothing is copied.
//   staged   the CPU storage is a copy of what the call's tensors cover; finish() copies back what was written
//            (staged_storage.h).
//   GPU      as aliased, at the same address; nothing is waited for, as the kernel is queued on the current stream.
// Sparse, nested and quantized tensors are shown as CPU tensors of their kind over their parts (non_dense.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include "shim/observe/races.h"
#include "shim/operators/fallback/cpu_allocations.h"
#include "shim/operators/fallback/gpu_kernels.h"
#include "shim/operators/fallback/kernel_tensor_cache.h"
#include "shim/operators/fallback/non_dense.h"
#include "shim/operators/fallback/staged_storage.h"
#include "shim/operators/policy/kernel_keys.h"
#include "shim/operators/policy/operator_counts.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10::openreg {

class KernelView {
 public:
  // `device`: where fresh results go and, aliased, where the kernel's allocations come from. -1: taken from the first
  // tensor that view() sees. `name` is counted where a call is staged; it must outlive this object. `tensors`: as many
  // view()s may follow without invalidating what they return. `kernels`: whose tensors they are shown as; those of the GPU
  // for one device.
  KernelView(const std::string& name, DeviceIndex device, size_t tensors, Kernels kernels = Kernels::cpu);
  ~KernelView(); // without finish(), as after an exception: metadata is not written back

  KernelView(const KernelView&) = delete;
  KernelView& operator=(const KernelView&) = delete;

  // The CPU tensor of an openreg tensor; any other tensor is returned as it is. Waits for the current stream of the
  // tensor's device, unless the kernel is the GPU's. `written`: the kernel changes the tensor's data or metadata. Borrows
  // `tensor`, which must live as long as this object: a second reference to a tensor that Python knows would cost its
  // lock.
  const at::Tensor& view(const at::Tensor& tensor, bool written);

  // Lets the kernel see that a gradient of `tensor` is wanted, whose view `shown` is. Some kernels for sparse tensors leave out
  // what only their backward needs. Costs `shown` its further use, so dense operators, of which none asks, go without.
  static void show_wanted_gradient(const at::Tensor& tensor, const at::Tensor& shown);

  // After the kernel: takes over storages that it resized or put in the place of others, copies staged data back and writes changed sizes back.
  void finish();

  // A result of the kernel as an openreg tensor: the tensor that it is a view() of, a view of that tensor's storage,
  // or a tensor whose memory is the device's: `result` itself, made over, where nobody else has it. After finish(). CPU
  // scalars that were passed in stay as they are.
  at::Tensor adopt(at::Tensor&& result);

  DeviceIndex device() const {
    return device_;
  }

  // The call is no more than a copy of as many bytes: what a trace says of it. Device indices, or OPENREG_HOST.
  void describe_copy(int32_t source, int32_t destination, uint64_t bytes) {
    if (C10_UNLIKELY(call_.is_traced())) {
      call_.describe_copy(source, destination, bytes);
    }
  }

  // What openreg's device and a generator of it are to the kernel.
  c10::Device shown_device() const {
    return C10_UNLIKELY(kernels_ == Kernels::gpu) ? gpu_of(device_) : c10::Device(c10::DeviceType::CPU);
  }
  at::Generator shown_generator(const at::Generator& generator) const;

  // The keys of the kernel for dense tensors.
  c10::DispatchKeySet kernel_keys() const {
    return c10::DispatchKeySet(kernels_ == Kernels::gpu ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  }

 private:
  using PositionByOriginal = ska::flat_hash_map<const void*, size_t>;

  struct StorageEntry {
    c10::StorageImpl* original; // kept alive by a tensor that is viewed, or by replaced_
    c10::StorageImpl* shown;    // of the wrapper in tensors_[tensor], the first that shows it
    size_t tensor;
    void* data; // what `shown` held when the kernel started
    size_t size;
    int staged; // position in staged_; -1: not staged
    DeviceIndex device;
    ExecutionMode mode;
    bool written;
    const void* noted; // the original's memory then, for the race detector
  };
  struct TensorEntry {
    const at::Tensor* original;
    at::Tensor shown; // a KernelTensor
    bool written;
    size_t storage = 0;                        // position in storages_
    bool reusable = false;                     // when the call has ended
    c10::StorageImpl* shown_storage = nullptr; // what `shown` had for storage when the kernel started
  };
  struct NonDenseEntry {
    const at::Tensor* original;
    Parts parts; // of the original: borrowed by entries of tensors_
    at::Tensor shown;
    bool written;
  };
  struct Adopted {
    c10::StorageImpl* result;
    c10::intrusive_ptr<c10::StorageImpl> device;
  };

  TensorEntry* find_tensor(const c10::TensorImpl* original);
  StorageEntry* find_storage(const c10::StorageImpl* original);
  static KernelTensor& wrapper_of(const TensorEntry& entry);
  void show_storage(TensorEntry& tensor, const c10::Storage& storage, DeviceIndex device);
  void release_storage(const StorageEntry& entry);
  const at::Tensor& view_non_dense(const at::Tensor& tensor, bool written);
  at::Tensor adopt_non_dense(const at::Tensor& result);
  Parts adopt_parts(const at::Tensor& non_dense);
  static bool was_resized(const StorageEntry& entry);
  void note_staged_writes();
  void write_storage_back(StorageEntry& entry);
  void take_for_writing(StorageEntry& entry);
  void take_replaced_storage(const TensorEntry& entry);
  static void write_metadata_back(const TensorEntry& entry);
  c10::intrusive_ptr<c10::StorageImpl> adopt_storage(c10::StorageImpl& storage);
  bool make_over(const at::Tensor& result);
  c10::DataPtr device_data(c10::DataPtr& data, size_t size, DeviceIndex device);
  c10::DataPtr shown_data(void* address); // of aliased memory, or null
  void use_device(DeviceIndex device);
  void begin_races();
  void note_race_use_of(const at::Tensor& tensor, bool writes);
  void note_resized_for_races();

  const std::string& name_;
  KernelTensorCache& wrappers_;
  OperatorCall call_;
  const Kernels kernels_;
  std::optional<GpuScope> gpu_scope_;
  DeviceIndex device_;
  ExecutionMode mode_ = ExecutionMode::aliased;
  bool mode_is_known_ = false;
  uint64_t staged_bytes_ = 0;
  const bool follows_races_ = follows_races();
  bool notes_uses_ = false; // of data, for the race detector
  bool has_masks_ = false;  // known while it is noted
  RaceUses race_uses_;
  std::optional<AllocateOnDevice> allocations_;
  c10::SmallVector<StorageEntry, 6> storages_;
  std::vector<StagedStorage> staged_;
  c10::SmallVector<TensorEntry, 6> tensors_;
  std::vector<std::unique_ptr<NonDenseEntry>> non_dense_; // rarely any
  // Positions by original, kept once there are too many entries for a linear search (foreach operators).
  std::unique_ptr<PositionByOriginal> tensor_index_;
  std::unique_ptr<PositionByOriginal> storage_index_;
  c10::SmallVector<DeviceIndex, 2> devices_; // whose current streams were waited for
  c10::SmallVector<Adopted, 2> adopted_;
  std::vector<c10::Storage> replaced_; // what tensors had before the kernel gave them others
};

// Waits until the calling thread's current stream of the device has no work left; cheap when it has none.
TORCH_OPENREG_API void wait_for_current_stream(DeviceIndex device);

// A new openreg tensor over a storage, with the sizes, strides, offset and lazy bits of `like`.
at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like);

} // namespace c10::openreg
