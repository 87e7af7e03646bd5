/* SPDX-License-Identifier: BSD-3-Clause */
// Parts of the shim that are libraries of their own beside this one, libtorch_openreg_<part>.so, loaded when they are first
// used. Any thread.
#pragma once

#include "shim/base/export.h"

namespace c10::openreg {

// A function of a part, by its C name; loads the part. It stays. Throws c10::Error where it can't be loaded.
void* find_in_part(const char* part, const char* function);

TORCH_OPENREG_API bool part_is_loaded(const char* part);

} // namespace c10::openreg
