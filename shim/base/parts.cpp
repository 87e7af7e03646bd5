// SPDX-License-Identifier: BSD-3-Clause
#include "shim/base/parts.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <string>

#include "shim/base/status.h"

namespace c10::openreg {
namespace {

std::string path_of(const char* part) {
  Dl_info here{};
  TORCH_CHECK(dladdr(reinterpret_cast<void*>(&part_is_loaded), &here) != 0, "cannot locate libtorch_openreg.so");
  const std::string own = here.dli_fname;
  return own.substr(0, own.rfind('/') + 1).append("libtorch_openreg_").append(part).append(".so");
}

} // namespace

void* find_in_part(const char* part, const char* function) {
  const std::string path = path_of(part);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "A part of torch_openreg can't be loaded: ", shown(dlerror()));
  void* const found = dlsym(library, function);
  TORCH_CHECK(found != nullptr, shown(path), " belongs to another build: ", shown(dlerror()));
  return found;
}

bool part_is_loaded(const char* part) {
  return dlopen(path_of(part).c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
}

} // namespace c10::openreg
