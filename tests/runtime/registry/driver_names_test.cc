// SPDX-License-Identifier: BSD-3-Clause
// Names of drivers: case, synonyms, the group, and what is known (openreg/registry.h).
#include <cstring>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class DriverNamesTest : public RuntimeTest {
 protected:
  static std::string canonical(const char* name) {
    char out[32] = "unchanged";
    return openreg_driver_canonical_name(name, out) == OPENREG_OK ? out : "";
  }
  static std::vector<std::string> expand(const char* name) {
    char out[4][32];
    const int32_t count = openreg_driver_expand_name(name, out, 4);
    return {out, out + count};
  }
};

// Lower case, no spaces around, synonyms resolved; whether such a driver exists is not asked. acceptance 2.5
TEST_F(DriverNamesTest, CanonicalNames) {
  EXPECT_EQ(canonical("AMDGPU"), "hip");
  EXPECT_EQ(canonical("rocm"), "hip");
  EXPECT_EQ(canonical(" CUDA\t"), "cuda");
  EXPECT_EQ(canonical("GPU"), "gpu");
  EXPECT_EQ(canonical("nobody_2"), "nobody_2");
  EXPECT_EQ(openreg_is_initialized(), 0);
}

// A name that is none is refused, and said to be.
TEST_F(DriverNamesTest, MalformedNames) {
  char out[32] = "unchanged";
  for (const char* name : {"", " ", "a b", "caf\xc3\xa9", "x-y", "a_name_that_is_longer_than_31_chars", "a,b"}) {
    EXPECT_EQ(openreg_driver_canonical_name(name, out), OPENREG_E_INVALID) << name;
    EXPECT_CONTAINS(last_message(), std::string("the name \"") + name + "\" is not 1 to 31 characters");
    EXPECT_STREQ(out, "unchanged");
    EXPECT_EQ(openreg_driver_expand_name(name, nullptr, 0), 0);
  }
  EXPECT_EQ(openreg_driver_canonical_name(nullptr, out), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_canonical_name("x", nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_expand_name(nullptr, nullptr, 0), 0);
}

// acceptance 5.52: the group is cuda and hip, in that order; every other name is itself.
TEST_F(DriverNamesTest, Expand) {
  EXPECT_EQ(expand("gpu"), (std::vector<std::string>{"cuda", "hip"}));
  EXPECT_EQ(expand(" Gpu "), (std::vector<std::string>{"cuda", "hip"}));
  EXPECT_EQ(expand("x"), std::vector<std::string>{"x"});
  EXPECT_EQ(expand("rocm"), std::vector<std::string>{"hip"});
  char one[1][32] = {""};
  EXPECT_EQ(openreg_driver_expand_name("gpu", one, 1), 2);  // the full number
  EXPECT_STREQ(one[0], "cuda");
}

// acceptance 5.53: what is not installed is known all the same; a slip of the pen is not.
TEST_F(DriverNamesTest, KnownNames) {
  auto record = sized<openreg_driver_record>();
  for (const char* name : {"cuda", "hip", "rocm", "amdgpu", "ROCm", "gpu", "sim"}) {
    EXPECT_EQ(openreg_driver_find(name, &record), OPENREG_OK) << name;
  }
  EXPECT_STREQ(record.name, "sim");
  ASSERT_EQ(openreg_driver_find("gpu", &record), OPENREG_OK);
  EXPECT_STREQ(record.name, "cuda");  // none is open: the first
  for (const char* name : {"cudda", "no name"}) {
    EXPECT_EQ(openreg_driver_find(name, &record), OPENREG_E_INVALID);
    EXPECT_EQ(last_message(), std::string("openreg_driver_find: Driver '") + name +
                                  "' is not in the list of known drivers: ['cuda', 'hip', 'sim']" +
                                  (std::string(name) == "cudda" ? "; did you mean 'cuda'?" : ""));
  }
  EXPECT_EQ(openreg_driver_find(nullptr, &record), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_find("sim", nullptr), OPENREG_E_INVALID);
  record.struct_size = 0;
  EXPECT_EQ(openreg_driver_find("sim", &record), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_is_initialized(), 0);
}

// acceptance 5.52, 5.28: which are GPUs, whether they are there or not; both at priority 200 in the order of the group.
TEST_F(DriverNamesTest, BuiltInRecords) {
  EXPECT_TRUE(has_flag("cuda", OPENREG_DRIVER_FLAG_GPU));
  EXPECT_TRUE(has_flag("hip", OPENREG_DRIVER_FLAG_GPU));
  EXPECT_FALSE(has_flag("sim", OPENREG_DRIVER_FLAG_GPU));
  EXPECT_TRUE(has_flag("sim", OPENREG_DRIVER_FLAG_REQUIRED));
  EXPECT_FALSE(has_flag("cuda", OPENREG_DRIVER_FLAG_REQUIRED));
  EXPECT_EQ(record_of("cuda").priority, OPENREG_PRIORITY_GPU);
  EXPECT_EQ(record_of("hip").priority, OPENREG_PRIORITY_GPU);
  EXPECT_EQ(record_of("sim").priority, OPENREG_PRIORITY_SIM);
  EXPECT_FALSE(has_flag("cuda", OPENREG_DRIVER_FLAG_HAS_TABLE));
}

// The open member is what the group means once there is one.
TEST_F(DriverNamesTest, GroupMeansItsOpenMember) {
  set("OPENREG_USE_MOCK_GPU", "hip");
  ASSERT_EQ(openreg_driver_open("hip"), OPENREG_OK) << last_message();
  auto record = sized<openreg_driver_record>();
  ASSERT_EQ(openreg_driver_find("gpu", &record), OPENREG_OK);
  EXPECT_STREQ(record.name, "hip");
}

}  // namespace
}  // namespace openreg_test
