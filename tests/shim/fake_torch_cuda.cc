// SPDX-License-Identifier: BSD-3-Clause
// A stand-in for PyTorch's library for CUDA, over the fake of CUDA's runtime (tests/drivers/gpu): what openreg's shim meets
// in a build of PyTorch for GPUs is registered here, in a build for the CPU. Loaded before `import torch`, it gives PyTorch
// a guard, hooks, generators, an allocator that can be replaced, and kernels for the key CUDA.
//
// A kernel works as one on a GPU would, and so shows what is handed over wrongly:
//   - it is an error if a tensor is not on the device that is current, as PyTorch's kernels have it;
//   - it waits for the stream that is current, and for no other, before it reads: with FAKE_GPU_DELAY_US, work on another
//     stream has not got there;
//   - what it writes arrives by a copy that is queued on that stream: who doesn't wait for it reads what was there before.
// The memory can't be touched by the host but through the fake's alias.
//
//   FAKE_TORCH_CUDA_DRIVER    the driver over the fake of CUDA's runtime
//   FAKE_TORCH_CUDA_MISSING   operators that have no kernel here, as "aten::cumsum,aten::sort"
//   FAKE_TORCH_CUDA_IN_USE    1: the allocator has been used before anything asks to replace it
//   FAKE_TORCH_CUDA_NOISE     relative error of convolutions, as "1e-3": that of cuDNN's TF32
//   FAKE_TORCH_CUDA_ATTENTION which kernel attention takes: flash (the default), efficient, cudnn
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <openreg/driver.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/drivers/gpu/fake_gpu_hooks.h"
#include "tests/runtime/bytes.h"

struct CUstream_st;

// As in PyTorch's headers, as far as the names of the functions below say.
namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator : public c10::Allocator {};
}  // namespace c10::cuda::CUDACachingAllocator

static thread_local c10::DeviceIndex current_device = 0;

// A device-side assert has happened: every call fails from here on, as CUDA's errors are sticky.
static std::atomic<bool> is_lost{false};

namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// ------------------------------------------------------------------------------------------------- the vendor's side

thread_local std::string vendor_error;

const openreg_host& host() {
  static const openreg_host table = {sizeof(openreg_host), OPENREG_ABI_MINOR, nullptr,
                                     [](void*, openreg_status, int64_t, const char* text) { vendor_error = text; },
                                     [](void*, int32_t, const char*) {}};
  return table;
}

void check(openreg_status status) { TORCH_CHECK(status == OPENREG_OK, "fake CUDA: ", vendor_error); }

// The runtime of CUDA that PyTorch's library would be linked to: an instance of its own, of the same fake devices.
struct Vendor {
  const openreg_driver* table = nullptr;
  const fake_gpu_hooks* hooks = nullptr;
  openreg_instance instance = nullptr;
  int32_t count = 0;

  Vendor() {
    const char* path = std::getenv("FAKE_TORCH_CUDA_DRIVER");
    TORCH_CHECK(path != nullptr, "FAKE_TORCH_CUDA_DRIVER is not set");
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    TORCH_CHECK(library != nullptr, dlerror());
    const auto query = reinterpret_cast<openreg_driver_query_fn>(dlsym(library, OPENREG_DRIVER_ENTRY_NAME));
    hooks = reinterpret_cast<fake_gpu_hooks_fn>(dlsym(library, FAKE_GPU_HOOKS_NAME))();
    check(query(&host(), &table));
    check(table->open(&host(), nullptr, 0, &instance));
    check(table->device_count(instance, &count));
  }
};

Vendor& vendor() {
  static auto& only = *new Vendor;  // leaked, as the contexts of the real one
  return only;
}

// ------------------------------------------------------------------------------------------------ devices and streams

thread_local std::array<c10::StreamId, 16> current_streams{};

c10::StreamId current_stream() { return current_streams[static_cast<size_t>(current_device)]; }

openreg_driver_stream native(c10::StreamId stream) { return reinterpret_cast<openreg_driver_stream>(stream); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kCuda; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {kCuda, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_cuda() && device.index() >= 0 && device.index() < vendor().count, "no such device: ", device);
    current_device = device.index();
  }
  // As PyTorch's: it asks CUDA for the present device first, which fails after an asynchronous error. Nothing may be
  // thrown here.
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (is_lost.load()) {
      std::terminate();
    }
    current_device = device.index();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    check(vendor().table->stream_sync(vendor().instance, stream.device_index(), native(stream.id())));
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kCuda, index), current_streams[static_cast<size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    TORCH_CHECK(stream.device_type() == kCuda, "not a stream of CUDA: ", stream);
    const c10::Stream previous = getStream(stream.device());
    current_streams[static_cast<size_t>(stream.device_index())] = stream.id();
    return previous;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(vendor().count); }
};

// -------------------------------------------------------------------------------------------------------- generators

// The numbers of the CPU's generator; the offset counts what has been drawn from it.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device, at::Generator inner = at::detail::createCPUGenerator())
      : GeneratorImpl(c10::Device(kCuda, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        inner_(std::move(inner)) {}

  void set_current_seed(uint64_t seed) override {
    inner_.set_current_seed(seed);
    offset_ = 0;
  }
  uint64_t current_seed() const override { return inner_.current_seed(); }
  uint64_t seed() override {
    offset_ = 0;
    return inner_.seed();
  }
  void set_state(const c10::TensorImpl& state) override { inner_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner_.unsafeGetGeneratorImpl()->get_state();
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  at::Generator draw() {
    offset_ += 4;
    return inner_;
  }

 private:
  Generator* clone_impl() const override { return new Generator(device().index(), inner_.clone()); }
  at::Generator inner_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex lock;
  static auto& generators = *new std::map<c10::DeviceIndex, at::Generator>;
  const std::lock_guard<std::mutex> guard(lock);
  const c10::DeviceIndex index = device < 0 ? current_device : device;
  auto found = generators.find(index);
  if (found == generators.end()) {
    found = generators.emplace(index, at::make_generator<Generator>(index)).first;
  }
  return found->second;
}

// -------------------------------------------------------------------------------------------------------- allocators

std::atomic<int> own_allocations{0};

// CUDA's own: no cache, so that what is freed is gone.
class OwnAllocator final : public CUDAAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* block = nullptr;
    if (size > 0) {
      own_allocations.fetch_add(1);
      check(vendor().table->mem_alloc(vendor().instance, current_device, Bytes(size), &block));
    }
    return {block, block, &release, c10::Device(kCuda, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not here"); }

 private:
  static void release(void* block) {
    const int32_t device = vendor().hooks->device_of(block);
    check(vendor().table->device_sync(vendor().instance, device));
    check(vendor().table->mem_free(vendor().instance, device, block));
  }
};

using Allocate = std::function<void*(size_t, int, CUstream_st*)>;
using Free = std::function<void(void*, size_t, int, CUstream_st*)>;

bool pluggable_is_gone = false;

// torch.cuda.memory.CUDAPluggableAllocator, which keeps a book of its own.
class PluggableAllocator final : public CUDAAllocator {
 public:
  PluggableAllocator(Allocate allocate, Free free) : allocate_(std::move(allocate)), free_(std::move(free)) {}
  ~PluggableAllocator() override { pluggable_is_gone = true; }

  c10::DataPtr allocate(size_t size) override {
    void* const block = allocate_(size, current_device, reinterpret_cast<CUstream_st*>(current_stream()));
    if (block != nullptr) {
      const std::lock_guard<std::mutex> guard(lock_);
      book_.emplace(block, size);
    }
    return {block, block, &release, c10::Device(kCuda, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not here"); }

 private:
  static void release(void* block);

  Allocate allocate_;
  Free free_;
  std::mutex lock_;
  std::unordered_map<void*, size_t> book_;
};

// A static object, as PyTorch's: it ends with the library, and a tensor that is freed later finds no allocator.
std::shared_ptr<CUDAAllocator>& allocator() {
  static std::shared_ptr<CUDAAllocator> current = std::make_shared<OwnAllocator>();
  return current;
}

std::atomic<int> own_pinned{0};

// Host memory that CUDA pinned and nobody else knows.
struct OwnHostAllocator final : at::HostAllocator {
  at::DataPtr allocate(size_t size) override {
    own_pinned.fetch_add(1);
    void* const block = std::malloc(size);
    return {block, block, &std::free, c10::Device(c10::DeviceType::CPU)};
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not here"); }
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

void PluggableAllocator::release(void* block) {
  if (pluggable_is_gone) {
    std::abort();
  }
  auto& self = static_cast<PluggableAllocator&>(*allocator());
  {
    const std::lock_guard<std::mutex> guard(self.lock_);
    TORCH_CHECK(self.book_.erase(block) == 1, "Trying to free a pointer not allocated here");
  }
  self.free_(block, 0, 0, nullptr);
}

// What a static object of another library holds, which ends after those here.
c10::DataPtr& held() {
  static auto& block = *new c10::DataPtr;
  return block;
}

bool allocator_is_in_use = false;

// ------------------------------------------------------------------------------------------------------------- hooks

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}

  void init() const override { allocator_is_in_use = true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  int getNumGPUs() const override { return vendor().count; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(vendor().count); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? ::current_device : device);
  }
  at::Allocator* getCUDADeviceAllocator() const override { return allocator().get(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return at::getHostAllocator(kCuda); }
  c10::Device getDeviceFromPtr(void* data) const override {
    const int32_t device = vendor().hooks->device_of(data);
    TORCH_CHECK(device >= 0, "the pointer is not memory of a CUDA device");
    return {kCuda, static_cast<c10::DeviceIndex>(device)};
  }
};

// ----------------------------------------------------------------------------------------------------------- kernels

std::atomic<int> kernel_calls{0};
std::atomic<c10::StreamId> last_stream{0};

void wait_for_current_stream() {
  check(vendor().table->stream_sync(vendor().instance, current_device, native(current_stream())));
}

void queue_write(void* address, const void* bytes, size_t size) {
  check(vendor().table->copy(vendor().instance, current_device, native(current_stream()), address, current_device,
                             bytes, -1, size));
}

c10::DataPtr new_memory(const void* bytes, size_t size) {
  c10::DataPtr data = allocator()->allocate(size);
  if (size > 0) {
    queue_write(data.get(), bytes, size);
  }
  return data;
}

constexpr c10::DispatchKeySet kLazyBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  tensor._set_conj(like.is_conj());
  tensor._set_neg(like.is_neg());
  return tensor;
}

// One call: the tensors' memory as the stream finds it, as CPU tensors; then what has changed, back to the device.
class Launch {
 public:
  Launch() {
    TORCH_CHECK(!is_lost.load(), "CUDA error: device-side assert triggered");
    wait_for_current_stream();
    kernel_calls.fetch_add(1);
    last_stream.store(current_stream());
  }

  at::Tensor read(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) {
      return tensor;
    }
    TORCH_CHECK(tensor.device().index() == current_device, "the tensor is on ", tensor.device(),
                ", but cuda:", static_cast<int>(current_device), " is current");
    for (const auto& known : tensors_) {
      if (known.first.is_same(tensor)) {
        return known.second;
      }
    }
    tensors_.emplace_back(tensor, tensor_over(c10::Storage(copy_of(tensor.storage())), c10::DispatchKey::CPU, tensor));
    return tensors_.back().second;
  }

  void write_back() {
    for (auto& entry : storages_) {
      const size_t size = entry.host->nbytes();
      if (entry.host->data() != entry.data || size != entry.before.size()) {
        entry.original.unsafeGetStorageImpl()->set_data_ptr_noswap(new_memory(entry.host->data(), size));
        entry.original.unsafeGetStorageImpl()->set_nbytes(size);
      } else if (size > 0 && std::memcmp(entry.data, entry.before.data(), size) != 0) {
        queue_write(entry.original.mutable_data(), entry.data, size);
      }
    }
    for (const auto& [original, host] : tensors_) {
      auto* impl = original.unsafeGetTensorImpl();
      if (impl->sizes() != host.sizes() || impl->strides() != host.strides() ||
          impl->storage_offset() != host.storage_offset()) {
        impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
      }
      original._set_conj(host.is_conj());
      original._set_neg(host.is_neg());
    }
  }

  at::Tensor result(const at::Tensor& host) {
    if (!host.defined()) {
      return host;
    }
    for (const auto& known : tensors_) {
      if (known.second.is_same(host)) {
        return known.first;
      }
    }
    for (const auto& entry : storages_) {
      if (entry.host.get() == host.storage().unsafeGetStorageImpl()) {
        return tensor_over(entry.original, c10::DispatchKey::CUDA, host);
      }
    }
    const auto& bytes = host.storage();
    auto storage =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes.nbytes()),
                                              new_memory(bytes.data(), bytes.nbytes()), allocator().get(), true);
    return tensor_over(c10::Storage(std::move(storage)), c10::DispatchKey::CUDA, host);
  }

 private:
  struct Entry {
    c10::Storage original;
    c10::intrusive_ptr<c10::StorageImpl> host;
    const void* data;
    std::vector<char> before;
  };

  c10::intrusive_ptr<c10::StorageImpl> copy_of(const c10::Storage& storage) {
    for (const auto& known : storages_) {
      if (known.original.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
        return known.host;
      }
    }
    const size_t size = storage.nbytes();
    auto* const cpu = c10::GetAllocator(c10::DeviceType::CPU);
    auto host = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(size),
                                                      cpu->allocate(size), cpu, true);
    std::vector<char> before(size);
    if (size > 0 && storage.data() != nullptr) {
      const void* const alias = vendor().hooks->alias(storage.data());
      TORCH_CHECK(alias != nullptr, "not memory of the device");
      std::memcpy(before.data(), alias, size);
      std::memcpy(host->mutable_data(), alias, size);
    }
    storages_.push_back({storage, host, host->data(), std::move(before)});
    return host;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<Entry> storages_;
};

c10::IValue argument(Launch& launch, const c10::IValue& value) {
  if (value.isTensor()) {
    return launch.read(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& tensor : value.toListRef()) {
      list.push_back(launch.read(tensor.toTensor()));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& tensor : value.toListRef()) {
      list.push_back(tensor.isNone() ? std::nullopt : std::optional<at::Tensor>(launch.read(tensor.toTensor())));
    }
    return list;
  }
  if (value.isGenerator() && value.toGenerator().device().is_cuda()) {
    return value.toGenerator().get<Generator>()->draw();
  }
  if (value.isDevice()) {
    return c10::Device(c10::DeviceType::CPU);
  }
  return value;
}

c10::IValue result(Launch& launch, const c10::IValue& value) {
  if (value.isTensor()) {
    return launch.result(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(launch.result(tensor));
    }
    return list;
  }
  return value;
}

// Convolutions round otherwise than the CPU's.
void add_noise(const c10::OperatorHandle& op, const c10::IValue& result) {
  static const char* const noise = std::getenv("FAKE_TORCH_CUDA_NOISE");
  if (noise != nullptr && op.operator_name().name == "aten::convolution" && result.isTensor()) {
    const at::Tensor& host = result.toTensor();
    host.mul_(at::rand_like(host).sub_(0.5).mul_(2 * std::atof(noise)).add_(1));
  }
}

// The CPU's kernel, with its tensors in the GPU's memory.
void run(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const size_t first = stack->size() - count;
  Launch launch;
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = argument(launch, (*stack)[i]);
  }
  // cuDNN's benchmarks ask PyTorch's own allocator what it has.
  TORCH_CHECK(!at::globalContext().benchmarkCuDNN() || op.operator_name().name != "aten::convolution" ||
                  dynamic_cast<PluggableAllocator*>(allocator().get()) == nullptr,
              "CUDAPluggableAllocator does not yet support cacheInfo.");
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  launch.write_back();
  for (size_t i = first; i < stack->size(); ++i) {
    add_noise(op, (*stack)[i]);
    (*stack)[i] = result(launch, (*stack)[i]);
  }
}

using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor read(Launch& launch, const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined() ? OptionalTensor(launch.read(*tensor)) : std::nullopt;
}

// Those that only CUDA has, or that draw from its default generator.

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  const at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1 - p, default_generator(current_device));
  return {input.mul(mask).mul(p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout, bool causal,
                bool /*return_debug_mask*/, std::optional<double> scale) {
  TORCH_CHECK(query.size(-1) % 8 == 0, "FlashAttention only supports head dimensions that are multiples of 8");
  Launch launch;
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      launch.read(query), launch.read(key), launch.read(value), dropout, causal, std::nullopt, scale);
  const at::Tensor seed = at::empty({2}, at::kLong).fill_(7);
  return {
      launch.result(output), launch.result(logsumexp),
      at::Tensor(),          at::Tensor(),
      query.sym_size(2),     key.sym_size(2),
      launch.result(seed),   at::empty({}, at::kLong).fill_(9),  // as the real one gives it where no graph is captured
      at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& logsumexp, const at::Tensor& /*cum_seq_q*/,
    const at::Tensor& /*cum_seq_k*/, c10::SymInt max_q, c10::SymInt max_k, double dropout, bool causal,
    const at::Tensor& philox_seed, const at::Tensor& philox_offset, std::optional<double> scale) {
  TORCH_CHECK(max_q == query.sym_size(2) && max_k == key.sym_size(2), "the lengths came back otherwise");
  TORCH_CHECK(philox_seed.is_cuda() && philox_offset.is_cpu(), "what was drawn came back otherwise");
  Launch launch;
  TORCH_CHECK(launch.read(philox_seed).select(0, 1).item<int64_t>() == 7, "the seed came back otherwise");
  auto [for_query, for_key, for_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      launch.read(gradient), launch.read(query), launch.read(key), launch.read(value), launch.read(output),
      launch.read(logsumexp), dropout, causal, std::nullopt, scale);
  return {launch.result(for_query), launch.result(for_key), launch.result(for_value)};
}

// cuDNN's and the memory-efficient kernel: other results in another order, which must come back as they were.

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
cudnn_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptionalTensor& bias,
                bool with_logsumexp, double dropout, bool causal, bool /*return_debug_mask*/,
                std::optional<double> scale) {
  Launch launch;
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      launch.read(query), launch.read(key), launch.read(value), dropout, causal, read(launch, bias), scale);
  return {launch.result(output),
          with_logsumexp ? launch.result(logsumexp) : at::Tensor(),
          at::Tensor(),
          at::Tensor(),
          query.sym_size(2),
          key.sym_size(2),
          launch.result(at::empty({}, at::kLong).fill_(7)),
          launch.result(at::empty({}, at::kLong).fill_(9)),
          at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& logsumexp, const at::Tensor& seed, const at::Tensor& offset,
    const at::Tensor& bias, const at::Tensor& /*cum_seq_q*/, const at::Tensor& /*cum_seq_k*/, c10::SymInt max_q,
    c10::SymInt max_k, double dropout, bool causal, std::optional<double> scale) {
  TORCH_CHECK(max_q == query.sym_size(2) && max_k == key.sym_size(2), "the lengths came back otherwise");
  TORCH_CHECK(seed.is_cuda() && offset.is_cuda(), "what was drawn came back otherwise");
  Launch launch;
  TORCH_CHECK(launch.read(seed).item<int64_t>() == 7, "the seed came back otherwise");
  auto [for_query, for_key, for_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      launch.read(gradient), launch.read(query), launch.read(key), launch.read(value), launch.read(output),
      launch.read(logsumexp), dropout, causal, read(launch, bias), scale);
  return {launch.result(for_query), launch.result(for_key), launch.result(for_value)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptionalTensor& bias,
    bool with_logsumexp, double dropout, bool causal, std::optional<double> scale) {
  auto [output, logsumexp, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
      cudnn_attention(query, key, value, bias, with_logsumexp, dropout, causal, false, scale);
  return {output, logsumexp, seed, offset};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, const at::Tensor& output, const at::Tensor& logsumexp, const at::Tensor& seed,
    const at::Tensor& offset, double dropout, std::array<bool, 4> /*wanted*/, bool causal,
    std::optional<double> scale) {
  auto [for_query, for_key, for_value] =
      cudnn_attention_backward(gradient, query, key, value, output, logsumexp, seed, offset, bias, at::Tensor(),
                               at::Tensor(), query.sym_size(2), key.sym_size(2), dropout, causal, scale);
  return {for_query, for_key, for_value, at::Tensor()};
}

// Which kernel attention takes.
int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&, double, bool,
                         std::optional<double>, bool) {
  const char* const wanted = std::getenv("FAKE_TORCH_CUDA_ATTENTION");
  const std::string name = wanted == nullptr ? "flash" : wanted;
  return name == "cudnn" ? 3 : name == "efficient" ? 2 : name == "math" ? 0 : 1;
}

bool is_missing(const std::string& name) {
  if (name.find("mkldnn") != std::string::npos) {
    return true;  // the CPU's alone
  }
  const char* const list = std::getenv("FAKE_TORCH_CUDA_MISSING");
  return list != nullptr && ("," + std::string(list) + ",").find("," + name + ",") != std::string::npos;
}

// Has one kernel for all devices with parts for each, of which this build of PyTorch lacks CUDA's.
bool has_parts(const std::string& name) {
  return name == "aten::copy_" || name == "aten::convolution" || name == "aten::convolution_backward";
}

// Where the CPU has a kernel of its own, CUDA has one.
void register_kernels() {
  auto* const library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library->impl("native_dropout", native_dropout);
  library->impl("_scaled_dot_product_flash_attention", flash_attention);
  library->impl("_scaled_dot_product_flash_attention_backward", flash_attention_backward);
  library->impl("_scaled_dot_product_cudnn_attention", cudnn_attention);
  library->impl("_scaled_dot_product_cudnn_attention_backward", cudnn_attention_backward);
  library->impl("_scaled_dot_product_efficient_attention", efficient_attention);
  library->impl("_scaled_dot_product_efficient_attention_backward", efficient_attention_backward);
  if (std::getenv("FAKE_TORCH_CUDA_ATTENTION") != nullptr) {
    library->impl("_fused_sdp_choice", choose_attention);
  }
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    const bool has_kernel = op.has_value() && op->hasSchema() && name.getNamespace() == "aten" &&
                            (op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || has_parts(name.name));
    if (!has_kernel || is_missing(name.name) || op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      continue;
    }
    const std::string qualified = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
  }
}

const bool registered [[maybe_unused]] = [] {
  const char* const in_use = std::getenv("FAKE_TORCH_CUDA_IN_USE");
  allocator_is_in_use = in_use != nullptr && std::strcmp(in_use, "1") == 0;
  std::atexit([] { held().clear(); });  // before the allocator's object is made, and so after it has ended
  c10::impl::registerDeviceGuard(kCuda, new Guard);
  at::setHostAllocator(kCuda, new OwnHostAllocator);
  register_kernels();
  return true;
}();

}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

// What PyTorch's library exports for torch.cuda.memory.CUDAPluggableAllocator.
namespace torch::cuda::CUDAPluggableAllocator {

__attribute__((visibility("default"))) std::shared_ptr<CUDAAllocator> createCustomAllocator(Allocate allocate,
                                                                                            Free free) {
  return std::make_shared<PluggableAllocator>(std::move(allocate), std::move(free));
}

__attribute__((visibility("default"))) void changeCurrentAllocator(const std::shared_ptr<CUDAAllocator>& replacement) {
  TORCH_CHECK(!allocator_is_in_use, "Can't swap an already initialized allocator");
  allocator() = replacement;
}

}  // namespace torch::cuda::CUDAPluggableAllocator

// For the tests, by ctypes.
extern "C" {
__attribute__((visibility("default"))) int fake_torch_cuda_calls() { return kernel_calls.load(); }
__attribute__((visibility("default"))) int fake_torch_cuda_own_allocations() { return own_allocations.load(); }
__attribute__((visibility("default"))) int fake_torch_cuda_own_pinned() { return own_pinned.load(); }
__attribute__((visibility("default"))) void fake_torch_cuda_lose() { is_lost.store(true); }
// What anything that asks torch.cuda for a property does: PyTorch's allocator is ready, and stays.
__attribute__((visibility("default"))) void fake_torch_cuda_init() {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
}
// As a kernel of PyTorch's does that copies to a pinned block on the current stream.
__attribute__((visibility("default"))) int fake_torch_cuda_record_pinned(void* block) {
  return at::getHostAllocator(kCuda)->record_event(block, nullptr, Guard().getStream(c10::Device(kCuda))) ? 1 : 0;
}
// Holds a block beyond the end of the library's static objects.
__attribute__((visibility("default"))) void fake_torch_cuda_hold_to_the_end() { held() = allocator()->allocate(64); }
__attribute__((visibility("default"))) int64_t fake_torch_cuda_last_stream() { return last_stream.load(); }
__attribute__((visibility("default"))) int fake_torch_cuda_current_device() { return current_device; }
__attribute__((visibility("default"))) int64_t fake_torch_cuda_current_stream() { return current_stream(); }
__attribute__((visibility("default"))) int fake_torch_cuda_live(const char* kind) { return vendor().hooks->live(kind); }
// What a kernel that is launched on a stream of the current device waits for, and where the test's own one finds memory.
__attribute__((visibility("default"))) void fake_torch_cuda_wait(int64_t stream) {
  check(vendor().table->stream_sync(vendor().instance, current_device, native(stream)));
}
__attribute__((visibility("default"))) void* fake_torch_cuda_alias(void* address) {
  return vendor().hooks->alias(address);
}
__attribute__((visibility("default"))) void fake_torch_cuda_set_device(int device) {
  Guard().setDevice(c10::Device(kCuda, static_cast<c10::DeviceIndex>(device)));
}
__attribute__((visibility("default"))) int fake_torch_cuda_violations() { return vendor().hooks->violations(); }
__attribute__((visibility("default"))) void fake_torch_cuda_set_delay(int microseconds) {
  vendor().hooks->set_delay(microseconds);
}
}
