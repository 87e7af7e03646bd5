/* SPDX-License-Identifier: BSD-3-Clause */
// What PyTorch's kernels for GPUs allocate comes out of the openreg device's memory.
//
// PyTorch lets a program put an allocator of its own in the place of its caching allocator for CUDA, as long as that has
// not been used (torch.cuda.memory.change_current_allocator()). Here that is openreg's: results and temporaries of a
// kernel are blocks of the runtime's cache, on the stream that the kernel works on, so that statistics and limits are true
// and a result is adopted without a copy. Where PyTorch's allocator is in use already (something in the process has used
// "cuda" before), it stays, and results are copied into openreg's memory.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace c10::openreg {

// Puts the allocator in place, the first time. Warns where PyTorch refuses it.
void install_gpu_allocations();

// Which openreg device a GPU of PyTorch's is, for what is allocated outside of openreg's operators.
void note_gpu(DeviceIndex gpu, DeviceIndex device);

// The allocator that PyTorch's kernels for GPUs use.
c10::Allocator* gpu_allocator();

// Memory of a GPU as that of the openreg device, in the same place if it is a block of the device's cache; else in a new
// block, into which it is copied on the current stream. Within a GpuScope of the device.
c10::DataPtr adopt_gpu_memory(c10::DataPtr& data, size_t size, DeviceIndex device);

} // namespace c10::openreg
