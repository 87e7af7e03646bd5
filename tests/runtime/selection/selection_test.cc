// SPDX-License-Identifier: BSD-3-Clause
// Which drivers are opened: OPENREG_DRIVERS, OPENREG_DRIVER_LIBRARIES, priorities, required and optional drivers.
// Registers nothing, so that an automatic choice depends on the variables alone.
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class SelectionTest : public RuntimeTest {
 protected:
  static std::string driver_of(int32_t device) {
    auto properties = properties_of(device);
    return std::string(properties.driver) + ":" + std::to_string(properties.ordinal);
  }
};

// With nothing set the simulator is used, with two devices, and nothing above debug and info is said.
TEST_F(SelectionTest, DefaultIsTheSimulator) {
  EXPECT_EQ(openreg_is_initialized(), 0);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_is_initialized(), 1);
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(driver_of(1), "sim:1");
  EXPECT_EQ(record_of("sim").state, OPENREG_DRIVER_STATE_OPEN);
  EXPECT_EQ(record_of("sim").device_count, 2);
  EXPECT_EQ(record_of("sim").first_device, 0);
  EXPECT_TRUE(lines(OPENREG_LOG_WARNING).empty());
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  EXPECT_EQ(openreg_init(), OPENREG_OK);
}

// acceptance 5.34: a library of the variable is preferred (priority 400).
TEST_F(SelectionTest, LibraryOfTheVariableWins) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(driver_of(0), "toy:0");
  EXPECT_EQ(record_of("toy").priority, 400);
  EXPECT_NE(record_of("sim").state, OPENREG_DRIVER_STATE_OPEN);
  // The variable is gone: so is the candidate, at the next initialisation.
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(record_of("toy").state, OPENREG_DRIVER_STATE_LOADED);
  unset("OPENREG_DRIVER_LIBRARIES");
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(driver_of(0), "sim:0");
  EXPECT_EQ(record_of("toy").state, -1);
}

// acceptance 5.35: one warning with the item and the whole value; the good item is used; items are trimmed, the last of
// a name wins.
TEST_F(SelectionTest, BadItemsAreSkippedWithOneWarning) {
  const std::string value = "bad, toy : /nowhere/toy.so ,,TOY: " + driver_path("toy_driver") + " ";
  set("OPENREG_DRIVER_LIBRARIES", value);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(driver_of(0), "toy:0");
  EXPECT_EQ(lines(OPENREG_LOG_WARNING).size(), 1u);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "invalid value bad in env var OPENREG_DRIVER_LIBRARIES " + value), 1);
}

// acceptance 5.35: what is no pair of a name and a path is a warning, and the others go on.
TEST_F(SelectionTest, ItemsOfAnotherNumberOfPartsAreSkipped) {
  const std::string value = "one:/x.so:two,word,toy:" + driver_path("toy_driver");
  set("OPENREG_DRIVER_LIBRARIES", value);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(lines(OPENREG_LOG_WARNING).size(), 2u);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "invalid value one:/x.so:two in env var OPENREG_DRIVER_LIBRARIES"), 1);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "invalid value word in env var OPENREG_DRIVER_LIBRARIES " + value), 1);
  EXPECT_EQ(driver_of(0), "toy:0");
}

// acceptance 5.36b: a path without a name, and a name that no driver can have, end every selection with the reason and
// the syntax, also where the drivers are named; without the variable all is well.
TEST_F(SelectionTest, ItemsThatNameAPathAreErrors) {
  const std::string long_name(40, 'n');
  const std::vector<std::pair<std::string, std::string>> items = {
      {"/p/ocl.so", "it has no name"},
      {"ocl.json", "it has no name"},
      {":/x.so", "it has no name"},
      {"name:", "it has no path"},
      {"no spaces:/x.so", "its name is not 1 to 31 characters of [a-z0-9_]"},
      {long_name + ":/x.so", "its name is not 1 to 31 characters of [a-z0-9_]"},
      {"gpu:/x.so", "its name is that of a group of drivers"},
      {"a:" + std::string(5000, 'p'), "its path is too long"},
  };
  for (const auto& [item, reason] : items) {
    SCOPED_TRACE(item.substr(0, 60));
    set("OPENREG_DRIVER_LIBRARIES", item + ",toy:" + driver_path("toy_driver"));
    for (const char* drivers : {"", "sim"}) {
      set("OPENREG_DRIVERS", drivers);
      expect_error(openreg_init(), OPENREG_E_INVALID, "openreg_init: \"" + item.substr(0, 200));
      EXPECT_CONTAINS(last_message(), "\" in the variable OPENREG_DRIVER_LIBRARIES can't be used: " + reason +
                                          ". Write name:/path/driver.so or name:/path/driver.json");
      EXPECT_EQ(openreg_driver_open("sim"), OPENREG_E_INVALID);
      EXPECT_EQ(openreg_device_count(), 0);
    }
  }
  unset("OPENREG_DRIVER_LIBRARIES");
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

// acceptance 5.55, decision 2: all listed drivers make one table, in that order; spaces, capitals and repeats are fine.
TEST_F(SelectionTest, ListedDriversMakeOneTable) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
  set("OPENREG_DRIVERS", " Toy , sim,toy,,SIM");
  set("OPENREG_TOY_DEVICES", "3");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_device_count(), 5);
  EXPECT_EQ(driver_of(0), "toy:0");
  EXPECT_EQ(driver_of(2), "toy:2");
  EXPECT_EQ(driver_of(3), "sim:0");
  EXPECT_EQ(driver_of(4), "sim:1");
  EXPECT_EQ(record_of("sim").first_device, 3);
}

// An empty list is as good as none.
TEST_F(SelectionTest, EmptyListIsUnset) {
  for (const char* value : {"", " ", ", ,"}) {
    set("OPENREG_DRIVERS", value);
    EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  }
}

// An unknown name is an error that lists the known ones; cuda and hip are known, installed or not (acceptance 5.53).
TEST_F(SelectionTest, UnknownNameListsTheKnownOnes) {
  for (const std::string name : {"cudda", "not a name", "a_name_that_is_longer_than_31_characters"}) {
    set("OPENREG_DRIVERS", "sim," + name);
    EXPECT_EQ(openreg_init(), OPENREG_E_INVALID);
    EXPECT_EQ(last_message(), "openreg_init: Unable to initialize driver '" + name + "': Driver '" + name +
                                  "' is not in the list of known drivers: ['cuda', 'hip', 'sim']" +
                                  (name == "cudda" ? "; did you mean 'cuda'?" : "") +
                                  " (set OPENREG_DRIVERS='' to automatically choose an available driver)");
    EXPECT_EQ(openreg_is_initialized(), 0);
    EXPECT_NE(record_of("sim").state, OPENREG_DRIVER_STATE_OPEN);
  }
}

// The host's own devices are the simulator's, and a word that is like no name brings no proposal.
TEST_F(SelectionTest, AWrongNameIsTakenForASimilarOne) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"cpu", "sim"}, {"hpi", "hip"}, {"si", ""}, {"cud", "cuda"}, {"smi", "sim"}, {"ocl", ""}, {"vulkan", ""}};
  for (const auto& [name, similar] : names) {
    set("OPENREG_DRIVERS", name);
    EXPECT_EQ(openreg_init(), OPENREG_E_INVALID);
    const std::string expected = similar.empty() ? "'sim'] (set" : "'sim']; did you mean '" + similar + "'? (set";
    EXPECT_CONTAINS(last_message(), expected);
  }
}

// acceptance 5.55, 5.57a: a listed driver that fails makes the whole initialisation fail, every time, with every
// place, what else there is, and a way out; drivers opened before it are closed again.
TEST_F(SelectionTest, ListedDriversAreRequiredAllOrNothing) {
  set("OPENREG_DRIVER_LIBRARIES", "full_toy:" + driver_path("full_toy_driver"));
  set("OPENREG_DRIVERS", "full_toy,cuda");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(openreg_init(), OPENREG_E_INCOMPATIBLE);
    EXPECT_CONTAINS(last_message(), "openreg_init: Unable to initialize driver 'cuda': cannot load ");
    EXPECT_CONTAINS(last_message(), "(set OPENREG_DRIVERS='' to automatically choose an available driver)\n");
    EXPECT_CONTAINS(last_message(), "\n  bundled: ");
    EXPECT_CONTAINS(last_message(), "libopenreg_cuda.so");
    EXPECT_CONTAINS(last_message(), "\n  OPENREG_DRIVER_LIBRARIES: no such name");
    EXPECT_CONTAINS(last_message(), "sim (built in, 2 devices)");
    EXPECT_EQ(openreg_is_initialized(), 0);
    EXPECT_EQ(openreg_set_device(0), OPENREG_E_INCOMPATIBLE);
    EXPECT_EQ(last_message().rfind("openreg_set_device: Unable to initialize driver 'cuda'", 0), 0u) << last_message();
  }
  EXPECT_NE(record_of("full_toy").state, OPENREG_DRIVER_STATE_OPEN);
  unset("OPENREG_DRIVERS");
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

// Bad values of OPENREG_SIM_DEVICES name the value and the range. The next attempt reads the variable again.
TEST_F(SelectionTest, BadDeviceNumbersOfTheSimulator) {
  for (const std::string value : {"-3", "abc", "1000", "", "2x"}) {
    SCOPED_TRACE(value);
    set("OPENREG_SIM_DEVICES", value);
    expect_error(openreg_init(), OPENREG_E_INVALID, "OPENREG_SIM_DEVICES");
    EXPECT_CONTAINS(last_message(), "\"" + value + "\"");
    EXPECT_CONTAINS(last_message(), "127");
    EXPECT_STREQ(openreg_last_error()->driver, "sim");
    EXPECT_EQ(openreg_device_count(), 0);
  }
  set("OPENREG_SIM_DEVICES", "127");
  set("OPENREG_SIM_MEMORY", "4194304");
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_count(), 127);
}

// More devices than PyTorch can count are refused, also over several drivers.
TEST_F(SelectionTest, TooManyDevicesTogether) {
  set("OPENREG_DRIVER_LIBRARIES", "full_toy:" + driver_path("full_toy_driver"));
  set("OPENREG_DRIVERS", "full_toy,sim");
  set("OPENREG_FULL_TOY_DEVICES", "126");
  expect_error(openreg_init(), OPENREG_E_NO_DEVICE, "128 devices");
  EXPECT_CONTAINS(last_message(), "127");
  EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_EQ(openreg_is_initialized(), 0);
}

// acceptance 4.3: the count is right before and after initialisation, and an error gives 0, one warning, and the reason
// as the last error.
TEST_F(SelectionTest, CountNeverFails) {
  set("OPENREG_SIM_DEVICES", "3");
  EXPECT_EQ(openreg_device_count(), 3);
  EXPECT_EQ(openreg_is_initialized(), 0);
  EXPECT_EQ(record_of("sim").device_count, 3);
  set("OPENREG_SIM_DEVICES", "nonsense");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "Device initialization: "), 1);
  openreg_clear_error();
  EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_EQ(openreg_last_error()->code, OPENREG_E_INVALID);
  set("OPENREG_SIM_DEVICES", "4");
  EXPECT_EQ(openreg_device_count(), 4);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(openreg_device_count(), 4);
  set("OPENREG_SIM_DEVICES", "5");  // read once per initialisation
  EXPECT_EQ(openreg_device_count(), 4);
}

// A driver without describe() is opened to be counted.
TEST_F(SelectionTest, CountOpensADriverWithoutProbe) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(openreg_is_initialized(), 1);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_DRIVERS", "sim,toy");
  EXPECT_EQ(openreg_device_count(), 4);
  EXPECT_EQ(openreg_is_initialized(), 1);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_TOY_DEVICES", "0");
  EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_CONTAINS(last_message(), "Driver 'toy' provides no devices.");
}

// A wrong path in OPENREG_DRIVER_LIBRARIES is an error even if another driver would be chosen, unless OPENREG_DRIVERS says
// which drivers are wanted.
TEST_F(SelectionTest, WrongPathIsNotSilent) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver") + ",other:/nowhere/other.so");
  expect_error(openreg_init(), OPENREG_E_INCOMPATIBLE, "Unable to initialize driver 'other': ");
  EXPECT_CONTAINS(last_message(), "/nowhere/other.so: No such file or directory");
  EXPECT_EQ(openreg_device_count(), 0);
  set("OPENREG_DRIVERS", "toy");
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

// A library of the variable replaces a driver of the same name; both stay in the records.
TEST_F(SelectionTest, LibraryShadowsTheBuiltInDriver) {
  set("OPENREG_DRIVER_LIBRARIES", "sim:" + driver_path("toy_driver"));
  set("OPENREG_SIM_DEVICES", "1");
  unset("OPENREG_SIM_MEMORY");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_STREQ(properties_of(0).name, "sim device 0");
  EXPECT_EQ(openreg_device_count(), 1);
  int shadowed = 0;
  for (int32_t i = 0; i < openreg_driver_count(); ++i) {
    auto record = sized<openreg_driver_record>();
    ASSERT_EQ(openreg_driver_get_record(i, &record), OPENREG_OK);
    shadowed += record.state == OPENREG_DRIVER_STATE_SHADOWED && std::string(record.source) == "built in";
  }
  EXPECT_EQ(shadowed, 1);
}

// If the replacement fails, the text lists both places, and the built-in driver does not step in.
TEST_F(SelectionTest, FailedReplacementIsAnError) {
  set("OPENREG_DRIVER_LIBRARIES", "sim:" + driver_path("broken_open_fails"));
  expect_error(openreg_init(), OPENREG_E_INCOMPATIBLE, "\n  built in: not tried, another one replaces it");
  EXPECT_CONTAINS(last_message(), "the vendor's library is too old (OPENREG_E_INCOMPATIBLE)");
}

// The text names a library's path as the variable does, once, and the file behind a link where the dynamic loader does.
TEST_F(SelectionTest, AFailureNamesThePathOnce) {
  std::string directory = "/tmp/openreg-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string real = directory + "/real.so", link = directory + "/link.so";
  std::ofstream(real) << "no library";
  std::filesystem::create_symlink(real, link);
  for (const std::string& path : {real, link}) {
    SCOPED_TRACE(path);
    set("OPENREG_DRIVER_LIBRARIES", "other:" + path);
    expect_error(openreg_init(), OPENREG_E_INCOMPATIBLE, "driver 'other': cannot load " + path + ": " + real + ": ");
    EXPECT_CONTAINS(last_message(), "\n  OPENREG_DRIVER_LIBRARIES: the error above");
  }
  set("OPENREG_DRIVER_LIBRARIES", "sim:" + driver_path("broken_open_fails"));  // its texts are the driver's
  EXPECT_EQ(openreg_init(), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(last_message(),
                  "OPENREG_DRIVER_LIBRARIES: " + driver_path("broken_open_fails") + ": the error above");
  std::filesystem::remove_all(directory);
}

// What openreg-info shows of drivers that are not installed: known by name, with the place that was looked at.
TEST_F(SelectionTest, RecordsShowWhatIsNotThere) {
  const openreg_driver_record cuda = record_of("cuda");
  EXPECT_EQ(cuda.state, OPENREG_DRIVER_STATE_FAILED);
  EXPECT_EQ(cuda.code, OPENREG_E_NO_DEVICE);
  EXPECT_EQ(cuda.priority, 200);
  EXPECT_STREQ(cuda.source, "bundled");
  EXPECT_CONTAINS(cuda.path, "/libopenreg_cuda.so");
  EXPECT_EQ(cuda.first_device, -1);
  EXPECT_STREQ(record_of("hip").message, "the library is not there: built without HIP");
}

// acceptance 5.20: many threads initialise at once; all succeed and see one table.
TEST_F(SelectionTest, ThreadsInitialiseOnce) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
  set("OPENREG_DRIVERS", "toy,sim");
  Threads(8, [](int i) {
    if (i % 3 == 0) {
      EXPECT_EQ(openreg_device_count(), 4);
    } else if (i % 3 == 1) {
      EXPECT_EQ(openreg_set_device(3), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_current_device(), 3);
    } else {
      EXPECT_GE(openreg_driver_count(), 3);
      EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
    }
  }).join();
  EXPECT_EQ(count_lines(OPENREG_LOG_DEBUG, "Driver 'toy' initialized"), 1);
}

}  // namespace
}  // namespace openreg_test
