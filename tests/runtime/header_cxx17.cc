// SPDX-License-Identifier: BSD-3-Clause
// The public headers, alone, as strict C++17: compiling this file is the test.
#include <openreg/allocator.h>
#include <openreg/driver.h>
#include <openreg/ipc.h>
#include <openreg/openreg.h>
#include <openreg/status.h>
#include <openreg/trace.h>
#include <openreg/vmm.h>

openreg_status openreg_test_header_cxx17(const openreg_host* host, const openreg_driver* table);

openreg_status openreg_test_header_cxx17(const openreg_host* host, const openreg_driver* table) {
  return table->struct_size >= OPENREG_DRIVER_SIZE_1_0 ? openreg_fail(host, OPENREG_E_INVALID, 0, "%d", 1) : OPENREG_OK;
}
