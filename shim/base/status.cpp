// SPDX-License-Identifier: BSD-3-Clause
#include "shim/base/status.h"

#include <string>
#include <utility>

#include "shim/observe/races.h"

namespace c10::openreg {

namespace {

std::string describe(openreg_status status) {
  const openreg_error& error = *openreg_last_error();
  // A status without a matching record would be a defect of the runtime; a general text beats another call's text.
  if (error.code != status) {
    return std::string(openreg_status_text(status)).append(" (").append(openreg_status_name(status)).append(")");
  }
  std::string text = error.message;
  if (!error.names_code) {
    text.append(" (").append(openreg_status_name(status)).append(")");
  }
  return text;
}

} // namespace

void throw_status(openreg_status status, SourceLocation location) {
  if (races_are_found()) {
    throw_race(openreg_last_error()->message);
  }
  std::string text = describe(status);
  switch (status) {
    case OPENREG_E_NOMEM:
      throw OutOfMemoryError(location, std::move(text));
    case OPENREG_E_UNSUPPORTED:
      throw NotImplementedError(location, std::move(text));
    case OPENREG_E_PEER:
    case OPENREG_E_TIMEOUT:
      throw DistBackendError(location, std::move(text));
    default:
      throw Error(location, std::move(text));
  }
}

} // namespace c10::openreg
