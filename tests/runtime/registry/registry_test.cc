// SPDX-License-Identifier: BSD-3-Clause
// Registered drivers, the gate around opening, and failures of each step of it.
#include <atomic>
#include <thread>

#include "../gate.h"
#include "runtime_test.h"

namespace openreg_test {
namespace {

class RegistryTest : public RuntimeTest {};

// The last registration of a name wins; the earlier one is shadowed. The same table again adds nothing.
TEST_F(RegistryTest, LastRegistrationWins) {
  static openreg_driver first = *toy().table();
  static openreg_driver second = *toy().table();
  first.name = second.name = "rival";
  first.version = "first";
  second.version = "second";
  ASSERT_EQ(openreg_driver_register_table(&first), OPENREG_OK);
  ASSERT_EQ(openreg_driver_register_table(&second), OPENREG_OK);
  const int32_t count = openreg_driver_count();
  ASSERT_EQ(openreg_driver_register_table(&second), OPENREG_OK);
  EXPECT_EQ(openreg_driver_count(), count);
  EXPECT_STREQ(record_of("rival").version, "second");
  ASSERT_EQ(openreg_driver_register_table(&first), OPENREG_OK);
  EXPECT_EQ(openreg_driver_count(), count + 1);
  EXPECT_STREQ(record_of("rival").version, "first");
}

// A registered driver is required: if it fails, the simulator does not step in unasked (acceptance 5.50).
TEST_F(RegistryTest, RegisteredDriverIsRequired) {
  use_full_toy();
  unset("OPENREG_DRIVERS");
  // Registered by other tests of this program, too; all of them are the same code.
  toy().fail("open", 1, OPENREG_E_INCOMPATIBLE, FULL_TOY_FOREVER);
  expect_error(openreg_init(), OPENREG_E_INCOMPATIBLE, "openreg_init: Unable to initialize driver '");
  EXPECT_CONTAINS(last_message(),
                  "': open was told to fail (OPENREG_E_INCOMPATIBLE) (you may need to uninstall the "
                  "failing plugin package, or set OPENREG_DRIVERS=sim to skip this driver.)\n");
  EXPECT_EQ(openreg_last_error()->vendor_code, 42);
  set("OPENREG_DRIVERS", "sim");
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

// acceptance 4.4: a hundred counts call the driver once, open nothing and make no context; a change of the environment
// makes it count again.
TEST_F(RegistryTest, CountProbesOnce) {
  use_full_toy();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(toy().calls("describe"), 1);
  EXPECT_EQ(toy().calls("open"), 0);
  EXPECT_EQ(openreg_is_initialized(), 0);
  set("OPENREG_FULL_TOY_DEVICES", "5");
  for (int i = 0; i < 100; ++i) EXPECT_EQ(openreg_device_count(), 5);
  EXPECT_EQ(toy().calls("describe"), 2);
  EXPECT_EQ(toy().calls("open"), 0);
}

// A describe() that says that only open() can tell has not failed: the driver is opened, and its devices count.
TEST_F(RegistryTest, ProbeThatCannotTell) {
  use_full_toy();
  toy().fail("describe", 1, OPENREG_E_UNSUPPORTED, FULL_TOY_FOREVER);
  EXPECT_EQ(openreg_device_count(), 2) << last_message();
  EXPECT_EQ(toy().calls("open"), 1);
  EXPECT_STREQ(openreg_last_error()->message, "");
}

// acceptance 4.3, 5.59: a failing describe() is called once, not a hundred times; the next real use asks again.
TEST_F(RegistryTest, FailedProbeIsRemembered) {
  use_full_toy();
  toy().fail("describe", 1, OPENREG_E_INCOMPATIBLE, FULL_TOY_FOREVER);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_EQ(toy().calls("describe"), 1);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING,
                        "Device initialization: openreg_device_count: Unable to initialize driver 'full_toy'"),
            1);
  EXPECT_CONTAINS(last_message(), "describe was told to fail");
  EXPECT_EQ(record_of("full_toy").state, OPENREG_DRIVER_STATE_FAILED);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_count(), 2);
}

// What open() says counts for more than describe(): a driver that has refused to open has no devices from then on, and the
// count says why in its words, until something has changed or a use has opened it.
TEST_F(RegistryTest, WhatDidNotOpenHasNoDevices) {
  use_full_toy();
  EXPECT_EQ(openreg_device_count(), 2);
  toy().fail("open", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_init(), OPENREG_E_INTERNAL);
  openreg_clear_error();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_CONTAINS(last_message(), "Unable to initialize driver 'full_toy': open was told to fail");
  EXPECT_EQ(record_of("full_toy").state, OPENREG_DRIVER_STATE_FAILED);
  EXPECT_EQ(toy().calls("describe"), 1);
  EXPECT_EQ(toy().calls("open"), 1);
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_count(), 2);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_device_count(), 2);
  toy().fail("open", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_driver_open("full_toy"), OPENREG_E_INTERNAL);  // by whoever wanted to look at it
  EXPECT_EQ(openreg_device_count(), 0);
  set("OPENREG_FULL_TOY_DEVICES", "5");
  EXPECT_EQ(openreg_device_count(), 5);
}

// Options: OPENREG_<NAME>_<KEY>, in lower case, without LIBRARY_PATH, without VISIBLE_DEVICES, which is the runtime's,
// and without those of other drivers.
TEST_F(RegistryTest, OptionsComeFromTheEnvironment) {
  use_full_toy();
  set("OPENREG_FULL_TOY_COLOUR", "red, green=blue");
  set("OPENREG_FULL_TOY_VISIBLE_DEVICES", "1,0");
  set("OPENREG_FULL_TOY_LIBRARY_PATH", "/x");
  set("OPENREG_FULL_TOY_", "empty key");
  set("OPENREG_FULL_TOYS_OTHER", "1");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  char value[64];
  ASSERT_EQ(toy().option("colour", value, sizeof value), 1);
  EXPECT_STREQ(value, "red, green=blue");
  EXPECT_EQ(toy().option("visible_devices", value, sizeof value), 0);
  EXPECT_EQ(toy().option("library_path", value, sizeof value), 0);
  EXPECT_EQ(toy().option("", value, sizeof value), 0);
  EXPECT_EQ(toy().option("other", value, sizeof value), 0);
  EXPECT_EQ(toy().option("memory", value, sizeof value), 0);
}

std::atomic<bool> in_open{false}, may_open{false};
void slow_open() {
  in_open = true;
  while (!may_open) usleep(1000);
  await_sleep(getpid());  // the test's thread, which needs the table meanwhile
}

// While one thread is inside open(), others that need the table wait for it; those that only ask do not.
TEST_F(RegistryTest, OthersWaitForTheFirst) {
  use_full_toy();
  toy().on_open(slow_open);
  in_open = may_open = false;
  std::thread first([] { EXPECT_EQ(openreg_init(), OPENREG_OK); });
  while (!in_open) usleep(1000);
  EXPECT_EQ(openreg_is_initialized(), 0);
  EXPECT_GE(openreg_driver_count(), 4);
  EXPECT_EQ(record_of("full_toy").state, OPENREG_DRIVER_STATE_LOADED);
  may_open = true;
  EXPECT_EQ(openreg_set_device(1), OPENREG_OK) << last_message();
  first.join();
  EXPECT_EQ(toy().calls("open"), 1);
}

// Every step of an initialisation fails in turn: nothing stays open, nothing is published, and the next attempt works.
TEST_F(RegistryTest, EachStepOfInitialisationMayFail) {
  use_full_toy();
  for (const char* slot : {"open", "device_count", "device_info"}) {
    for (int nth = 1; nth <= (std::string(slot) == "device_info" ? 2 : 1); ++nth) {
      SCOPED_TRACE(std::string(slot) + " " + std::to_string(nth));
      toy().fail(slot, nth, OPENREG_E_INTERNAL, 0);
      expect_error(openreg_init(), OPENREG_E_INTERNAL, std::string(slot) + " was told to fail");
      EXPECT_EQ(openreg_is_initialized(), 0);
      EXPECT_EQ(toy().live("instance"), 0);
      EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
    }
  }
}

// In a table of two drivers the failure of the second closes the first.
TEST_F(RegistryTest, FailureOfTheSecondDriverClosesTheFirst) {
  use_full_toy();
  static openreg_driver other = *toy().table();
  other.name = "second";
  ASSERT_EQ(openreg_driver_register_table(&other), OPENREG_OK);
  set("OPENREG_DRIVERS", "full_toy,second");
  toy().fail("open", 2, OPENREG_E_INCOMPATIBLE, 0);
  EXPECT_EQ(openreg_init(), OPENREG_E_INCOMPATIBLE);
  EXPECT_EQ(toy().calls("close"), 1);
  EXPECT_EQ(toy().live("instance"), 0);
  EXPECT_EQ(record_of("full_toy").state, OPENREG_DRIVER_STATE_LOADED);
  EXPECT_EQ(record_of("second").state, OPENREG_DRIVER_STATE_FAILED);
}

// acceptance 5.61: shutdown is refused while something lives, and changes nothing then.
TEST_F(RegistryTest, ShutdownIsRefusedWhileEventsLive) {
  use_full_toy();
  openreg_event event = nullptr;
  ASSERT_EQ(openreg_event_create(1, 0, &event), OPENREG_OK) << last_message();
  expect_error(openreg_shutdown(), OPENREG_E_BUSY, "0 live allocation(s) and 1 live event(s) on driver 'full_toy'");
  EXPECT_EQ(openreg_is_initialized(), 1);
  EXPECT_EQ(openreg_event_record(event, 1, 0), OPENREG_OK);
  EXPECT_EQ(openreg_event_destroy(event), OPENREG_OK);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_is_initialized(), 0);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
}

// The list has a limit, and says so instead of dropping a driver. In a child, because it fills the list.
TEST_F(RegistryTest, FullListIsAnError) {
  EXPECT_TRUE(in_child([] {
    static openreg_driver tables[300];
    static std::string names[300];
    openreg_status status = OPENREG_OK;
    for (int i = 0; i < 300 && status == OPENREG_OK; ++i) {
      names[i] = "filler_" + std::to_string(i);
      tables[i] = *toy().table();
      tables[i].name = names[i].c_str();
      status = openreg_driver_register_table(&tables[i]);
    }
    const bool is_refused = status == OPENREG_E_NOMEM && last_message().find("no room for driver") != std::string::npos;
    setenv("OPENREG_DRIVERS", "sim", 1);
    return is_refused && openreg_init() == OPENREG_OK && openreg_shutdown() == OPENREG_OK;
  }));
}

}  // namespace
}  // namespace openreg_test
