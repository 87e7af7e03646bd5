/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace c10::openreg {

// The dispatcher's handle of an operator of at::_ops, which is looked up once.
template <class Operator>
const auto& handle_of() {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow(Operator::name, Operator::overload_name)
                                 .template typed<typename Operator::schema>();
  return handle;
}

} // namespace c10::openreg
