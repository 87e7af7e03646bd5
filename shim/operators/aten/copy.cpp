// SPDX-License-Identifier: BSD-3-Clause
// Copies: copy_ in every direction (host, device, device to device), _copy_from, _local_scalar_dense.
//
// copy_ itself is registered, not only _copy_from: PyTorch's copy_ would call _copy_from through the dispatcher, and
// the fallback for lazy conj and neg bits calls copy_ again, without end.
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_quantized_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zero.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "shim/base/device_name.h"
#include "shim/base/kernel_library.h"
#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/device/device.h"
#include "shim/memory/storage.h"
#include "shim/observe/races.h"
#include "shim/operators/aten/registrations.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/fallback/route.h"
#include "shim/operators/native/native_kernels.h"

namespace c10::openreg {
namespace {

// Every element has the same position and the same bits in both: the copy is one move of bytes.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() && a.sizes() == b.sizes() &&
      a.is_non_overlapping_and_dense() && (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous()));
}

// Of tensors with same_bytes(): there is nothing to copy, though their strides may differ in dimensions of one element.
bool is_same_place(const at::Tensor& a, const at::Tensor& b) {
  return a.storage_offset() == b.storage_offset() && a.is_alias_of(b);
}

bool is_device(const at::Tensor& tensor) {
  return tensor.is_privateuseone();
}

int32_t runtime_device(const at::Tensor& tensor) {
  return is_device(tensor) ? tensor.device().index() : OPENREG_HOST;
}

// PyTorch's copy_, with the devices' memory shown to it. Strides, dtypes, broadcasting, conj bits, quantization: all its
// business. The CPU's: either tensor may be on the CPU. A GPU's: both are on one such device, and it is queued on the current
// stream.
void copy_by_pytorch(at::Tensor& destination, const at::Tensor& source, bool non_blocking, Kernels kernels) {
  static const std::string kName = "aten::copy_";
  KernelView view(kName, -1, 2, kernels);
  // The first view() decides the device that allocations belong to: the destination's.
  at::Tensor shown = view.view(destination, /*written=*/true);
  const at::Tensor& shown_source = view.view(source, /*written=*/false);
  if (kernels == Kernels::cpu) {
    // The runtime doesn't see this copy: it may convert or reorder elements, which is the kernel's work.
    view.describe_copy(runtime_device(source), runtime_device(destination), destination.nbytes());
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    at::_ops::copy_::redispatch(view.kernel_keys(), shown, shown_source, non_blocking);
  }
  view.finish();
}

bool is_staged(const at::Tensor& tensor) {
  return is_device(tensor) && execution_mode(tensor.device().index()) == ExecutionMode::staged;
}

// Keeps the pinned block that contains `host` from being reused before the work queued on the stream now is complete.
void keep_pinned(const at::Tensor& host, c10::Stream stream) {
  auto* const allocator = at::getHostAllocator(at::kPrivateUse1);
  void* const address = const_cast<void*>(host.const_data_ptr());
  if (allocator->record_event(address, host.storage().data_ptr().get_context(), stream)) {
    return;
  }
  // The storage is not the allocator's own: another library's view of one of its blocks, as NumPy's, or of pinned memory
  // that it doesn't know.
  openreg_pointer_info block{};
  block.struct_size = sizeof block;
  OPENREG_CHECK(openreg_pointer_get_info(address, &block));
  if (!allocator->record_event(block.base, nullptr, stream)) {
    const WaitScope waiting;
    OPENREG_CHECK(openreg_stream_synchronize(stream.device_index(), static_cast<openreg_stream>(stream.id())));
  }
}

// Queues the bytes on the current stream of the device concerned (the source's between two devices).
void copy_bytes_async(at::Tensor& destination, const at::Tensor& source) {
  const int32_t to = runtime_device(destination);
  const int32_t from = runtime_device(source);
  const auto worker = static_cast<DeviceIndex>(from != OPENREG_HOST ? from : to);
  const c10::Stream stream = current_stream(worker);
  OPENREG_CHECK(openreg_memcpy_async(
      worker, stream.id(), writable_data(destination), to, source.const_data_ptr(), from, source.nbytes()));
  const at::Tensor& host = is_device(destination) ? source : destination;
  if (!is_device(host)) {
    keep_pinned(host, stream);
  }
}

void copy_bytes(at::Tensor& destination, const at::Tensor& source) {
  const WaitScope waiting;
  OPENREG_CHECK(openreg_memcpy(
      writable_data(destination),
      runtime_device(destination),
      source.const_data_ptr(),
      runtime_device(source),
      source.nbytes()));
}

// Whether PyTorch's kernel would share the copy among threads, more of which are faster than one that passes the cache.
bool is_faster_in_threads(uint64_t size) {
  constexpr uint64_t kInCache = uint64_t{16} << 20;
  constexpr uint64_t kShared = uint64_t{32} << 10; // as at::internal::GRAIN_SIZE, which is in elements
  const int threads = at::get_num_threads();
  return size >= kShared && (threads > 2 || (threads == 2 && size < kInCache));
}

// One move of bytes between memory that the host sees. An operator of the aliased mode as any other.
void copy_visible_bytes(at::Tensor& destination, const at::Tensor& source) {
  static const std::string kName = "aten::copy_";
  OperatorCall call;
  for (const at::Tensor* tensor : {&std::as_const(destination), &source}) {
    if (is_device(*tensor)) {
      call.take(ExecutionMode::aliased, kName, tensor->device().index());
    }
  }
  call.leave_trace_to_runtime();
  copy_bytes(destination, source);
  call.end(kName, 0);
}

bool can_be_async(const at::Tensor& destination, const at::Tensor& source) {
  const auto reachable = [](const at::Tensor& tensor) { return is_device(tensor) || tensor.is_pinned(); };
  return reachable(destination) && reachable(source);
}

// A new tensor with the sizes, strides and lazy bits of a dense one.
at::Tensor dense_like(const at::Tensor& tensor, c10::Device device) {
  at::Tensor made =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device).pinned_memory(false));
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

// A staged device's dense tensor as a CPU tensor with the same bytes in the same order.
at::Tensor dense_to_host(const at::Tensor& tensor) {
  at::Tensor host = dense_like(tensor, at::kCPU);
  copy_bytes(host, tensor);
  return host;
}

// To a tensor of a GPU from the host or another device, where it is more than a copy of bytes: the source's bytes are
// copied to the device first, and converted there.
void copy_to_gpu(at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const at::Tensor dense = source.is_non_overlapping_and_dense() ? source : source.clone(c10::MemoryFormat::Contiguous);
  at::Tensor near = dense_like(dense, destination.device());
  near.copy_(dense, non_blocking);
  copy_by_pytorch(destination, near, /*non_blocking=*/true, Kernels::gpu);
}

// Whether `source` gives all elements of `self`, of which there are several, one value, as in `self[...] = 0`.
bool is_one_value(const at::Tensor& source, const at::Tensor& self) {
  if (self.numel() < 2 || source.dim() > self.dim() || source.numel() == 0) {
    return false;
  }
  if (source.numel() == 1) {
    return true;
  }
  const auto sizes = source.sizes();
  const auto strides = source.strides();
  size_t i = 0;
  return sizes == self.sizes() &&
      std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return strides[i++] == 0 || size == 1; });
}

at::Tensor first_on_host(const at::Tensor& tensor) {
  at::Tensor first = tensor;
  while (first.dim() > 0) {
    first = first.select(0, 0);
  }
  return is_staged(first) ? dense_to_host(first) : first.cpu();
}

// Integers of less than a byte: each has a byte of its own, and PyTorch has kernels for none.
constexpr bool is_sub_byte(c10::ScalarType type) {
  return (type >= c10::ScalarType::UInt1 && type <= c10::ScalarType::UInt7) ||
      (type >= c10::ScalarType::Int1 && type <= c10::ScalarType::Int7);
}
static_assert(static_cast<int>(c10::ScalarType::UInt7) - static_cast<int>(c10::ScalarType::UInt1) == 6);
static_assert(static_cast<int>(c10::ScalarType::Int7) - static_cast<int>(c10::ScalarType::Int1) == 6);

// By the driver's kernel for aten::copy_, if it has one and takes the tensors: strides and types are its to convert.
bool copy_by_kernel(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (!is_device(self) || self.device() != source.device()) {
    return false;
  }
  const auto& op = handle_of<at::_ops::copy_>();
  const DeviceIndex device = self.device().index();
  NativeKernel* const kernel = native_kernel_of(op, device);
  if (kernel == nullptr) {
    return false;
  }
  torch::jit::Stack stack{self, source, non_blocking};
  return native_kernels().run(*kernel, op, device, &stack);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) {
    return self;
  }
  if (C10_UNLIKELY(is_sub_byte(self.scalar_type())) && self.dtype() == source.dtype()) {
    at::Tensor bytes = self.view(at::kByte);
    copy_(bytes, source.view(at::kByte), non_blocking);
    return self;
  }
  if (source._is_zerotensor()) {
    return self.zero_();
  }
  TORCH_CHECK(
      !self._is_zerotensor(),
      "ZeroTensors are immutable. Please materialize the tensor using `.clone()`, if you want a mutable zero tensor.");
  TORCH_CHECK_NOT_IMPLEMENTED(!source.is_meta(), "Cannot copy out of meta tensor; no data!");
  if (self.is_meta()) {
    return self;
  }
  for (const at::Tensor* other : {&std::as_const(self), &source}) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        is_device(*other) || other->is_cpu(),
        device_name(),
        " can't copy from or to ",
        other->device(),
        " directly; copy through the CPU.");
    TORCH_CHECK_NOT_IMPLEMENTED(
        other->layout() == c10::kStrided, device_name(), " can't copy tensors of layout ", other->layout(), ".");
  }
  const bool is_plain = same_bytes(self, source);
  if (is_plain && (self.numel() == 0 || is_same_place(self, source))) {
    return self;
  }
  const bool follows = follows_races() && self.numel() > 0;
  if (follows) {
    note_race_copy(self, source, is_plain && non_blocking && can_be_async(self, source));
  }
  const RaceMute mute(follows);
  if (is_on_gpu(self) && is_on_gpu(source) && self.device() == source.device()) {
    copy_by_pytorch(self, source, /*non_blocking=*/true, Kernels::gpu);
    return self;
  }

  const bool staged = is_staged(self) || is_staged(source);
  if (is_plain) {
    at::assert_no_partial_overlap(self, source);
    if ((non_blocking && can_be_async(self, source)) || (staged && self.device() == source.device())) {
      copy_bytes_async(self, source);
      return self;
    }
    if (staged) {
      copy_bytes(self, source);
      return self;
    }
    if (!is_faster_in_threads(self.nbytes())) {
      copy_visible_bytes(self, source);
      return self;
    }
  }
  if (copy_by_kernel(self, source, non_blocking)) {
    return self;
  }
  if (!staged) {
    copy_by_pytorch(self, source, non_blocking, Kernels::cpu);
    return self;
  }
  if (is_on_gpu(self)) {
    copy_to_gpu(self, source, non_blocking);
    return self;
  }
  if (is_on_gpu(source) && !source.is_non_overlapping_and_dense()) {
    return copy_(self, source.clone(c10::MemoryFormat::Contiguous), non_blocking);
  }
  if (is_staged(self) && is_staged_with_fill(self.device().index()) && self.is_non_overlapping_and_dense() &&
      is_one_value(source, self)) {
    at::assert_no_partial_overlap(self, source);
    return self.fill_(first_on_host(source)); // perhaps the driver can fill
  }
  // The CPU's kernel checks what it gets, which are copies here.
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, source);
  // Staged: move only the tensors' own bytes where they are dense, whole storages otherwise.
  const bool dense_source = is_staged(source) && source.is_non_overlapping_and_dense();
  const at::Tensor near_source = dense_source ? dense_to_host(source) : source;
  if (is_staged(self) && self.is_non_overlapping_and_dense()) {
    at::Tensor host = dense_like(self, at::kCPU);
    copy_by_pytorch(host, near_source, /*non_blocking=*/false, Kernels::cpu);
    copy_bytes(self, host);
  } else {
    copy_by_pytorch(self, near_source, /*non_blocking=*/false, Kernels::cpu);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  at::Tensor result = destination;
  copy_(result, self, non_blocking);
  return result;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

// The first element, when the device's current stream has come to it.
void element_to_pinned(at::Tensor& element, const at::Tensor& self) {
  const DeviceIndex device = self.device().index();
  const openreg_stream stream = current_stream(device).id();
  OPENREG_CHECK(openreg_memcpy_async(
      device, stream, element.mutable_data_ptr(), OPENREG_HOST, self.const_data_ptr(), device, self.itemsize()));
  const WaitScope waiting;
  OPENREG_CHECK(openreg_stream_synchronize(device, stream));
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  static const std::string kName = "aten::_local_scalar_dense";
  const bool follows = follows_races();
  if (follows) {
    RaceUses uses{.origin = openreg_races_origin(kName.c_str())};
    note_race_use(uses, self, /*writes=*/false);
    note_race_wait(self.device().index());
  }
  const RaceMute mute(follows);
  if (is_staged(self)) {
    // One element: not worth a copy of the storage.
    const auto start = OperatorClock::now();
    const bool on_gpu = is_on_gpu(self);
    at::Tensor element = at::empty({}, self.options().device(at::kCPU).pinned_memory(on_gpu));
    if (on_gpu) { // as PyTorch does: a copy to pageable memory takes locks of CUDA's and waits for more than the stream
      element_to_pinned(element, self);
    } else {
      const WaitScope waiting;
      OPENREG_CHECK(openreg_memcpy(
          element.mutable_data_ptr(), OPENREG_HOST, self.const_data_ptr(), self.device().index(), self.itemsize()));
      operator_counter(ExecutionMode::staged, kName).add_call(self.itemsize(), OperatorClock::now() - start);
    }
    return at::_local_scalar_dense(element);
  }
  KernelView view(kName, -1, 1);
  const at::Tensor& host = view.view(self, /*written=*/false);
  view.describe_copy(runtime_device(self), OPENREG_HOST, self.itemsize());
  return at::_ops::_local_scalar_dense::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), host);
}

at::Tensor& copy_quantized(at::Tensor& self, const at::Tensor& source, bool /*non_blocking*/) {
  if (!self.is_same(source)) {
    copy_by_pytorch(self, source, /*non_blocking=*/false, Kernels::cpu);
  }
  return self;
}

// Copies of sparse, nested and quantized tensors between devices, and the empty tensors that they are made into. The
// fallback can't do these: it makes its results on the device of the arguments. PyTorch's own kernels can: they are
// written with operators on the parts, whichever device those are on.
void register_non_dense_copies() {
  {
    torch::Library& m = kernel_library("aten", c10::DispatchKey::SparsePrivateUse1);
    m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
    m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
    m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_coo));
  }
  {
    torch::Library& m = kernel_library("aten", c10::DispatchKey::SparseCsrPrivateUse1);
    m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
    m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_csr));
  }
  {
    torch::Library& m = kernel_library("aten", c10::DispatchKey::NestedTensorPrivateUse1);
    m.impl("copy_", TORCH_FN(at::native::copy_nested_));
    m.impl("empty_like", TORCH_FN(at::native::empty_like_nested));
    m.impl("_to_copy", TORCH_FN(at::native::_to_copy_nested));
  }
  {
    torch::Library& m = kernel_library("aten", c10::DispatchKey::QuantizedPrivateUse1);
    m.impl("copy_", copy_quantized);
    m.impl("empty_like", TORCH_FN(at::native::empty_like_quantized));
    m.impl("empty_quantized", TORCH_FN(at::native::empty_quantized));
  }
}

} // namespace

void register_copies() {
  register_non_dense_copies();
  torch::Library& m = kernel_library("aten", c10::DispatchKey::PrivateUse1);
  m.impl("copy_", copy_);
  note_operator_of_fallback({"aten::copy_", ""}); // copy_by_kernel() calls a driver's kernel of it
  m.impl("clone", TORCH_FN(at::native::clone));   // by copy_, which a device may do without the host
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

} // namespace c10::openreg
