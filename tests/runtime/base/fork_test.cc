// SPDX-License-Identifier: BSD-3-Clause
// fork(): a child of a process that has opened nothing works; one whose parent had an open driver is refused by every
// call that reaches a device, and never hangs (acceptance 5.11).
#include <openreg/allocator.h>
#include <openreg/faults.h>
#include <openreg/sharing.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "memory/cache_check.h"
#include "runtime_test.h"

namespace openreg_test {
namespace {

class ForkTest : public RuntimeTest {};

bool is_refused(openreg_status status, const char* call) {
  const std::string expected =
      std::string(call) +
      ": Cannot re-initialize OpenReg in forked subprocess. To use OpenReg with multiprocessing, you must use the "
      "'spawn' start method";
  return status == OPENREG_E_FORKED && last_message() == expected;
}

// Nothing was open: the child initialises, allocates and shuts down as any process.
TEST_F(ForkTest, ChildOfAnUninitialisedParentWorks) {
  set("OPENREG_DRIVERS", "sim");
  ASSERT_EQ(openreg_device_count(), 2);  // counting opens nothing
  EXPECT_TRUE(in_child([] {
    void* memory = nullptr;
    return openreg_in_bad_fork() == 0 && openreg_device_count() == 2 && openreg_init() == OPENREG_OK &&
           openreg_set_device(1) == OPENREG_OK && openreg_malloc(1, 0, 100, &memory) == OPENREG_OK &&
           openreg_free(memory) == OPENREG_OK && openreg_shutdown() == OPENREG_OK;
  }));
  EXPECT_EQ(openreg_in_bad_fork(), 0);
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

// After a shutdown nothing is open either.
TEST_F(ForkTest, ChildAfterShutdownWorks) {
  set("OPENREG_DRIVERS", "sim");
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_TRUE(in_child([] { return openreg_init() == OPENREG_OK && openreg_shutdown() == OPENREG_OK; }));
}

// Every function that reaches a device is refused with the standard text; the others answer.
TEST_F(ForkTest, ChildOfAnInitialisedParentIsRefused) {
  set("OPENREG_DRIVERS", "sim");
  set("OPENREG_SIM_DEVICES", "3");
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK) << last_message();
  const openreg_event event = make_event();
  void *const memory = allocate(0, 64), *const pinned = make_pinned(64);
  EXPECT_TRUE(in_child([&] {
    int32_t value = 0;
    openreg_stream stream = 0;
    openreg_event other = nullptr;
    void* more = nullptr;
    int64_t ns = 0;
    auto properties = sized<openreg_device_properties>();
    bool good = openreg_in_bad_fork() == 1 && openreg_is_initialized() == 0;
    good = good && openreg_device_count() == 3;  // knowledge, not use
    good = good && openreg_driver_count() >= 3;
    good = good && openreg_current_device() == 0;
    openreg_restore_device(2);
    good = good && is_refused(openreg_init(), "openreg_init");
    good = good && is_refused(openreg_shutdown(), "openreg_shutdown");
    good = good && is_refused(openreg_set_device(0), "openreg_set_device");
    good = good && is_refused(openreg_exchange_device(0, &value), "openreg_exchange_device");
    good = good && is_refused(openreg_maybe_exchange_device(0, &value), "openreg_maybe_exchange_device");
    good = good && openreg_maybe_exchange_device(-1, &value) == OPENREG_OK;
    good = good && is_refused(openreg_device_get_properties(0, &properties), "openreg_device_get_properties");
    good = good && is_refused(openreg_device_active(0, &value), "openreg_device_active");
    good = good && is_refused(openreg_device_synchronize(0), "openreg_device_synchronize");
    good = good && is_refused(openreg_malloc(0, 0, 8, &more), "openreg_malloc") && more == nullptr;
    good = good && is_refused(openreg_free(memory), "openreg_free");
    good = good && is_refused(openreg_host_free(pinned), "openreg_host_free");
    good = good && is_refused(openreg_stream_from_pool(0, 0, &stream), "openreg_stream_from_pool");
    good = good && is_refused(openreg_current_stream(0, &stream), "openreg_current_stream");
    good = good && is_refused(openreg_stream_synchronize(0, 0), "openreg_stream_synchronize");
    good = good && is_refused(openreg_event_create(0, 0, &other), "openreg_event_create");
    good = good && is_refused(openreg_event_record(event, 0, 0), "openreg_event_record");
    good = good && is_refused(openreg_event_query(event, &value), "openreg_event_query");
    good = good && is_refused(openreg_event_synchronize(event), "openreg_event_synchronize");
    good = good && is_refused(openreg_event_elapsed(event, event, &ns), "openreg_event_elapsed");
    good = good && is_refused(openreg_event_destroy(event), "openreg_event_destroy");
    good = good && is_refused(openreg_driver_register_table(toy().table()), "openreg_driver_register");
    good = good && is_refused(openreg_driver_load(nullptr, "/x.so"), "openreg_driver_register");
    // A grandchild is no better off.
    good = good && in_child([] { return openreg_in_bad_fork() == 1 && openreg_init() == OPENREG_E_FORKED; });
    return good;
  }));
  // The parent is unharmed.
  EXPECT_EQ(openreg_current_device(), 1);
}

// A driver that survives a fork keeps its table in the child.
TEST_F(ForkTest, ForkSafeDriverWorksInTheChild) {
  use_full_toy([](openreg_driver& table) { table.caps |= OPENREG_CAP_FORK_SAFE; });
  ASSERT_EQ(openreg_set_device(1), OPENREG_OK) << last_message();
  const openreg_event event = make_event();
  EXPECT_TRUE(in_child([&] {
    openreg_stream stream = 0;
    return openreg_in_bad_fork() == 0 && openreg_is_initialized() == 1 && openreg_current_device() == 1 &&
           openreg_stream_from_pool(0, 0, &stream) == OPENREG_OK &&
           openreg_event_record(event, 0, stream) == OPENREG_OK && openreg_event_synchronize(event) == OPENREG_OK &&
           openreg_event_destroy(event) == OPENREG_OK && openreg_shutdown() == OPENREG_OK;
  }));
}

// The table of pinned blocks is whole in such a child, whatever another thread of the parent was doing to it.
TEST_F(ForkTest, PinnedBlocksAreKnownInTheChild) {
  use_full_toy([](openreg_driver& table) { table.caps |= OPENREG_CAP_FORK_SAFE; });
  constexpr int kBlocks = 64;
  std::vector<void*> blocks(kBlocks);
  for (void*& block : blocks) block = make_pinned(100);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      void* passing[8] = {};
      for (void*& block : passing) EXPECT_EQ(openreg_host_alloc(0, 100, &block), OPENREG_OK);
      for (void* block : passing) EXPECT_EQ(openreg_host_free(block), OPENREG_OK);
    }
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(in_child([&] {
      alarm(20);  // a search in a broken tree need not end
      for (void* block : blocks) {
        auto info = sized<openreg_pointer_info>();
        if (openreg_pointer_get_info(block, &info) != OPENREG_OK || info.base != block) return false;
      }
      return true;
    }));
  }
  stop = true;
  other.join();
}

// A thread's turn at everything that a fork-safe driver's process may do; the same seed, the same steps.
class Worker {
 public:
  explicit Worker(unsigned seed) : random_(seed) {
    for (openreg_stream& stream : streams_)
      if (openreg_stream_from_pool(0, 0, &stream) != OPENREG_OK) is_well_ = false;
  }
  ~Worker() {
    while (!blocks_.empty()) free_one();
  }
  bool is_well() const { return is_well_; }

  void step() {
    switch (random_() % 12) {
      case 0:
      case 1:
      case 2:
      case 3:
        allocate();
        return;
      case 4:
      case 5:
        if (!blocks_.empty()) free_one();
        return;
      case 6:
        if (!blocks_.empty()) expect(openreg_memory_record_stream(blocks_.back(), 0, streams_[random_() % 2]));
        return;
      case 7:
        pass_event();
        return;
      case 8:
        pass_pinned();
        return;
      case 9:
        pass_pool();
        return;
      case 10:
        pass_faults();
        return;
      default:
        if (random_() % 8 == 0) expect(openreg_memory_empty_cache(0));
        if (random_() % 8 == 0) change_settings();
        if (!blocks_.empty()) pass_export();
    }
  }

 private:
  void expect(openreg_status status) {
    if (status == OPENREG_OK) return;
    if (is_well_) fprintf(stderr, "%s\n", openreg_last_error()->message);
    is_well_ = false;
  }
  void allocate() {
    void* block = nullptr;
    if (blocks_.size() >= 40) free_one();
    expect(::openreg_malloc(0, streams_[random_() % 2], 1 + random_() % (random_() % 4 == 0 ? 6000000 : 9000), &block));
    if (block != nullptr) blocks_.push_back(block);
  }
  void free_one() {
    std::swap(blocks_[random_() % blocks_.size()], blocks_.back());
    expect(::openreg_free(blocks_.back()));
    blocks_.pop_back();
  }
  void pass_event() {
    openreg_event event = nullptr;
    expect(openreg_event_create(0, 0, &event));
    expect(openreg_event_record(event, 0, streams_[0]));
    expect(openreg_stream_wait_event(0, streams_[1], event));
    expect(openreg_event_destroy(event));
  }
  void pass_pinned() {
    void* pinned = nullptr;
    expect(openreg_host_alloc(0, 100, &pinned));
    expect(openreg_host_free(pinned));
  }
  void pass_pool() {
    const openreg_memory_pool_id pool = {random_() | 1u, static_cast<uint64_t>(getpid()) << 32 | random_()};
    expect(openreg_memory_pool_retain(0, pool, 0));
    expect(openreg_memory_pool_enter(0, pool));
    allocate();
    expect(openreg_memory_pool_leave(0, pool));
    expect(openreg_memory_pool_release(0, pool));
  }
  void pass_faults() {
    openreg_faults faults = nullptr;
    expect(openreg_faults_begin("error at aten::none 1", &faults));
    openreg_faults_end(faults);
  }
  void change_settings() {
    auto settings = sized<openreg_allocator_settings>();
    expect(openreg_allocator_default_settings(&settings));
    settings.max_split_size = random_() % 2 == 0 ? UINT64_MAX : 20 << 20;
    expect(openreg_allocator_set_settings(&settings));
  }
  void pass_export() {
    auto handle = sized<openreg_memory_handle>();
    (void)!openreg_memory_export(blocks_.back(), &handle);
  }

  std::mt19937 random_;
  openreg_stream streams_[2] = {};
  std::vector<void*> blocks_;
  bool is_well_ = true;
};

// Children of a process with a fork-safe driver, made while its threads are at everything, find all that the runtime guards
// whole, and use it as any process does.
TEST_F(ForkTest, ChildrenOfBusyThreads) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "ASan's allocator doesn't hold its locks over a fork: a child waits for those of threads it lacks";
#elif defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "TSan of gcc 12 doesn't hold the lock of its large allocations over a fork: one child in a thousand "
                  "waits for it";
#endif
  use_full_toy([](openreg_driver& table) { table.caps |= OPENREG_CAP_FORK_SAFE; });
  set("OPENREG_LOG_LEVEL", "error");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  std::atomic<bool> stop{false};
  std::atomic<int> sick{0};
  Threads threads(3, [&](unsigned i) {
    Worker worker(i);
    while (!stop) worker.step();
    sick += !worker.is_well();
  });
  for (unsigned i = 0; i < 150 && !HasFailure(); ++i) {
    EXPECT_TRUE(in_child([i] {
      alarm(20);
      check_cache(0);
      {
        Worker worker(100 + i);
        for (int step = 0; step < 40; ++step) worker.step();
        if (!worker.is_well()) return false;
      }
      check_cache(0);
      return !HasFailure() && openreg_memory_empty_cache(0) == OPENREG_OK;
    })) << "child "
        << i;
  }
  stop = true;
  threads.join();
  EXPECT_EQ(sick, 0);
  use_settings([](auto&) {});
}

// One unsafe driver in the table is enough.
TEST_F(ForkTest, OneUnsafeDriverPoisonsTheChild) {
  use_full_toy([](openreg_driver& table) { table.caps |= OPENREG_CAP_FORK_SAFE; });
  set("OPENREG_DRIVERS", "full_toy,sim");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_TRUE(in_child([] { return is_refused(openreg_set_device(0), "openreg_set_device"); }));
}

std::atomic<bool> in_open{false}, may_open{false};
void slow_open() {
  in_open = true;
  while (!may_open) usleep(1000);
}

// A fork while another thread is inside open(): the child neither hangs at the gate nor uses the half-open driver.
TEST_F(ForkTest, ForkWhileAnotherThreadOpens) {
  use_full_toy();
  toy().on_open(slow_open);
  in_open = may_open = false;
  std::thread opener([] { EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message(); });
  while (!in_open) usleep(1000);
  EXPECT_TRUE(in_child([] {
    return openreg_in_bad_fork() == 1 && openreg_driver_count() >= 3 && openreg_device_count() == 0 &&
           is_refused(openreg_init(), "openreg_init");
  }));
  may_open = true;
  opener.join();
}

// Children made while other threads use the registry never meet a lock that a vanished thread holds.
TEST_F(ForkTest, ForkWhileOthersUseTheRegistry) {
  set("OPENREG_DRIVERS", "sim");
  set("OPENREG_INIT_WARN_SECS", "0");  // the thread sanitizer allows no thread in a child of many
  set("OPENREG_LOG_LEVEL", "error");
  std::atomic<bool> stop{false};
  Threads threads(2, [&] {
    while (!stop) {
      EXPECT_EQ(openreg_device_count(), 2);
      EXPECT_GE(openreg_driver_count(), 3);
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(in_child([] {
      return openreg_device_count() == 2 && openreg_init() == OPENREG_OK && openreg_shutdown() == OPENREG_OK;
    }));
  }
  stop = true;
  threads.join();
}

}  // namespace
}  // namespace openreg_test
