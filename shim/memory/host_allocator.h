/* SPDX-License-Identifier: BSD-3-Clause */
// Pinned host memory for tensors: PyTorch's caching host allocator over the runtime's pinned memory.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "shim/base/export.h"

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

// record_event() takes streams of one more type of device, if the allocator serves that too: `translate` gives the stream
// of openreg's behind which the block is free. May throw; set before the allocator is registered for that type.
using StreamTranslation = c10::Stream (*)(c10::Stream);
void set_stream_translation(c10::DeviceType type, StreamTranslation translate) noexcept;

} // namespace c10::openreg
