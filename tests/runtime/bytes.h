/* SPDX-License-Identifier: BSD-3-Clause */
// What mem_alloc() and host_alloc() of a driver's table take for so many bytes: table->mem_alloc(instance, 0, Bytes(64), &out).
#pragma once

#include <openreg/driver.h>

struct Bytes {
  explicit Bytes(uint64_t size) : info(openreg_alloc_bytes(size)) {}
  operator const openreg_alloc_info*() const { return &info; }  // NOLINT(google-explicit-constructor)
  openreg_alloc_info info;
};
