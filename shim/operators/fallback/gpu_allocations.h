/* SPDX-License-Identifier: BSD-3-Clause */
// What PyTorch's kernels for GPUs allocate comes out of the openreg device's memory.
//
// PyTorch lets a program put an allocator of its own in the place of its caching allocator for CUDA, as long as that has
// not been used (torch.cuda.memory.change_current_allocator()). Here that is openreg's: results and temporaries of a
// kernel are blocks of the runtime's cache, on the stream that the kernel works on, so that statistics and limits are true
// and a result is adopted without a copy. Where PyTorch's allocator is in use already (something in the process has used
// "cuda" before), it stays, and results are copied into openreg's memory. So the replacement is made as early as it is
// known that a GPU's driver serves: when such a driver is opened, or when the package is imported where the user asks for
// one (prepare_gpu_allocations(), install_gpu_allocations()), and not when the first operator runs.
//
// Pinned host memory goes with it: what PyTorch pins "for CUDA" (torch.empty(pin_memory=True)) comes from openreg's host
// allocator, so that copies to and from openreg know it.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "shim/base/export.h"

namespace c10::openreg {

// Whose allocator PyTorch's kernels for GPUs use.
enum class GpuAllocator : uint8_t {
  undecided, // no driver for GPUs was opened yet, or PyTorch has no such kernels
  openreg,
  torch, // PyTorch's own, which was in use already: every result is copied
};

TORCH_OPENREG_API GpuAllocator gpu_allocator_in_place() noexcept;

// Puts the allocator in place, the first time, where this PyTorch has kernels for GPUs. Makes no context and initialises
// nothing of PyTorch's or the vendor's. Warns where PyTorch refuses it. Any thread.
TORCH_OPENREG_API void install_gpu_allocations();

// The same where a device of the present table is a GPU of PyTorch's. To be called once there is a table.
TORCH_OPENREG_API void prepare_gpu_allocations();

// Which openreg device a GPU of PyTorch's is, for what is allocated outside of openreg's operators.
void note_gpu(DeviceIndex gpu, DeviceIndex device);

// The allocator that PyTorch's kernels for GPUs use.
c10::Allocator* gpu_allocator();

// Memory of a GPU as that of the openreg device, in the same place if it is a block of the device's cache; else in a new
// block, into which it is copied on the current stream. Within a GpuScope of the device.
c10::DataPtr adopt_gpu_memory(c10::DataPtr& data, size_t size, DeviceIndex device);

} // namespace c10::openreg
