// SPDX-License-Identifier: BSD-3-Clause
// openreg_drivers_use(), openreg_drivers_reselect(), openreg_driver_open(), openreg_drivers_open_all(): several drivers open at once, what
// is chosen by which rule, and what stays when something fails.
#include <set>
#include <utility>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class ChoosingTest : public ToysTest {
 protected:
  static void* allocate() { return openreg_test::allocate(0, 64); }
  static openreg_status device(const char* driver, int32_t i, std::string* name) {
    auto properties = sized<openreg_device_properties>();
    const openreg_status status = openreg_driver_get_device_properties(driver, i, &properties);
    *name = properties.name;
    return status;
  }
};

// The call beats the variable, the variable the priority; taken back, the next rule counts.
TEST_F(ChoosingTest, Precedence) {
  set("OPENREG_USE_MOCK_GPU", "cuda,hip");
  expect_drivers("cuda*1");
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_AUTOMATICALLY);
  set("OPENREG_DRIVERS", "hip,sim");
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "hip*1 sim*2");
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_ENVIRONMENT);
  ASSERT_EQ(openreg_drivers_use(" SIM, sim , cuda"), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "sim*2 cuda*1");
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_CALL);
  EXPECT_STREQ(selection().default_driver, "sim");
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK);
  EXPECT_EQ(active(), "sim*2 cuda*1");
  ASSERT_EQ(openreg_drivers_use(", "), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "hip*1 sim*2");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_NONE);
  EXPECT_EQ(selection().generation, 0u);
  EXPECT_STREQ(selection().default_driver, "");
}

// A choice that a call made counts before there is a table, too, and a shutdown takes it back.
TEST_F(ChoosingTest, CallBeforeAndAfterTheTable) {
  ASSERT_EQ(add({"third", 5, 0, {{"devices", "3"}}}), OPENREG_OK);
  ASSERT_EQ(openreg_drivers_use("sim"), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_count(), 2);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_device_count(), 3);
  ASSERT_EQ(openreg_drivers_use(nullptr), OPENREG_OK);
  EXPECT_EQ(openreg_is_initialized(), 0);
}

// Drivers that are no longer active stay open and can be asked; nothing is opened twice, and a table of the same
// drivers is the same table. acceptance 5.15, 2.3
TEST_F(ChoosingTest, IdleDriversStayOpen) {
  ASSERT_EQ(add({"one", 5}), OPENREG_OK);
  ASSERT_EQ(add({"two", 4}), OPENREG_OK);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  const uint32_t first = selection().generation;
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK);
  EXPECT_EQ(selection().generation, first);
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
  ASSERT_EQ(openreg_drivers_use("two"), OPENREG_OK) << last_message();
  EXPECT_NE(selection().generation, first);
  EXPECT_EQ(openreg_current_device(), 0);
  EXPECT_EQ(record_of("one").state, OPENREG_DRIVER_STATE_OPEN);
  EXPECT_EQ(record_of("one").first_device, -1);
  EXPECT_FALSE(has_flag("one", OPENREG_DRIVER_FLAG_ACTIVE));
  EXPECT_TRUE(has_flag("two", OPENREG_DRIVER_FLAG_ACTIVE));
  std::string name;
  EXPECT_EQ(device("one", 1, &name), OPENREG_OK) << last_message();
  EXPECT_EQ(name, "Full toy 1");
  ASSERT_EQ(openreg_drivers_use("two,one"), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "two*2 one*2");
  EXPECT_EQ(record_of("one").first_device, 2);
  EXPECT_EQ(toy().calls("open"), 2);
  EXPECT_EQ(toy().calls("close"), 0);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(toy().calls("close"), 2);
  EXPECT_EQ(record_of("one").state, OPENREG_DRIVER_STATE_LOADED);
}

// Idle drivers count for the risk of a fork.
TEST_F(ChoosingTest, IdleDriversAndFork) {
  ASSERT_EQ(openreg_driver_open("sim"), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_is_initialized(), 0);
  EXPECT_TRUE(in_child([] {
    auto properties = sized<openreg_device_properties>();
    auto now = sized<openreg_selection>();
    openreg_drivers_forget_failures();
    return openreg_in_bad_fork() == 1 && openreg_driver_open("sim") == OPENREG_E_FORKED &&
           openreg_drivers_open_all() == OPENREG_E_FORKED && openreg_drivers_reselect() == OPENREG_E_FORKED &&
           openreg_drivers_use("sim") == OPENREG_E_FORKED &&
           openreg_driver_get_device_properties("sim", 0, &properties) == OPENREG_E_FORKED &&
           openreg_selection_get(&now) == OPENREG_OK && now.chosen_by == OPENREG_CHOSEN_NONE;
  }));
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_TRUE(in_child([] { return openreg_in_bad_fork() == 0 && openreg_init() == OPENREG_OK; }));
}

// All or nothing: on failure the drivers before stay active, and what was opened in vain is closed. acceptance 5.57
TEST_F(ChoosingTest, FailedCallChangesNothing) {
  ASSERT_EQ(add({"good", 5}), OPENREG_OK);
  ASSERT_EQ(add({"bad", 4, 0, {{"fail", "open:1"}}}), OPENREG_OK);
  ASSERT_EQ(openreg_drivers_use("sim"), OPENREG_OK) << last_message();
  const uint32_t generation = selection().generation;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(openreg_drivers_use("good,bad"), OPENREG_E_INTERNAL);
    EXPECT_CONTAINS(last_message(), "openreg_drivers_use: Unable to initialize driver 'bad': open was told to fail");
    EXPECT_CONTAINS(last_message(), "(name other drivers, or none to automatically choose an available driver)");
    EXPECT_EQ(active(), "sim*2");
    EXPECT_EQ(selection().generation, generation);
    EXPECT_NE(record_of("good").state, OPENREG_DRIVER_STATE_OPEN);
  }
  EXPECT_EQ(toy().calls("open"), 4);  // required: tried again each time
  EXPECT_EQ(openreg_drivers_use("nobody"), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "Driver 'nobody' is not in the list of known drivers: ['");
  EXPECT_EQ(active(), "sim*2");
  // A reselection that fails leaves the table, too.
  ASSERT_EQ(openreg_drivers_use(nullptr), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "good*2");
  set("OPENREG_DRIVERS", "bad");
  EXPECT_EQ(openreg_drivers_reselect(), OPENREG_E_INTERNAL);
  EXPECT_EQ(active(), "good*2");
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_AUTOMATICALLY);
  // So does taking a choice back, if nothing else works.
  unset("OPENREG_DRIVERS");
  ASSERT_EQ(openreg_drivers_use("sim"), OPENREG_OK);
  set("OPENREG_DRIVERS", "bad");
  EXPECT_EQ(openreg_drivers_use(nullptr), OPENREG_E_INTERNAL);
  EXPECT_EQ(active(), "sim*2");
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_CALL);
}

// A table in use stays; the same drivers may be asked for, others not.
TEST_F(ChoosingTest, PinnedTableStays) {
  ASSERT_EQ(add({"other", 5}), OPENREG_OK);
  set("OPENREG_USE_MOCK_GPU", "hip");
  ASSERT_EQ(openreg_drivers_use("hip,sim"), OPENREG_OK) << last_message();
  const uint32_t generation = selection().generation;
  void* memory = allocate();
  EXPECT_EQ(selection().live_objects, 1);
  EXPECT_EQ(openreg_drivers_use("other"), OPENREG_E_BUSY);
  EXPECT_EQ(last_message(), "openreg_drivers_use: 1 live allocation(s) on driver 'hip'; free them first");
  for (const char* list : {"hip", "sim,hip", "hip,sim,other", "no name"}) {
    EXPECT_EQ(openreg_drivers_use(list), OPENREG_E_BUSY) << list;
  }
  EXPECT_EQ(toy().calls("open"), 0);
  for (const char* list : {"hip,sim", "gpu, SIM", "rocm,sim,hip"}) {
    EXPECT_EQ(openreg_drivers_use(list), OPENREG_OK) << list << ": " << last_message();
  }
  set("OPENREG_DRIVERS", "other");
  EXPECT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_drivers_use(nullptr), OPENREG_OK) << last_message();
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_CALL);
  ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  EXPECT_EQ(selection().generation, generation);
  EXPECT_EQ(openreg_shutdown(), OPENREG_E_BUSY);
  // acceptance 5.61
  EXPECT_EQ(last_message(), "openreg_shutdown: 1 live allocation(s) on driver 'hip'; free them first");
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
  EXPECT_EQ(selection().live_objects, 0);
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "other*2");
}

// Asked for by name twice, the list that stands is told apart from others by rule alone.
TEST_F(ChoosingTest, SameDriversByAnotherRule) {
  set("OPENREG_DRIVERS", "sim");
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  const uint32_t generation = selection().generation;
  void* memory = allocate();
  ASSERT_EQ(openreg_drivers_use("sim"), OPENREG_OK) << last_message();
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_CALL);
  EXPECT_EQ(selection().generation, generation);
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
  EXPECT_EQ(openreg_selection_get(nullptr), OPENREG_E_INVALID);
}

// acceptance 5.57: a group in a list needs one member that works; the failures of the others are remembered.
TEST_F(ChoosingTest, GroupInAList) {
  set("OPENREG_DRIVERS", "gpu");
  EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_EQ(openreg_init(), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(last_message(), "openreg_init: Unable to initialize driver 'gpu': cuda: cannot load ");
  EXPECT_CONTAINS(last_message(), "; hip: cannot load ");
  EXPECT_CONTAINS(last_message(), "(set OPENREG_DRIVERS='' to automatically choose an available driver)");
  EXPECT_CONTAINS(last_message(), "other drivers: ");
  set("OPENREG_USE_MOCK_GPU", "hip");
  EXPECT_EQ(openreg_device_count(), 1);
  expect_drivers("hip*1");
  EXPECT_EQ(record_of("cuda").state, OPENREG_DRIVER_STATE_FAILED);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_USE_MOCK_GPU", "gpu");
  set("OPENREG_DRIVERS", "gpu,cuda,rocm,gpu,sim");
  expect_drivers("cuda*1 hip*1 sim*2");
}

// acceptance 5.56: listed drivers alone are opened, in that order.
TEST_F(ChoosingTest, OpenAllOfAList) {
  set("OPENREG_USE_MOCK_GPU", "cuda,hip");
  set("OPENREG_DRIVERS", "sim,cuda");
  ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "sim*2 cuda*1");
  EXPECT_STREQ(selection().default_driver, "sim");
  EXPECT_NE(record_of("hip").state, OPENREG_DRIVER_STATE_OPEN);
}

// acceptance 5.27: the simulator's failure is an error where all drivers are opened.
TEST_F(ChoosingTest, SimulatorWithoutDevices) {
  set("OPENREG_USE_MOCK_GPU", "cuda");
  set("OPENREG_SIM_DEVICES", "0");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(openreg_drivers_open_all(), OPENREG_E_NO_DEVICE);
    EXPECT_CONTAINS(last_message(),
                    "openreg_drivers_open_all: Unable to initialize driver 'sim': Driver 'sim' provides no "
                    "devices. (");
    EXPECT_EQ(openreg_is_initialized(), 0);
    EXPECT_NE(record_of("cuda").state, OPENREG_DRIVER_STATE_OPEN);
  }
  unset("OPENREG_USE_MOCK_GPU");
  expect_error(openreg_init(), OPENREG_E_NO_DEVICE, "Driver 'sim' provides no devices.");
  EXPECT_EQ(openreg_device_count(), 0);
}

// acceptance 5.57: the failure of a required driver rolls back what the call opened, and is raised again; what was open before stays.
TEST_F(ChoosingTest, OpenAllIsAllOrNothing) {
  ASSERT_EQ(add({"before", 7}), OPENREG_OK);
  ASSERT_EQ(add({"first", 6}), OPENREG_OK);
  ASSERT_EQ(add({"boom", 5, OPENREG_REGISTER_REQUIRED, {{"fail", "open:1"}}}), OPENREG_OK);
  ASSERT_EQ(openreg_driver_open("before"), OPENREG_OK) << last_message();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(openreg_drivers_open_all(), OPENREG_E_INTERNAL);
    // acceptance 5.55
    EXPECT_CONTAINS(last_message(),
                    "openreg_drivers_open_all: Unable to initialize driver 'boom': open was told to fail "
                    "(OPENREG_E_INTERNAL) (you may need to uninstall the failing plugin package, or "
                    "set OPENREG_DRIVERS=sim to skip this driver.)\n");
    EXPECT_EQ(openreg_is_initialized(), 0);
    EXPECT_NE(record_of("first").state, OPENREG_DRIVER_STATE_OPEN);
    EXPECT_EQ(record_of("before").state, OPENREG_DRIVER_STATE_OPEN);
  }
  EXPECT_STREQ(record_of("boom").message, "open was told to fail (OPENREG_E_INTERNAL)");
  set("OPENREG_DRIVERS", "sim,boom");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(openreg_drivers_open_all(), OPENREG_E_INTERNAL);
  // A good one of higher priority is chosen without a look at it.
  unset("OPENREG_DRIVERS");
  expect_drivers("before*2");
}

// acceptance 5.59: a quiet failure is remembered, logged once and not tried again, until something changes.
TEST_F(ChoosingTest, QuietFailureIsRemembered) {
  ASSERT_EQ(add({"quiet", 5, 0, {{"fail", "open:1"}}}), OPENREG_OK);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  EXPECT_EQ(active(), "sim*2");
  EXPECT_EQ(toy().calls("open"), 1);
  EXPECT_EQ(count_lines(OPENREG_LOG_INFO, "driver \"quiet\" (registered) is not used: open was told to fail"), 1);
  EXPECT_STREQ(record_of("quiet").message, "open was told to fail (OPENREG_E_INTERNAL)");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(openreg_driver_open("quiet"), OPENREG_E_INTERNAL);
    EXPECT_EQ(last_message(),
              "openreg_driver_open: Unable to initialize driver 'quiet': open was told to fail "
              "(OPENREG_E_INTERNAL)");
    EXPECT_STREQ(openreg_last_error()->driver, "quiet");
    EXPECT_EQ(openreg_last_error()->vendor_code, 42);
  }
  EXPECT_EQ(toy().calls("open"), 1);
  openreg_drivers_forget_failures();
  EXPECT_EQ(record_of("quiet").state, OPENREG_DRIVER_STATE_LOADED);
  EXPECT_STREQ(record_of("quiet").message, "");
  EXPECT_EQ(record_of("sim").state, OPENREG_DRIVER_STATE_OPEN);
  set("OPENREG_QUIET_FAIL", "none");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_driver_open("quiet"), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_QUIET_FAIL", "open:1");
  EXPECT_EQ(openreg_driver_open("quiet"), OPENREG_E_INTERNAL);
  set("OPENREG_QUIET_FAIL", "none");  // the variables have changed
  EXPECT_EQ(openreg_driver_open("quiet"), OPENREG_OK) << last_message();
}

// A driver is opened to be asked, and not used. acceptance 2.18
TEST_F(ChoosingTest, OpenDriver) {
  ASSERT_EQ(add({"asked", 5, 0, {{"devices", "3"}, {"visible_devices", "2,0"}}}), OPENREG_OK);
  std::string name;
  EXPECT_EQ(device("asked", 0, &name), OPENREG_E_INVALID);
  EXPECT_EQ(last_message(), "openreg_driver_get_device_properties: driver 'asked' is not open");
  for (int i = 0; i < 2; ++i) ASSERT_EQ(openreg_driver_open(" Asked"), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().calls("open"), 1);
  EXPECT_EQ(openreg_is_initialized(), 0);
  EXPECT_NE(record_of("sim").state, OPENREG_DRIVER_STATE_OPEN);
  ASSERT_EQ(device("asked", 0, &name), OPENREG_OK);
  EXPECT_EQ(name, "Full toy 2");
  EXPECT_EQ(device("asked", 2, &name), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "It must be in [0, 2), but got 2.");
  EXPECT_EQ(device("asked", -1, &name), OPENREG_E_INVALID);
  EXPECT_EQ(device("no name", 0, &name), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_get_device_properties("asked", 0, nullptr), OPENREG_E_INVALID);
  openreg_device_properties unsized{};
  EXPECT_EQ(openreg_driver_get_device_properties("asked", 0, &unsized), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_open("nobody"), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "openreg_driver_open: Driver 'nobody' is not in the list of known drivers: [");
  EXPECT_EQ(openreg_driver_open("no name"), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_open(nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_open("cuda"), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(last_message(), "Unable to initialize driver 'cuda': the library is not there");
  // It is counted as it is, and its devices are used later without opening it again.
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(toy().calls("describe"), 0);
  expect_drivers("asked*2");
  EXPECT_EQ(toy().calls("open"), 1);
}

// The generation is one number that every cache can compare itself with: of this table, 0 without one, and never that of an
// earlier table. acceptance 5.44
TEST_F(ChoosingTest, GenerationOfTheTable) {
  EXPECT_EQ(openreg_generation(), 0u);
  ASSERT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(openreg_generation(), 0u);
  ASSERT_EQ(add({"other", -1}), OPENREG_OK);
  std::set<uint32_t> seen{0};
  for (const char* names : {"sim", "other", "sim", "sim,other"}) {
    ASSERT_EQ(openreg_drivers_use(names), OPENREG_OK) << last_message();
    EXPECT_TRUE(seen.insert(openreg_generation()).second) << names;
    EXPECT_EQ(openreg_generation(), selection().generation);
    EXPECT_EQ(openreg_is_initialized(), 1);
    ASSERT_EQ(openreg_drivers_use(names), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_generation(), *seen.rbegin()) << "the same drivers are the same table";
  }
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_generation(), 0u);
  EXPECT_EQ(openreg_is_initialized(), 0);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_TRUE(seen.insert(openreg_generation()).second);
}

// What somebody kept of a choice is to be asked again after these calls, and after no others.
TEST_F(ChoosingTest, RequestsToChooseAgain) {
  uint32_t before = selection().requests;
  const auto has_changed = [&before] {
    const uint32_t now = selection().requests;
    return std::exchange(before, now) != now;
  };
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  ASSERT_EQ(add({"other", 5}), OPENREG_OK);
  ASSERT_EQ(openreg_driver_prefer("other"), OPENREG_OK);
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
  EXPECT_FALSE(has_changed());
  ASSERT_EQ(openreg_drivers_use("sim"), OPENREG_OK) << last_message();
  EXPECT_TRUE(has_changed());
  EXPECT_NE(openreg_drivers_use("nobody"), OPENREG_OK);
  EXPECT_FALSE(has_changed());
  openreg_drivers_forget_failures();
  EXPECT_TRUE(has_changed());
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_TRUE(has_changed());
}

// A GPU is chosen if one works; `sim` alone is not opened for it, unless it was asked for. acceptance 1.20
TEST_F(ChoosingTest, SelectGpu) {
  int32_t found = -1;
  EXPECT_EQ(openreg_select_gpu(nullptr), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_select_gpu(&found), OPENREG_OK) << last_message();
  EXPECT_EQ(found, 0);
  EXPECT_EQ(openreg_is_initialized(), 0);
  EXPECT_NE(record_of("sim").state, OPENREG_DRIVER_STATE_OPEN);

  ASSERT_EQ(openreg_drivers_use("sim"), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_select_gpu(&found), OPENREG_OK) << last_message();
  EXPECT_EQ(found, 1);
  EXPECT_EQ(active(), "sim*2");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);

  set("OPENREG_USE_MOCK_GPU", "hip");
  ASSERT_EQ(openreg_drivers_use(nullptr), OPENREG_OK);
  ASSERT_EQ(openreg_select_gpu(&found), OPENREG_OK) << last_message();
  EXPECT_EQ(found, 1);
  EXPECT_EQ(active(), "hip*1");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_USE_MOCK_GPU", "");

  // A pinned table stays; one that nothing pins makes room for the GPU.
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  void* const memory = allocate();
  set("OPENREG_USE_MOCK_GPU", "cuda");
  ASSERT_EQ(openreg_select_gpu(&found), OPENREG_OK) << last_message();
  EXPECT_EQ(found, 0);
  EXPECT_EQ(active(), "sim*2");
  ASSERT_EQ(openreg_free(memory), OPENREG_OK);
  ASSERT_EQ(openreg_select_gpu(&found), OPENREG_OK) << last_message();
  EXPECT_EQ(found, 1);
  EXPECT_EQ(active(), "cuda*1");

  // What somebody asked for must work.
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_USE_MOCK_GPU", "");
  set("OPENREG_DRIVERS", "hip");
  found = -1;
  EXPECT_NE(openreg_select_gpu(&found), OPENREG_OK);
  EXPECT_EQ(found, -1);
  EXPECT_CONTAINS(last_message(), "openreg_select_gpu: Unable to initialize driver 'hip'");
}

// A driver whose library is missing has failed in another way than one without a device.
TEST_F(ChoosingTest, UnloadableDrivers) {
  ASSERT_EQ(add({"deviceless", 5, 0, {{"fail", "open:1"}}}), OPENREG_OK);
  EXPECT_NE(openreg_driver_open("deviceless"), OPENREG_OK);
  EXPECT_FALSE(has_flag("deviceless", OPENREG_DRIVER_FLAG_UNLOADABLE));
  EXPECT_NE(openreg_driver_open("cuda"), OPENREG_OK);
  EXPECT_TRUE(has_flag("cuda", OPENREG_DRIVER_FLAG_UNLOADABLE));
}

// A group: the first member that can be opened, and the same one from then on.
TEST_F(ChoosingTest, OpenDriverOfAGroup) {
  EXPECT_EQ(openreg_driver_open("gpu"), OPENREG_E_NO_DEVICE);
  set("OPENREG_USE_MOCK_GPU", "hip");
  ASSERT_EQ(openreg_driver_open("gpu"), OPENREG_OK) << last_message();
  EXPECT_EQ(record_of("hip").state, OPENREG_DRIVER_STATE_OPEN);
  ASSERT_EQ(openreg_driver_open("gpu"), OPENREG_OK) << last_message();
  std::string name;
  EXPECT_EQ(device("gpu", 0, &name), OPENREG_OK) << last_message();
  EXPECT_EQ(name, "OpenReg mock HIP device 0");
}

// acceptance 5.6: no other target than the local one, in every selection.
TEST_F(ChoosingTest, Target) {
  set("OPENREG_TARGET", "rpc:h:1");
  const auto refused = [](openreg_status status, const std::string& call) {
    EXPECT_EQ(status, OPENREG_E_INVALID);
    EXPECT_EQ(last_message(), call + ": OPENREG_TARGET=rpc:h:1: only 'local' is supported");
  };
  refused(openreg_init(), "openreg_init");
  refused(openreg_drivers_open_all(), "openreg_drivers_open_all");
  refused(openreg_drivers_reselect(), "openreg_drivers_reselect");
  refused(openreg_drivers_use("sim"), "openreg_drivers_use");
  refused(openreg_driver_open("sim"), "openreg_driver_open");
  EXPECT_EQ(openreg_device_count(), 0);
  for (const char* value : {"local", ""}) {
    set("OPENREG_TARGET", value);
    EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  }
}

// acceptance 5.58: the two lines of each initialisation.
TEST_F(ChoosingTest, LinesOfAnInitialisation) {
  ASSERT_EQ(add({"spoken", 5}), OPENREG_OK);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  const auto debug = lines(OPENREG_LOG_DEBUG);
  std::vector<std::string> about;
  for (const auto& line : debug) {
    if (line.find("nitializ") != std::string::npos) about.push_back(line);
  }
  EXPECT_EQ(about, (std::vector<std::string>{
                       "Initializing driver 'spoken'",
                       "Initialized driver: driver=spoken process_index=0 device_count=2 local_devices=2",
                       "Driver 'spoken' initialized"}));
}

// Failures while a table is built leave the one before.
TEST_F(ChoosingTest, TooManyDevicesTogether) {
  ASSERT_EQ(add({"hundred", 5, 0, {{"devices", "100"}}}), OPENREG_OK);
  ASSERT_EQ(add({"hundred_too", 4, 0, {{"devices", "100"}}}), OPENREG_OK);
  ASSERT_EQ(openreg_drivers_use("sim"), OPENREG_OK);
  expect_error(openreg_drivers_use("hundred,hundred_too"), OPENREG_E_NO_DEVICE, "200 devices");
  EXPECT_EQ(active(), "sim*2");
  EXPECT_EQ(toy().live("instance"), 0);
}

}  // namespace
}  // namespace openreg_test
