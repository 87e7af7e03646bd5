/* SPDX-License-Identifier: BSD-3-Clause */
// From status codes of the runtime to PyTorch's exceptions.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/Exception.h>
#include <openreg/openreg.h>

#include <string>

#include "shim/base/export.h"

namespace c10::openreg {

// Throws the exception that belongs to `status`, with the text of this thread's last error, which names the call, and
// the name of the code. In Python:
//   OPENREG_E_NOMEM        c10::OutOfMemoryError      torch.OutOfMemoryError
//   OPENREG_E_UNSUPPORTED  c10::NotImplementedError   NotImplementedError
//   OPENREG_E_PEER         c10::DistBackendError      torch.distributed.DistBackendError, which is a RuntimeError
//   OPENREG_E_TIMEOUT      the same: only collectives wait with a time limit
//   every other code       c10::Error                 RuntimeError
[[noreturn]] TORCH_OPENREG_API void throw_status(
    openreg_status status, SourceLocation location = SourceLocation::current());

// A text that may be anybody's (a variable, a driver's), for an exception or a warning: Python takes UTF-8 alone.
TORCH_OPENREG_API std::string shown(const std::string& text);

// A warning from where nothing may be thrown: the text of `what`, then `why`.
void warn_of_failure(const char* what, const char* why) noexcept;

// For errors of the runtime that have a class of their own in Python: `translator` is given the text of each, and throws
// where it is such an error, else returns. One at a time; null ends it.
using ErrorTranslator = void (*)(const char* message);
TORCH_OPENREG_API void set_error_translator(ErrorTranslator translator) noexcept;
// Has the translator throw what belongs to a text; returns where there is none.
TORCH_OPENREG_API void translate_error(const char* message);

} // namespace c10::openreg

// Runs a call of the runtime and throws unless it returns OPENREG_OK. Not for destructors or noexcept functions.
#define OPENREG_CHECK(call)                                 \
  do {                                                      \
    const openreg_status openreg_check_status = (call);     \
    if (C10_UNLIKELY(openreg_check_status != OPENREG_OK)) { \
      ::c10::openreg::throw_status(openreg_check_status);   \
    }                                                       \
  } while (false)
