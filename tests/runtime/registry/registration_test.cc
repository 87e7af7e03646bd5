// SPDX-License-Identifier: BSD-3-Clause
// Drivers that a call adds: tables, libraries, factories; priorities, options, flags.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "runtime_test.h"

namespace openreg_test {
namespace {

// What a factory does, and how often it was asked.
struct Recipe {
  openreg_status status = OPENREG_OK;
  int32_t devices = 0;
  const openreg_driver* table = nullptr;
  std::string library, message;
  int asked = 0;
};

openreg_status make(void* context, openreg_factory_result* result) {
  auto* recipe = static_cast<Recipe*>(context);
  ++recipe->asked;
  EXPECT_EQ(result->struct_size, sizeof *result);
  result->device_count = recipe->devices;
  result->table = recipe->table;
  if (!recipe->library.empty()) result->library_path = recipe->library.c_str();
  std::strncpy(result->version, "of a factory", sizeof result->version - 1);
  std::strncpy(result->message, recipe->message.c_str(), sizeof result->message - 1);
  return recipe->status;
}

class RegistrationTest : public ToysTest {
 protected:
  static openreg_registration blank() { return sized<openreg_registration>(); }
  // The reason that the record of a driver gives after it was asked for.
  std::string reason(const char* name) {
    EXPECT_NE(openreg_driver_open(name), OPENREG_OK);
    return record_of(name).message;
  }
};

// A library may lie at a path of any length, by a registration, a factory and the variable; the record points to it.
TEST_F(RegistrationTest, LongPaths) {
  std::string folder = testing::TempDir() + "openreg-long-" + std::to_string(getpid());
  while (folder.size() < 600) folder += "/" + std::string(100, 'd');
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/library.so";
  std::filesystem::copy_file(driver_path("toy_driver"), path, std::filesystem::copy_options::overwrite_existing);
  const std::string real = std::filesystem::canonical(path);
  openreg_registration registration = blank();
  registration.name = "long_path";
  registration.library_path = path.c_str();
  ASSERT_EQ(openreg_driver_register(&registration), OPENREG_OK) << last_message();
  EXPECT_EQ(record_of("long_path").path, real);
  static Recipe recipe;
  recipe.library = path;
  ASSERT_EQ(add_factory({"long_factory"}, make, &recipe), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_driver_open("long_factory"), OPENREG_OK) << last_message();
  const char* const first = record_of("long_factory").path;
  EXPECT_EQ(first, real);
  set("OPENREG_DRIVER_LIBRARIES", "long_variable:" + path);
  EXPECT_EQ(openreg_driver_open("long_variable"), OPENREG_OK) << last_message();
  EXPECT_EQ(record_of("long_variable").path, first) << "one text, which stays";
  std::filesystem::remove_all(folder.substr(0, folder.find("/ddd")));
}

// acceptance 5.17, 5.56: higher is preferred; of equal ones the one that was known first; -1000 and less never.
TEST_F(RegistrationTest, Priorities) {
  ASSERT_EQ(add({"five", 5}), OPENREG_OK);
  ASSERT_EQ(add({"seven", 7}), OPENREG_OK);
  ASSERT_EQ(add({"seven_too", 7}), OPENREG_OK);
  ASSERT_EQ(add({"never", OPENREG_PRIORITY_NEVER}), OPENREG_OK);
  expect_drivers("seven*2");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  ASSERT_EQ(add({"seven", -1}), OPENREG_OK);
  expect_drivers("seven_too*2");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  ASSERT_EQ(add({"five", OPENREG_PRIORITY_NEVER}), OPENREG_OK);
  ASSERT_EQ(add({"seven_too", OPENREG_PRIORITY_NEVER}), OPENREG_OK);
  set("OPENREG_SIM_DEVICES", "0");
  EXPECT_NE(openreg_init(), OPENREG_OK);
  set("OPENREG_DRIVERS", "never");  // but by name
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

// No driver that a rule may choose at all is an error, not a crash. In a child, where the simulator can be spared.
TEST_F(RegistrationTest, NothingToChooseFrom) {
  EXPECT_TRUE(in_child([this] {
    for (const char* name : {"sim", "cuda", "hip"}) {
      if (add({name, OPENREG_PRIORITY_NEVER}) != OPENREG_OK) return false;
    }
    return openreg_init() == OPENREG_E_NO_DEVICE && last_message() == "openreg_init: no driver is left to choose from";
  }));
}

// acceptance 5.46, 5.48: a library is loaded when it is registered, and opened when it is needed; 400 is above cuda.
TEST_F(RegistrationTest, LibraryIsLoadedAtOnceAndOpenedLater) {
  openreg_registration registration = blank();
  const std::string path = driver_path("full_toy_driver");
  registration.name = "By_Path";
  will_register("by_path");
  registration.library_path = path.c_str();
  registration.priority = OPENREG_PRIORITY_PLUGIN;
  registration.source = "a test";
  ASSERT_EQ(openreg_driver_register(&registration), OPENREG_OK) << last_message();
  const openreg_driver_record record = record_of("by_path");
  EXPECT_EQ(record.state, OPENREG_DRIVER_STATE_LOADED);
  EXPECT_EQ(record.abi_minor, OPENREG_ABI_MINOR);
  EXPECT_STREQ(record.source, "a test");
  EXPECT_STREQ(record.version, "2.0");
  EXPECT_CONTAINS(record.path, "/full_toy_driver.so");
  EXPECT_NE(record.flags & OPENREG_DRIVER_FLAG_HAS_TABLE, 0u);
  EXPECT_EQ(record.flags & OPENREG_DRIVER_FLAG_REQUIRED, 0u);
  EXPECT_GT(record.priority, record_of("cuda").priority);
  set("OPENREG_DRIVERS", "by_path");
  for (int i = 0; i < 3; ++i) ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  EXPECT_EQ(count_lines(OPENREG_LOG_DEBUG, "Initializing driver 'by_path'"), 1);
  registration.library_path = "/nowhere/x.so";
  registration.name = "nowhere";
  EXPECT_EQ(openreg_driver_register(&registration), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(last_message(), "openreg_driver_register: cannot load /nowhere/x.so");
  EXPECT_EQ(record_of("nowhere").state, -1);
}

// acceptance 5.47: one source, no more and no less; a name that is one, and no group; options that have both halves.
TEST_F(RegistrationTest, Arguments) {
  openreg_registration registration = blank();
  EXPECT_EQ(openreg_driver_register(nullptr), OPENREG_E_INVALID);
  registration.struct_size = 0;
  EXPECT_EQ(openreg_driver_register(&registration), OPENREG_E_INVALID);
  registration = blank();
  registration.name = "neither";
  EXPECT_EQ(openreg_driver_register(&registration), OPENREG_E_INVALID);
  EXPECT_EQ(last_message(),
            "openreg_driver_register: driver 'neither' needs one of table, library_path and factory, but has 0");
  registration.table = toy().table();
  registration.library_path = "/x.so";
  expect_error(openreg_driver_register(&registration), OPENREG_E_INVALID, "but has 2");
  EXPECT_EQ(record_of("neither").state, -1);
  registration.library_path = nullptr;
  for (const char* name : {"gpu", "GPU", "no name", ""}) {
    registration.name = name;
    EXPECT_EQ(openreg_driver_register(&registration), OPENREG_E_INVALID) << name;
  }
  registration = blank();
  registration.factory = make;
  expect_error(openreg_driver_register(&registration), OPENREG_E_INVALID, "needs a name");
  registration.name = "halves";
  const openreg_option halves[] = {{"key", nullptr}};
  registration.options = halves;
  registration.option_count = 1;
  EXPECT_EQ(openreg_driver_register(&registration), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "option 0 of driver 'halves' has no key or no value");
  registration.options = nullptr;
  EXPECT_EQ(openreg_driver_register(&registration), OPENREG_E_INVALID);
  static openreg_driver grouped = *toy().table();
  grouped.name = "gpu";
  expect_error(openreg_driver_register_table(&grouped), OPENREG_E_INVALID, "'gpu' is the name of a group of drivers");
}

// The same again adds nothing; any difference does, and the last one wins. acceptance 5.23
TEST_F(RegistrationTest, SameAgainAddsNothing) {
  Recipe recipe;
  static openreg_driver table = *toy().table();
  openreg_registration registration = blank();
  registration.name = "again";
  registration.priority = 3;
  registration.table = &table;
  const openreg_option option{"a", "1"};
  registration.options = &option;
  registration.option_count = 1;
  ASSERT_EQ(openreg_driver_register(&registration), OPENREG_OK) << last_message();
  const int32_t count = openreg_driver_count();
  ASSERT_EQ(openreg_driver_register(&registration), OPENREG_OK);
  EXPECT_EQ(openreg_driver_count(), count);
  const openreg_option changed{"a", "2"};
  registration.options = &changed;
  ASSERT_EQ(openreg_driver_register(&registration), OPENREG_OK);
  EXPECT_EQ(openreg_driver_count(), count + 1);
  registration.option_count = 0;
  ASSERT_EQ(openreg_driver_register(&registration), OPENREG_OK);
  EXPECT_EQ(openreg_driver_count(), count + 2);
  registration.priority = 4;
  ASSERT_EQ(openreg_driver_register(&registration), OPENREG_OK);
  EXPECT_EQ(openreg_driver_count(), count + 3);
  EXPECT_EQ(record_of("again").priority, 4);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(add_factory({"again", 4}, make, &recipe), OPENREG_OK);
  EXPECT_EQ(openreg_driver_count(), count + 4);
  EXPECT_EQ(record_of("again").state, OPENREG_DRIVER_STATE_FOUND);
}

// acceptance 5.23, 5.24: not while it is open; a new name is not seen before the next selection.
TEST_F(RegistrationTest, WhileTheTableStands) {
  set("OPENREG_DRIVERS", "sim");
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  unset("OPENREG_DRIVERS");
  static openreg_driver rival = *toy().table();
  rival.name = "sim";
  EXPECT_EQ(openreg_driver_register_table(&rival), OPENREG_E_BUSY);
  EXPECT_EQ(last_message(), "openreg_driver_register: Driver sim already initialized");
  ASSERT_EQ(add({"fresh"}), OPENREG_OK) << last_message();
  EXPECT_EQ(count_lines(OPENREG_LOG_DEBUG, "driver \"fresh\" registered: takes effect after reset"), 1);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(active(), "sim*2");
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "fresh*2");
  EXPECT_EQ(record_of("fresh").slots, (uint64_t{1} << 30) - 1);
  EXPECT_EQ(record_of("sim").state, OPENREG_DRIVER_STATE_OPEN);  // idle
  EXPECT_FALSE(has_flag("sim", OPENREG_DRIVER_FLAG_ACTIVE));
}

// acceptance 5.22: a factory is asked when its driver is opened, once, and again after a shutdown.
TEST_F(RegistrationTest, FactoryOfATable) {
  Recipe recipe;
  recipe.table = toy().table();
  ASSERT_EQ(add_factory({"made", 300}, make, &recipe), OPENREG_OK) << last_message();
  EXPECT_EQ(recipe.asked, 0);
  EXPECT_EQ(record_of("made").state, OPENREG_DRIVER_STATE_FOUND);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(recipe.asked, 1);
  EXPECT_EQ(active(), "made*2");
  EXPECT_TRUE(has_flag("made", OPENREG_DRIVER_FLAG_HAS_TABLE));
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(record_of("made").state, OPENREG_DRIVER_STATE_FOUND);
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(recipe.asked, 2);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(recipe.asked, 2);
}

TEST_F(RegistrationTest, FactoryOfALibrary) {
  Recipe recipe;
  recipe.library = driver_path("toy_driver");
  ASSERT_EQ(add_factory({"made", 300}, make, &recipe), OPENREG_OK);
  expect_drivers("made*2");
  EXPECT_CONTAINS(record_of("made").path, "/toy_driver.so");
}

// A driver that is only described: it can be asked how many devices it has, and never be active. acceptance 5.65
TEST_F(RegistrationTest, DescribedDriver) {
  Recipe recipe;
  recipe.devices = 3;
  ASSERT_EQ(add_factory({"described", 300}, make, &recipe), OPENREG_OK);
  EXPECT_EQ(openreg_device_count(), 2);
  ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "sim*2");
  const openreg_driver_record record = record_of("described");
  EXPECT_EQ(record.state, OPENREG_DRIVER_STATE_OPEN);
  EXPECT_EQ(record.device_count, 3);
  EXPECT_EQ(record.first_device, -1);
  EXPECT_STREQ(record.version, "of a factory");
  EXPECT_FALSE(has_flag("described", OPENREG_DRIVER_FLAG_HAS_TABLE));
  EXPECT_EQ(recipe.asked, 1);
  auto properties = sized<openreg_device_properties>();
  EXPECT_EQ(openreg_driver_get_device_properties("described", 0, &properties), OPENREG_E_UNSUPPORTED);
  EXPECT_EQ(openreg_driver_get_device_properties("described", 3, &properties), OPENREG_E_INVALID);
  // Listed with another one, that one alone makes the table; alone it makes none.
  ASSERT_EQ(openreg_drivers_use("described,sim"), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "sim*2");
  EXPECT_EQ(openreg_drivers_use("described"), OPENREG_E_UNSUPPORTED);
  EXPECT_CONTAINS(last_message(), "none of the drivers \"described\" has a C table");
}

// acceptance 5.16, 5.58, 5.18: what a factory may fail with, remembered as that of any optional driver.
TEST_F(RegistrationTest, FailuresOfFactories) {
  Recipe nothing, none, boom, strange, both, missing;
  none.devices = -1;
  boom.status = OPENREG_E_INCOMPATIBLE;
  boom.message = "boom";
  strange.status = 4711;
  both.devices = 1;
  both.table = toy().table();
  missing.library = "/nowhere/x.so";
  const std::pair<const char*, Recipe*> factories[] = {{"nothing", &nothing}, {"none", &none}, {"boom", &boom},
                                                       {"strange", &strange}, {"both", &both}, {"missing", &missing}};
  for (const auto& [name, recipe] : factories) ASSERT_EQ(add_factory({name, 300}, make, recipe), OPENREG_OK);
  EXPECT_EQ(reason("nothing"), "Could not initialize driver 'nothing'");
  EXPECT_EQ(record_of("nothing").code, OPENREG_E_NO_DEVICE);
  EXPECT_EQ(reason("none"), "Driver 'none' provides no devices.");
  EXPECT_EQ(reason("boom"), "boom");
  EXPECT_EQ(record_of("boom").code, OPENREG_E_INCOMPATIBLE);
  EXPECT_EQ(reason("strange"), "its factory failed without a reason");
  EXPECT_EQ(record_of("strange").code, OPENREG_E_INTERNAL);
  EXPECT_EQ(reason("both"), "the factory gave more than one of table, library and devices");
  EXPECT_EQ(reason("missing"), "cannot load /nowhere/x.so: No such file or directory");
  expect_drivers("sim*2");
  for (const Recipe* recipe : {&nothing, &none, &boom, &strange, &both, &missing}) EXPECT_EQ(recipe->asked, 1);
}

openreg_status init_inside = -1, register_inside = -1, find_inside = -1;
openreg_status reenter(void*, openreg_factory_result* result) {
  auto record = sized<openreg_driver_record>();
  auto registration = sized<openreg_registration>();
  registration.name = "inner";
  registration.table = toy().table();
  init_inside = openreg_init();
  register_inside = openreg_driver_register(&registration);
  find_inside = openreg_driver_find("sim", &record);
  openreg_drivers_forget_failures();
  result->table = toy().table();
  return OPENREG_OK;
}

// A factory that calls back gets an error instead of a deadlock; what it may know, it is told.
TEST_F(RegistrationTest, FactoryThatCallsBack) {
  ASSERT_EQ(add_factory({"outer", 300}, reenter), OPENREG_OK);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(init_inside, OPENREG_E_BUSY);
  EXPECT_EQ(register_inside, OPENREG_E_BUSY);
  EXPECT_EQ(find_inside, OPENREG_OK);
}

// acceptance 5.19, 1.26: an experimental driver says so when it is opened.
TEST_F(RegistrationTest, Experimental) {
  ASSERT_EQ(add({"trial", 300, OPENREG_REGISTER_EXPERIMENTAL}), OPENREG_OK);
  EXPECT_TRUE(has_flag("trial", OPENREG_DRIVER_FLAG_EXPERIMENTAL));
  const std::string text =
      "Driver 'trial' is experimental and not all OpenReg functionality may be correctly supported!";
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, text), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, text), 1);
}

// Which plugins are GPUs: all but those whose devices are simulated.
TEST_F(RegistrationTest, GpuKind) {
  ASSERT_EQ(add({"card"}), OPENREG_OK);
  ASSERT_EQ(add({"card_simulated", 400, 0, {}, OPENREG_CAP_SIMULATED}), OPENREG_OK);
  EXPECT_TRUE(has_flag("card", OPENREG_DRIVER_FLAG_GPU));
  EXPECT_FALSE(has_flag("card_simulated", OPENREG_DRIVER_FLAG_GPU));
}

// acceptance 5.33: the place among the processes is an option of every driver; the registration and the environment may
// override it.
TEST_F(RegistrationTest, ProcessOptions) {
  ASSERT_EQ(add({"echo", 300}), OPENREG_OK);
  set("OPENREG_DRIVERS", "echo");
  char value[32];
  const auto option = [&](const char* key) { return toy().option(key, value, sizeof value) ? std::string(value) : ""; };
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(option("node_id"), "0");
  EXPECT_EQ(option("num_nodes"), "1");
  // acceptance 5.58b
  EXPECT_EQ(
      count_lines(OPENREG_LOG_DEBUG, "Initialized driver: driver=echo process_index=0 device_count=2 local_devices=2"),
      1);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  ASSERT_EQ(openreg_set_process(3, 8), OPENREG_OK);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(option("node_id"), "3");
  EXPECT_EQ(option("num_nodes"), "8");
  EXPECT_EQ(count_lines(OPENREG_LOG_DEBUG, "driver=echo process_index=3 "), 1);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_ECHO_NODE_ID", "5");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(option("node_id"), "5");
  for (const auto& [index, count] : {std::pair{-1, 1}, {1, 1}, {0, 0}, {0, -1}}) {
    EXPECT_EQ(openreg_set_process(index, count), OPENREG_E_INVALID);
    EXPECT_CONTAINS(last_message(), "openreg_set_process: process " + std::to_string(index));
  }
}

// A variable is an option of the driver with the longest name that it begins with
TEST_F(RegistrationTest, OptionsOfTheLongestName) {
  ASSERT_EQ(add({"echo", 300}), OPENREG_OK);
  ASSERT_EQ(add({"echo_two", 200}), OPENREG_OK);
  set("OPENREG_ECHO_TWO_COLOUR", "blue");
  set("OPENREG_ECHO_TWOFOLD", "yes");
  char value[32];
  set("OPENREG_DRIVERS", "echo");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().option("two_colour", value, sizeof value), 0);
  EXPECT_EQ(toy().option("twofold", value, sizeof value), 1);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_DRIVERS", "echo_two");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  ASSERT_EQ(toy().option("colour", value, sizeof value), 1);
  EXPECT_STREQ(value, "blue");
}

// A driver whose options would be the runtime's own variables is refused
TEST_F(RegistrationTest, ReservedNames) {
  for (const auto& [name, variable] : {std::pair{"log", "OPENREG_LOG_LEVEL"},
                                       {"flight", "OPENREG_FLIGHT_RECORDER_FILE"},
                                       {"flight_recorder", "OPENREG_FLIGHT_RECORDER_FILE"}}) {
    openreg_driver table = *toy().table();
    table.name = name;
    EXPECT_EQ(openreg_driver_register_table(&table), OPENREG_E_INVALID);
    EXPECT_CONTAINS(last_message(), std::string("the driver's name \"") + name + "\" is reserved: " + variable +
                                        " would be an option of the driver");
  }
}

// acceptance 5.51: the variable wins over a registration of the same name, before or after it.
TEST_F(RegistrationTest, VariableWinsOverTheCall) {
  ASSERT_EQ(add({"both_ways"}), OPENREG_OK);
  set("OPENREG_DRIVER_LIBRARIES", "both_ways:" + driver_path("toy_driver"));
  set("OPENREG_DRIVERS", "both_ways");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_STREQ(record_of("both_ways").source, "OPENREG_DRIVER_LIBRARIES");
  EXPECT_TRUE(has_flag("both_ways", OPENREG_DRIVER_FLAG_REQUIRED));
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  ASSERT_EQ(add({"both_ways", 401}), OPENREG_OK);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_CONTAINS(record_of("both_ways").path, "/toy_driver.so");
}

// A description is not for the C library: left out with a word at debug level, and what an embedding language registers
// for it is not shadowed by an earlier item. acceptance 5.36
TEST_F(RegistrationTest, DescriptionsAreSkipped) {
  set("OPENREG_DRIVER_LIBRARIES", "told:" + driver_path("toy_driver") + ",told:/x/driver.json");
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(record_of("told").state, -1);
  EXPECT_EQ(count_lines(OPENREG_LOG_DEBUG, "OPENREG_DRIVER_LIBRARIES: /x/driver.json is skipped: the C library"), 1);
  EXPECT_TRUE(lines(OPENREG_LOG_WARNING).empty());
}

}  // namespace
}  // namespace openreg_test
