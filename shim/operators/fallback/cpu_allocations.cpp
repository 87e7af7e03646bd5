// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/fallback/cpu_allocations.h"

#include <openreg/openreg.h>

#include <atomic>
#include <bit>
#include <cstring>

#include "shim/base/status.h"
#include "shim/memory/device_allocator.h"
#include "shim/memory/staging_buffers.h"

namespace c10::openreg {
namespace {

thread_local DeviceIndex allocate_on_device = -1;

// Memory for single numbers, which most reductions need for a moment: malloc() of aligned memory takes as long as the rest of
// their allocations. A bit of `free_cells` for each; any thread.
constexpr size_t kCells = 64;
constexpr size_t kCellBytes = 64; // the alignment of PyTorch's CPU memory
alignas(kCellBytes) unsigned char cells[kCells][kCellBytes];
std::atomic<uint64_t> free_cells{~uint64_t{0}};

// Null if all are in use.
void* take_cell() noexcept {
  uint64_t free = free_cells.load(std::memory_order_relaxed);
  while (free != 0) {
    if (free_cells.compare_exchange_weak(
            free, free & (free - 1), std::memory_order_acquire, std::memory_order_relaxed)) {
      return cells[std::countr_zero(free)];
    }
  }
  return nullptr;
}

// At least sizeof cells for the address of anything else.
uintptr_t offset_in_cells(const void* address) noexcept {
  return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(cells);
}

// Whether the address is that of a cell, which is free then.
bool give_back_cell(const void* address) noexcept {
  const uintptr_t offset = offset_in_cells(address);
  if (offset >= sizeof cells) {
    return false;
  }
  free_cells.fetch_or(uint64_t{1} << (offset / kCellBytes), std::memory_order_release);
  return true;
}

void free_alias_or_host(void* address);

// Wraps the CPU allocator that was registered before. Its one deleter looks up whose memory an address is, because
// raw_deallocate() (oneDNN uses it) passes every block of this allocator to raw_deleter(), wherever it came from.
class CpuAllocations final : public c10::Allocator {
 public:
  explicit CpuAllocations(c10::Allocator* host) : host_(host) {}

  c10::DataPtr allocate(size_t size) override {
    const DeviceIndex device = allocate_on_device;
    if (C10_LIKELY(device < 0)) {
      return device == kInStagingBuffers && size >= kMinStagingBytes ? take_staging_buffer(size)
                                                                     : host_->allocate(size);
    }
    if (size <= kNumberBytes) {
      void* const cell = size > 0 ? take_cell() : nullptr;
      return cell == nullptr ? host_->allocate(size)
                             : c10::DataPtr(cell, cell, &free_alias_or_host, c10::Device(c10::DeviceType::CPU));
    }
    c10::DataPtr block = device_allocator().allocate_on(device, size);
    void* alias = nullptr;
    OPENREG_CHECK(openreg_host_alias(block.get(), &alias));
    const bool is_owned = block.get_deleter() != &c10::detail::deleteNothing; // else a graph's
    block.release_context();
    return {
        alias, alias, is_owned ? &free_alias_or_host : &c10::detail::deleteNothing, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_alias_or_host;
  }

  void copy_data(void* destination, const void* source, size_t count) const override {
    std::memcpy(destination, source, count);
  }

  c10::DeleterFnPtr host_deleter() const {
    return host_->raw_deleter();
  }

 private:
  c10::Allocator* const host_;
};

CpuAllocations* installed = nullptr;

// Whether an address is the alias of a device's memory, which block that is (null if that can't be had), and the
// device. A driver may give the device's address itself as the alias.
bool is_alias(void* address, void** block, DeviceIndex* device) {
  openreg_pointer_info info{};
  info.struct_size = sizeof info;
  if (openreg_pointer_get_info(address, &info) != OPENREG_OK ||
      (info.kind != OPENREG_POINTER_ALIAS && info.kind != OPENREG_POINTER_DEVICE)) {
    return false;
  }
  *block = address;
  *device = static_cast<DeviceIndex>(info.device);
  if (info.kind == OPENREG_POINTER_ALIAS && openreg_device_address(address, block) != OPENREG_OK) {
    *block = nullptr;
  }
  return true;
}

void free_alias_or_host(void* address) {
  if (address == nullptr || give_back_cell(address)) {
    return;
  }
  void* block = nullptr;
  DeviceIndex device = -1;
  if (is_alias(address, &block, &device)) {
    if (block != nullptr) {
      device_allocator().raw_deleter()(block);
    }
    return;
  }
  if (give_back_staging_buffer(address)) {
    return;
  }
  if (const auto deleter = installed->host_deleter()) {
    deleter(address);
  }
}

} // namespace

void install_cpu_allocations() {
  installed = new CpuAllocations(c10::GetAllocator(c10::DeviceType::CPU)); // leaked: blocks outlive everything
  // Priority 100: above PyTorch's own registration (0), below nothing that is known.
  c10::SetAllocator(c10::DeviceType::CPU, installed, 100);
}

c10::Allocator* cpu_allocations() {
  return installed;
}

AllocateOnDevice::AllocateOnDevice(DeviceIndex device) noexcept : previous_(allocate_on_device) {
  allocate_on_device = device;
}

AllocateOnDevice::~AllocateOnDevice() {
  allocate_on_device = previous_;
}

c10::DataPtr take_device_block(c10::DataPtr& data) {
  const bool is_owned = data.get_deleter() == &free_alias_or_host;
  if ((!is_owned && data.get_deleter() != &c10::detail::deleteNothing) || data.get() == nullptr ||
      data.get() != data.get_context() || offset_in_cells(data.get()) < sizeof cells) {
    return {};
  }
  void* block = nullptr;
  DeviceIndex device = -1;
  if (!is_alias(data.get(), &block, &device) || block == nullptr) {
    return {};
  }
  data.release_context();
  return {
      block,
      block,
      is_owned ? device_allocator().raw_deleter() : &c10::detail::deleteNothing,
      c10::Device(c10::DeviceType::PrivateUse1, device)};
}

} // namespace c10::openreg
