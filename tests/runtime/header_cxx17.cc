// SPDX-License-Identifier: BSD-3-Clause
// What the public headers define themselves works as strict C++17: compiling this file is the test.
#include <openreg/driver.h>
#include <openreg/registry.h>

openreg_status openreg_test_header_cxx17(const openreg_host* host, const openreg_driver* table);

openreg_status openreg_test_header_cxx17(const openreg_host* host, const openreg_driver* table) {
  if (openreg_driver_register_table(table) != OPENREG_OK) return openreg_driver_load("cxx17", "");
  return table->struct_size >= OPENREG_DRIVER_SIZE_1 ? openreg_fail(host, OPENREG_E_INVALID, 0, "%d", 1) : OPENREG_OK;
}
