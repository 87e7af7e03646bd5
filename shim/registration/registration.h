/* SPDX-License-Identifier: BSD-3-Clause */
// What the shim tells PyTorch while it is loaded.
#pragma once

#include "shim/base/export.h"

namespace c10::openreg {

// Why the shim could not be registered (another PrivateUse1 backend is in this process already), or nullptr.
TORCH_OPENREG_API const char* registration_error() noexcept;

} // namespace c10::openreg
