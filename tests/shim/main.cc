// SPDX-License-Identifier: BSD-3-Clause
// Entry point of the shim's test programs. The devices are chosen before anything can open a driver.
#include <c10/core/DeviceType.h>
#include <gtest/gtest.h>
#include <openreg/openreg.h>

#include <cstdlib>

#include "tests/shim/support.h"

int main(int argc, char** argv) {
  openreg_test::initialized_at_start = openreg_is_initialized() != 0;
  setenv("OPENREG_DRIVERS", OPENREG_TEST_DRIVER, 1);
  setenv("OPENREG_SIM_DEVICES", "2", 1);
  setenv("OPENREG_SIM_MEMORY", "268435456", 1);
  c10::register_privateuse1_backend("openreg");  // as the Python package does; at::getAccelerator() needs it
  openreg_test::register_test_driver();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
