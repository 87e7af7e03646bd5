// SPDX-License-Identifier: BSD-3-Clause
// The current device and the questions about devices.
#include <atomic>
#include <thread>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class DeviceTest : public SimDevicesTest {
 protected:
  void SetUp() override {
    SimDevicesTest::SetUp();
    EXPECT_EQ(openreg_current_device(), 0);
  }

  static std::string out_of_range(const std::string& call, int count, int got) {
    return call + ": The device index is out of range. It must be in [0, " + std::to_string(count) + "), but got " +
           std::to_string(got) + ".";
  }
};

// acceptance 4.5: asking for the current device initialises nothing.
TEST_F(DeviceTest, CurrentDeviceInitialisesNothing) {
  EXPECT_EQ(openreg_current_device(), 0);
  openreg_restore_device(1);
  EXPECT_EQ(openreg_current_device(), 0);
  EXPECT_EQ(openreg_is_initialized(), 0);
}

// acceptance 4.6, 4.21: set_device initialises, and is seen by the same thread alone.
TEST_F(DeviceTest, SetDevice) {
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_is_initialized(), 1);
  EXPECT_EQ(openreg_current_device(), 1);
  std::thread([] {  // acceptance 4.5
    EXPECT_EQ(openreg_current_device(), 0);
    EXPECT_EQ(openreg_set_device(0), OPENREG_OK);
  })
      .join();
  EXPECT_EQ(openreg_current_device(), 1);
}

// acceptance 4.7, 4.10, 4.12: indices out of range are refused with the range and the value, and change nothing.
TEST_F(DeviceTest, BadIndicesChangeNothing) {
  for (const int bad : {2, 3, 200, 256, INT32_MAX, -2, -56, INT32_MIN, -1}) {
    SCOPED_TRACE(bad);
    ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
    EXPECT_EQ(openreg_set_device(bad), OPENREG_E_INVALID);
    EXPECT_EQ(last_message(), out_of_range("openreg_set_device", 2, bad));
    int32_t previous = 77;
    EXPECT_EQ(openreg_exchange_device(bad, &previous), OPENREG_E_INVALID);
    EXPECT_EQ(last_message(), out_of_range("openreg_exchange_device", 2, bad));
    EXPECT_EQ(previous, 77);
    if (bad != -1) {
      EXPECT_EQ(openreg_maybe_exchange_device(bad, &previous), OPENREG_E_INVALID);
      EXPECT_EQ(last_message(), out_of_range("openreg_maybe_exchange_device", 2, bad));
      EXPECT_EQ(previous, 77);
    }
    openreg_restore_device(bad);  // acceptance 4.30b
    EXPECT_EQ(openreg_current_device(), 1);
  }
  // Also as the very first call, which initialises.
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_set_device(2), OPENREG_E_INVALID);
  EXPECT_EQ(last_message(), out_of_range("openreg_set_device", 2, 2));
}

// acceptance 4.8: exchange gives the previous index; an error leaves it.
TEST_F(DeviceTest, ExchangeDevice) {
  int32_t previous = -5;
  ASSERT_EQ(openreg_exchange_device(1, &previous), OPENREG_OK);
  EXPECT_EQ(previous, 0);
  EXPECT_EQ(openreg_current_device(), 1);
  EXPECT_EQ(openreg_exchange_device(9, &previous), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_current_device(), 1);
  ASSERT_EQ(openreg_exchange_device(0, &previous), OPENREG_OK);
  EXPECT_EQ(previous, 1);
  EXPECT_EQ(openreg_exchange_device(0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_maybe_exchange_device(0, nullptr), OPENREG_E_INVALID);
}

// acceptance 4.10: -1 changes nothing and gives -1, and does not even initialise.
TEST_F(DeviceTest, MaybeExchangeDevice) {
  int32_t previous = 5;
  ASSERT_EQ(openreg_maybe_exchange_device(-1, &previous), OPENREG_OK);
  EXPECT_EQ(previous, -1);
  EXPECT_EQ(openreg_is_initialized(), 0);
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
  ASSERT_EQ(openreg_maybe_exchange_device(-1, &previous), OPENREG_OK);
  EXPECT_EQ(previous, -1);
  EXPECT_EQ(openreg_current_device(), 1);
  ASSERT_EQ(openreg_maybe_exchange_device(0, &previous), OPENREG_OK);
  EXPECT_EQ(previous, 1);
  EXPECT_EQ(openreg_current_device(), 0);
}

// acceptance 4.9: threads switch at the same time and never see each other's device (TSan runs this too).
TEST_F(DeviceTest, ThreadsDoNotSeeEachOther) {
  set("OPENREG_SIM_DEVICES", "4");
  Threads(4, [](int t) {
    for (int i = 0; i < 1000; ++i) {
      const int32_t mine = (t + i) % 4;
      int32_t previous = -1;
      ASSERT_EQ(openreg_set_device(mine), OPENREG_OK);
      ASSERT_EQ(openreg_current_device(), mine);
      ASSERT_EQ(openreg_exchange_device(t, &previous), OPENREG_OK);
      ASSERT_EQ(previous, mine);
      ASSERT_EQ(openreg_maybe_exchange_device(mine, &previous), OPENREG_OK);
      ASSERT_EQ(previous, t);
      openreg_restore_device(t);
      ASSERT_EQ(openreg_current_device(), t);
    }
  }).join();
  EXPECT_EQ(openreg_current_device(), 0);
}

// acceptance 4.6b: selecting a device makes no context; the first allocation or stream does, on that device alone.
TEST_F(DeviceTest, SelectionDoesNotActivate) {
  const auto active = [](int32_t device) {
    int32_t is_active = -1;
    EXPECT_EQ(openreg_device_active(device, &is_active), OPENREG_OK) << last_message();
    return is_active;
  };
  int32_t previous;
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
  ASSERT_EQ(openreg_exchange_device(0, &previous), OPENREG_OK);
  ASSERT_EQ(openreg_maybe_exchange_device(1, &previous), OPENREG_OK);
  EXPECT_EQ(active(0), 0);
  EXPECT_EQ(active(1), 0);
  void* const memory = allocate(1, 8);
  EXPECT_EQ(active(1), 1);
  EXPECT_EQ(active(0), 0);
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
  from_pool(0);
  EXPECT_EQ(active(0), 1);
  EXPECT_EQ(openreg_device_active(0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_device_active(2, &previous), OPENREG_E_INVALID);
}

// The same with a driver that cannot say it: the runtime's own books.
TEST_F(DeviceTest, MadeUpActive) {
  use_full_toy([](openreg_driver& table) { table.device_active = nullptr; });
  int32_t active = -1;
  ASSERT_EQ(openreg_device_active(1, &active), OPENREG_OK) << last_message();
  EXPECT_EQ(active, 0);
  from_pool(1);
  ASSERT_EQ(openreg_device_active(1, &active), OPENREG_OK);
  EXPECT_EQ(active, 1);
  ASSERT_EQ(openreg_device_active(0, &active), OPENREG_OK);
  EXPECT_EQ(active, 0);
}

// After shutdown and a new initialisation every thread starts at device 0 again, also one that did nothing meanwhile.
TEST_F(DeviceTest, NewTableStartsAtZero) {
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
  std::atomic<int> step{0};
  std::thread other([&] {
    ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
    step = 1;
    while (step != 2) usleep(1000);
    EXPECT_EQ(openreg_current_device(), 0);
  });
  while (step != 1) usleep(1000);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_current_device(), 0);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(openreg_current_device(), 0);
  step = 2;
  other.join();
  int32_t previous = -1;
  ASSERT_EQ(openreg_exchange_device(1, &previous), OPENREG_OK);
  EXPECT_EQ(previous, 0);
}

// Decision 1, acceptance 4.14: set and exchange tell a driver that has device_bind; not if it is current already, and
// never from maybe_exchange and restore; the next set catches up with those.
TEST_F(DeviceTest, BindIsCalledWhenNeeded) {
  use_full_toy();
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  int32_t previous;
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
  EXPECT_EQ(toy().calls("device_bind"), 1);
  EXPECT_EQ(toy().bound(), 1);
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
  EXPECT_EQ(toy().calls("device_bind"), 1);
  ASSERT_EQ(openreg_maybe_exchange_device(0, &previous), OPENREG_OK);
  openreg_restore_device(1);
  openreg_restore_device(0);
  EXPECT_EQ(toy().calls("device_bind"), 1);
  EXPECT_EQ(toy().bound(), 1);
  EXPECT_EQ(openreg_current_device(), 0);
  ASSERT_EQ(openreg_set_device(0), OPENREG_OK);
  EXPECT_EQ(toy().calls("device_bind"), 2);
  EXPECT_EQ(toy().bound(), 0);
  std::thread([] {
    EXPECT_EQ(openreg_set_device(0), OPENREG_OK);  // a new thread's vendor device is 0 as well
    EXPECT_EQ(toy().calls("device_bind"), 2);
  }).join();
}

// acceptance 4.13: a failing bind is an error and leaves the current device.
TEST_F(DeviceTest, FailingBindChangesNothing) {
  use_full_toy();
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  int32_t previous = 9;
  toy().fail("device_bind", 1, OPENREG_E_DEVICE_LOST, FULL_TOY_FOREVER);
  EXPECT_EQ(openreg_set_device(1), OPENREG_E_DEVICE_LOST);
  EXPECT_CONTAINS(last_message(), "openreg_set_device: driver \"full_toy\": device_bind was told to fail");
  EXPECT_EQ(openreg_current_device(), 0);
  EXPECT_EQ(openreg_exchange_device(1, &previous), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(previous, 9);
  EXPECT_EQ(openreg_current_device(), 0);
  EXPECT_EQ(openreg_maybe_exchange_device(1, &previous), OPENREG_OK);
  EXPECT_EQ(previous, 0);
}

// Properties as the driver gives them; a shorter structure of an older caller is not written beyond its size.
TEST_F(DeviceTest, Properties) {
  use_full_toy();
  auto properties = properties_of(1);
  EXPECT_STREQ(properties.name, "Full toy 1");
  EXPECT_STREQ(properties.driver, "full_toy");
  EXPECT_STREQ(properties.driver_version, "2.0");
  EXPECT_STREQ(properties.torch_device_type, "");
  EXPECT_EQ(properties.ordinal, 1);
  EXPECT_EQ(properties.total_memory, uint64_t{1} << 30);
  EXPECT_EQ(properties.caps, OPENREG_CAP_HOST_VISIBLE);
  EXPECT_EQ(properties.priority_low, 0);
  EXPECT_EQ(properties.priority_high, -2);
  EXPECT_EQ(properties.multi_processor_count, 4);
  EXPECT_EQ(properties.capability_major, 1);
  EXPECT_EQ(properties.capability_minor, 2);
  EXPECT_EQ(properties.uuid[15], 2);

  EXPECT_EQ(openreg_device_get_properties(0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_device_get_properties(2, &properties), OPENREG_E_INVALID);
  EXPECT_EQ(last_message(), out_of_range("openreg_device_get_properties", 2, 2));
}

// synchronize waits for the device that it is given, not for the current one.
TEST_F(DeviceTest, SynchronizeReachesTheDeviceNamed) {
  use_full_toy();
  ASSERT_EQ(openreg_device_synchronize(1), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().calls("device_sync"), 1);
  EXPECT_EQ(openreg_device_synchronize(-1), OPENREG_E_INVALID);
  EXPECT_EQ(last_message(), out_of_range("openreg_device_synchronize", 2, -1));
}

// Nothing in the header's fast paths initialises behind the caller's back if no driver works.
TEST_F(DeviceTest, NoDriverIsAnErrorEverywhere) {
  set("OPENREG_SIM_DEVICES", "none");
  int32_t value = 3;
  auto properties = sized<openreg_device_properties>();
  EXPECT_EQ(openreg_set_device(0), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_exchange_device(0, &value), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_maybe_exchange_device(0, &value), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_device_get_properties(0, &properties), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "openreg_device_synchronize: Unable to initialize driver 'sim': OPENREG_SIM_DEVICES");
  EXPECT_CONTAINS(last_message(), "\"none\"");
  EXPECT_EQ(value, 3);
  EXPECT_EQ(openreg_current_device(), 0);
  EXPECT_EQ(openreg_device_count(), 0);
}

}  // namespace
}  // namespace openreg_test
