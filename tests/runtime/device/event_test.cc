// SPDX-License-Identifier: BSD-3-Clause
// Events: handles, generations, waits between streams, devices and drivers, and what is emulated.
#include <atomic>
#include <chrono>
#include <thread>

#include "runtime_test.h"

namespace openreg_test {
namespace {

void without_events(openreg_driver& table) {
  table.event_create = nullptr;
  table.event_destroy = nullptr;
  table.event_record = nullptr;
  table.event_query = nullptr;
  table.event_sync = nullptr;
  table.event_elapsed = nullptr;
  table.stream_wait = nullptr;
}

class EventTest : public RuntimeTest {
 protected:
  static int32_t query(openreg_event event) {
    int32_t done = -1;
    EXPECT_EQ(openreg_event_query(event, &done), OPENREG_OK) << last_message();
    return done;
  }
};

// An event is recorded on streams of its own device, the default one of another device is no exception.
TEST_F(EventTest, OtherDevices) {
  const openreg_event event = make_event(1);
  EXPECT_EQ(openreg_event_record(event, 0, OPENREG_STREAM_DEFAULT), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(),
                  "openreg_event_record: an event of openreg:1 can't be recorded on a stream of openreg:0");
  EXPECT_EQ(openreg_event_record(event, 1, OPENREG_STREAM_DEFAULT), OPENREG_OK) << last_message();
}

// An event that was never recorded is complete, and nobody waits for it.
TEST_F(EventTest, NeverRecordedIsComplete) {
  use_full_toy();
  const openreg_event event = make_event(1);
  toy().hold(1);
  EXPECT_EQ(query(event), 1);
  EXPECT_EQ(openreg_event_synchronize(event), OPENREG_OK);
  EXPECT_EQ(openreg_stream_wait_event(0, 0, event), OPENREG_OK);
  int32_t device = -1;
  ASSERT_EQ(openreg_event_device(event, &device), OPENREG_OK);
  EXPECT_EQ(device, 1);
  destroy(event);
  EXPECT_EQ(openreg_event_destroy(nullptr), OPENREG_OK);
}

// Recording again replaces; the first record's end does not complete the second.
TEST_F(EventTest, RecordingAgainReplaces) {
  use_full_toy();
  const openreg_event event = make_event(0);
  const openreg_stream stream = from_pool(0);
  ASSERT_EQ(openreg_event_record(event, 0, stream), OPENREG_OK);
  EXPECT_EQ(query(event), 1);
  toy().hold(1);
  ASSERT_EQ(openreg_event_record(event, 0, OPENREG_STREAM_DEFAULT), OPENREG_OK);
  EXPECT_EQ(query(event), 0);
  std::atomic<bool> passed{false};
  std::thread waiter([&] {
    EXPECT_EQ(openreg_event_synchronize(event), OPENREG_OK);
    passed = true;
  });
  while (toy().calls("event_sync") == 0) usleep(1000);
  EXPECT_FALSE(passed);
  toy().hold(0);
  waiter.join();
  EXPECT_EQ(query(event), 1);
}

// Destroyed events, made-up handles and NULL are refused by every function; a new event never has an old handle.
TEST_F(EventTest, DeadHandlesAreRefused) {
  use_full_toy();
  const openreg_event dead = make_event(0);
  destroy(dead);
  const openreg_event fresh = make_event(0);
  EXPECT_NE(fresh, dead);
  int32_t value = 5;
  int64_t elapsed = 5;
  for (const uintptr_t bits : {reinterpret_cast<uintptr_t>(dead), uintptr_t{0}, uintptr_t{1}, uintptr_t{0xdeadbeef},
                               uintptr_t{1} << 32, (uintptr_t{1} << 32) | 0xffffffff, ~uintptr_t{0},
                               reinterpret_cast<uintptr_t>(&value), (uintptr_t{1} << 32) | 0xf0000}) {
    SCOPED_TRACE(bits);
    const auto bad = reinterpret_cast<openreg_event>(bits);
    expect_error(openreg_event_record(bad, 0, 0), OPENREG_E_INVALID, "not a live event");
    EXPECT_EQ(openreg_event_query(bad, &value), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_event_synchronize(bad), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_event_device(bad, &value), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_event_elapsed(bad, fresh, &elapsed), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_stream_wait_event(0, 0, bad), OPENREG_E_INVALID);
    if (bits != 0) {
      expect_error(openreg_event_destroy(bad), OPENREG_E_INVALID, "openreg_event_destroy: ");
    }
  }
  EXPECT_EQ(value, 5);
  EXPECT_EQ(elapsed, 5);
}

TEST_F(EventTest, ArgumentsAreChecked) {
  use_full_toy();
  openreg_event event = reinterpret_cast<openreg_event>(this);
  EXPECT_EQ(openreg_event_create(2, 0, &event), OPENREG_E_INVALID);
  expect_error(openreg_event_create(0, 2, &event), OPENREG_E_INVALID, "but got 0x2");
  EXPECT_EQ(openreg_event_create(0, 0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(event, reinterpret_cast<openreg_event>(this));
  event = make_event(0, OPENREG_EVENT_TIMING);
  EXPECT_EQ(openreg_event_query(event, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_event_device(event, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_event_elapsed(event, event, nullptr), OPENREG_E_INVALID);
}

// elapsed: both timed, recorded, complete and of one device, else an error that says which condition fails.
TEST_F(EventTest, Elapsed) {
  use_full_toy();
  const openreg_event start = make_event(0, OPENREG_EVENT_TIMING);
  const openreg_event end = make_event(0, OPENREG_EVENT_TIMING);
  const openreg_event untimed = make_event(0);
  const openreg_event elsewhere = make_event(1, OPENREG_EVENT_TIMING);
  int64_t ns = -1;
  expect_error(openreg_event_elapsed(start, end, &ns), OPENREG_E_INVALID, "the start event was never recorded");
  ASSERT_EQ(openreg_event_record(start, 0, 0), OPENREG_OK);
  expect_error(openreg_event_elapsed(start, end, &ns), OPENREG_E_INVALID, "the end event was never recorded");
  expect_error(openreg_event_elapsed(start, untimed, &ns), OPENREG_E_INVALID, "without OPENREG_EVENT_TIMING");
  ASSERT_EQ(openreg_event_record(elsewhere, 1, 0), OPENREG_OK);
  expect_error(openreg_event_elapsed(start, elsewhere, &ns), OPENREG_E_INVALID, "openreg:0 and openreg:1");
  toy().hold(1);
  ASSERT_EQ(openreg_event_record(end, 0, 0), OPENREG_OK);
  expect_error(openreg_event_elapsed(start, end, &ns), OPENREG_E_INVALID, "the end event is not complete yet");
  EXPECT_EQ(ns, -1);
  toy().hold(0);
  ASSERT_EQ(openreg_event_elapsed(start, end, &ns), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().calls("event_elapsed"), 1);
  EXPECT_GT(ns, 0);
  EXPECT_LT(ns, 60000000000);
  const int64_t before = ns;
  toy().fail("event_elapsed", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_event_elapsed(start, end, &ns), OPENREG_E_INTERNAL);
  EXPECT_EQ(ns, before);
}

// A stream of one device waits for an event of another device of the same driver through the driver.
TEST_F(EventTest, StreamWaitsForAnotherDevice) {
  use_full_toy();
  const openreg_event event = make_event(1);
  ASSERT_EQ(openreg_event_record(event, 1, from_pool(1)), OPENREG_OK);
  ASSERT_EQ(openreg_stream_wait_event(0, from_pool(0), event), OPENREG_OK);
  EXPECT_EQ(toy().calls("stream_wait"), 1);
  EXPECT_EQ(toy().calls("event_sync"), 0);
}

// Across drivers the host waits: the call returns only when the event has been passed.
TEST_F(EventTest, WaitAcrossDriversIsOfTheHost) {
  use_full_toy();
  set("OPENREG_DRIVERS", "full_toy,sim");
  const openreg_event event = make_event(0);
  toy().hold(1);
  ASSERT_EQ(openreg_event_record(event, 0, 0), OPENREG_OK);
  std::atomic<bool> passed{false};
  std::thread waiter([&] {
    EXPECT_EQ(openreg_stream_wait_event(2, 0, event), OPENREG_OK) << last_message();
    passed = true;
  });
  while (toy().calls("event_sync") == 0) usleep(1000);
  EXPECT_FALSE(passed);
  toy().hold(0);
  waiter.join();
  EXPECT_EQ(toy().calls("stream_wait"), 0);
  EXPECT_EQ(toy().calls("event_sync"), 1);
}

// A driver with events but without stream_wait: the host waits too.
TEST_F(EventTest, WaitWithoutStreamWait) {
  use_full_toy([](openreg_driver& table) { table.stream_wait = nullptr; });
  const openreg_event event = make_event(0);
  ASSERT_EQ(openreg_event_record(event, 0, 0), OPENREG_OK);
  ASSERT_EQ(openreg_stream_wait_event(0, 0, event), OPENREG_OK);
  EXPECT_EQ(toy().calls("event_sync"), 1);
}

// Every event slot fails in turn: an error with its name, nothing changed, no leak.
TEST_F(EventTest, FailingSlots) {
  use_full_toy();
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  openreg_event event = nullptr;
  toy().fail("event_create", 1, OPENREG_E_NOMEM, 0);
  expect_error(openreg_event_create(0, 0, &event), OPENREG_E_NOMEM, "event_create was told to fail");
  EXPECT_EQ(event, nullptr);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);  // nothing lives

  event = make_event(0);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  int32_t done = -1;
  toy().fail("event_record", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_event_record(event, 0, 0), OPENREG_E_INTERNAL);
  toy().fail("event_query", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_event_query(event, &done), OPENREG_E_INTERNAL);
  EXPECT_EQ(done, -1);
  toy().fail("event_sync", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_event_synchronize(event), OPENREG_E_INTERNAL);
  ASSERT_EQ(openreg_event_record(event, 0, 0), OPENREG_OK);
  toy().fail("stream_wait", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_stream_wait_event(0, 0, event), OPENREG_E_INTERNAL);
  toy().fail("event_destroy", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_event_destroy(event), OPENREG_E_INTERNAL);
  EXPECT_EQ(query(event), 1);  // it lives on
}

// Without a driver's events an emulated one is used, complete once the device was synchronised after its record.
TEST_F(EventTest, MadeUpEvents) {
  use_full_toy(without_events);
  const openreg_event event = make_event(0);
  EXPECT_EQ(query(event), 1);
  EXPECT_EQ(toy().calls("device_sync"), 0);
  ASSERT_EQ(openreg_event_record(event, 0, 0), OPENREG_OK);
  EXPECT_EQ(query(event), 1);
  EXPECT_EQ(toy().calls("device_sync"), 1);
  EXPECT_EQ(query(event), 1);  // known by now
  EXPECT_EQ(openreg_event_synchronize(event), OPENREG_OK);
  EXPECT_EQ(toy().calls("device_sync"), 1);
  ASSERT_EQ(openreg_event_record(event, 0, 0), OPENREG_OK);
  ASSERT_EQ(openreg_device_synchronize(0), OPENREG_OK);  // completes it
  EXPECT_EQ(openreg_event_synchronize(event), OPENREG_OK);
  EXPECT_EQ(toy().calls("device_sync"), 2);
  ASSERT_EQ(openreg_event_record(event, 0, 0), OPENREG_OK);
  ASSERT_EQ(openreg_device_synchronize(1), OPENREG_OK);  // another device: does not
  ASSERT_EQ(openreg_stream_wait_event(1, 0, event), OPENREG_OK);
  EXPECT_EQ(toy().calls("device_sync"), 4);
  // A synchronisation that fails completes nothing.
  ASSERT_EQ(openreg_event_record(event, 0, 0), OPENREG_OK);
  toy().fail("device_sync", 1, OPENREG_E_INTERNAL, 0);
  int32_t done = -1;
  EXPECT_EQ(openreg_event_query(event, &done), OPENREG_E_INTERNAL);
  EXPECT_EQ(done, -1);
  EXPECT_EQ(query(event), 1);
  EXPECT_EQ(toy().calls("device_sync"), 6);
}

// A synchronisation that had begun before the record does not complete it, even if it ends after it.
TEST_F(EventTest, MadeUpEventNeedsALaterSynchronisation) {
  use_full_toy(without_events);
  const openreg_event event = make_event(0);
  const char bytes[8] = "1234567";
  void* const memory = allocate(0, sizeof bytes);
  toy().hold(1);
  ASSERT_EQ(openreg_memcpy_async(0, 0, memory, 0, bytes, OPENREG_HOST, sizeof bytes), OPENREG_OK) << last_message();
  std::thread early([] { EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK); });
  while (toy().calls("device_sync") == 0) usleep(1000);
  ASSERT_EQ(openreg_event_record(event, 0, 0), OPENREG_OK);
  toy().hold(0);
  early.join();
  EXPECT_EQ(query(event), 1);
  EXPECT_EQ(toy().calls("device_sync"), 2);
}

// Elapsed time by the host's clock, for drivers without events and for those that cannot measure.
TEST_F(EventTest, MadeUpElapsed) {
  for (const bool has_events : {false, true}) {
    SCOPED_TRACE(has_events);
    use_full_toy([&](openreg_driver& table) {
      if (has_events) {
        table.event_elapsed = nullptr;
      } else {
        without_events(table);
      }
    });
    const openreg_event start = make_event(0, OPENREG_EVENT_TIMING);
    const openreg_event end = make_event(0, OPENREG_EVENT_TIMING);
    int64_t ns = -1;
    const auto before = std::chrono::steady_clock::now();
    ASSERT_EQ(openreg_event_record(start, 0, 0), OPENREG_OK);
    usleep(20000);
    ASSERT_EQ(openreg_event_record(end, 0, 0), OPENREG_OK);
    ASSERT_EQ(openreg_event_elapsed(start, end, &ns), OPENREG_OK) << last_message();
    EXPECT_GE(ns, 20000000);
    EXPECT_LE(ns, (std::chrono::nanoseconds(std::chrono::steady_clock::now() - before).count()));
    ASSERT_EQ(openreg_event_elapsed(end, start, &ns), OPENREG_OK);
    EXPECT_LE(ns, -20000000);
    EXPECT_EQ(openreg_stream_wait_event(1, 0, start), OPENREG_OK);
    destroy(start);
    destroy(end);
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  }
}

openreg_status null_event(openreg_instance, int32_t, uint32_t, openreg_driver_event* out) {
  *out = nullptr;
  return OPENREG_OK;
}

TEST_F(EventTest, DriverGivesNoEvent) {
  use_full_toy([](openreg_driver& table) { table.event_create = null_event; });
  openreg_event event = nullptr;
  expect_error(openreg_event_create(0, 0, &event), OPENREG_E_INTERNAL, "returned OK without an event");
}

// More events than one chunk of slots, all distinct, all destroyed, and their slots used again.
TEST_F(EventTest, ManyEvents) {
  use_full_toy();
  for (int round = 0; round < 2; ++round) {
    std::vector<openreg_event> events;
    for (int i = 0; i < 700; ++i) events.push_back(make_event(i % 2));
    for (int i = 0; i < 700; ++i) EXPECT_EQ(openreg_event_record(events[i], i % 2, 0), OPENREG_OK);
    for (const openreg_event event : events) destroy(event);
    for (const openreg_event event : events) EXPECT_EQ(openreg_event_destroy(event), OPENREG_E_INVALID);
  }
}

// A process has room for 1,048,576 at a time. The one beyond is refused by that number, and works once another has
// gone.
TEST_F(EventTest, TheLimitIsNamed) {
  use_full_toy(without_events);
  std::vector<openreg_event> events(1048576);
  int failures = 0;
  for (openreg_event& event : events) failures += openreg_event_create(0, 0, &event) != OPENREG_OK;
  ASSERT_EQ(failures, 0) << last_message();
  openreg_event beyond = nullptr;
  EXPECT_EQ(openreg_event_create(0, 0, &beyond), OPENREG_E_NOMEM);
  EXPECT_EQ(last_message(), "openreg_event_create: too many live events (limit 1048576)");
  EXPECT_EQ(beyond, nullptr);
  EXPECT_EQ(openreg_event_destroy(events.back()), OPENREG_OK);
  EXPECT_EQ(openreg_event_create(0, 0, &events.back()), OPENREG_OK) << last_message();
  for (openreg_event event : events) failures += openreg_event_destroy(event) != OPENREG_OK;
  EXPECT_EQ(failures, 0);
}

// Threads record, query, wait for and synchronise shared events on two devices at once (for TSan).
TEST_F(EventTest, ThreadsShareEvents) {
  for (const bool has_events : {true, false}) {
    use_full_toy([&](openreg_driver& table) {
      if (!has_events) without_events(table);
    });
    const openreg_event events[2] = {make_event(0), make_event(1)};
    Threads(4, [&events](int t) {
      for (int i = 0; i < 100; ++i) {
        int32_t done;
        ASSERT_EQ(openreg_event_record(events[i % 2], i % 2, 0), OPENREG_OK);
        ASSERT_EQ(openreg_event_query(events[t % 2], &done), OPENREG_OK);
        ASSERT_EQ(openreg_stream_wait_event(i % 2, 0, events[(i + 1) % 2]), OPENREG_OK);
        ASSERT_EQ(openreg_event_synchronize(events[t / 2]), OPENREG_OK);
        openreg_event mine;
        ASSERT_EQ(openreg_event_create(t % 2, 0, &mine), OPENREG_OK);
        ASSERT_EQ(openreg_event_destroy(mine), OPENREG_OK);
      }
    }).join();
    destroy(events[0]);
    destroy(events[1]);
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  }
}

// The simulator's events through the same calls.
TEST_F(EventTest, SimulatorEvents) {
  set("OPENREG_DRIVERS", "sim");
  const openreg_stream first = from_pool(0);
  const openreg_stream second = from_pool(1);
  const openreg_event start = make_event(0, OPENREG_EVENT_TIMING);
  const openreg_event end = make_event(0, OPENREG_EVENT_TIMING);
  ASSERT_EQ(openreg_event_record(start, 0, first), OPENREG_OK);
  ASSERT_EQ(openreg_stream_wait_event(1, second, start), OPENREG_OK);
  ASSERT_EQ(openreg_event_record(end, 0, first), OPENREG_OK);
  ASSERT_EQ(openreg_event_synchronize(end), OPENREG_OK);
  EXPECT_EQ(query(start), 1);
  int64_t ns = -1;
  ASSERT_EQ(openreg_event_elapsed(start, end, &ns), OPENREG_OK) << last_message();
  EXPECT_GE(ns, 0);
  EXPECT_EQ(openreg_event_record(start, 0, second), OPENREG_E_INVALID);
}

}  // namespace
}  // namespace openreg_test
