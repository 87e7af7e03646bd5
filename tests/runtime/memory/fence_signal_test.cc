// SPDX-License-Identifier: BSD-3-Clause
// The message when host code touches device memory (death tests: each faults in a child process).
#include <signal.h>
#include <sys/mman.h>

#include <cstring>

#include "cache_check.h"
#include "sanitizer.h"

namespace openreg_test {
namespace {

// Ends the process from a signal handler. exit() is not meant for that, but it works here and writes the coverage.
[[noreturn]] void finish(int code) {
  if (OPENREG_TEST_SANITIZER) _exit(code);
  exit(code);
}

void touch(void* address) { *static_cast<volatile char*>(address) = 1; }

class FaultDeathTest : public SimDevicesTest {
 protected:
  void SetUp() override {
    SimDevicesTest::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

// Device, driver, block and offset are named, and the process ends as if nothing had been installed.
TEST_F(FaultDeathTest, NamesTheBlock) {
  EXPECT_DEATH(touch(static_cast<char*>(allocate(1, 4096)) + 24),
               "openreg: host code touched device memory: address 0x[0-9a-f]+ is byte 24 of a live block of 4096 bytes "
               "at 0x[0-9a-f]+ on openreg:1 \\(driver \"sim\"\\). Copy it to the host first: tensor.cpu\\(\\) or "
               "openreg_memcpy\\(\\).");
}

#if !OPENREG_TEST_SANITIZER
TEST_F(FaultDeathTest, DefaultActionFollows) {
  EXPECT_EXIT(touch(allocate(0, 1)), ::testing::KilledBySignal(SIGSEGV), "is byte 0 of a live block of 1 bytes");
}
#endif

TEST_F(FaultDeathTest, ReadsToo) {
  EXPECT_DEATH(
      {
        volatile char value = *static_cast<volatile char*>(allocate(0, 3 << 20));
        (void)value;
      },
      "is byte 0 of a live block of 3145728 bytes");
}

TEST_F(FaultDeathTest, FreedMemory) {
  EXPECT_DEATH(
      {
        void* block = allocate(0, 4096);
        release(block);
        touch(block);
      },
      "is byte 0 of a freed block of [0-9]+ bytes at 0x[0-9a-f]+ on openreg:0");
}

// Faults elsewhere are none of ours: no message.
TEST_F(FaultDeathTest, OtherFaultsAreHandedOn) {
  EXPECT_DEATH(
      {
        signal(SIGSEGV, [](int) { finish(write(2, "earlier handler\n", 16) == 16 ? 3 : 4); });
        release(allocate(0, 1));  // installs ours on top
        touch(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      },
      "^earlier handler\n$");
}

void siginfo_handler(int, siginfo_t* info, void*) {
  const char sent = info->si_code <= 0 ? 's' : 'f';
  finish(write(2, &sent, 1) == 1 ? 3 : 4);
}

void install_siginfo_handler() {
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_sigaction = siginfo_handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

// The earlier handler has the last word on ours, too, and sees the fault itself.
TEST_F(FaultDeathTest, EarlierHandlerFollows) {
  EXPECT_EXIT(
      {
        install_siginfo_handler();
        touch(allocate(0, 8));
      },
      ::testing::ExitedWithCode(3), "openreg_memcpy\\(\\)\\.\nf$");
}

// A signal that someone sends is no fault.
TEST_F(FaultDeathTest, SentSignals) {
  EXPECT_EXIT(
      {
        install_siginfo_handler();
        release(allocate(0, 8));
        raise(SIGSEGV);
      },
      ::testing::ExitedWithCode(3), "^s$");
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_DFL);
        release(allocate(0, 8));
        raise(SIGSEGV);
      },
      ::testing::KilledBySignal(SIGSEGV), "^$");
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_IGN);
        release(allocate(0, 8));
        raise(SIGSEGV);
        _exit(5);
      },
      ::testing::ExitedWithCode(5), "^$");
}

// An ignored fault is not ignored for ever: the kernel ends the process.
TEST_F(FaultDeathTest, IgnoredFault) {
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_IGN);
        release(allocate(0, 8));
        touch(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      },
      ::testing::KilledBySignal(SIGSEGV), "^$");
}

// OPENREG_FENCE_SIGNAL=0 leaves the program's handlers alone.
TEST_F(FaultDeathTest, SwitchedOff) {
  set("OPENREG_FENCE_SIGNAL", "0");
  EXPECT_EXIT(
      {
        install_siginfo_handler();
        touch(allocate(0, 8));
      },
      ::testing::ExitedWithCode(3), "^f$");
}

// The address in a segment is named even while the cache's lock is held; then without the block.
TEST_F(FaultDeathTest, UnderTheLock) {
  EXPECT_DEATH(
      {
        allocate(0, 8);
        openreg_memory_visit_blocks(
            0,
            [](void*, const openreg_block_info* block) {
              touch(block->address);
              return 1;
            },
            nullptr);
      },
      "host code touched device memory: address 0x[0-9a-f]+ is on openreg:0 \\(driver \"sim\"\\)");
}

// Threads fence as well: each device's memory is out of reach of plain loads, its alias is not.
TEST_F(FaultDeathTest, AliasIsNotFenced) {
  void* block = allocate(0, 64);
  void* alias = nullptr;
  ASSERT_EQ(openreg_host_alias(block, &alias), OPENREG_OK);
  touch(alias);
  EXPECT_EQ(*static_cast<char*>(alias), 1);
  release(block);
}

}  // namespace
}  // namespace openreg_test
