// SPDX-License-Identifier: BSD-3-Clause
// openreg_shutdown() and openreg_drivers_use() while other threads are inside a call: the table stays under them.
#include <openreg/graphs.h>
#include <openreg/observer.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gate.h"
#include "runtime_test.h"

namespace openreg_test {
namespace {

class ShutdownTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    set("OPENREG_DRIVERS", "sim");
    set("OPENREG_SIM_DEVICES", "2");
    ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  }
};

// A thread that waits for a stream is inside: nothing is changed, and its call ends as if nobody had asked.
TEST_F(ShutdownTest, WaitsOfOtherThreads) {
  const openreg_stream stream = from_pool(1);
  std::atomic<bool> may_end{false};
  const auto hold = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  ASSERT_EQ(openreg_stream_launch_host_func(1, stream, hold, &may_end), OPENREG_OK) << last_message();
  std::atomic<pid_t> id{0};
  openreg_status waited = OPENREG_E_INTERNAL;
  std::thread waiter([&] {
    id.store(gettid());
    waited = openreg_stream_synchronize(1, stream);
  });
  while (id.load() == 0) std::this_thread::yield();
  await_sleep(id.load());
  const uint32_t generation = openreg_generation();
  EXPECT_EQ(openreg_shutdown(), OPENREG_E_BUSY);
  EXPECT_STREQ(last_message().c_str(), "openreg_shutdown: another thread is inside a call that uses the devices");
  EXPECT_EQ(openreg_drivers_use("sim,sim"), OPENREG_OK) << "the same table";
  EXPECT_EQ(openreg_generation(), generation);
  EXPECT_EQ(openreg_device_count(), 2);
  may_end.store(true);
  waiter.join();
  EXPECT_EQ(waited, OPENREG_OK);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
}

// Each of these reads what belongs to a table, by a device's index or by an address.
void use_the_table(int32_t device) {
  void* memory = nullptr;
  openreg_event event = nullptr;
  openreg_stream stream = 0;
  int32_t is_active = 0, mode = OPENREG_CAPTURE_RELAXED;
  auto info = sized<openreg_pointer_info>();
  if (openreg_malloc(device, 0, 4096, &memory) == OPENREG_OK) {
    EXPECT_EQ(openreg_pointer_get_info(memory, &info), OPENREG_OK) << last_message();
    EXPECT_EQ(info.kind, OPENREG_POINTER_DEVICE);
    EXPECT_EQ(openreg_free(memory), OPENREG_OK) << last_message();
    (void)openreg_pointer_get_info(memory, &info);
  }
  if (openreg_event_create(device, 0, &event) == OPENREG_OK) {
    EXPECT_EQ(openreg_event_record(event, device, 0), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_event_synchronize(event), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_event_destroy(event), OPENREG_OK) << last_message();
  }
  EXPECT_EQ(openreg_set_device(device), OPENREG_OK) << last_message();
  if (openreg_stream_from_pool(device, 0, &stream) == OPENREG_OK)
    (void)openreg_set_current_stream(device, stream);  // of the table before, perhaps
  EXPECT_EQ(openreg_device_active(device, &is_active), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_exchange_mode(device, &mode), OPENREG_OK) << last_message();
}

// Short calls of other threads end before it, or wait and make the next table; none finds half of one.
TEST_F(ShutdownTest, ShortCallsOfOtherThreads) {
  std::atomic<bool> is_over{false};
  Threads threads(2, [&](int32_t device) {
    while (!is_over.load()) use_the_table(device);
  });
  int ended = 0;
  while (ended < 20) {
    const openreg_status status = openreg_shutdown();
    ASSERT_TRUE(status == OPENREG_OK || status == OPENREG_E_BUSY) << last_message();  // busy: something is alive
    ended += status == OPENREG_OK;
  }
  is_over.store(true);
  threads.join();
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
}

// What a call has made may be gone before the call uses it: it makes it again.
TEST_F(ShutdownTest, GoneBeforeItIsUsed) {
  std::atomic<bool> is_over{false};
  Threads threads(2, [&](int32_t device) {
    while (!is_over.load()) {
      int32_t is_active = 0;
      openreg_stream stream = 1;
      EXPECT_EQ(openreg_device_active(device, &is_active), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_set_current_stream(device, 0), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_current_stream(device, &stream), OPENREG_OK) << last_message();
      EXPECT_EQ(stream, 0u);
    }
  });
  for (int round = 0; round < 50; ++round) {
    while (openreg_is_initialized() == 0) std::this_thread::yield();
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  }
  is_over.store(true);
  threads.join();
}

// A thread that has found a cache just before its table is retired finds it closed, and nothing of its pools.
TEST_F(ShutdownTest, MemoryOfStreams) {
  std::atomic<bool> is_over{false};
  std::atomic<int> allocations{0};
  Threads threads(2, [&](int32_t device) {
    while (!is_over.load()) {
      openreg_stream stream = 0;
      void* memory = nullptr;
      EXPECT_EQ(openreg_stream_from_pool(device, 0, &stream), OPENREG_OK) << last_message();
      while (!is_over.load() && openreg_malloc(device, stream, 512, &memory) == OPENREG_OK) {
        EXPECT_EQ(openreg_free(memory), OPENREG_OK) << last_message();
        ++allocations;
      }
    }
  });
  for (int ended = 0; ended < 50;) {
    const int before = allocations.load();
    while (allocations.load() - before < 20) std::this_thread::yield();
    const openreg_status status = openreg_shutdown();
    ASSERT_TRUE(status == OPENREG_OK || status == OPENREG_E_BUSY) << last_message();
    ended += status == OPENREG_OK;
  }
  is_over.store(true);
  threads.join();
}

// A thread that calls without a pause doesn't keep it off, if each of its calls ends in time.
TEST_F(ShutdownTest, CallAfterCall) {
  std::atomic<bool> is_over{false};
  std::atomic<int> calls{0};
  std::thread caller([&] {
    const auto moment = [](void*) { usleep(2000); };
    while (!is_over.load()) {
      EXPECT_EQ(openreg_stream_launch_host_func(0, 0, moment, nullptr), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK) << last_message();
      ++calls;
    }
  });
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
    for (const int before = calls.load(); calls.load() == before;) std::this_thread::yield();
  }
  is_over.store(true);
  caller.join();
}

// Whether it is refused or not, what others do in the meantime is what they do without it.
TEST_F(ShutdownTest, NothingIsChangedWhereItIsRefused) {
  std::atomic<bool> may_end{false}, is_over{false};
  const auto hold = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  ASSERT_EQ(openreg_stream_launch_host_func(1, 0, hold, &may_end), OPENREG_OK) << last_message();
  std::atomic<pid_t> id{0};
  std::thread waiter([&] {
    id.store(gettid());
    EXPECT_EQ(openreg_device_synchronize(1), OPENREG_OK) << last_message();
  });
  while (id.load() == 0) std::this_thread::yield();
  await_sleep(id.load());
  const uint32_t generation = openreg_generation();
  std::thread user([&] {
    while (!is_over.load()) {
      void* memory = nullptr;
      int32_t previous = -1;
      EXPECT_EQ(openreg_malloc(0, 0, 512, &memory), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_exchange_device(1, &previous), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_current_device(), 1);
      openreg_restore_device(0);
      EXPECT_EQ(openreg_current_device(), 0);
      EXPECT_EQ(openreg_generation(), generation);
      EXPECT_EQ(openreg_free(memory), OPENREG_OK) << last_message();
    }
  });
  for (int round = 0; round < 3; ++round) EXPECT_EQ(openreg_shutdown(), OPENREG_E_BUSY);
  is_over.store(true);
  user.join();
  may_end.store(true);
  waiter.join();
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
}

// An observer's function is inside the call that it observes.
TEST_F(ShutdownTest, ACallbackOfACall) {
  static openreg_status status;
  static std::string message;
  auto observer = sized<openreg_observer>();
  observer.span = [](void*, int32_t step, const openreg_span*, void**) {
    if (step != OPENREG_SPAN_BEGIN) return;
    status = openreg_shutdown();
    message = last_message();
  };
  ASSERT_EQ(openreg_observe(&observer, OPENREG_OBSERVE_SPANS), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK) << last_message();
  openreg_observer_remove(&observer);
  EXPECT_EQ(status, OPENREG_E_BUSY);
  EXPECT_EQ(message, "openreg_shutdown: called inside a call that uses the devices");
}

}  // namespace
}  // namespace openreg_test
