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

// Below it malloc() keeps its blocks itself.
constexpr size_t kMinStagingBytes = size_t{64} << 10;
// Of buffers that nobody uses, together. A larger one is not kept.
constexpr size_t kMaxKeptBytes = size_t{512} << 20;

// Uninitialised memory of the CPU's for `size` bytes, at least kMinStagingBytes; page-aligned. Pages that are not touched
// take no memory. The deleter gives it back here; it never throws. Throws c10::Error where the system has no addresses.
TORCH_OPENREG_API c10::DataPtr take_staging_buffer(size_t size);

// Gives back a buffer by its address; false if it is none that is in use. For raw_deallocate() of the CPU's allocator.
bool give_back_staging_buffer(void* address) noexcept;

// Gives what is kept back to the system.
TORCH_OPENREG_API void release_staging_buffers() noexcept;

// Bytes that are kept for later calls.
TORCH_OPENREG_API size_t kept_staging_bytes() noexcept;

} // namespace c10::openreg
