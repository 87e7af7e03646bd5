/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace c10::openreg {

// Where kernels of operators are registered, for one key. It is never destroyed: that would unregister them during exit.
inline torch::Library& kernel_library(const char* name, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name, key, __FILE__, __LINE__);
}

// The dispatcher's handle of an operator of at::_ops, which is looked up once.
template <class Operator>
const auto& handle_of() {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow(Operator::name, Operator::overload_name)
                                 .template typed<typename Operator::schema>();
  return handle;
}

} // namespace c10::openreg
