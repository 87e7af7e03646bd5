// SPDX-License-Identifier: BSD-3-Clause
// Host functions of a stream: their order, their thread, what they may call, and what emulates them.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "../gate.h"
#include "runtime_test.h"

namespace openreg_test {
namespace {

constexpr size_t kSize = 1 << 16;

void count(void* argument) { ++*static_cast<std::atomic<int>*>(argument); }

// A gate that a host function waits at, and gives up after a while so that a failure ends.
struct Gate {
  std::atomic<bool> is_open{false}, timed_out{false};

  static void wait(void* argument) {
    auto* self = static_cast<Gate*>(argument);
    for (int i = 0; i < 20000 && !self->is_open; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    self->timed_out = !self->is_open;
  }
};

struct Where {
  std::thread::id thread;
  sigset_t blocked;
  int32_t device = -1;

  static void note(void* argument) {
    auto* self = static_cast<Where*>(argument);
    self->thread = std::this_thread::get_id();
    pthread_sigmask(SIG_SETMASK, nullptr, &self->blocked);
    self->device = openreg_current_device();
  }
};

class HostFuncTest : public RuntimeTest {};

class SimHostFuncTest : public SimDevicesTest {
 protected:
  static void launch(int32_t device, openreg_stream stream, void (*function)(void*), void* argument) {
    ASSERT_EQ(openreg_stream_launch_host_func(device, stream, function, argument), OPENREG_OK) << last_message();
  }
  static uint8_t* pinned() {
    void* memory = nullptr;
    EXPECT_EQ(openreg_host_alloc(0, kSize, &memory), OPENREG_OK) << last_message();
    return static_cast<uint8_t*>(memory);
  }
  static void* allocate(int32_t device, openreg_stream stream) { return openreg_test::allocate(device, kSize, stream); }
};

// Eight threads on four streams of two devices: each function runs once, and those of a thread in its order.
TEST_F(SimHostFuncTest, ManyThreads) {
  struct Turn {
    std::atomic<int>* next;
    int number;
    static void take(void* argument) {
      const auto* self = static_cast<Turn*>(argument);
      int expected = self->number;
      self->next->compare_exchange_strong(expected, self->number + 1);
    }
  };
  constexpr int kThreads = 8, kTurns = 200;
  std::vector<std::atomic<int>> next(kThreads);
  std::vector<std::vector<Turn>> turns(kThreads);
  const openreg_stream streams[] = {from_pool(0), from_pool(0), from_pool(1), OPENREG_STREAM_DEFAULT};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kTurns; ++i) turns[t].push_back({&next[t], i});
    threads.emplace_back([&, t] {
      const int32_t device = t % 4 >= 2 ? 1 : 0;
      for (auto& turn : turns[t]) {
        EXPECT_EQ(openreg_stream_launch_host_func(device, streams[t % 4], Turn::take, &turn), OPENREG_OK);
      }
      EXPECT_EQ(openreg_stream_synchronize(device, streams[t % 4]), OPENREG_OK);
      EXPECT_EQ(next[t], kTurns);
    });
  }
  for (auto& thread : threads) thread.join();
}

// The function runs on another thread, to which the caller's current device means nothing and no signal comes.
TEST_F(SimHostFuncTest, RunsOnAThreadWithoutSignals) {
  Where where;
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK);
  launch(1, OPENREG_STREAM_DEFAULT, Where::note, &where);
  ASSERT_EQ(openreg_stream_synchronize(1, OPENREG_STREAM_DEFAULT), OPENREG_OK);
  EXPECT_NE(where.thread, std::this_thread::get_id());
  EXPECT_EQ(where.device, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) EXPECT_EQ(sigismember(&where.blocked, signal), 1);
  ASSERT_EQ(openreg_set_device(0), OPENREG_OK);
}

// All that the header allows inside a function works there; errors there are not the caller's.
TEST_F(SimHostFuncTest, MayCallWhatTheHeaderNames) {
  struct Inside {
    void* memory = nullptr;
    openreg_status alias = OPENREG_E_INTERNAL, back = OPENREG_E_INTERNAL, wrong = OPENREG_OK;
    void* host = nullptr;
    void* device = nullptr;
    std::string text;
    int initialized = 0;
    static void run(void* argument) {
      auto* self = static_cast<Inside*>(argument);
      self->alias = openreg_host_alias(self->memory, &self->host);
      if (self->host != nullptr) std::memset(self->host, 9, kSize);
      self->back = openreg_device_address(self->host, &self->device);
      self->wrong = openreg_host_alias(self, &self->host);
      self->text = openreg_last_error()->message;
      openreg_clear_error();
      self->initialized = openreg_is_initialized();
      (void)openreg_version();
    }
  };
  const openreg_stream stream = from_pool(0);
  Inside inside;
  inside.memory = allocate(0, stream);
  openreg_clear_error();
  launch(0, stream, Inside::run, &inside);
  uint8_t* const host = pinned();
  ASSERT_EQ(openreg_memcpy_async(0, stream, host, OPENREG_HOST, inside.memory, 0, kSize), OPENREG_OK);
  ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK);
  EXPECT_EQ(inside.alias, OPENREG_OK);
  EXPECT_EQ(inside.back, OPENREG_OK);
  EXPECT_EQ(inside.device, inside.memory);
  EXPECT_EQ(inside.wrong, OPENREG_E_INVALID);
  EXPECT_CONTAINS(inside.text, "openreg_host_alias");
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  EXPECT_EQ(inside.initialized, 1);
  EXPECT_EQ(host[kSize - 1], 9);
  EXPECT_EQ(openreg_free(inside.memory), OPENREG_OK);
  EXPECT_EQ(openreg_host_free(host), OPENREG_OK);
}

// A shutdown waits for the functions that are queued, on the default stream and on others.
TEST_F(SimHostFuncTest, ShutdownWaits) {
  const openreg_stream stream = from_pool(0);
  Gate gate;
  std::atomic<int> calls{0};
  for (const openreg_stream at : {OPENREG_STREAM_DEFAULT, stream}) {
    launch(0, at, Gate::wait, &gate);
    launch(0, at, count, &calls);
  }
  const OnceThisThreadWaits opener([&] { gate.is_open = true; });
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(gate.timed_out);
}

// A child of fork() runs no function of its parent's and can queue none.
TEST_F(SimHostFuncTest, ForkedChildrenRunNone) {
  Gate gate;
  std::atomic<int> calls{0};
  launch(0, OPENREG_STREAM_DEFAULT, Gate::wait, &gate);
  launch(0, OPENREG_STREAM_DEFAULT, count, &calls);
  EXPECT_TRUE(in_child([&] {
    gate.is_open = true;
    const openreg_status status = openreg_stream_launch_host_func(0, OPENREG_STREAM_DEFAULT, count, &calls);
    return status == OPENREG_E_FORKED && openreg_device_synchronize(0) == OPENREG_E_FORKED && calls == 0;
  }));
  gate.is_open = true;
  ASSERT_EQ(openreg_stream_synchronize(0, OPENREG_STREAM_DEFAULT), OPENREG_OK);
  EXPECT_EQ(calls, 1);
}

// A null function, a device out of range and a stream of another device are refused by name.
TEST_F(SimHostFuncTest, BadArgumentsAreRefused) {
  std::atomic<int> calls{0};
  const openreg_stream foreign = from_pool(1);
  EXPECT_EQ(openreg_stream_launch_host_func(0, 0, nullptr, &calls), OPENREG_E_INVALID);
  EXPECT_EQ(last_message(), "openreg_stream_launch_host_func: function is NULL");
  EXPECT_EQ(openreg_stream_launch_host_func(99, 0, count, &calls), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "openreg_stream_launch_host_func: The device index is out of range");
  expect_error(openreg_stream_launch_host_func(0, foreign, count, &calls), OPENREG_E_INVALID, "belongs to openreg:1");
  ASSERT_EQ(openreg_device_synchronize(0), OPENREG_OK);
  EXPECT_EQ(calls, 0);
}

// A driver of seven functions: the call returns when the function has run, on a thread of its own without signals.
TEST_F(HostFuncTest, IsEmulated) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
  set("OPENREG_DRIVERS", "toy");
  std::atomic<int> calls{0};
  Where where;
  for (const openreg_stream stream : {OPENREG_STREAM_DEFAULT, from_pool(0)}) {
    ASSERT_EQ(openreg_stream_launch_host_func(0, stream, count, &calls), OPENREG_OK) << last_message();
  }
  EXPECT_EQ(calls, 2);
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_EQ(openreg_stream_launch_host_func(0, 0, Where::note, &where), OPENREG_OK) << last_message();
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_NE(where.thread, std::this_thread::get_id());
  EXPECT_EQ(sigismember(&where.blocked, SIGTERM), 1);
  EXPECT_EQ(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
}

void without_host_func(openreg_driver& table) {
  table.name = "no_host_func";
  table.host_func = nullptr;
}

// An emulated function waits for the stream's work, and does not run where that work failed.
TEST_F(HostFuncTest, EmulationIsBehindTheStream) {
  use_full_toy(without_host_func);
  const openreg_stream stream = from_pool(0);
  std::atomic<int> calls{0};
  std::atomic<bool> is_open{false};
  toy().hold(1);
  void* const memory = openreg_test::allocate(0, kSize, stream);
  ASSERT_EQ(openreg_memset_async(0, stream, memory, 1, kSize), OPENREG_OK);
  {
    const OnceThisThreadWaits opener([&is_open] {
      is_open = true;
      toy().hold(0);
    });
    ASSERT_EQ(openreg_stream_launch_host_func(0, stream, count, &calls), OPENREG_OK) << last_message();
    EXPECT_TRUE(is_open);
  }
  EXPECT_EQ(calls, 1);
  toy().fail("stream_sync", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_stream_launch_host_func(0, stream, count, &calls), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(), "openreg_stream_launch_host_func: driver \"no_host_func\"");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
}

// A driver whose vendor turns out to have no such calls refuses, and the runtime does what it does without the slot.
TEST_F(HostFuncTest, ARefusedCallIsEmulated) {
  use_full_toy();
  std::atomic<int> calls{0};
  toy().fail("host_func", 1, OPENREG_E_UNSUPPORTED, 0);
  ASSERT_EQ(openreg_stream_launch_host_func(0, 0, count, &calls), OPENREG_OK) << last_message();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(toy().calls("host_func"), 1);
  EXPECT_EQ(toy().calls("stream_sync"), 1);
}

// The driver's own slot is used where it is there; its failure is the caller's, and the function does not run.
TEST_F(HostFuncTest, UsesTheDriversSlot) {
  use_full_toy();
  std::atomic<int> calls{0};
  toy().hold(1);
  ASSERT_EQ(openreg_stream_launch_host_func(0, 0, count, &calls), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().calls("host_func"), 1);
  EXPECT_EQ(toy().calls("stream_sync"), 0);
  EXPECT_EQ(calls, 0);
  toy().hold(0);
  EXPECT_EQ(calls, 1);
  toy().fail("host_func", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_stream_launch_host_func(0, 0, count, &calls), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(), "driver \"full_toy\": host_func was told to fail");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace openreg_test
