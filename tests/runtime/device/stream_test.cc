// SPDX-License-Identifier: BSD-3-Clause
// Streams: ids, the pool, the thread's current stream, what is emulated for a driver without streams.
#include <atomic>
#include <set>
#include <thread>

#include "runtime_test.h"

namespace openreg_test {
namespace {

constexpr int kStreamsPerPool = 32;  // as openreg_stream_from_pool() promises

class StreamTest : public RuntimeTest {
 protected:
  static int32_t priority_of(int32_t device, openreg_stream stream) {
    int32_t priority = 99;
    EXPECT_EQ(openreg_stream_priority(device, stream, &priority), OPENREG_OK) << last_message();
    return priority;
  }
};

// 32 streams a priority, round robin, made on first use and never twice; none is the default stream.
TEST_F(StreamTest, PoolIsRoundRobinAndLazy) {
  use_full_toy();
  std::set<openreg_stream> seen;
  for (int i = 0; i < kStreamsPerPool; ++i) seen.insert(from_pool(0));
  EXPECT_EQ(seen.size(), 32u);
  EXPECT_EQ(seen.count(OPENREG_STREAM_DEFAULT), 0u);
  EXPECT_EQ(toy().calls("stream_create"), 32);
  for (int i = 0; i < 40; ++i) seen.insert(from_pool(0));
  EXPECT_EQ(seen.size(), 32u);
  EXPECT_EQ(toy().calls("stream_create"), 32);
  for (int i = 0; i < 3; ++i) seen.insert(from_pool(1));
  for (int i = 0; i < 3; ++i) seen.insert(from_pool(0, -1));
  EXPECT_EQ(seen.size(), 38u);
  EXPECT_EQ(toy().calls("stream_create"), 38);
  EXPECT_EQ(toy().live("stream"), 38);
}

// A driver may have as many priorities as numbers: the most urgent ones are told apart.
TEST_F(StreamTest, PrioritiesOfTheWholeRange) {
  use_full_toy([](openreg_driver& table) {
    table.device_info = [](openreg_instance instance, int32_t device, openreg_device_info* inout) {
      const openreg_status status = toy().table()->device_info(instance, device, inout);
      inout->priority_low = INT32_MAX;
      inout->priority_high = INT32_MIN;
      return status;
    };
  });
  EXPECT_EQ(priority_of(0, from_pool(0, INT32_MIN)), INT32_MIN);
  EXPECT_EQ(priority_of(0, from_pool(0, INT32_MIN + 1)), INT32_MIN + 1);
  EXPECT_EQ(priority_of(0, from_pool(0, INT32_MAX)), INT32_MIN + 31);
  EXPECT_EQ(priority_of(0, OPENREG_STREAM_DEFAULT), 0);
}

// A priority is clamped into the device's range, and can be read back.
TEST_F(StreamTest, PriorityIsClamped) {
  use_full_toy();
  EXPECT_EQ(priority_of(0, from_pool(0, -2)), -2);
  EXPECT_EQ(priority_of(0, from_pool(0, -1)), -1);
  EXPECT_EQ(priority_of(0, from_pool(0, 0)), 0);
  EXPECT_EQ(priority_of(0, from_pool(0, 5)), 0);
  EXPECT_EQ(priority_of(0, from_pool(0, INT32_MAX)), 0);
  EXPECT_EQ(priority_of(0, from_pool(0, INT32_MIN)), -2);
  EXPECT_EQ(priority_of(0, OPENREG_STREAM_DEFAULT), 0);
}

openreg_status wide_info(openreg_instance, int32_t, openreg_device_info* info) {
  info->priority_low = 1000;
  info->priority_high = 3;
  return OPENREG_OK;
}
openreg_status upside_down_info(openreg_instance, int32_t, openreg_device_info* info) {
  info->priority_low = -1;
  info->priority_high = 0;
  return OPENREG_OK;
}

// An id that was kept while drivers were selected again means no stream of the new devices, whatever they have made.
TEST_F(StreamTest, StreamsOfFormerDevicesAreRefused) {
  use_full_toy();
  const openreg_stream kept = from_pool(0);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  use_full_toy();
  int32_t done = 0;
  void* native = nullptr;
  openreg_stream fresh = 0;
  for (int i = 0; i < kStreamsPerPool; ++i) {
    fresh = from_pool(0);
    EXPECT_NE(fresh, kept);
  }
  EXPECT_EQ(openreg_stream_query(0, fresh, &done), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_stream_native(0, fresh, &native), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_stream_query(0, kept, &done), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "belongs to a previous device table (drivers were reselected), not to openreg:0");
  EXPECT_EQ(openreg_set_current_stream(0, kept), OPENREG_E_INVALID);
}

// A driver with absurdly many priorities works; one whose range is upside down is refused.
TEST_F(StreamTest, OddPriorityRanges) {
  use_full_toy([](openreg_driver& table) { table.device_info = wide_info; });
  EXPECT_EQ(priority_of(0, from_pool(0, 0)), 3);
  EXPECT_EQ(priority_of(0, from_pool(0, 20)), 20);
  EXPECT_EQ(priority_of(0, from_pool(0, 900)), 34);  // the 32nd level stands for all beyond
  EXPECT_EQ(priority_of(0, OPENREG_STREAM_DEFAULT), 3);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  use_full_toy([](openreg_driver& table) { table.device_info = upside_down_info; });
  expect_error(openreg_init(), OPENREG_E_INTERNAL, "most urgent priority");
}

// A stream of another device, and ids that nobody gave, are refused by every function with both named.
TEST_F(StreamTest, ForeignStreamsAreRefused) {
  use_full_toy();
  const openreg_stream foreign = from_pool(1);
  const openreg_stream mine = from_pool(0);
  int32_t value = 7;
  void* native = nullptr;
  const openreg_event event = make_event();
  for (const openreg_stream bad :
       {foreign, mine + 1, mine + 5000, int64_t{-1}, int64_t{1}, INT64_MIN, INT64_MAX, int64_t{128} << 16 | 1}) {
    SCOPED_TRACE(bad);
    EXPECT_EQ(openreg_stream_query(0, bad, &value), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_stream_synchronize(0, bad), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_stream_wait_event(0, bad, event), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_stream_priority(0, bad, &value), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_stream_native(0, bad, &native), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_set_current_stream(0, bad), OPENREG_E_INVALID);
    expect_error(openreg_event_record(event, 0, bad), OPENREG_E_INVALID, "openreg:0");
  }
  EXPECT_EQ(openreg_set_current_stream(0, foreign), OPENREG_E_INVALID);
  char expected[128];
  snprintf(expected, sizeof expected,
           "openreg_set_current_stream: stream 0x%llx belongs to openreg:1, not to openreg:0",
           static_cast<unsigned long long>(foreign));
  EXPECT_EQ(last_message(), expected);
  EXPECT_EQ(value, 7);
  openreg_stream current = -1;
  ASSERT_EQ(openreg_current_stream(0, &current), OPENREG_OK);
  EXPECT_EQ(current, OPENREG_STREAM_DEFAULT);
}

// The current stream is the default one until set, for each device and thread; a new table forgets it.
TEST_F(StreamTest, CurrentStreamBelongsToThreadAndDevice) {
  use_full_toy();
  const openreg_stream mine = from_pool(0);
  openreg_stream current = -1;
  ASSERT_EQ(openreg_current_stream(0, &current), OPENREG_OK);
  EXPECT_EQ(current, OPENREG_STREAM_DEFAULT);
  ASSERT_EQ(openreg_set_current_stream(0, mine), OPENREG_OK);
  ASSERT_EQ(openreg_current_stream(0, &current), OPENREG_OK);
  EXPECT_EQ(current, mine);
  ASSERT_EQ(openreg_current_stream(1, &current), OPENREG_OK);
  EXPECT_EQ(current, OPENREG_STREAM_DEFAULT);
  std::thread([mine] {
    openreg_stream here = -1;
    EXPECT_EQ(openreg_current_stream(0, &here), OPENREG_OK);
    EXPECT_EQ(here, OPENREG_STREAM_DEFAULT);
    EXPECT_EQ(openreg_set_current_stream(0, mine), OPENREG_OK);
    EXPECT_EQ(openreg_set_current_stream(0, OPENREG_STREAM_DEFAULT), OPENREG_OK);
  }).join();
  ASSERT_EQ(openreg_current_stream(0, &current), OPENREG_OK);
  EXPECT_EQ(current, mine);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  ASSERT_EQ(openreg_current_stream(0, &current), OPENREG_OK);
  EXPECT_EQ(current, OPENREG_STREAM_DEFAULT);
  EXPECT_EQ(openreg_set_current_stream(0, mine), OPENREG_E_INVALID);  // not made in this table
  EXPECT_EQ(openreg_current_stream(0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_current_stream(7, &current), OPENREG_E_INVALID);
}

// Query and synchronize mean the stream that they are given.
TEST_F(StreamTest, QueryAndSynchronize) {
  use_full_toy();
  const openreg_stream first = from_pool(0);
  const openreg_stream second = from_pool(0);
  const openreg_event event = make_event();
  toy().hold(1);
  ASSERT_EQ(openreg_event_record(event, 0, first), OPENREG_OK);
  int32_t done = -1;
  ASSERT_EQ(openreg_stream_query(0, first, &done), OPENREG_OK);
  EXPECT_EQ(done, 0);
  ASSERT_EQ(openreg_stream_query(0, second, &done), OPENREG_OK);
  EXPECT_EQ(done, 1);
  ASSERT_EQ(openreg_stream_query(0, OPENREG_STREAM_DEFAULT, &done), OPENREG_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(openreg_stream_synchronize(0, second), OPENREG_OK);
  const int waits = toy().calls("stream_sync");
  std::atomic<bool> passed{false};
  std::thread waiter([&] {
    EXPECT_EQ(openreg_stream_synchronize(0, first), OPENREG_OK);
    passed = true;
  });
  while (toy().calls("stream_sync") == waits) usleep(1000);
  EXPECT_FALSE(passed);
  toy().hold(0);
  waiter.join();
  ASSERT_EQ(openreg_stream_query(0, first, &done), OPENREG_OK);
  EXPECT_EQ(done, 1);
}

// The vendor's stream is what the driver says.
TEST_F(StreamTest, NativeStream) {
  use_full_toy();
  const openreg_stream first = from_pool(0);
  void* native = nullptr;
  void* other = nullptr;
  ASSERT_EQ(openreg_stream_native(0, first, &native), OPENREG_OK);
  ASSERT_EQ(openreg_stream_native(0, OPENREG_STREAM_DEFAULT, &other), OPENREG_OK);
  EXPECT_NE(native, nullptr);
  EXPECT_NE(native, other);
  toy().fail("stream_native", 1, OPENREG_E_INTERNAL, 0);
  void* unchanged = native;
  EXPECT_EQ(openreg_stream_native(0, first, &native), OPENREG_E_INTERNAL);
  EXPECT_EQ(native, unchanged);
}

// Every slot of the streams fails: an error with its name, nothing changed, and the next call works.
TEST_F(StreamTest, FailingSlots) {
  use_full_toy();
  openreg_stream stream = -7;
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  toy().fail("stream_create", 1, OPENREG_E_NOMEM, 0);
  EXPECT_EQ(openreg_stream_from_pool(0, 0, &stream), OPENREG_E_NOMEM);
  EXPECT_EQ(stream, -7);
  EXPECT_CONTAINS(last_message(), "openreg_stream_from_pool: driver \"full_toy\": stream_create was told to fail");
  EXPECT_EQ(toy().live("stream"), 0);
  stream = from_pool(0);
  int32_t done = -1;
  toy().fail("stream_query", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_stream_query(0, stream, &done), OPENREG_E_INTERNAL);
  EXPECT_EQ(done, -1);
  toy().fail("stream_sync", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_stream_synchronize(0, stream), OPENREG_E_INTERNAL);
  EXPECT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK);
  // Streams that cannot be destroyed do not keep the runtime from shutting down.
  openreg_clear_error();
  toy().fail("stream_destroy", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "stream_destroy was told to fail"), 1);
  EXPECT_EQ(toy().live("stream"), 1);  // the driver kept it
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  from_pool(0);
  toy().fail("stream_sync", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(toy().live("stream"), 1);
  toy().forget();
}

// Without streams every id is distinct, means the default stream, and its work is waited for with the device.
TEST_F(StreamTest, MadeUpStreams) {
  use_full_toy([](openreg_driver& table) {
    table.stream_create = nullptr;
    table.stream_destroy = nullptr;
    table.stream_query = nullptr;
    table.stream_sync = nullptr;
    table.stream_native = nullptr;
  });
  const openreg_stream first = from_pool(0);
  const openreg_stream second = from_pool(0, -2);
  EXPECT_NE(first, second);
  EXPECT_EQ(priority_of(0, second), -2);
  int32_t done = -1;
  ASSERT_EQ(openreg_stream_query(0, first, &done), OPENREG_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(openreg_stream_synchronize(0, second), OPENREG_OK);
  EXPECT_EQ(toy().calls("device_sync"), 2);
  void* native = this;
  ASSERT_EQ(openreg_stream_native(0, first, &native), OPENREG_OK);
  EXPECT_EQ(native, nullptr);
  EXPECT_EQ(openreg_stream_query(1, first, &done), OPENREG_E_INVALID);
  toy().fail("device_sync", 1, OPENREG_E_INTERNAL, 0);
  done = -1;
  EXPECT_EQ(openreg_stream_query(0, first, &done), OPENREG_E_INTERNAL);
  EXPECT_EQ(done, -1);
}

TEST_F(StreamTest, NullArguments) {
  use_full_toy();
  EXPECT_EQ(openreg_stream_from_pool(0, 0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_stream_query(0, 0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_stream_priority(0, 0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_stream_native(0, 0, nullptr), OPENREG_E_INVALID);
  openreg_stream stream = 5;
  EXPECT_EQ(openreg_stream_from_pool(2, 0, &stream), OPENREG_E_INVALID);
  EXPECT_EQ(stream, 5);
}

// Threads that take streams of two devices at the same time make each of them once (for TSan).
TEST_F(StreamTest, ThreadsShareThePool) {
  use_full_toy();
  Threads(4, [](int t) {
    for (int i = 0; i < 200; ++i) {
      const int32_t device = (t + i) % 2;
      openreg_stream stream = 0;
      openreg_stream current = 0;
      int32_t done = 0;
      ASSERT_EQ(openreg_stream_from_pool(device, -(i % 3), &stream), OPENREG_OK);
      ASSERT_EQ(openreg_set_current_stream(device, stream), OPENREG_OK);
      ASSERT_EQ(openreg_current_stream(device, &current), OPENREG_OK);
      ASSERT_EQ(current, stream);
      ASSERT_EQ(openreg_stream_query(device, stream, &done), OPENREG_OK);
    }
  }).join();
  EXPECT_EQ(toy().calls("stream_create"), 2 * 3 * 32);
}

// The simulator's streams through the same calls: in order, with native handles of the driver's own.
TEST_F(StreamTest, SimulatorStreams) {
  set("OPENREG_DRIVERS", "sim");
  const openreg_stream stream = from_pool(1, -1);
  EXPECT_EQ(priority_of(1, stream), -1);
  int32_t done = -1;
  EXPECT_EQ(openreg_stream_synchronize(1, stream), OPENREG_OK);
  ASSERT_EQ(openreg_stream_query(1, stream, &done), OPENREG_OK);
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace openreg_test
