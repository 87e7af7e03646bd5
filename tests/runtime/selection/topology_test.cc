// SPDX-License-Identifier: BSD-3-Clause
// Devices are described without opening their driver.
#include "runtime_test.h"

namespace openreg_test {
namespace {

class TopologyTest : public ToysTest {
 protected:
  openreg_status ask(const char* driver, const char* topology = nullptr, std::vector<openreg_option> options = {},
                     int32_t capacity = 8) {
    devices_.assign(static_cast<size_t>(capacity), openreg_device_properties{});
    for (auto& device : devices_) device.struct_size = sizeof device;
    peers_.assign(static_cast<size_t>(capacity) * static_cast<size_t>(capacity), 9);
    count_ = -1;
    return openreg_driver_get_topology(driver, topology, options.data(), options.size(), capacity, devices_.data(),
                                       peers_.data(), &count_);
  }
  std::vector<openreg_device_properties> devices_;
  std::vector<uint8_t> peers_;
  int32_t count_ = -1;
};

// acceptance 5.71: the simulator's devices, and nothing is initialised; a child of this process works.
TEST_F(TopologyTest, SimulatorIsDescribedUnopened) {
  set("OPENREG_SIM_DEVICES", "3");
  ASSERT_EQ(ask("sim"), OPENREG_OK) << last_message();
  ASSERT_EQ(count_, 3);
  EXPECT_STREQ(devices_[2].name, "OpenReg simulated device 2");
  EXPECT_STREQ(devices_[2].driver, "sim");
  EXPECT_EQ(devices_[2].ordinal, 2);
  EXPECT_EQ(devices_[2].total_memory, uint64_t{64} << 20);
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 8; ++k) EXPECT_EQ(peers_[static_cast<size_t>(i * 8 + k)], k < 3 ? 1 : 9);
  }
  EXPECT_EQ(openreg_is_initialized(), 0);
  EXPECT_NE(record_of("sim").state, OPENREG_DRIVER_STATE_OPEN);
  EXPECT_TRUE(in_child([] { return openreg_in_bad_fork() == 0 && openreg_device_count() == 3; }));
  EXPECT_EQ(ask("sim", "other"), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "openreg_driver_get_topology: driver \"sim\": there is no topology \"other\"");
  set("OPENREG_SIM_DEVICES", "many");
  EXPECT_EQ(ask("sim"), OPENREG_E_INVALID);
}

// acceptance 5.71, 5.72: described by its own function, with options of the call before all others; the library is
// loaded once, the driver never opened.
TEST_F(TopologyTest, DriverDescribesItself) {
  set("OPENREG_DRIVER_LIBRARIES", "ring:" + driver_path("full_toy_driver"));
  ASSERT_EQ(ask("ring", "", {{"devices", "4"}}), OPENREG_OK) << last_message();
  EXPECT_EQ(count_, 4);
  EXPECT_EQ(peers_[1], 1);
  EXPECT_EQ(peers_[0], 0);
  EXPECT_EQ(peers_[8], 0);
  ASSERT_EQ(ask("ring", "big"), OPENREG_OK) << last_message();
  EXPECT_EQ(count_, 4);
  EXPECT_STREQ(devices_[3].name, "Full toy 3");
  EXPECT_EQ(count_lines(OPENREG_LOG_INFO, "loaded driver \"full_toy\""), 1);
  EXPECT_EQ(record_of("ring").state, OPENREG_DRIVER_STATE_LOADED);
  EXPECT_EQ(openreg_is_initialized(), 0);
  // More devices than there is room for: as many as fit, and the full number.
  ASSERT_EQ(ask("ring", "", {{"devices", "5"}}, 2), OPENREG_OK) << last_message();
  EXPECT_EQ(count_, 5);
  EXPECT_STREQ(devices_[1].name, "Full toy 1");
  ASSERT_EQ(openreg_driver_get_topology("ring", nullptr, nullptr, 0, 0, nullptr, nullptr, &count_), OPENREG_OK);
  EXPECT_EQ(count_, 2);
  // Devices that are not visible are described, too.
  set("OPENREG_RING_VISIBLE_DEVICES", "1");
  ASSERT_EQ(ask("ring"), OPENREG_OK) << last_message();
  EXPECT_EQ(count_, 2);
}

// acceptance 5.72: asked twice, loaded and opened once at most; here open already.
TEST_F(TopologyTest, OpenDriverIsNotOpenedAgain) {
  ASSERT_EQ(add({"ring"}), OPENREG_OK);
  ASSERT_EQ(openreg_driver_open("ring"), OPENREG_OK) << last_message();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(ask("ring"), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().calls("open"), 1);
  EXPECT_EQ(toy().calls("describe"), 2);
  EXPECT_EQ(toy().queries(), 0);
}

// acceptance 5.26, 5.71: a driver without the function, and one that a factory would have to make.
TEST_F(TopologyTest, NotImplemented) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
  EXPECT_EQ(ask("toy"), OPENREG_E_UNSUPPORTED);
  EXPECT_EQ(last_message(), "openreg_driver_get_topology: topology not implemented for toy");
  static int made = 0;
  ASSERT_EQ(add_factory({"made"},
                        [](void*, openreg_factory_result* result) -> openreg_status {
                          ++made;
                          result->device_count = 1;
                          return OPENREG_OK;
                        }),
            OPENREG_OK);
  EXPECT_EQ(ask("made"), OPENREG_E_UNSUPPORTED);
  EXPECT_EQ(last_message(), "openreg_driver_get_topology: topology not implemented for made");
  EXPECT_EQ(made, 0);
}

// acceptance 5.72: no library, an unfit one, and one that misses the vendor's: one text, with the reason.
TEST_F(TopologyTest, GpuSupportIsNotInstalled) {
  EXPECT_EQ(ask("CUDA"), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(last_message(), "CUDA support not installed; cannot generate CUDA topology (");
  EXPECT_EQ(ask("rocm"), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(last_message(), "HIP support not installed; cannot generate HIP topology (the library is not there)");
  set("OPENREG_CUDA_LIBRARY_PATH", driver_path("broken_no_entry"));
  EXPECT_EQ(ask("cuda"), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(last_message(), "cannot generate CUDA topology (");
  EXPECT_CONTAINS(last_message(), "does not export openreg_driver_query_v1");
  set("OPENREG_HIP_LIBRARY_PATH", driver_path("toy_driver"));
  EXPECT_EQ(ask("hip"), OPENREG_E_UNSUPPORTED);
  EXPECT_CONTAINS(last_message(), "topology not implemented for hip");
}

// A library of a variable that cannot be loaded.
TEST_F(TopologyTest, UnfitLibrary) {
  set("OPENREG_DRIVER_LIBRARIES", "unfit:" + driver_path("broken_no_copy"));
  EXPECT_EQ(ask("unfit"), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(last_message(), "openreg_driver_get_topology: Unable to initialize driver 'unfit': ");
  EXPECT_CONTAINS(last_message(), "lacks the required function copy");
}

// acceptance 5.71: the group needs an open driver, and opens the first that works.
TEST_F(TopologyTest, GroupOpensItsFirstWorkingMember) {
  EXPECT_EQ(ask("gpu"), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(last_message(), "openreg_driver_get_topology: Unable to initialize driver 'hip'");
  set("OPENREG_USE_MOCK_GPU", "hip");
  ASSERT_EQ(ask("gpu"), OPENREG_OK) << last_message();
  EXPECT_EQ(count_, 1);
  EXPECT_STREQ(devices_[0].name, "OpenReg mock HIP device 0");
  EXPECT_EQ(record_of("hip").state, OPENREG_DRIVER_STATE_OPEN);
  EXPECT_EQ(openreg_is_initialized(), 0);
  ASSERT_EQ(ask("gpu"), OPENREG_OK) << last_message();
}

TEST_F(TopologyTest, Arguments) {
  EXPECT_EQ(ask("nobody"), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "Driver 'nobody' is not in the list of known drivers: [");
  EXPECT_EQ(ask("no name"), OPENREG_E_INVALID);
  EXPECT_EQ(ask(nullptr), OPENREG_E_INVALID);
  openreg_device_properties unsized{};
  int32_t count = 0;
  EXPECT_EQ(openreg_driver_get_topology("sim", "", nullptr, 0, 1, &unsized, nullptr, &count), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "struct_size of device 0");
  EXPECT_EQ(openreg_driver_get_topology("sim", "", nullptr, 0, 1, nullptr, nullptr, &count), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_get_topology("sim", "", nullptr, 0, -1, &unsized, nullptr, &count), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_get_topology("sim", "", nullptr, 1, 0, &unsized, nullptr, &count), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_get_topology("sim", "", nullptr, 0, 0, nullptr, nullptr, nullptr), OPENREG_E_INVALID);
}

openreg_status counts_below_zero(const openreg_host*, const openreg_option*, uint32_t, const char*, int32_t,
                                 openreg_device_info* const*, uint8_t*, int32_t* count) {
  *count = -2;
  return OPENREG_OK;
}
openreg_status crooked_alignment(const openreg_host*, const openreg_option*, uint32_t, const char*, int32_t,
                                 openreg_device_info* const* infos, uint8_t*, int32_t* count) {
  infos[0]->min_alignment = 24;
  *count = 1;
  return OPENREG_OK;
}
openreg_status without_names(const openreg_host*, const openreg_option*, uint32_t, const char*, int32_t,
                             openreg_device_info* const*, uint8_t*, int32_t* count) {
  *count = 1;
  return OPENREG_OK;
}

// What a driver says is checked, and completed as device_info() is.
TEST_F(TopologyTest, DefectsOfTheDriver) {
  use_full_toy([](openreg_driver& table) { table.name = "below", table.describe = counts_below_zero; });
  EXPECT_EQ(ask("below"), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(), "described a negative number of devices");
  use_full_toy([](openreg_driver& table) { table.name = "crooked", table.describe = crooked_alignment; });
  EXPECT_EQ(ask("crooked"), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(), "not a power of two");
  use_full_toy([](openreg_driver& table) { table.name = "nameless", table.describe = without_names; });
  ASSERT_EQ(ask("nameless"), OPENREG_OK) << last_message();
  EXPECT_STREQ(devices_[0].name, "nameless device 0");
  toy().fail("describe", 1, OPENREG_E_INTERNAL, 0);
  use_full_toy();
  EXPECT_EQ(ask("full_toy"), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(), "describe was told to fail");
}

}  // namespace
}  // namespace openreg_test
