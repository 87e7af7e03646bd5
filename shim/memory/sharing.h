/* SPDX-License-Identifier: BSD-3-Clause */
// Storages in several processes: PyTorch's storages on the runtime's exports and imports.
#pragma once

#include <c10/core/Storage.h>
#include <openreg/sharing.h>

#include "shim/base/export.h"

namespace c10::openreg {

// A handle of a storage's memory, after the work queued on its device has ended. The storage must have
// memory. Throws c10::NotImplementedError where the driver can't share.
TORCH_OPENREG_API openreg_memory_handle export_storage(const Storage& storage);

// A storage of `size` bytes on the memory of a handle. It cannot be resized, and gives the memory back when it ends.
TORCH_OPENREG_API Storage import_storage(const openreg_memory_handle& handle, size_t size);

} // namespace c10::openreg
