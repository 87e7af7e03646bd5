/* SPDX-License-Identifier: BSD-3-Clause */
// bytes.h: what functions take and fill: bytes of memory, and structures that say their size.
#pragma once

#include <openreg/driver.h>

// For mem_alloc() and host_alloc() of a driver's table: table->mem_alloc(instance, 0, Bytes(64), &out).
struct Bytes {
  explicit Bytes(uint64_t size) : info(openreg_alloc_bytes(size)) {}
  operator const openreg_alloc_info*() const { return &info; }  // NOLINT(google-explicit-constructor)
  openreg_alloc_info info;
};

namespace openreg_test {

// A structure with its size, and all else 0.
template <typename Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof made;
  return made;
}

}  // namespace openreg_test
