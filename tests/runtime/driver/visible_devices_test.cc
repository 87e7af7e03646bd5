// SPDX-License-Identifier: BSD-3-Clause
// Which devices of a driver are used: OPENREG_<NAME>_VISIBLE_DEVICES and the option of a registration.
#include "runtime_test.h"

namespace openreg_test {
namespace {

class VisibleDevicesTest : public ToysTest {
 protected:
  static int32_t ordinal_of(int32_t device) { return properties_of(device).ordinal; }
  // The ordinal at which the driver is asked for memory of openreg:device.
  static int32_t allocates_on(int32_t device) {
    void* const memory = allocate(device, 64);
    EXPECT_EQ(openreg_free(memory), OPENREG_OK);
    return toy().allocated_on();
  }
};

// acceptance 5.7: the order of the list is that of the devices.
TEST_F(VisibleDevicesTest, OrderOfTheListIsTheOrderOfTheDevices) {
  set("OPENREG_USE_MOCK_GPU", "cuda");
  set("OPENREG_MOCK_NUM_GPUS", "4");
  set("OPENREG_CUDA_VISIBLE_DEVICES", " 3, 1 ");
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(openreg_is_initialized(), 0);
  expect_drivers("cuda*2");
  EXPECT_EQ(ordinal_of(0), 3);
  EXPECT_EQ(ordinal_of(1), 1);
  EXPECT_EQ(record_of("cuda").device_count, 2);
}

// acceptance 5.8: likewise for hip and sim; "all" is all.
TEST_F(VisibleDevicesTest, OfEachDriver) {
  set("OPENREG_SIM_DEVICES", "3");
  set("OPENREG_SIM_VISIBLE_DEVICES", "2");
  set("OPENREG_USE_MOCK_GPU", "hip");
  set("OPENREG_MOCK_NUM_GPUS", "3");
  set("OPENREG_HIP_VISIBLE_DEVICES", "2,0");
  set("OPENREG_DRIVERS", "sim");
  EXPECT_EQ(openreg_device_count(), 1);
  set("OPENREG_DRIVERS", "hip,sim");
  expect_drivers("hip*2 sim*1");
  EXPECT_EQ(ordinal_of(2), 2);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_SIM_VISIBLE_DEVICES", "ALL");
  expect_drivers("hip*2 sim*3");
}

// acceptance 3.16, 3.13: the driver is given its own number of the device, concrete and never -1.
TEST_F(VisibleDevicesTest, TheDriverSeesItsOwnNumbers) {
  ASSERT_EQ(add({"visible", 400, 0, {{"visible_devices", "1"}}}), OPENREG_OK) << last_message();
  set("OPENREG_DRIVERS", "visible");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_count(), 1);
  EXPECT_EQ(allocates_on(0), 1);
  char value[32];
  EXPECT_EQ(toy().option("visible_devices", value, sizeof value), 0);  // the runtime's, not passed on
  // The vendor starts at its device 0, which is not this one.
  ASSERT_EQ(openreg_set_device(0), OPENREG_OK);
  EXPECT_EQ(toy().bound(), 1);
}

TEST_F(VisibleDevicesTest, CurrentDeviceReachesTheDriver) {  // acceptance 3.13
  use_full_toy();
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK) << last_message();
  EXPECT_EQ(allocates_on(openreg_current_device()), 1);
}

// acceptance 3.14: in C a device is a number; -1 is an error and gives no memory.
TEST_F(VisibleDevicesTest, NoDeviceIsAnError) {
  use_full_toy();
  void* memory = this;
  EXPECT_EQ(openreg_malloc(-1, 0, 64, &memory), OPENREG_E_INVALID);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(toy().calls("mem_alloc"), 0);
}

// acceptance 5.49: the variable overrides the registration, whose options override none.
TEST_F(VisibleDevicesTest, VariableOverridesTheRegistration) {
  ASSERT_EQ(add({"visible", 400, 0, {{"visible_devices", "0"}, {"colour", "red"}, {"devices", "4"}}}), OPENREG_OK);
  set("OPENREG_DRIVERS", "visible");
  set("OPENREG_VISIBLE_VISIBLE_DEVICES", "3,1");
  set("OPENREG_VISIBLE_COLOUR", "blue");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(ordinal_of(0), 3);
  EXPECT_EQ(ordinal_of(1), 1);
  char value[32];
  ASSERT_EQ(toy().option("colour", value, sizeof value), 1);
  EXPECT_STREQ(value, "blue");
}

// acceptance 5.7: what is no list of existing devices is an error that names variable, value and the devices.
TEST_F(VisibleDevicesTest, BadValues) {
  set("OPENREG_DRIVERS", "sim");
  const std::pair<const char*, const char*> cases[] = {
      {"a", "'a' is not a device id"},     {"-1", "'-1' is not a device id"},
      {"1.0", "'1.0' is not a device id"}, {"", "'' is not a device id"},
      {"0,,1", "'' is not a device id"},   {"0,1,", "'' is not a device id"},
      {"2", "'2' does not exist"},         {"0,99999999999999999999", "'99999999999999999999' is not a device id"},
      {"1,0, 1", "'1' is given twice"},    {"all,0", "'all' is not a device id"}};
  for (const auto& [value, reason] : cases) {
    SCOPED_TRACE(value);
    set("OPENREG_SIM_VISIBLE_DEVICES", value);
    EXPECT_EQ(openreg_device_count(), 0);
    EXPECT_EQ(openreg_init(), OPENREG_E_INVALID);
    EXPECT_CONTAINS(last_message(), std::string("OPENREG_SIM_VISIBLE_DEVICES=\"") + value + "\": " + reason +
                                        "; driver 'sim' has devices 0 to 1");
  }
  set("OPENREG_SIM_DEVICES", "1");
  set("OPENREG_SIM_VISIBLE_DEVICES", "1");
  expect_error(openreg_init(), OPENREG_E_INVALID, "driver 'sim' has device 0");
  unset("OPENREG_SIM_VISIBLE_DEVICES");
  ASSERT_EQ(add({"visible", 400, 0, {{"visible_devices", "7"}}}), OPENREG_OK);
  set("OPENREG_DRIVERS", "visible");
  EXPECT_EQ(openreg_init(), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(),
                  "option visible_devices=\"7\": '7' does not exist; driver 'visible' has devices 0 to 1");
  EXPECT_EQ(toy().live("instance"), 0);
}

// A driver with more devices than PyTorch can count is of use if a list names few enough of them.
TEST_F(VisibleDevicesTest, ManyDevices) {
  ASSERT_EQ(add({"many", 400, 0, {{"devices", "200"}}}), OPENREG_OK);
  set("OPENREG_DRIVERS", "many");
  expect_error(openreg_init(), OPENREG_E_NO_DEVICE, "Driver 'many' provides 200 devices; PyTorch can count to 127");
  set("OPENREG_MANY_VISIBLE_DEVICES", "199,5");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(ordinal_of(0), 199);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  std::string all = "0";
  for (int i = 1; i < 128; ++i) all.append(",").append(std::to_string(i));
  set("OPENREG_MANY_VISIBLE_DEVICES", all);
  expect_error(openreg_init(), OPENREG_E_NO_DEVICE, "128 devices");
}

}  // namespace
}  // namespace openreg_test
