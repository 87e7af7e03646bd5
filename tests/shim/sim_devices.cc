// SPDX-License-Identifier: BSD-3-Clause
// The main test program runs on the simulated devices, which are built in.
#include "tests/shim/support.h"

void openreg_test::register_test_driver() {}
