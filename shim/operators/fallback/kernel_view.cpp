// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/kernel_view.h"

#include <c10/core/TensorImpl.h>
#include <openreg/openreg.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/device/device.h"
#include "shim/device/generator.h"
#include "shim/memory/device_allocator.h"
#include "shim/memory/storage.h"
#include "shim/operators/fallback/gpu_allocations.h"
#include "shim/operators/fallback/route.h"

namespace c10::openreg {
namespace {

constexpr size_t kLinearSearch = 24; // entries up to which a linear search is faster than an index

// Reaches what a TensorImpl keeps to itself and its descendants.
class OpenregKeys final : public c10::TensorImpl {
 public:
  OpenregKeys() = delete;

  static void put_on(c10::TensorImpl& impl, c10::Device device) {
    impl.*(&OpenregKeys::key_set_) =
        keys_moved(impl.key_set(), backend_of(impl.device_type()), c10::BackendComponent::PrivateUse1Bit);
    impl.*(&OpenregKeys::device_opt_) = device;
  }

  static void set_lazy_bits(c10::TensorImpl& impl, const c10::TensorImpl& like) {
    impl.*(&OpenregKeys::key_set_) = (impl.key_set() - kLazyBits) | (like.key_set() & kLazyBits);
  }
};

void drop_storage_reference(void* storage) {
  c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(storage));
}

// Memory at `address` that stays alive as long as the storage that owns it.
c10::DataPtr borrowed_data(void* address, c10::intrusive_ptr<c10::StorageImpl> owner, c10::Device device) {
  return {address, owner.release(), &drop_storage_reference, device};
}

template <class Entry, class Index, class Key>
C10_NOINLINE Entry* find_indexed(c10::SmallVectorImpl<Entry>& entries, Index& index, const void* original, Key key) {
  if (index == nullptr) {
    index = std::make_unique<typename Index::element_type>();
  }
  for (size_t i = index->size(); i < entries.size(); ++i) {
    index->emplace(key(entries[i]), i);
  }
  const auto found = index->find(original);
  return found == index->end() ? nullptr : &entries[found->second];
}

template <class Entry, class Index, class Key>
C10_ALWAYS_INLINE Entry* find(c10::SmallVectorImpl<Entry>& entries, Index& index, const void* original, Key key) {
  if (C10_UNLIKELY(entries.size() > kLinearSearch)) {
    return find_indexed(entries, index, original, key);
  }
  auto* const found =
      std::find_if(entries.begin(), entries.end(), [&](Entry& entry) { return key(entry) == original; });
  return found == entries.end() ? nullptr : found;
}

bool metadata_differs(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  return a.sizes() != b.sizes() || a.strides() != b.strides() || a.storage_offset() != b.storage_offset() ||
      (a.key_set() & kLazyBits) != (b.key_set() & kLazyBits);
}

} // namespace

void wait_for_current_stream(DeviceIndex device) {
  const RaceMute mute(races_are_found()); // no wait of the program's
  const openreg_stream stream = current_stream(device).id();
  int32_t done = 0;
  OPENREG_CHECK(openreg_stream_query(device, stream, &done));
  if (!done) {
    const WaitScope waiting;
    OPENREG_CHECK(openreg_stream_synchronize(device, stream));
  }
}

at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  const auto* source = like.unsafeGetTensorImpl();
  if (source->key_set().has_any(kLazyBits)) {
    OpenregKeys::set_lazy_bits(*impl, *source);
  }
  return tensor;
}

KernelView::KernelView(const std::string& name, DeviceIndex device, size_t tensors, Kernels kernels)
    : name_(name),
      wrappers_(KernelTensorCache::of_this_thread(kernels)),
      kernels_(kernels),
      device_(-1) {
  tensors_.reserve(tensors);
  if (device >= 0) {
    use_device(device);
  }
  if (C10_UNLIKELY(follows_races_)) {
    begin_races();
  }
}

void KernelView::begin_races() {
  notes_uses_ = uses_data(name_);
  race_uses_.origin = openreg_races_origin(name_.c_str());
  openreg_races_mute(1); // last: without it the destructor doesn't run
}

void KernelView::note_race_use_of(const at::Tensor& tensor, bool writes) {
  if (!notes_uses_) {
    return;
  }
  has_masks_ |= tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
  // Which of its inputs a compiled graph writes is not known; used they are.
  note_race_use(race_uses_, tensor, writes && name_ != "openreg::compiled_graph_");
}

// Tensors whose memory the kernel has replaced by more.
void KernelView::note_resized_for_races() {
  for (const TensorEntry& entry : tensors_) {
    const StorageEntry& storage = storages_[entry.storage];
    if (entry.written && storage.original->data() != storage.noted) {
      note_race_use_of(*entry.original, /*writes=*/true);
    }
  }
}

KernelView::~KernelView() {
  if (C10_UNLIKELY(follows_races_)) {
    openreg_races_mute(-1);
  }
  if (C10_UNLIKELY(call_.is_traced()) && name_ == "aten::zero_" && tensors_.size() == 1) {
    call_.describe_fill(tensors_[0].original->nbytes());
  }
  for (const auto& entry : non_dense_) {
    entry->shown.reset(); // what it was put together from is looked at below
  }
  // Those that show another's storage come after it, and let go of it first.
  for (auto entry = tensors_.rbegin(); entry != tensors_.rend(); ++entry) {
    // A wrapper that somebody kept, or that grew state of its own, is not used again.
    entry->reusable = entry->shown.use_count() == 1 && wrapper_of(*entry).restore();
  }
  for (auto& entry : storages_) {
    release_storage(entry);
  }
  for (auto& entry : tensors_) {
    if (C10_LIKELY(entry.reusable)) {
      wrappers_.give_back(
          c10::intrusive_ptr<KernelTensor>::reclaim(static_cast<KernelTensor*>(entry.shown.unsafeReleaseTensorImpl())));
    }
  }
  if (mode_is_known_) {
    call_.end(name_, staged_bytes_);
  }
}

KernelTensor& KernelView::wrapper_of(const TensorEntry& entry) {
  return *static_cast<KernelTensor*>(entry.shown.unsafeGetTensorImpl());
}

void KernelView::release_storage(const StorageEntry& entry) {
  TensorEntry& shown_first = tensors_[entry.tensor];
  if (C10_LIKELY(
          shown_first.reusable && !wrapper_of(shown_first).own_storage_is_shared() && entry.shown->resizable())) {
    if (entry.shown->data_ptr().get_context() != nullptr) {
      entry.shown->set_data_ptr_noswap(c10::DataPtr());
    }
    return;
  }
  shown_first.reusable = false;
  if (entry.mode == ExecutionMode::aliased && entry.shown->data_ptr().get() == entry.data) {
    // The kernel kept the alias: from now on the alias keeps the device's storage.
    entry.shown->set_data_ptr_noswap(
        borrowed_data(entry.data, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(entry.original), shown_device()));
  }
}

void KernelView::use_device(DeviceIndex device) {
  for (const DeviceIndex waited : devices_) {
    if (waited == device) {
      return;
    }
  }
  const bool on_gpu = kernels_ == Kernels::gpu;
  const ExecutionMode mode = on_gpu ? ExecutionMode::aliased : execution_mode(device);
  call_.take(mode, name_, device);
  if (C10_UNLIKELY(on_gpu)) {
    TORCH_INTERNAL_ASSERT(!mode_is_known_, name_, ": one device a call for the GPU's kernels");
    gpu_scope_.emplace(device);
  } else {
    wait_for_current_stream(device);
  }
  call_.begin_work();
  devices_.push_back(device);
  if (!mode_is_known_) {
    device_ = device;
    mode_ = mode;
    mode_is_known_ = true;
    if (C10_LIKELY(!on_gpu)) {
      allocations_.emplace(mode == ExecutionMode::aliased ? device : kInStagingBuffers);
    }
  }
}

at::Generator KernelView::shown_generator(const at::Generator& generator) const {
  return kernels_ == Kernels::gpu ? inner_gpu_generator(generator, gpu_of(device_)) : inner_cpu_generator(generator);
}

KernelView::TensorEntry* KernelView::find_tensor(const c10::TensorImpl* original) {
  return find(tensors_, tensor_index_, original, [](const TensorEntry& entry) -> const void* {
    return entry.original->unsafeGetTensorImpl();
  });
}

KernelView::StorageEntry* KernelView::find_storage(const c10::StorageImpl* original) {
  return find(
      storages_, storage_index_, original, [](const StorageEntry& entry) -> const void* { return entry.original; });
}

const at::Tensor& KernelView::view(const at::Tensor& tensor, bool written) {
  if (!tensor.defined() || !tensor.is_privateuseone()) {
    return tensor;
  }
  if (C10_UNLIKELY(is_non_dense(*tensor.unsafeGetTensorImpl()))) {
    return view_non_dense(tensor, written);
  }
  if (auto* known = find_tensor(tensor.unsafeGetTensorImpl())) {
    if (C10_UNLIKELY(follows_races_) && written && !known->written) {
      note_race_use_of(tensor, written);
    }
    known->written |= written;
    if (written) {
      if (auto* storage = find_storage(tensor.storage().unsafeGetStorageImpl()); !storage->written) {
        take_for_writing(*storage);
      }
    }
    return known->shown;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.has_storage() && tensor.layout() == c10::kStrided,
      name_,
      ": ",
      device_name(),
      " has no support for tensors of layout ",
      tensor.layout(),
      ".");
  const DeviceIndex device = tensor.device().index();
  if (C10_UNLIKELY(device != device_)) {
    use_device(device);
  }
  if (C10_UNLIKELY(follows_races_)) {
    note_race_use_of(tensor, written);
  }
  auto wrapper = wrappers_.take();
  wrapper->show(*tensor.unsafeGetTensorImpl(), shown_device());
  tensors_.push_back({&tensor, at::Tensor(std::move(wrapper)), written});
  TensorEntry& entry = tensors_.back();
  show_storage(entry, tensor.storage(), device);
  entry.shown_storage = entry.shown.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return entry.shown;
}

const at::Tensor& KernelView::view_non_dense(const at::Tensor& tensor, bool written) {
  for (const auto& known : non_dense_) {
    if (known->original->is_same(tensor)) {
      known->written |= written;
      for (const at::Tensor& part : known->parts) {
        view(part, written);
      }
      return known->shown;
    }
  }
  non_dense_.push_back(std::make_unique<NonDenseEntry>(NonDenseEntry{&tensor, parts_of(tensor), {}, written}));
  NonDenseEntry& entry = *non_dense_.back();
  Parts shown;
  for (const at::Tensor& part : entry.parts) {
    shown.push_back(view(part, written));
  }
  entry.shown = non_dense_of(tensor, shown, shown_device());
  show_wanted_gradient(tensor, entry.shown);
  return entry.shown;
}

void KernelView::show_wanted_gradient(const at::Tensor& tensor, const at::Tensor& shown) {
  if (tensor.defined() && !shown.is_same(tensor) && tensor.requires_grad()) {
    shown.unsafeGetTensorImpl()->set_requires_grad(true);
  }
}

void KernelView::show_storage(TensorEntry& tensor, const c10::Storage& storage, DeviceIndex device) {
  KernelTensor& wrapper = wrapper_of(tensor);
  const bool written = tensor.written;
  c10::StorageImpl* original = storage.unsafeGetStorageImpl();
  if (auto* known = find_storage(original)) {
    if (written && !known->written) {
      take_for_writing(*known);
    }
    wrapper.show_storage_of(wrapper_of(tensors_[known->tensor]));
    tensor.storage = static_cast<size_t>(known - storages_.data());
    if (known->staged >= 0) {
      staged_bytes_ += staged_[static_cast<size_t>(known->staged)].bring(extent_of(wrapper));
    }
    return;
  }
  tensor.storage = storages_.size();
  const ExecutionMode mode = device == device_ ? mode_ : execution_mode(device);
  void* const data = written ? writable_data(*original) : const_cast<void*>(original->data());
  const size_t size = original->nbytes();
  c10::StorageImpl& shown = wrapper.own_storage();
  StorageEntry entry{original, &shown, tensors_.size() - 1, nullptr, size, -1, device, mode, written, data};
  if (data == nullptr || mode == ExecutionMode::aliased) {
    c10::DataPtr shown_here = shown_data(data);
    entry.data = shown_here.get();
    shown.set_data_ptr_noswap(std::move(shown_here));
  } else {
    entry.staged = static_cast<int>(staged_.size());
    StagedStorage& staged = staged_.emplace_back(device, data, size, !covers_what_it_touches(name_));
    c10::DataPtr copy = staged.take_memory();
    staged_bytes_ += staged.bring(extent_of(wrapper));
    entry.data = copy.get();
    shown.set_data_ptr_noswap(std::move(copy));
  }
  shown.set_nbytes(size);
  storages_.push_back(entry);
}

// A storage that was shown to be read is to be written too.
void KernelView::take_for_writing(StorageEntry& entry) {
  entry.written = true;
  if (void* const data = writable_data(*entry.original);
      entry.mode == ExecutionMode::aliased && entry.shown->data_ptr().get() == entry.data) {
    entry.shown->set_data_ptr_noswap(shown_data(data)); // elsewhere, if it was a copy-on-write one
    entry.data = entry.shown->data_ptr().get();
  }
}

c10::DataPtr KernelView::shown_data(void* address) {
  if (address != nullptr && C10_LIKELY(kernels_ == Kernels::cpu)) {
    OPENREG_CHECK(openreg_host_alias(address, &address));
  }
  return {address, shown_device()};
}

c10::DataPtr KernelView::device_data(c10::DataPtr& data, size_t size, DeviceIndex device) {
  if (data.get() == nullptr || size == 0) {
    return {nullptr, c10::Device(c10::DeviceType::PrivateUse1, device)};
  }
  if (data.device().is_cuda()) {
    return adopt_gpu_memory(data, size, device);
  }
  if (c10::DataPtr block = take_device_block(data)) {
    return block;
  }
  // Memory that didn't come from the device: a number, staged, or allocated by the kernel in a way of its own.
  c10::DataPtr block = device_allocator().allocate_on(device, size);
  if (size <= kNumberBytes && device == device_ && mode_ == ExecutionMode::aliased) {
    void* alias = nullptr;
    OPENREG_CHECK(openreg_host_alias(block.get(), &alias));
    std::memcpy(alias, data.get(), size);
    return block;
  }
  OPENREG_CHECK(openreg_memcpy(block.get(), device, data.get(), OPENREG_HOST, size));
  if (mode_ == ExecutionMode::staged) {
    staged_bytes_ += size;
  }
  return block;
}

bool KernelView::was_resized(const StorageEntry& entry) {
  return entry.shown->data_ptr().get() != entry.data || entry.shown->nbytes() != entry.size;
}

void KernelView::write_storage_back(StorageEntry& entry) {
  c10::StorageImpl& shown = *entry.shown;
  if (was_resized(entry)) {
    // Resized: the kernel's new memory becomes the storage's, and the old memory goes back to the device.
    const size_t size = shown.nbytes();
    if (entry.staged >= 0 && shown.data() != nullptr) {
      staged_bytes_ += staged_[static_cast<size_t>(entry.staged)].complete(shown.mutable_data(), size);
    }
    c10::DataPtr data = device_data(shown._mutable_data_ptr_no_checks(), size, entry.device);
    void* const moved = data.get();
    entry.original->set_data_ptr_noswap(std::move(data));
    entry.original->set_nbytes(size);
    entry.size = size;
    if (entry.mode == ExecutionMode::aliased) {
      shown.set_data_ptr_noswap(shown_data(moved));
      entry.data = shown.data_ptr().get();
    }
    return;
  }
  if (entry.staged >= 0) {
    StagedStorage& staged = staged_[static_cast<size_t>(entry.staged)];
    if (staged.has_writes(name_)) {
      staged_bytes_ += staged.write_back(writable_data(*entry.original));
    }
  }
}

// What the tensors that the kernel wrote cover, as they were and as it has left them.
void KernelView::note_staged_writes() {
  for (const TensorEntry& tensor : tensors_) {
    const int staged = tensor.written ? storages_[tensor.storage].staged : -1;
    if (staged >= 0) {
      StagedStorage& storage = staged_[static_cast<size_t>(staged)];
      storage.note_written(extent_of(*tensor.original->unsafeGetTensorImpl()));
      storage.note_written(extent_of(*tensor.shown.unsafeGetTensorImpl()));
    }
  }
}

// The kernel gave a tensor other memory, as set_() and assignments to .data do: that of another tensor of the call, or
// memory that is new.
void KernelView::take_replaced_storage(const TensorEntry& entry) {
  auto* original = entry.original->unsafeGetTensorImpl();
  auto* shown = entry.shown.unsafeGetTensorImpl();
  TORCH_CHECK_NOT_IMPLEMENTED(
      shown->has_storage() && shown->layout() == c10::kStrided && shown->device_type() == shown_device().type() &&
          original->device().index() == device_,
      name_,
      ": the kernel replaced a tensor by one of layout ",
      shown->layout(),
      " on ",
      shown->device(),
      ", for which ",
      device_name(),
      " has no support.");
  c10::StorageImpl* const storage = shown->unsafe_storage().unsafeGetStorageImpl();
  c10::intrusive_ptr<c10::StorageImpl> replacing;
  for (const auto& known : storages_) {
    if (known.shown == storage) {
      replacing = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(known.original);
    }
  }
  if (replacing == nullptr) {
    replacing = adopt_storage(*storage);
  }
  replaced_.push_back(original->unsafe_storage()); // entries of storages_ name it until this object ends
  original->set_storage_and_dtype(c10::Storage(std::move(replacing)), shown->dtype());
  write_metadata_back(entry);
}

void KernelView::write_metadata_back(const TensorEntry& entry) {
  auto* original = entry.original->unsafeGetTensorImpl();
  const auto* shown = entry.shown.unsafeGetTensorImpl();
  if (metadata_differs(*original, *shown)) {
    original->set_sizes_and_strides(shown->sizes(), shown->strides(), shown->storage_offset());
    OpenregKeys::set_lazy_bits(*original, *shown);
  }
}

void KernelView::finish() {
  if (C10_UNLIKELY(!staged_.empty())) {
    note_staged_writes();
  }
  for (auto& entry : storages_) {
    if (C10_UNLIKELY(entry.mode == ExecutionMode::staged || was_resized(entry))) {
      write_storage_back(entry);
    }
  }
  for (const auto& entry : tensors_) {
    if (C10_UNLIKELY(
            entry.shown.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() != entry.shown_storage)) {
      take_replaced_storage(entry);
    } else if (entry.written) {
      write_metadata_back(entry);
    }
  }
  if (C10_UNLIKELY(follows_races_)) {
    note_resized_for_races();
    if (device_ >= 0 && waits_for_results(name_, has_masks_)) {
      openreg_races_mute(-1);
      note_race_wait(device_);
      openreg_races_mute(1);
    }
  }
  for (const auto& entry : non_dense_) {
    if (entry->written) {
      recompose(*entry->original, entry->shown, adopt_parts(entry->shown));
    }
  }
}

c10::intrusive_ptr<c10::StorageImpl> KernelView::adopt_storage(c10::StorageImpl& storage) {
  for (const auto& known : adopted_) {
    if (known.result == &storage) {
      return known.device;
    }
  }
  const size_t size = storage.nbytes();
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  void* const address = data.get();
  auto adopted = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      static_cast<int64_t>(size),
      device_data(data, size, device_),
      &device_allocator(),
      /*resizable=*/true);
  if (address != nullptr && data.get_context() == nullptr) {
    // For others that hold the CPU storage.
    storage.set_data_ptr_noswap(borrowed_data(address, adopted, shown_device()));
  }
  adopted_.push_back({&storage, adopted});
  return adopted;
}

// Turns a fresh tensor of the kernel's, which nobody else refers to (so that it is none of the views), into the openreg
// tensor of the same memory. False if it is any other.
bool KernelView::make_over(const at::Tensor& result) {
  auto* impl = result.unsafeGetTensorImpl();
  if (result.use_count() != 1 || typeid(*impl) != typeid(c10::TensorImpl) ||
      impl->device_type() != shown_device().type() || !impl->has_storage() || impl->layout() != c10::kStrided ||
      impl->autograd_meta() != nullptr) {
    return false;
  }
  auto* storage = result.storage().unsafeGetStorageImpl();
  if (result.storage().use_count() != 1 || !storage->resizable()) {
    return false;
  }
  storage->set_data_ptr_noswap(device_data(storage->_mutable_data_ptr_no_checks(), storage->nbytes(), device_));
  storage->set_allocator(&device_allocator());
  OpenregKeys::put_on(*impl, storage->device());
  return true;
}

Parts KernelView::adopt_parts(const at::Tensor& non_dense) {
  Parts adopted;
  for (at::Tensor& part : parts_of(non_dense)) {
    adopted.push_back(adopt(std::move(part)));
  }
  return adopted;
}

at::Tensor KernelView::adopt_non_dense(const at::Tensor& result) {
  for (const auto& entry : non_dense_) {
    if (entry->shown.is_same(result)) {
      return *entry->original;
    }
  }
  return non_dense_of(result, adopt_parts(result), c10::Device(c10::DeviceType::PrivateUse1, device_));
}

at::Tensor KernelView::adopt(at::Tensor&& result) {
  // The GPU's kernels return some tensors on the CPU, as they'd do for a GPU's.
  if (!result.defined() || result.is_privateuseone() || (kernels_ == Kernels::gpu && result.is_cpu())) {
    return std::move(result);
  }
  const auto* impl = result.unsafeGetTensorImpl();
  if (C10_LIKELY(make_over(result))) {
    if (C10_UNLIKELY(follows_races_)) {
      note_race_use_of(result, /*writes=*/true);
    }
    return std::move(result);
  }
  for (const auto& entry : tensors_) {
    if (entry.shown.unsafeGetTensorImpl() == impl) {
      return *entry.original;
    }
  }
  if (C10_UNLIKELY(is_non_dense(*impl))) {
    return adopt_non_dense(result);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      result.device().type() == shown_device().type() && result.layout() == c10::kStrided && result.has_storage(),
      name_,
      ": the result is a tensor of layout ",
      result.layout(),
      " on ",
      result.device(),
      ", for which ",
      device_name(),
      " has no support.");
  auto* storage = result.storage().unsafeGetStorageImpl();
  for (const auto& entry : storages_) {
    if (entry.shown == storage) {
      const MadeLike view(*tensors_[entry.tensor].original);
      return tensor_over(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(entry.original)), result);
    }
  }
  auto adopted = tensor_over(c10::Storage(adopt_storage(*storage)), result);
  if (C10_UNLIKELY(follows_races_)) {
    note_race_use_of(adopted, /*writes=*/true);
  }
  if (impl->is_wrapped_number()) {
    adopted.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return adopted;
}

} // namespace c10::openreg
