/* SPDX-License-Identifier: BSD-3-Clause */
// Pinned host memory for tensors: PyTorch's caching host allocator over the runtime's pinned memory.
#pragma once

#include <c10/core/Allocator.h>

#include "shim/export.h"

namespace at {
struct HostAllocator;
}

namespace c10::openreg {

// The allocator that is registered for PrivateUse1 (at::getHostAllocator). Lives until the process ends.
//
// Its blocks are pinned by the driver of the current device. record_event(pointer, context, stream) keeps a block from
// being reused before the work queued on that stream has ended: an asynchronous copy must call it. The deleter never
// throws, takes no GIL, and drops the block in a forked child.
TORCH_OPENREG_API at::HostAllocator& host_allocator();

} // namespace c10::openreg
