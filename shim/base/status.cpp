// SPDX-License-Identifier: BSD-3-Clause
#include "shim/base/status.h"

#include <openreg/embedding.h>

#include <atomic>
#include <cstring>
#include <utility>

namespace c10::openreg {

namespace {

std::atomic<ErrorTranslator> error_translator{nullptr};

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

std::string shown(const std::string& text) {
  std::string copy(4 * text.size() + 1, '\0');
  openreg_show_text(copy.data(), copy.size(), text.c_str());
  copy.resize(std::strlen(copy.c_str()));
  return copy;
}

void warn_of_failure(const char* what, const char* why) noexcept {
  try {
    TORCH_WARN(what, why);
  } catch (...) { // no memory for the text
  }
}

void set_error_translator(ErrorTranslator translator) noexcept {
  error_translator.store(translator, std::memory_order_relaxed);
}

void translate_error(const char* message) {
  if (const auto translate = error_translator.load(std::memory_order_relaxed)) {
    translate(message);
  }
}

void throw_status(openreg_status status, SourceLocation location) {
  translate_error(openreg_last_error()->message);
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
