/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once

#include <torch/library.h>

namespace c10::openreg {

// Where kernels of operators are registered, for one key. It is never destroyed: that would unregister them during exit.
inline torch::Library& kernel_library(const char* name, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name, key, __FILE__, __LINE__);
}

} // namespace c10::openreg
