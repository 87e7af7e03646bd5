// SPDX-License-Identifier: BSD-3-Clause
// The flight recorder (openreg/flight_recorder.h): what it keeps, and when it is written.
#include <fcntl.h>
#include <openreg/faults.h>
#include <openreg/flight_recorder.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "../runtime_test.h"
#include "sanitizer.h"

namespace openreg_test {
namespace {

class RecorderTest : public SimDevicesTest {
 protected:
  void SetUp() override {
    SimDevicesTest::SetUp();
    set("OPENREG_FLIGHT_RECORDER_FILE", prefix_);
  }
  void TearDown() override {
    EXPECT_EQ(openreg_flight_recorder_start(0), OPENREG_OK);
    openreg_set_places(nullptr);
    unlink(file().c_str());
    SimDevicesTest::TearDown();
  }
  std::string file(pid_t process = getpid()) const { return prefix_ + "." + std::to_string(process) + ".json"; }
  static std::string read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::string written() {
    EXPECT_EQ(openreg_flight_recorder_write(nullptr), OPENREG_OK) << last_message();
    return read(file());
  }
  // The process's file, which goes.
  void expect_two_fills(pid_t process) const {
    EXPECT_EQ(count(read(file(process)), "\"name\":\"fill\""), 2);
    unlink(file(process).c_str());
  }
  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
  // Fills `times` times, and waits.
  static void work(int times, openreg_stream stream = 0) {
    void* const block = allocate(0, 4096);
    for (int i = 0; i < times; ++i) {
      ASSERT_EQ(openreg_memset_async(0, stream, block, 1, 100 + static_cast<size_t>(i)), OPENREG_OK);
    }
    (void)openreg_stream_synchronize(0, stream);
    EXPECT_EQ(openreg_free(block), OPENREG_OK);
  }

  // Says where in the program a thread is.
  static int find_place(char* out, size_t size) {
    (void)snprintf(out, size, "train.py:17 \"x\"");
    return 1;
  }

  const std::string prefix_ = ::testing::TempDir() + "recorder." + std::to_string(getpid());
};

// Calls with device, stream, bytes and end; operators; where in the program, without what would break JSON
TEST_F(RecorderTest, WhatIsKept) {
  ASSERT_EQ(openreg_flight_recorder_start(64), OPENREG_OK);
  const openreg_places places = {find_place, nullptr, nullptr, nullptr};
  openreg_set_places(&places);
  work(2, from_pool(0));
  openreg_operator_ended(0, 0, "aten::mm");
  const std::string text = written();
  EXPECT_CONTAINS(text, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
  EXPECT_CONTAINS(text, "\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":\"openreg:0\"}");
  EXPECT_CONTAINS(text, "\"name\":\"fill\",\"pid\":0,\"tid\":1,\"ts\":");
  EXPECT_CONTAINS(text, "\"kind\":\"fill\",\"call\":\"openreg_memset_async\",\"bytes\":101,");
  EXPECT_CONTAINS(text, "\"name\":\"aten::mm\",\"pid\":0,\"tid\":0,");
  EXPECT_CONTAINS(text, "\"status\":\"OPENREG_OK\",\"place\":\"train.py:17 _x_\"}}");
  EXPECT_EQ(count(text, "\"name\":\"fill\""), 2);
  EXPECT_EQ(text.substr(text.size() - 4), "\n]}\n");
}

// A call that began before a new start ends no call that began after it
TEST_F(RecorderTest, CallsOverANewStart) {
  const openreg_stream streams[] = {from_pool(0), from_pool(0)};
  std::atomic<bool> is_open[2] = {{false}, {false}};
  const auto wait = [](void* open) {
    while (!*static_cast<std::atomic<bool>*>(open)) std::this_thread::yield();
  };
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(openreg_stream_launch_host_func(0, streams[i], wait, &is_open[i]), OPENREG_OK) << last_message();
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(openreg_flight_recorder_start(8), OPENREG_OK);
    threads[i] = std::thread([&, i] { EXPECT_EQ(openreg_stream_synchronize(0, streams[i]), OPENREG_OK); });
    while (count(written(), "\"name\":\"synchronize stream\"") == 0) std::this_thread::yield();
  }
  is_open[0] = true;
  threads[0].join();
  EXPECT_CONTAINS(written(), "\"status\":\"running\"");
  is_open[1] = true;
  threads[1].join();
  EXPECT_EQ(written().find("\"status\":\"running\""), std::string::npos);
}

// The last calls, as many as there is room for; a new start forgets them; off is an error of writing
TEST_F(RecorderTest, TheLastCalls) {
  ASSERT_EQ(openreg_flight_recorder_start(5), OPENREG_OK);
  work(50);
  const std::string text = written();
  EXPECT_EQ(count(text, "\"ph\":\"X\""), 8);
  EXPECT_CONTAINS(text, "\"bytes\":149,");
  EXPECT_EQ(text.find("\"bytes\":140,"), std::string::npos);
  ASSERT_EQ(openreg_flight_recorder_start(5), OPENREG_OK);
  EXPECT_EQ(count(written(), "\"ph\":\"X\""), 0);
  ASSERT_EQ(openreg_flight_recorder_start(0), OPENREG_OK);
  EXPECT_EQ(openreg_is_instrumented(), 0);
  expect_error(openreg_flight_recorder_write(nullptr), OPENREG_E_INVALID, "the flight recorder is off");
  EXPECT_EQ(openreg_flight_recorder_start(OPENREG_FLIGHT_RECORDER_MOST + 1), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_flight_recorder_start(5), OPENREG_OK);
  expect_error(openreg_flight_recorder_write("/nowhere/file"), OPENREG_E_INVALID, "/nowhere/file can't be written");
}

// The name of the file is foreseeable, and the folder may be everybody's: what is there already is written to only if it is
// an ordinary file of this user with no other name. What a program names itself is its own choice.
TEST_F(RecorderTest, WritesOnlyItsOwnFile) {
  ASSERT_EQ(openreg_flight_recorder_start(5), OPENREG_OK);
  const std::string victim = prefix_ + ".victim", name = file();
  std::ofstream(victim) << "kept";
  const auto is_refused = [&](const char* what) {
    SCOPED_TRACE(what);
    expect_error(openreg_flight_recorder_write(nullptr), OPENREG_E_INVALID, name + " can't be written");
    EXPECT_EQ(read(victim), "kept");
    EXPECT_EQ(unlink(name.c_str()), 0);
  };
  ASSERT_EQ(symlink(victim.c_str(), name.c_str()), 0);
  is_refused("a link");
  ASSERT_EQ(link(victim.c_str(), name.c_str()), 0);
  is_refused("a second name");
  ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
  is_refused("a FIFO that nobody reads");
  ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
  const int reader = open(name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  is_refused("a FIFO");
  close(reader);
  if (geteuid() == 0) {
    std::ofstream(name) << "other";
    ASSERT_EQ(chown(name.c_str(), 12345, 12345), 0);
    is_refused("another user's file");
  }
  (void)written();
  struct stat status{};
  ASSERT_EQ(stat(name.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  const size_t size = written().size();
  ASSERT_EQ(openreg_flight_recorder_start(5), OPENREG_OK);
  EXPECT_LE(written().size(), size);  // an older one is replaced
  ASSERT_EQ(symlink(victim.c_str(), (victim + ".link").c_str()), 0);
  EXPECT_EQ(openreg_flight_recorder_write((victim + ".link").c_str()), OPENREG_OK) << last_message();
  EXPECT_NE(read(victim), "kept");
  unlink((victim + ".link").c_str());
  unlink(victim.c_str());
}

// An asynchronous error writes the file by itself, with the call that told of it last; running out of memory does not
TEST_F(RecorderTest, WrittenAtAnError) {
  set("OPENREG_FLIGHT_RECORDER", "100");
  set("OPENREG_SIM_FAULTS", "error at fill 2; nomem at 2");
  void* block = allocate(0, 64);
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  EXPECT_EQ(openreg_malloc(0, 0, 64, &block), OPENREG_E_NOMEM);
  EXPECT_NE(access(file().c_str(), F_OK), 0);
  work(3);
  const std::string text = read(file());
  EXPECT_EQ(count(text, "\"name\":\"fill\""), 3);
  EXPECT_CONTAINS(text, "\"name\":\"synchronize stream\"");
  EXPECT_CONTAINS(text, "\"status\":\"OPENREG_E_INTERNAL\"}}\n]}\n");
}

// A fatal signal writes it too, and ends the process as it would have
TEST_F(RecorderTest, WrittenInASignal) {
  if (OPENREG_TEST_SANITIZER) GTEST_SKIP() << "a sanitizer ends the process in its own way";
  for (const int number : {SIGSEGV, SIGABRT}) {
    const Child child([number] {
      setenv("OPENREG_FLIGHT_RECORDER", "16", 1);
      work(2);
      if (number == SIGABRT) abort();
      static int* volatile nowhere = nullptr;
      *nowhere = 1;
      return true;
    });
    EXPECT_TRUE(child.was_killed_by(number)) << child.status;
    expect_two_fills(child.process);
  }
}

// A child made by fork() writes a file of its own, with its own threads' numbers, and leaves its parent's alone
TEST_F(RecorderTest, AForkedChildWritesItsOwn) {
  ASSERT_EQ(openreg_flight_recorder_start(16), OPENREG_OK);
  work(1);
  const std::string before = written();
  const Child child([] {
    (void)openreg_faults_of_collective(0);
    openreg_flight_recorder_alarm();
    return true;
  });
  ASSERT_EQ(child.status, 0);
  EXPECT_EQ(read(file()), before);
  const std::string own = read(file(child.process));
  EXPECT_EQ(count(own, "\"name\":\"fill\""), 1);
  EXPECT_CONTAINS(own, "\"thread\":" + std::to_string(child.process) + ",");
  EXPECT_CONTAINS(own, "\"args\":{\"process\":" + std::to_string(child.process) + "}");
  unlink(file(child.process).c_str());
}

// A fatal signal writes it on an alternate stack as small as they come, too, whose end is guarded here
TEST_F(RecorderTest, WrittenOnASmallStack) {
  if (OPENREG_TEST_SANITIZER) GTEST_SKIP() << "a sanitizer ends the process in its own way";
  const Child child([] {
    // What the frame of a signal takes with this processor's registers, and half of 8 KiB.
    const size_t page = 4096;
    const size_t size = getauxval(AT_MINSIGSTKSZ) + 4096;
    char* const memory =
        static_cast<char*>(mmap(nullptr, 2 * page + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) return false;
    stack_t stack{};
    stack.ss_sp = memory + page;
    stack.ss_size = size;
    if (sigaltstack(&stack, nullptr) != 0) return false;
    setenv("OPENREG_FLIGHT_RECORDER", "16", 1);
    work(2);
    abort();
    return true;
  });
  EXPECT_TRUE(child.was_killed_by(SIGABRT)) << child.status;
  expect_two_fills(child.process);
}

// Threads that record while others write: each line is whole
TEST_F(RecorderTest, Threads) {
  ASSERT_EQ(openreg_flight_recorder_start(32), OPENREG_OK);
  std::atomic<bool> stops{false};
  Threads threads(3, [&stops] {
    while (!stops) openreg_operator_ended(0, 0, "aten::a_name_that_is_long_enough_to_be_cut_at_its_end");
  });
  work(1);
  for (int i = 0; i < 20; ++i) {
    const std::string text = written();
    EXPECT_EQ(count(text, "{\"ph\":\"X\""), count(text, "\"}}") - count(text, "process_name"));
  }
  stops = true;
  threads.join();
}

// A bad number is warned of, and nothing is recorded
TEST_F(RecorderTest, BadVariable) {
  set("OPENREG_FLIGHT_RECORDER", "many");
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "invalid value many in env var OPENREG_FLIGHT_RECORDER"), 1);
  EXPECT_EQ(openreg_is_instrumented(), 0);
}

}  // namespace
}  // namespace openreg_test
