// SPDX-License-Identifier: BSD-3-Clause
// Work of a stream that the host does (openreg/host_work.h): whether functions are queued, and errors that it leaves.
#include <openreg/faults.h>
#include <openreg/host_work.h>

#include <atomic>
#include <string>
#include <thread>

#include "../gate.h"
#include "../runtime_test.h"

namespace openreg_test {
namespace {

class HostWorkTest : public SimDevicesTest {};

// Functions are queued where the driver has the slot, and only there
TEST_F(HostWorkTest, QueuedFunctions) {
  int32_t queued = -1;
  ASSERT_EQ(openreg_host_func_is_queued(0, &queued), OPENREG_OK);
  EXPECT_EQ(queued, 1);
  EXPECT_EQ(openreg_host_func_is_queued(99, &queued), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_host_func_is_queued(0, nullptr), OPENREG_E_INVALID);
}

TEST_F(HostWorkTest, EmulatedFunctions) {
  use_full_toy([](openreg_driver& table) { table.host_func = nullptr; });
  int32_t queued = -1;
  ASSERT_EQ(openreg_host_func_is_queued(0, &queued), OPENREG_OK) << last_message();
  EXPECT_EQ(queued, 0);
}

// An error is told once, by the next query or wait of its stream, with its code and text; no other stream tells it
TEST_F(HostWorkTest, ErrorOfAStream) {
  const openreg_stream one = from_pool(0), other = from_pool(0);
  int32_t done = 0;
  for (const bool asks : {false, true}) {
    ASSERT_EQ(openreg_stream_report_error(0, one, OPENREG_E_INTERNAL, "the peer is gone"), OPENREG_OK);
    EXPECT_EQ(openreg_stream_synchronize(0, other), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_stream_synchronize(0, OPENREG_STREAM_DEFAULT), OPENREG_OK) << last_message();
    EXPECT_EQ(asks ? openreg_stream_query(0, one, &done) : openreg_stream_synchronize(0, one), OPENREG_E_INTERNAL);
    EXPECT_CONTAINS(last_message(), "the peer is gone");
    EXPECT_EQ(openreg_stream_synchronize(0, one), OPENREG_OK) << last_message();
  }
}

// Errors of several streams come in their order from a wait of the device, one a wait; a plan of faults that ends keeps them
TEST_F(HostWorkTest, ErrorsOfADevice) {
  openreg_faults plan = nullptr;
  ASSERT_EQ(openreg_faults_begin("nomem at 1000000", &plan), OPENREG_OK);
  const openreg_stream one = from_pool(0), other = from_pool(0);
  ASSERT_EQ(openreg_stream_report_error(0, one, OPENREG_E_INTERNAL, "first"), OPENREG_OK);
  ASSERT_EQ(openreg_stream_report_error(0, other, OPENREG_E_NOMEM, "second"), OPENREG_OK);
  openreg_faults_end(plan);
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_OK) << last_message();
  expect_error(openreg_device_synchronize(0), OPENREG_E_INTERNAL, "first");
  expect_error(openreg_device_synchronize(0), OPENREG_E_NOMEM, "second");
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_is_instrumented(), 0);
}

struct Failing {
  openreg_stream stream;
  std::atomic<bool> is_to_end{false};

  static void run(void* argument) {
    auto* const self = static_cast<Failing*>(argument);
    while (!self->is_to_end) std::this_thread::yield();
    (void)openreg_stream_report_error(0, self->stream, OPENREG_E_INTERNAL, "failed while it ran");
  }
};

// A wait that has begun before the work failed tells the error, too
TEST_F(HostWorkTest, WaitThatHasBegun) {
  Failing work{from_pool(0)};
  ASSERT_EQ(openreg_stream_launch_host_func(0, work.stream, Failing::run, &work), OPENREG_OK) << last_message();
  const OnceThisThreadWaits ends([&work] { work.is_to_end = true; });
  expect_error(openreg_stream_synchronize(0, work.stream), OPENREG_E_INTERNAL, "failed while it ran");
}

// A long text is cut, and wrong arguments are refused
TEST_F(HostWorkTest, Arguments) {
  const openreg_stream one = from_pool(0);
  ASSERT_EQ(openreg_stream_report_error(0, one, OPENREG_E_INTERNAL, std::string(2000, 'x').c_str()), OPENREG_OK);
  expect_error(openreg_stream_synchronize(0, one), OPENREG_E_INTERNAL, std::string(400, 'x'));
  EXPECT_EQ(last_message().find(std::string(512, 'x')), std::string::npos);
  EXPECT_EQ(openreg_stream_report_error(0, one, OPENREG_E_INTERNAL, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_stream_report_error(0, one, OPENREG_OK, "x"), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_stream_report_error(0, one, OPENREG_E_DEVICE_LOST, "x"), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_stream_report_error(99, one, OPENREG_E_INTERNAL, "x"), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_stream_report_error(0, from_pool(1), OPENREG_E_INTERNAL, "x"), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_stream_synchronize(0, one), OPENREG_OK) << last_message();
}

}  // namespace
}  // namespace openreg_test
