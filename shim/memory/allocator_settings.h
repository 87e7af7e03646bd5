/* SPDX-License-Identifier: BSD-3-Clause */
// The settings of PYTORCH_ALLOC_CONF, handed to the runtime's caching allocator.
#pragma once

#include "shim/base/export.h"

namespace c10::openreg {

// Makes torch._C._accelerator_setAllocatorSettings() reach the runtime, adds the backend's own keys to those that
// PyTorch knows ("backend", "per_process_memory_fraction"), and makes an unknown one an error. Once, when the backend is
// registered; reads no variable.
void register_allocator_settings();

// Reads PYTORCH_ALLOC_CONF, the first time that it is called. Throws c10::ValueError for a key or value that PyTorch
// refuses; then the next call tries again. Every allocation calls it: a constant's worth of time.
void ensure_allocator_settings();

} // namespace c10::openreg
