/* SPDX-License-Identifier: BSD-3-Clause */
// CPU allocations of a kernel that runs on a device's memory come out of that device's memory.
//
// While an AllocateOnDevice is live in a thread, PyTorch's CPU allocator gives that thread alias addresses of blocks of
// the device's caching allocator, so that the results and temporaries of a CPU kernel count against the device and can be
// adopted without a copy. A single number stays on the host: it may be an argument converted to the kernel's type, which
// takes no device memory on a GPU; a result of that size is copied. Where operators are staged, the memory is kept between
// calls (shim/memory/staging_buffers.h). Outside such a scope the CPU allocator is unchanged.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace c10::openreg {

// Puts the allocator in place. Called once, when the library is loaded, before other threads allocate.
void install_cpu_allocations();

// The allocator that install_cpu_allocations() put in place.
c10::Allocator* cpu_allocations();

// An allocation of at most this size counts as a number: the widest type is complex128.
constexpr size_t kNumberBytes = 16;

// Instead of a device index: the host's staging buffers.
constexpr DeviceIndex kInStagingBuffers = -2;

class AllocateOnDevice {
 public:
  // -1: ordinary CPU memory, also inside another scope. kInStagingBuffers: host memory that is kept between calls.
  explicit AllocateOnDevice(DeviceIndex device) noexcept;
  ~AllocateOnDevice();
  AllocateOnDevice(const AllocateOnDevice&) = delete;
  AllocateOnDevice& operator=(const AllocateOnDevice&) = delete;

 private:
  DeviceIndex previous_;
};

// If `data` is memory that an AllocateOnDevice gave out, takes it out of `data` and returns it as the device's own
// address, owned as openreg's allocator owns its blocks; else returns an empty DataPtr and leaves `data` alone.
c10::DataPtr take_device_block(c10::DataPtr& data);

} // namespace c10::openreg
