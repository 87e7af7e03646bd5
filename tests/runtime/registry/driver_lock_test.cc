// SPDX-License-Identifier: BSD-3-Clause
// The one thread at a time that opens drivers; hooks around waiting, discovery before it, many threads at once.
#include <atomic>
#include <thread>

#include "runtime_test.h"

namespace openreg_test {
namespace {

std::atomic<int> before_calls{0}, after_calls{0}, wrong_tokens{0};
thread_local int depth = 0;

// Stands for a language's lock: it may be let go of and taken while no lock of the runtime is held, so the hooks call
// functions that need one.
void* let_go() {
  ++before_calls;
  ++depth;
  auto record = sized<openreg_driver_record>();
  (void)openreg_driver_get_record(0, &record);
  return &depth;
}
void take(void* token) {
  ++after_calls;
  wrong_tokens += token != &depth || --depth != 0;
  auto record = sized<openreg_driver_record>();
  (void)openreg_driver_get_record(0, &record);
}

class DriverLockTest : public ToysTest {
 protected:
  void SetUp() override {
    ToysTest::SetUp();
    before_calls = after_calls = wrong_tokens = 0;
  }
  void TearDown() override {
    openreg_set_blocking_hooks(nullptr, nullptr);
    openreg_set_discovery_callback(nullptr, nullptr);
    ToysTest::TearDown();
  }
};

std::atomic<int> depth_in_open{-1};
void note_depth() { depth_in_open = depth; }

// The hooks come in pairs, around the whole time in which foreign code runs, also where that fails or is refused.
TEST_F(DriverLockTest, HooksComeInPairs) {
  ASSERT_EQ(add({"hooked", 5}), OPENREG_OK);
  openreg_set_blocking_hooks(let_go, take);
  toy().on_open(note_depth);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(depth_in_open, 1);
  EXPECT_GT(before_calls, 0);
  EXPECT_EQ(before_calls, after_calls);
  const int once = before_calls;
  ASSERT_EQ(openreg_init(), OPENREG_OK);  // nothing to wait for
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(before_calls, once);
  EXPECT_EQ(openreg_drivers_use("nobody"), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_GT(before_calls, once);
  EXPECT_EQ(before_calls, after_calls);
  EXPECT_EQ(wrong_tokens, 0);
}

void change_hooks() { openreg_set_blocking_hooks(nullptr, nullptr); }

// Hooks that change meanwhile: what was begun is ended by its own half.
TEST_F(DriverLockTest, HooksMayChangeInside) {
  ASSERT_EQ(add({"hooked", 5}), OPENREG_OK);
  openreg_set_blocking_hooks(let_go, take);
  toy().on_open(change_hooks);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(before_calls, 1);
  EXPECT_EQ(after_calls, 1);
}

openreg_status inside[10];
int32_t devices_inside = -1, drivers_inside = -1, current_inside = -1;
void call_everything() {
  int32_t count = 0;
  inside[0] = openreg_driver_open("sim");
  inside[1] = openreg_drivers_open_all();
  inside[2] = openreg_drivers_reselect();
  inside[3] = openreg_drivers_use("sim");
  inside[4] = openreg_shutdown();
  inside[5] = openreg_driver_get_topology("sim", nullptr, nullptr, 0, 0, nullptr, nullptr, &count);
  static openreg_driver table = *toy().table();
  table.name = "from_open";
  inside[6] = openreg_driver_register_table(&table);
  inside[7] = openreg_driver_load("x", "/x.so");
  inside[8] = openreg_init();
  inside[9] = openreg_set_device(0);
  devices_inside = openreg_device_count();
  drivers_inside = openreg_driver_count();
  current_inside = openreg_current_device();
}

// From inside a driver everything that would need the gate is refused, instead of a deadlock; what needs no driver works.
TEST_F(DriverLockTest, EverythingIsRefusedInside) {
  ASSERT_EQ(add({"caller", 5}), OPENREG_OK);
  openreg_set_blocking_hooks(let_go, take);
  toy().on_open(call_everything);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  for (const openreg_status status : inside) EXPECT_EQ(status, OPENREG_E_BUSY);
  EXPECT_EQ(devices_inside, 0);
  EXPECT_GE(drivers_inside, 4);
  EXPECT_EQ(current_inside, 0);
  EXPECT_EQ(record_of("from_open").state, -1);
  EXPECT_EQ(before_calls, after_calls);
}

std::atomic<int> discoveries{0};
int depth_in_discovery = -1;
void discover(void* context) {
  ++discoveries;
  depth_in_discovery = depth;
  (void)openreg_driver_count();  // does not recur
  auto registration = sized<openreg_registration>();
  registration.name = static_cast<const char*>(context);
  registration.table = toy().table();
  registration.priority = 7;
  EXPECT_EQ(openreg_driver_register(&registration), OPENREG_OK) << last_message();
}

// acceptance 5.51: found before the drivers are looked at, with no lock and outside the hooks; not in a call that needs
// no list.
TEST_F(DriverLockTest, Discovery) {
  static char name[] = "discovered";
  will_register(name);
  openreg_set_discovery_callback(discover, name);
  openreg_set_blocking_hooks(let_go, take);
  EXPECT_EQ(discoveries, 0);
  char canonical[32];
  EXPECT_EQ(openreg_driver_canonical_name("x", canonical), OPENREG_OK);
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_NONE);
  EXPECT_EQ(discoveries, 0);
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(discoveries, 1);
  EXPECT_EQ(depth_in_discovery, 0);
  EXPECT_EQ(toy().calls("describe"), 1);
  EXPECT_GE(openreg_driver_count(), 4);
  EXPECT_EQ(discoveries, 2);
  expect_drivers("discovered*2");
  EXPECT_EQ(discoveries, 3);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(discoveries, 3);
  openreg_set_discovery_callback(nullptr, nullptr);
}

// acceptance 5.20: sixteen threads ask for all drivers at once; each is opened once, all see one table.
TEST_F(DriverLockTest, EachDriverIsOpenedOnce) {
  for (const char* name : {"a", "b", "c"}) ASSERT_EQ(add({name, 5}), OPENREG_OK);
  openreg_set_blocking_hooks(let_go, take);
  std::atomic<uint32_t> generations[16];
  Threads(16, [&generations](int i) {
    EXPECT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
    generations[i] = selection().generation;
  }).join();
  EXPECT_EQ(toy().calls("open"), 3);
  for (int i = 1; i < 16; ++i) EXPECT_EQ(generations[i], generations[0]);
  EXPECT_EQ(before_calls, after_calls);
  EXPECT_EQ(wrong_tokens, 0);
}

// acceptance 5.25: registrations, records, choices and questions of sixteen threads at once (for TSan).
TEST_F(DriverLockTest, EverythingAtOnce) {
  set("OPENREG_LOG_LEVEL", "error");
  static openreg_driver tables[2];
  static const char* const names[] = {"r0", "r1"};
  for (const char* name : names) will_register(name);
  Threads(16, [](int i) {
    for (int k = 0; k < 15; ++k) {
      switch (i % 8) {
        case 0: {
          openreg_driver table = *toy().table();
          table.name = names[i / 8];
          tables[i / 8] = table;
          auto registration = sized<openreg_registration>();
          registration.table = &tables[i / 8];
          registration.priority = -10 - k;
          const openreg_status status = openreg_driver_register(&registration);
          EXPECT_TRUE(status == OPENREG_OK || status == OPENREG_E_BUSY) << last_message();
          break;
        }
        case 1:
          EXPECT_EQ(k % 2 == 0 ? openreg_drivers_open_all() : openreg_init(), OPENREG_OK) << last_message();
          break;
        case 2:
          EXPECT_NE(record_of("sim").state, -1);
          (void)openreg_current_device();
          (void)openreg_is_initialized();
          break;
        case 3:
          EXPECT_EQ(openreg_driver_prefer(k % 2 == 0 ? "sim" : ""), OPENREG_OK);
          break;
        case 4:
          EXPECT_GE(selection().live_objects, 0);
          break;
        case 5:
          EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
          break;
        case 6:
          openreg_drivers_forget_failures();
          EXPECT_EQ(openreg_device_count(), 2);
          break;
        default: {
          auto properties = sized<openreg_device_properties>();
          const openreg_status status = openreg_driver_get_device_properties("sim", 0, &properties);
          EXPECT_TRUE(status == OPENREG_OK || status == OPENREG_E_INVALID) << last_message();
        }
      }
    }
  }).join();
}

// A driver that is being opened or closed is open with its table or not open: its devices are never asked for in between.
TEST_F(DriverLockTest, NeverOpenWithoutItsTable) {
  set("OPENREG_LOG_LEVEL", "error");
  std::atomic<bool> ended{false};
  std::atomic<int> answered{0}, halves{0};
  Threads threads(3, [&] {
    while (!ended) {
      auto properties = sized<openreg_device_properties>();
      const openreg_status status = openreg_driver_get_device_properties("sim", 0, &properties);
      answered += status == OPENREG_OK;
      halves += status != OPENREG_OK && status != OPENREG_E_INVALID;
    }
  });
  for (int round = 0; round < 300 || (answered == 0 && round < 1000000); ++round) {
    EXPECT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  }
  ended = true;
  threads.join();
  EXPECT_GT(answered, 0);
  EXPECT_EQ(halves, 0);
}

}  // namespace
}  // namespace openreg_test
