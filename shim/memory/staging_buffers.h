/* SPDX-License-Identifier: BSD-3-Clause */
// Host memory in which staged operators work: copies of storages, and what the CPU's kernels allocate.
//
// A buffer that was used before costs no page faults. malloc() gives large blocks back to the system as soon as they are
// free, and every call of an operator on tensors of a megabyte would pay for fresh pages: 5 to 10 times the copy itself.
// So buffers are kept here between calls, up to kMaxKeptBytes in the process; DeviceAllocator::emptyCache() gives them
// back to the system.
//
// Threads: any. A forked child drops what it inherits.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

#include "shim/base/export.h"

namespace c10::openreg {

// malloc() itself caches smaller blocks.
constexpr size_t kMinStagingBytes = size_t{64} << 10;
// The limit for all unused buffers together. A buffer larger than this is not kept.
constexpr size_t kMaxKeptBytes = size_t{512} << 20;

// Uninitialised, page-aligned host memory of `size` bytes, at least kMinStagingBytes. Pages that are not touched take no
// memory. The deleter returns the buffer here, and never throws. Throws c10::Error where the address space is exhausted.
TORCH_OPENREG_API c10::DataPtr take_staging_buffer(size_t size);

// Takes back the buffer at this address; false if no buffer in use has it. For raw_deallocate() of the CPU's allocator.
bool give_back_staging_buffer(void* address) noexcept;

// Frees the unused buffers.
TORCH_OPENREG_API void release_staging_buffers() noexcept;

// Bytes that are kept for later calls.
TORCH_OPENREG_API size_t kept_staging_bytes() noexcept;

} // namespace c10::openreg
