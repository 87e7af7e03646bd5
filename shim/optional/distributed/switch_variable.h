/* SPDX-License-Identifier: BSD-3-Clause */
// Environment variables that switch something on ("1") or off ("0").
#pragma once

#include <c10/util/Exception.h>
#include <openreg/openreg.h>

#include <cstring>

#include "shim/base/status.h"

namespace c10::openreg {

// What the variable says, and `otherwise` where it isn't set or empty. Throws c10::Error for any other value. Any thread.
inline bool switch_variable(const char* name, bool otherwise) {
  const char* value = openreg_variable(name);
  if (value == nullptr || *value == '\0') {
    return otherwise;
  }
  const bool is_on = std::strcmp(value, "1") == 0;
  TORCH_CHECK(is_on || std::strcmp(value, "0") == 0, name, " must be '0' or '1', but is '", shown(value), "'.");
  return is_on;
}

} // namespace c10::openreg
