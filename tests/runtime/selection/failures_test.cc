// SPDX-License-Identifier: BSD-3-Clause
// What the failure of a driver means: left out where it was merely found and can't be here, else an error.
#include <cstring>
#include <set>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class FailuresTest : public ToysTest {
 protected:
  openreg_status add_library(const std::string& name, const std::string& path, uint32_t flags) {
    will_register(name);
    auto registration = sized<openreg_registration>();
    registration.name = name.c_str();
    registration.library_path = path.c_str();
    registration.priority = OPENREG_PRIORITY_PLUGIN;
    registration.flags = flags;
    return openreg_driver_register(&registration);
  }
  static constexpr uint32_t as_found = OPENREG_REGISTER_REQUIRED | OPENREG_REGISTER_KEEP_FAILED;
};

// acceptance 5.72b: a driver that was found and has no device here is left out: one line, the reason kept, not tried
// again; named for this run, its failure is the error.
TEST_F(FailuresTest, NoDeviceIsLeftOut) {
  ASSERT_EQ(add({"plugin", 400, OPENREG_REGISTER_REQUIRED}), OPENREG_OK);
  toy().fail("open", 1, OPENREG_E_NO_DEVICE, 2);
  ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  expect_drivers("sim*2");
  EXPECT_EQ(toy().calls("open"), 1);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "driver \"plugin\" (registered) is not used: open was told to fail"), 1);
  EXPECT_CONTAINS(record_of("plugin").message, "open was told to fail");
  EXPECT_EQ(openreg_drivers_use("plugin"), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(last_message(), "Unable to initialize driver 'plugin': open was told to fail");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_DRIVERS", "plugin");
  expect_error(openreg_init(), OPENREG_E_NO_DEVICE, "Unable to initialize driver 'plugin': open was told to fail");
}

// acceptance 5.72b: any other failure of it is an error, each time, unless it was registered as one that may fail.
TEST_F(FailuresTest, AnyOtherFailureIsAnError) {
  ASSERT_EQ(add({"plugin", 400, OPENREG_REGISTER_REQUIRED}), OPENREG_OK);
  toy().fail("open", 1, OPENREG_E_INTERNAL, 2);
  for (int i = 0; i < 2; ++i) {
    expect_error(openreg_init(), OPENREG_E_INTERNAL, "Unable to initialize driver 'plugin': open was told to fail");
    int32_t gpu = 0;
    EXPECT_EQ(openreg_select_gpu(&gpu), OPENREG_E_INTERNAL);
  }
  ASSERT_EQ(add({"plugin", 400, 0}), OPENREG_OK);
  expect_drivers("sim*2");
}

// acceptance 5.72b: its library, or one that it needs, is not on this machine: left out, and known with the reason. A
// library that is there and unfit is an error.
TEST_F(FailuresTest, AMissingLibraryIsLeftOut) {
  ASSERT_EQ(add_library("gone", "/nowhere/gone.so", as_found), OPENREG_OK) << last_message();
  ASSERT_EQ(add_library("vendorless", driver_path("vendorless_driver"), as_found), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  EXPECT_CONTAINS(record_of("gone").message, "cannot load /nowhere/gone.so: No such file or directory");
  EXPECT_CONTAINS(record_of("vendorless").message, "openreg_absent_vendor");
  for (const char* name : {"gone", "vendorless"}) {
    EXPECT_EQ(record_of(name).state, OPENREG_DRIVER_STATE_FAILED);
    EXPECT_TRUE(has_flag(name, OPENREG_DRIVER_FLAG_UNLOADABLE));
    EXPECT_TRUE(has_flag(name, OPENREG_DRIVER_FLAG_PLUGIN));
  }
  EXPECT_EQ(openreg_device_count(), 2);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "sim*2");
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "driver \"gone\" (registered) is not used: "), 1);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "driver \"vendorless\" (registered) is not used: "), 1);
  EXPECT_EQ(openreg_drivers_use("gone"), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(last_message(), "Unable to initialize driver 'gone': cannot load /nowhere/gone.so");

  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  ASSERT_EQ(add_library("unfit", driver_path("broken_no_copy"), as_found), OPENREG_OK) << last_message();
  expect_error(openreg_init(), OPENREG_E_INCOMPATIBLE, "Unable to initialize driver 'unfit': ");
  EXPECT_CONTAINS(last_message(), "the driver lacks the required function copy");
}

// Under a vendor's name nothing else answers for his devices, whatever open() says: no devices, and an error with the
// driver's reason. What is named is used as ever.
TEST_F(FailuresTest, PluginsAlone) {
  openreg_choose_plugins_alone();
  EXPECT_EQ(openreg_init(), OPENREG_E_NO_DEVICE);
  EXPECT_EQ(last_message(),
            "openreg_init: no driver is left to choose from\n  OPENREG_DRIVERS=sim uses simulated devices");
  for (const openreg_status code :
       {OPENREG_E_INVALID, OPENREG_E_NOMEM, OPENREG_E_UNSUPPORTED, OPENREG_E_NO_DEVICE, OPENREG_E_INCOMPATIBLE,
        OPENREG_E_DEVICE_LOST, OPENREG_E_INTERNAL, OPENREG_E_BUSY, OPENREG_E_TIMEOUT, 1000}) {
    for (const uint32_t flags : {OPENREG_REGISTER_REQUIRED, 0u}) {
      SCOPED_TRACE(std::to_string(code) + " " + std::to_string(flags));
      ASSERT_EQ(add({"plugin", 400, flags}), OPENREG_OK);
      toy().fail("open", 1, code, 2);
      EXPECT_NE(openreg_init(), OPENREG_OK);
      EXPECT_CONTAINS(last_message(), "open was told to fail");
      EXPECT_CONTAINS(last_message(), "OPENREG_DRIVERS=sim");
      EXPECT_EQ(openreg_is_initialized(), 0);
      EXPECT_EQ(openreg_device_count(), code == OPENREG_E_NOMEM ? 2 : 0);  // there may be memory the next time
      int32_t found = 1;
      (void)openreg_select_gpu(&found);
      toy().fail("describe", 1, OPENREG_E_INTERNAL, 2);  // which counts as open() does
      EXPECT_EQ(openreg_device_count(), 0);
      EXPECT_EQ(openreg_is_initialized(), 0);
      toy().reset();
    }
  }
  ASSERT_EQ(add_library("plugin", "/nowhere/gone.so", as_found), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_NE(openreg_init(), OPENREG_OK);
  EXPECT_CONTAINS(last_message(), "cannot load /nowhere/gone.so");
  EXPECT_EQ(openreg_driver_prefer("sim"), OPENREG_OK);
  expect_drivers("sim*2");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_driver_prefer(nullptr), OPENREG_OK);
  set("OPENREG_DRIVERS", "sim");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

// Without the flag a library that can't be loaded is an error of the registration, and adds nothing.
TEST_F(FailuresTest, RegistrationFailsWithoutTheFlag) {
  EXPECT_EQ(add_library("gone2", "/nowhere/gone.so", OPENREG_REGISTER_REQUIRED), OPENREG_E_INCOMPATIBLE);
  EXPECT_EQ(record_of("gone2").state, -1);
  EXPECT_EQ(add_library("gone2", "/nowhere/gone.so", as_found), OPENREG_OK);
}

// acceptance 5.36b: what was named for this run must work, whether it has no device or its library is missing.
TEST_F(FailuresTest, WhatWasNamedMustWork) {
  const uint32_t named = as_found | OPENREG_REGISTER_NAMED;
  ASSERT_EQ(add_library("named", "/nowhere/named.so", named), OPENREG_OK) << last_message();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(openreg_init(), OPENREG_E_INCOMPATIBLE);
    EXPECT_CONTAINS(last_message(), "Unable to initialize driver 'named': cannot load /nowhere/named.so");
  }
  ASSERT_EQ(add({"named", 400, named}), OPENREG_OK);
  toy().fail("open", 1, OPENREG_E_NO_DEVICE, 2);
  EXPECT_EQ(openreg_init(), OPENREG_E_NO_DEVICE);
}

// acceptance 5.61: a library that is not there has failed, but nobody has tried it before somebody asks.
TEST_F(FailuresTest, NobodyHasTriedItYet) {
  EXPECT_TRUE(has_flag("hip", OPENREG_DRIVER_FLAG_UNTRIED));
  EXPECT_EQ(openreg_driver_open("hip"), OPENREG_E_NO_DEVICE);
  EXPECT_FALSE(has_flag("hip", OPENREG_DRIVER_FLAG_UNTRIED));
  EXPECT_TRUE(has_flag("cuda", OPENREG_DRIVER_FLAG_UNTRIED));
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_FALSE(has_flag("cuda", OPENREG_DRIVER_FLAG_UNTRIED));
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  for (const char* name : {"cuda", "hip"}) EXPECT_TRUE(has_flag(name, OPENREG_DRIVER_FLAG_UNTRIED));
}

// acceptance 1.22b: after a reset a better GPU is chosen in the place of the one before, unless that is in use.
TEST_F(FailuresTest, ResettingChoosesAnotherGpu) {
  set("OPENREG_USE_MOCK_GPU", "cuda");
  int32_t gpu = 0;
  ASSERT_EQ(openreg_select_gpu(&gpu), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "cuda*1");
  ASSERT_EQ(add({"better", 400}), OPENREG_OK);
  ASSERT_EQ(openreg_select_gpu(&gpu), OPENREG_OK);
  EXPECT_EQ(active(), "cuda*1");
  void* const memory = allocate(0, 64);
  EXPECT_EQ(openreg_reset_gpu(), OPENREG_E_BUSY);
  EXPECT_EQ(last_message(), "openreg_reset_gpu: 1 live allocation(s) on driver 'cuda'; free them first");
  ASSERT_EQ(openreg_free(memory), OPENREG_OK);
  ASSERT_EQ(openreg_reset_gpu(), OPENREG_OK);
  EXPECT_EQ(active(), "cuda*1");
  ASSERT_EQ(openreg_select_gpu(&gpu), OPENREG_OK) << last_message();
  EXPECT_EQ(gpu, 1);
  EXPECT_EQ(active(), "better*2");
}

// acceptance 1.24: a mock, or another path, takes the place of the bundled library in the order.
TEST_F(FailuresTest, TheOrderStays) {
  const auto order = [] {
    std::string names;
    for (int32_t i = 0; i < openreg_driver_count(); ++i) {
      auto record = sized<openreg_driver_record>();
      EXPECT_EQ(openreg_driver_get_record(i, &record), OPENREG_OK);
      const std::string name = record.name;
      if (record.state != OPENREG_DRIVER_STATE_SHADOWED && (name == "cuda" || name == "hip")) names += name + " ";
    }
    return names;
  };
  for (const char* mock : {"cuda", "hip", "cuda,hip"}) {
    set("OPENREG_USE_MOCK_GPU", mock);
    EXPECT_EQ(order(), "cuda hip ") << mock;
  }
  unset("OPENREG_USE_MOCK_GPU");
  set("OPENREG_CUDA_LIBRARY_PATH", "/nowhere/one.so");
  EXPECT_EQ(order(), "cuda hip ");
}

// The options that a driver would be opened with: of variables, of a mock, and the visible devices.
TEST_F(FailuresTest, OptionsOfADriver) {
  const auto options = [](const char* name) {
    char texts[512];
    size_t length = 0;
    EXPECT_EQ(openreg_driver_get_options(name, texts, sizeof texts, &length), OPENREG_OK) << last_message();
    std::set<std::string> found;
    for (size_t at = 0; at < length; at += std::strlen(texts + at) + 1) found.insert(texts + at);
    size_t needed = 0;
    EXPECT_EQ(openreg_driver_get_options(name, nullptr, 0, &needed), OPENREG_OK);
    EXPECT_EQ(needed, length);
    return found;
  };
  set("OPENREG_USE_MOCK_GPU", "1");
  set("OPENREG_MOCK_NUM_GPUS", "4");
  set("OPENREG_CUDA_VISIBLE_DEVICES", "3,1");
  const auto found = options("cuda");
  for (const char* expected : {"devices=4", "mock=cuda", "visible_devices=3,1", "node_id=0"}) {
    EXPECT_EQ(found.count(expected), 1u) << expected;
  }
  EXPECT_EQ(options("hip").count("mock=hip"), 0u);
  size_t length = 0;
  EXPECT_EQ(openreg_driver_get_options("nobody", nullptr, 0, &length), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_get_options(nullptr, nullptr, 0, &length), OPENREG_E_INVALID);
  set("OPENREG_MOCK_NUM_GPUS", "many");
  EXPECT_EQ(openreg_driver_get_options("cuda", nullptr, 0, &length), OPENREG_E_INVALID);
}

// What an embedding language is told: the JSON files of the variable, and in an error the plugins that it could not use.
TEST_F(FailuresTest, ForkedForAnEmbeddingLanguage) {
  set("OPENREG_DRIVER_LIBRARIES", "a:/x/a.so, ROCm : /x/b.JSON.json ,c:/x/c.json:d,e:/x/e.json");
  char name[32], path[64];
  ASSERT_EQ(openreg_get_driver_description(0, name, path, sizeof path), OPENREG_OK);
  EXPECT_EQ(std::string(name) + " " + path, "hip /x/b.JSON.json");
  ASSERT_EQ(openreg_get_driver_description(1, name, path, sizeof path), OPENREG_OK);
  EXPECT_EQ(std::string(name) + " " + path, "e /x/e.json");
  EXPECT_EQ(openreg_get_driver_description(2, name, path, sizeof path), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_get_driver_description(0, name, path, 4), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_get_driver_description(-1, name, path, sizeof path), OPENREG_E_INVALID);
  unset("OPENREG_DRIVER_LIBRARIES");
  EXPECT_TRUE(in_child([] {
    openreg_note_plugin_failure("one.module", "ImportError: x");
    openreg_note_plugin_failure("two", std::string(2000, 'y').c_str());
    return openreg_drivers_use("vulkan") == OPENREG_E_INVALID &&
           last_message().find("'sim']; plugins that failed: one.module (ImportError: x), two (yyy") !=
               std::string::npos;
  }));
}

}  // namespace
}  // namespace openreg_test
