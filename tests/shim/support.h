/* SPDX-License-Identifier: BSD-3-Clause */
// What the shim's tests share.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <openreg/openreg.h>

#include <string>

#include "shim/memory/host_allocator.h"

namespace openreg_test {

// Whether the runtime had opened a driver before main() ran.
inline bool initialized_at_start = false;

// Each test program has its own: registers the driver OPENREG_TEST_DRIVER, unless that is built in.
void register_test_driver();

// Without NDEBUG c10::Device itself refuses an index below -1, with a c10::Error.
inline c10::Device device(c10::DeviceIndex index) { return {c10::DeviceType::PrivateUse1, index}; }

inline const c10::impl::DeviceGuardImplInterface& guard() {
  return *c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
}

// Starts every test on device 0 with its default streams, and checks that the test leaves no device selected.
class ShimTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(openreg_set_device(0), OPENREG_OK) << openreg_last_error()->message;
    for (int32_t i = 0; i < openreg_device_count(); ++i) {
      ASSERT_EQ(openreg_set_current_stream(i, OPENREG_STREAM_DEFAULT), OPENREG_OK);
    }
  }
  void TearDown() override { EXPECT_EQ(openreg_current_device(), 0) << "the test changed the current device"; }
};

// The text of the c10::Error (or the class given) that `function` throws; fails the test if it throws none.
template <class Exception = c10::Error, class Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no exception";
  return {};
}

}  // namespace openreg_test

#define EXPECT_HAS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text) << "\nnot found: " << (part)
