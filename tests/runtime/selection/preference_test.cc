// SPDX-License-Identifier: BSD-3-Clause
// The preference: soft, with one warning of its own for each way in which it can't be followed.
#include "runtime_test.h"

namespace openreg_test {
namespace {

class PreferenceTest : public ToysTest {
 protected:
  void prefer(const char* name) { ASSERT_EQ(openreg_driver_prefer(name), OPENREG_OK) << last_message(); }
};

// acceptance 1.15, 2.10: the preference beats the priority.
TEST_F(PreferenceTest, BeatsThePriority) {
  set("OPENREG_USE_MOCK_GPU", "cuda,hip");
  prefer("AMDGPU");
  EXPECT_EQ(openreg_device_count(), 1);
  expect_drivers("hip*1");
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_PREFERENCE);
  EXPECT_STREQ(selection().preference, "hip");
  EXPECT_STREQ(selection().default_driver, "hip");
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "preference"), 0);
  // A table that stands is not touched by another preference.
  prefer("cuda");
  EXPECT_EQ(active(), "hip*1");
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "cuda*1");
  prefer("");
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_AUTOMATICALLY);
  EXPECT_STREQ(selection().preference, "");
}

// acceptance 1.17: a name that nobody knows is one warning, and the automatic choice.
TEST_F(PreferenceTest, UnknownName) {
  prefer("foo");
  EXPECT_EQ(openreg_device_count(), 2);
  expect_drivers("sim*2");
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK);
  const std::string text = "driver 'foo' set via preferences is not a valid driver. Valid drivers are (";
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, text), 1);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "'cuda', 'hip', 'sim'"), 1);
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  openreg_drivers_forget_failures();
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, text), 2);
}

// acceptance 2.12: the library is not there, is unfit, or misses the vendor's: "not loaded", with the reason.
TEST_F(PreferenceTest, NotLoaded) {
  prefer("cuda");
  const std::string text = "Trying to use driver 'cuda' but its library is not loaded (";
  expect_drivers("sim*2");
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_AUTOMATICALLY);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING,
                        text + "the library is not there: built without CUDA). Ignoring the preference."),
            1);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, text), 1);  // once
  for (const std::string library : {"broken_no_entry", "broken_open_fails", "broken_no_devices"}) {
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
    openreg_drivers_forget_failures();
    set("OPENREG_CUDA_LIBRARY_PATH", driver_path(library));
    const int before = count_lines(OPENREG_LOG_WARNING, text);
    ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
    EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, text), before + 1) << library;
  }
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "is not functional"), 0);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, text + "the vendor's library is too old (OPENREG_E_INCOMPATIBLE))"), 1);
}

// acceptance 1.16: loaded, and open() fails: "not functional", once; the next rule decides, without another attempt.
TEST_F(PreferenceTest, NotFunctional) {
  ASSERT_EQ(add({"weak", 100, 0, {{"fail", "open:1"}}}), OPENREG_OK);
  set("OPENREG_USE_MOCK_GPU", "hip");
  prefer("weak");
  for (int i = 0; i < 2; ++i) {
    int32_t gpu = 0;
    ASSERT_EQ(openreg_select_gpu(&gpu), OPENREG_OK) << last_message();
    EXPECT_EQ(gpu, 1);
    ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
    EXPECT_EQ(active(), "hip*1");
  }
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING,
                        "driver 'weak' set via preferences is not functional. Defaulting to "
                        "automatic driver selection."),
            1);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "not loaded"), 0);
  EXPECT_EQ(toy().calls("open"), 1);
}

// acceptance 2.13: it is followed once the driver has appeared.
TEST_F(PreferenceTest, FollowedOnceTheDriverIsThere) {
  prefer("late_one");
  expect_drivers("sim*2");
  ASSERT_EQ(add({"late_one", 10}), OPENREG_OK);
  EXPECT_EQ(active(), "sim*2");
  ASSERT_EQ(openreg_drivers_reselect(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), "late_one*2");
}

// OPENREG_DRIVERS and openreg_drivers_use() come first, and nothing is warned about. acceptance 2.17, 5.5
TEST_F(PreferenceTest, IgnoredWhereSomebodyChose) {
  prefer("cuda");
  set("OPENREG_DRIVERS", "sim");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_ENVIRONMENT);
  EXPECT_EQ(count_lines(OPENREG_LOG_INFO, "the preference 'cuda' is ignored: OPENREG_DRIVERS is set"), 1);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  unset("OPENREG_DRIVERS");
  ASSERT_EQ(openreg_drivers_use("sim"), OPENREG_OK) << last_message();
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_CALL);
  EXPECT_TRUE(lines(OPENREG_LOG_WARNING).empty());
}

// A group is as good a preference as a name: its first member that works.
TEST_F(PreferenceTest, Group) {
  prefer("gpu");
  set("OPENREG_USE_MOCK_GPU", "hip");
  expect_drivers("hip*1");
  EXPECT_EQ(selection().chosen_by, OPENREG_CHOSEN_BY_PREFERENCE);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  unset("OPENREG_USE_MOCK_GPU");
  expect_drivers("sim*2");
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "Trying to use driver 'gpu' but its library is not loaded"), 1);
}

// A name that is malformed is refused, and there is no preference then.
TEST_F(PreferenceTest, MalformedName) {
  prefer("cuda");
  expect_error(openreg_driver_prefer("no name"), OPENREG_E_INVALID, "openreg_driver_prefer: the name \"no name\"");
  EXPECT_STREQ(selection().preference, "");
}

// A driver without a C table can't be used; to prefer it is no error.
TEST_F(PreferenceTest, DescribedDriver) {
  ASSERT_EQ(add_factory({"described", 1},
                        [](void*, openreg_factory_result* result) -> openreg_status {
                          result->device_count = 3;
                          return OPENREG_OK;
                        }),
            OPENREG_OK);
  prefer("described");
  expect_drivers("sim*2");
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "driver 'described' set via preferences is not functional"), 1);
}

}  // namespace
}  // namespace openreg_test
