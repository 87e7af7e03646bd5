// SPDX-License-Identifier: BSD-3-Clause
// The warning about a driver that takes long to open.
#include <dirent.h>
#include <openreg/flight_recorder.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime_test.h"

namespace openreg_test {
namespace {

int threads() {
  int count = 0;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) count += task->d_name[0] != '.';
  closedir(tasks);
  return count;
}

// The number of threads once it is `expected`, or a second later: the kernel lists a thread a little longer than it runs.
int threads_once_settled(int expected) {
  for (int i = 0; i < 1000 && threads() != expected; ++i) usleep(1000);
  return threads();
}

std::atomic<int> threads_in_open{0};
void count_threads() { threads_in_open = threads(); }

class SlowOpenTest : public ToysTest {
 protected:
  void SetUp() override {
    ToysTest::SetUp();
    ASSERT_EQ(add({"slow", 400, 0}), OPENREG_OK) << last_message();
    set("OPENREG_DRIVERS", "slow");
    set("OPENREG_INIT_WARN_SECS", "0.1");
    pid_t first = 0;
    std::thread([&first] { first = gettid(); }).join();  // with the first one the thread sanitizer starts its own
    while (access(("/proc/self/task/" + std::to_string(first)).c_str(), F_OK) == 0) usleep(1000);
    before_ = threads();
  }
  // Makes open() last until the warning has come, or for so long that it should have.
  void open_slowly() {
    static SlowOpenTest* test;
    test = this;
    toy().on_open([] {
      for (int i = 0; i < 20000 && test->warnings() == 0; ++i) usleep(1000);
    });
  }
  int before_ = 0;
  int warnings() { return count_lines(OPENREG_LOG_WARNING, "Driver 'slow' initialization is taking more than"); }
};

// acceptance 5.14: exactly one warning, naming the driver and the limit, and no thread is left.
TEST_F(SlowOpenTest, OneWarning) {
  open_slowly();
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(warnings(), 1);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "more than 0.1 seconds. "), 1);
  EXPECT_EQ(threads_once_settled(before_), before_);
}

// The flight recorder is written while the driver is still opening: the file shows what is waited for
TEST_F(SlowOpenTest, FlightRecorderIsWritten) {
  open_slowly();
  const std::string prefix = ::testing::TempDir() + "watchdog";
  const std::string file = prefix + "." + std::to_string(getpid()) + ".json";
  set("OPENREG_FLIGHT_RECORDER", "64");
  set("OPENREG_FLIGHT_RECORDER_FILE", prefix);
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_EQ(unlink(file.c_str()), 0);
  EXPECT_EQ(openreg_flight_recorder_start(0), OPENREG_OK);
  EXPECT_CONTAINS(text.str(), "\"name\":\"openreg: drivers\"");
  EXPECT_CONTAINS(text.str(), "\"name\":\"slow\"");
  EXPECT_CONTAINS(text.str(), "\"kind\":\"open driver\"");
  EXPECT_CONTAINS(text.str(), "\"status\":\"running\"");
}

// acceptance 5.14: on an error, too.
TEST_F(SlowOpenTest, OneWarningOnAnError) {
  open_slowly();
  set("OPENREG_SLOW_DEVICES", "0");
  EXPECT_EQ(openreg_init(), OPENREG_E_NO_DEVICE);
  EXPECT_EQ(warnings(), 1);
  EXPECT_EQ(threads_once_settled(before_), before_);
}

// acceptance 5.14: a fast driver is not warned about, and does not wait for the limit.
TEST_F(SlowOpenTest, NoneForAFastDriver) {
  set("OPENREG_INIT_WARN_SECS", "5");
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
  EXPECT_EQ(warnings(), 0);
  EXPECT_EQ(threads_once_settled(before_), before_);
}

// 0 turns it off, thread and all; with a limit there is one thread more inside open().
TEST_F(SlowOpenTest, NoThreadWithZero) {
  toy().on_open(count_threads);
  set("OPENREG_INIT_WARN_SECS", "0");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(warnings(), 0);
  EXPECT_EQ(threads_in_open, before_);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_INIT_WARN_SECS", "60");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(threads_in_open, before_ + 1);
}

// A value that is no number of seconds is a warning; the default of a minute counts.
TEST_F(SlowOpenTest, BadValue) {
  for (const std::string value : {"soon", "-1", "", "1e3", "1,5", "."}) {
    set("OPENREG_INIT_WARN_SECS", value);
    ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
    EXPECT_EQ(count_lines(OPENREG_LOG_WARNING,
                          "invalid value " + value + " in env var OPENREG_INIT_WARN_SECS: the limit is 60 seconds"),
              1);
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  }
}

}  // namespace
}  // namespace openreg_test
