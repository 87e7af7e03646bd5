// SPDX-License-Identifier: BSD-3-Clause
// openreg_set_device_name(): every text of the runtime and its instruments then has that word, and none "openreg". The
// name is a process's for good, so each test sets it in a child.
#include <openreg/faults.h>
#include <openreg/flight_recorder.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class DeviceNameTest : public SimDevicesTest {
 protected:
  // What a user reads has the name, and nowhere the usual one but in "openreg_malloc", "libopenreg" and OPENREG_LOG_LEVEL.
  static void expect_named(const std::string& text) {
    EXPECT_CONTAINS(text, "mychip");
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    for (size_t at = lower.find("openreg"); at != std::string::npos; at = lower.find("openreg", at + 1)) {
      EXPECT_EQ(lower[at + 7], '_') << text;
    }
  }

  // Runs `body` in a child whose devices are named mychip. Its failures are printed there, and are one here.
  template <typename Body>
  static void with_name(Body body) {
    EXPECT_TRUE(in_child([&] {
      EXPECT_EQ(openreg_set_device_name("mychip"), OPENREG_OK) << last_message();
      body();
      return !HasFailure();
    }));
  }
};

// The name is 1 to 31 of a-z and _, and stays: the same again is no error, another is.
TEST_F(DeviceNameTest, IsSetOnce) {
  const std::string longest(31, 'a');
  const std::string longer = longest + "a";
  for (const char* const name : {"", "chip2", "MyChip", "my-chip", "my chip", longer.c_str()}) {
    EXPECT_EQ(openreg_set_device_name(name), OPENREG_E_INVALID) << name;
    EXPECT_EQ(last_message(), "openreg_set_device_name: a name has 1 to 31 of a-z and _");
  }
  EXPECT_EQ(openreg_set_device_name(nullptr), OPENREG_E_INVALID);
  EXPECT_TRUE(in_child([&] { return openreg_set_device_name(longest.c_str()) == OPENREG_OK; }));
  with_name([] {
    EXPECT_EQ(openreg_set_device_name("mychip"), OPENREG_OK);
    EXPECT_EQ(openreg_set_device_name("other"), OPENREG_E_INVALID);
    EXPECT_EQ(last_message(), "openreg_set_device_name: the devices are named \"mychip\" already");
  });
}

TEST_F(DeviceNameTest, ErrorsHaveIt) {
  with_name([] {
    EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
    void *here = nullptr, *there = nullptr, *none = nullptr;
    EXPECT_EQ(openreg_malloc(0, 0, 512, &here), OPENREG_OK);
    EXPECT_EQ(openreg_malloc(1, 0, 512, &there), OPENREG_OK);
    openreg_event event{};
    EXPECT_EQ(openreg_event_create(0, 0, &event), OPENREG_OK);
    char host[16] = {};
    int word = 0;
    auto* const bytes = static_cast<char*>(here);
    const auto refused = [](openreg_status status) {
      EXPECT_NE(status, OPENREG_OK);
      expect_named(last_message());
    };
    refused(openreg_malloc(0, 0, size_t{1} << 40, &none));
    refused(openreg_free(&word));
    refused(openreg_host_free(&word));
    refused(openreg_free(bytes + 256));
    refused(openreg_memcpy(host, OPENREG_HOST, here, 1, 8));
    refused(openreg_memcpy(host, 0, here, 0, 8));
    refused(openreg_memcpy(here, OPENREG_HOST, there, 1, 8));
    refused(openreg_memcpy(host, OPENREG_HOST, bytes + 256, 0, 4096));
    refused(openreg_stream_synchronize(1, from_pool(0)));
    refused(openreg_stream_synchronize(1, 77));
    refused(openreg_event_record(event, 0, from_pool(1)));
    EXPECT_EQ(openreg_free(here), OPENREG_OK);
    refused(openreg_free(here));
  });
}

// Plans of faults take both names; the record of calls and the loss of a device have the chosen one.
TEST_F(DeviceNameTest, InstrumentsHaveIt) {
  with_name([] {
    std::string folder = ::testing::TempDir() + "named-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    const std::string file = folder + "/record." + std::to_string(getpid()) + ".json";
    set("OPENREG_FLIGHT_RECORDER_FILE", folder + "/record");  // where a lost device is written, too
    openreg_faults plan = nullptr;
    EXPECT_EQ(openreg_faults_begin("mychip:x nomem", &plan), OPENREG_E_INVALID);
    expect_named(last_message());
    EXPECT_EQ(openreg_flight_recorder_start(64), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
    for (const char* const text : {"openreg:1 lost", "mychip:1 lost"}) {
      EXPECT_EQ(openreg_faults_begin(text, &plan), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_device_synchronize(1), OPENREG_E_DEVICE_LOST);
      expect_error(openreg_device_synchronize(1), OPENREG_E_DEVICE_LOST, "mychip:1 was lost in an earlier call");
      openreg_faults_end(plan);
    }
    EXPECT_EQ(openreg_flight_recorder_write(nullptr), OPENREG_OK) << last_message();
    std::stringstream record;
    record << std::ifstream(file).rdbuf();
    EXPECT_EQ(unlink(file.c_str()) + rmdir(folder.c_str()), 0);
    EXPECT_CONTAINS(record.str(), "{\"name\":\"mychip:1\"}");
    expect_named(record.str());
  });
}

// A child of a process with open devices; log lines of who has no callback.
TEST_F(DeviceNameTest, ForksAndLogLinesHaveIt) {
  with_name([] {
    EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
    EXPECT_TRUE(in_child([] {
      EXPECT_EQ(openreg_device_synchronize(0), OPENREG_E_FORKED);
      expect_named(last_message());
      return !HasFailure();
    }));
    testing::internal::CaptureStderr();
    openreg_log_set_callback(nullptr, nullptr);
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
    EXPECT_EQ(openreg_init(), OPENREG_OK);
    const std::string lines = testing::internal::GetCapturedStderr();
    EXPECT_EQ(lines.rfind("mychip: ", 0), 0u) << lines;
  });
}

}  // namespace
}  // namespace openreg_test
