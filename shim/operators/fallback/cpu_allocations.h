/* SPDX-License-Identifier: BSD-3-Clause */
// CPU allocations of a kernel that runs on a device's memory come out of that device's memory.
//
// While an AllocateOnDevice is alive in a thread, PyTorch's CPU allocator gives that thread alias addresses of blocks
// of the device's caching allocator, so that the results and temporaries of a CPU kernel count against the device and
// can be adopted without a copy. The memory of a single number is the host's even so: a number of the program in the type
// that a kernel wants is no more than an argument, and on a GPU it takes no device memory; a result of that size is copied.
// Where operators are staged it gives memory that is kept between calls (shim/memory/staging_buffers.h). Elsewhere the
// CPU allocator is what it was.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace c10::openreg {

// Puts the allocator in place. Called once, when the library is loaded, before other threads allocate.
void install_cpu_allocations();

// The allocator that install_cpu_allocations() put in place.
c10::Allocator* cpu_allocations();

// Up to so many bytes are taken for a number: the widest type's, a complex128.
constexpr size_t kNumberBytes = 16;

// In the place of a device: the host's staging buffers.
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
