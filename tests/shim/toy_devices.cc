// SPDX-License-Identifier: BSD-3-Clause
// The second test program runs on the toy driver that has every function, linked in.
#include <cstdlib>

#include "tests/drivers/full_toy_driver.h"
#include "tests/shim/support.h"

void openreg_test::register_test_driver() {
  if (openreg_driver_register_table(full_toy_test_hooks()->table()) != OPENREG_OK) {
    std::abort();
  }
}
