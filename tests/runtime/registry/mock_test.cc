// SPDX-License-Identifier: BSD-3-Clause
// GPU drivers over simulated memory, and the variables that stand for a bundled library.
#include <numeric>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class MockTest : public ToysTest {
 protected:
  static std::string name_of(int32_t device) { return properties_of(device).name; }
};

// acceptance 5.13: both are ready with two devices each, say what they are, and copies work in and between them.
TEST_F(MockTest, BothDriversAtOnce) {
  set("OPENREG_USE_MOCK_GPU", "cuda, hip");
  set("OPENREG_MOCK_NUM_GPUS", "2");
  set("OPENREG_DRIVERS", "cuda,hip,sim");
  expect_drivers("cuda*2 hip*2 sim*2");
  EXPECT_EQ(name_of(1), "OpenReg mock CUDA device 1");
  EXPECT_EQ(name_of(2), "OpenReg mock HIP device 0");
  EXPECT_EQ(name_of(5), "OpenReg simulated device 1");
  for (const char* name : {"cuda", "hip"}) {
    EXPECT_TRUE(has_flag(name, OPENREG_DRIVER_FLAG_MOCK));
    EXPECT_TRUE(has_flag(name, OPENREG_DRIVER_FLAG_GPU));
    EXPECT_TRUE(has_flag(name, OPENREG_DRIVER_FLAG_ACTIVE));
    EXPECT_STREQ(record_of(name).source, "mock");
    EXPECT_EQ(record_of(name).priority, OPENREG_PRIORITY_GPU);
    EXPECT_NE(record_of(name).caps & OPENREG_CAP_SIMULATED, 0u);
    EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, std::string("Driver '") + name + "' is a mock: "), 1);
  }
  std::vector<uint8_t> source(100000);
  std::iota(source.begin(), source.end(), uint8_t{1});
  std::vector<uint8_t> back(source.size());
  void* memory[3];
  const int32_t devices[3] = {1, 2, 4};
  for (int i = 0; i < 3; ++i) ASSERT_EQ(openreg_malloc(devices[i], 0, source.size(), &memory[i]), OPENREG_OK);
  ASSERT_EQ(openreg_memcpy(memory[0], 1, source.data(), OPENREG_HOST, source.size()), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy(memory[1], 2, memory[0], 1, source.size()), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy(memory[2], 4, memory[1], 2, source.size()), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy(back.data(), OPENREG_HOST, memory[2], 4, source.size()), OPENREG_OK) << last_message();
  EXPECT_EQ(back, source);
  for (void* block : memory) EXPECT_EQ(openreg_free(block), OPENREG_OK);
}

// acceptance 5.13: "1" is cuda with one device; a mock is preferred to the simulator as a real one would be.
TEST_F(MockTest, OneIsCuda) {
  set("OPENREG_USE_MOCK_GPU", "1");
  expect_drivers("cuda*1");
  EXPECT_EQ(record_of("hip").state, OPENREG_DRIVER_STATE_FAILED);
  // The variable is gone: so is the mock, at the next initialisation.
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_USE_MOCK_GPU", "0");
  expect_drivers("sim*2");
  EXPECT_EQ(record_of("cuda").state, OPENREG_DRIVER_STATE_FAILED);
  EXPECT_STREQ(record_of("cuda").source, "bundled");
}

// Names of the variable: the group, synonyms, any case; what can't be mocked is a warning.
TEST_F(MockTest, NamesOfTheVariable) {
  set("OPENREG_USE_MOCK_GPU", "GPU");
  ASSERT_EQ(openreg_drivers_open_all(), OPENREG_OK) << last_message();
  EXPECT_EQ(record_of("cuda").state, OPENREG_DRIVER_STATE_OPEN);
  EXPECT_EQ(record_of("hip").state, OPENREG_DRIVER_STATE_OPEN);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_USE_MOCK_GPU", "sim,RoCM,not a name,2,0");
  expect_drivers("hip*1");
  for (const std::string bad : {"sim", "not a name", "2"}) {
    EXPECT_EQ(count_lines(OPENREG_LOG_WARNING,
                          "invalid value " + bad + " in env var OPENREG_USE_MOCK_GPU sim,RoCM,not a name,2,0"),
              1);
  }
}

// A number of devices that is none is an error of the driver, with the variable and the value; memory can be set.
TEST_F(MockTest, NumberOfDevices) {
  set("OPENREG_USE_MOCK_GPU", "cuda");
  set("OPENREG_DRIVERS", "cuda");
  for (const std::string value : {"0", "128", "-1", "two", "", "1x"}) {
    set("OPENREG_MOCK_NUM_GPUS", value);
    EXPECT_EQ(openreg_init(), OPENREG_E_INVALID);
    EXPECT_CONTAINS(last_message(), "OPENREG_MOCK_NUM_GPUS must be an integer from 1 to 127, but is \"" + value + "\"");
  }
  set("OPENREG_MOCK_NUM_GPUS", " 007 ");
  set("OPENREG_CUDA_MEMORY", "1G");
  EXPECT_EQ(openreg_device_count(), 7);
  set("OPENREG_CUDA_MEMORY", "64M");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(properties_of(6).total_memory, uint64_t{64} << 20);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_CUDA_MEMORY", "nothing");
  expect_error(openreg_init(), OPENREG_E_INVALID, "OPENREG_CUDA_MEMORY must be a number of bytes");
}

// acceptance 5.12: the variable's library instead of the bundled one; the record has its path.
TEST_F(MockTest, LibraryPathOfAVariable) {
  set("OPENREG_CUDA_LIBRARY_PATH", driver_path("toy_driver"));
  expect_drivers("cuda*2");
  EXPECT_CONTAINS(record_of("cuda").path, "/toy_driver.so");
  EXPECT_STREQ(record_of("cuda").source, "OPENREG_CUDA_LIBRARY_PATH");
  EXPECT_TRUE(has_flag("cuda", OPENREG_DRIVER_FLAG_GPU));
  EXPECT_FALSE(has_flag("cuda", OPENREG_DRIVER_FLAG_MOCK));
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_CUDA_LIBRARY_PATH", "/nowhere/libcuda_driver.so");
  set("OPENREG_DRIVERS", "cuda");
  expect_error(openreg_init(), OPENREG_E_INCOMPATIBLE, "\n  OPENREG_CUDA_LIBRARY_PATH: the error above");
  EXPECT_STREQ(record_of("cuda").path, "/nowhere/libcuda_driver.so");
  // A mock takes the place of that library, too.
  set("OPENREG_USE_MOCK_GPU", "1");
  expect_drivers("cuda*1");
}

// A library that appears later is found then.
TEST_F(MockTest, LibraryThatAppears) {
  char directory[] = "/tmp/openreg_appears_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string path = std::string(directory) + "/driver.so";
  set("OPENREG_HIP_LIBRARY_PATH", path);
  EXPECT_EQ(record_of("hip").state, OPENREG_DRIVER_STATE_FAILED);
  ASSERT_EQ(symlink(driver_path("toy_driver").c_str(), path.c_str()), 0);
  EXPECT_EQ(record_of("hip").state, OPENREG_DRIVER_STATE_FOUND);
  expect_drivers("hip*2");
  unlink(path.c_str());
  rmdir(directory);
}

// A plugin of the same name is preferred to the mock, as it is to the real one.
TEST_F(MockTest, RegisteredDriverReplacesTheMock) {
  EXPECT_TRUE(in_child([this] {
    setenv("OPENREG_USE_MOCK_GPU", "cuda", 1);
    return add({"cuda", OPENREG_PRIORITY_PLUGIN}) == OPENREG_OK && openreg_init() == OPENREG_OK &&
           std::string(record_of("cuda").source) == "registered" && !has_flag("cuda", OPENREG_DRIVER_FLAG_MOCK) &&
           active() == "cuda*2" && openreg_shutdown() == OPENREG_OK;
  }));
}

}  // namespace
}  // namespace openreg_test
