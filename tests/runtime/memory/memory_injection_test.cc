// SPDX-License-Identifier: BSD-3-Clause
// Fault injection for memory: each call of the C library that can fail does so once, for every n until the work gets
// through. No crash, no leak, the books are in order, and the work succeeds afterwards.
//
// The program contains the runtime, so that the linker can put the functions below in front (--wrap).
#include <openreg/races.h>
#include <sys/mman.h>

#include <cerrno>
#include <functional>

#include "cache_check.h"

using openreg_test::check_cache;
using openreg_test::last_message;
using openreg_test::SimDevicesTest;

namespace {

// The call that fails next, counted down by this thread's calls; 0: none.
thread_local int countdown = 0;
thread_local const char* failed = "";

bool must_fail(const char* function) {
  if (countdown == 0 || --countdown > 0) return false;
  failed = function;
  return true;
}

}  // namespace

extern "C" {
#include "watch/lab.h"
const openreg_lab_parts* openreg_lab_query(void);

void* __real_malloc(size_t size);
void* __real_calloc(size_t count, size_t size);
void* __real_realloc(void* memory, size_t size);
int __real_posix_memalign(void** out, size_t alignment, size_t size);
void* __real_mmap(void* address, size_t size, int protection, int flags, int file, off_t offset);
int __real_madvise(void* address, size_t size, int advice);
int __real_ftruncate(int file, off_t size);
int __real_memfd_create(const char* name, unsigned flags);
int __real_pthread_create(pthread_t* out, const pthread_attr_t* attributes, void* (*body)(void*), void* argument);

void* __wrap_malloc(size_t size) { return must_fail("malloc") ? nullptr : __real_malloc(size); }
void* __wrap_calloc(size_t count, size_t size) { return must_fail("calloc") ? nullptr : __real_calloc(count, size); }
void* __wrap_realloc(void* memory, size_t size) {
  return must_fail("realloc") ? nullptr : __real_realloc(memory, size);
}
int __wrap_posix_memalign(void** out, size_t alignment, size_t size) {
  return must_fail("posix_memalign") ? ENOMEM : __real_posix_memalign(out, alignment, size);
}
void* __wrap_mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
  if (!must_fail("mmap")) return __real_mmap(address, size, protection, flags, file, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}
int __wrap_madvise(void* address, size_t size, int advice) {
  if (!must_fail("madvise")) return __real_madvise(address, size, advice);
  errno = EAGAIN;
  return -1;
}
int __wrap_ftruncate(int file, off_t size) {
  if (!must_fail("ftruncate")) return __real_ftruncate(file, size);
  errno = EFBIG;
  return -1;
}
int __wrap_memfd_create(const char* name, unsigned flags) {
  if (!must_fail("memfd_create")) return __real_memfd_create(name, flags);
  errno = EMFILE;
  return -1;
}
int __wrap_pthread_create(pthread_t* out, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  return must_fail("pthread_create") ? EAGAIN : __real_pthread_create(out, attributes, body, argument);
}
}

namespace {

constexpr size_t kMib = size_t{1} << 20;

class MemoryInjectionTest : public SimDevicesTest {
 protected:
  void SetUp() override {
    SimDevicesTest::SetUp();
    openreg_lab_linked = openreg_lab_query;  // this program holds the objects of both libraries
    set("OPENREG_LOG_LEVEL", "error");
  }

  // Runs `work` with its n-th call failing, for every n until it gets through; `undo` gives back what work() made.
  void every_call(const std::function<openreg_status()>& work, const std::function<void()>& undo) {
    int failures = 0, survived = 0;
    for (int n = 1;; ++n) {
      ASSERT_LT(n, 2000);
      openreg_clear_error();
      countdown = n;
      const openreg_status status = work();
      const bool reached = countdown == 0;
      countdown = 0;
      SCOPED_TRACE(std::string(failed) + ", call " + std::to_string(n));
      if (status == OPENREG_OK) {
        survived += reached;
      } else {
        ++failures;
        EXPECT_TRUE(reached);
        EXPECT_TRUE(status == OPENREG_E_NOMEM || status == OPENREG_E_INCOMPATIBLE) << last_message();
        EXPECT_EQ(openreg_last_error()->code, status);
        EXPECT_FALSE(last_message().empty());
      }
      if (openreg_is_initialized() != 0) {
        check_cache(0);
        check_cache(1);
      }
      undo();
      ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
      if (!reached) break;
    }
    EXPECT_GT(failures, 5);
    RecordProperty("failures", failures);
    RecordProperty("survived", survived);
  }
};

#define STEP(expression)                               \
  do {                                                 \
    const openreg_status step_status = (expression);   \
    if (step_status != OPENREG_OK) return step_status; \
  } while (0)

// Enough blocks for several chunks of the allocator's books, of all kinds of segments and two streams, with recorded
// streams, freed in between and flushed.
TEST_F(MemoryInjectionTest, Cache) {
  std::vector<void*> blocks;
  const auto work = [&]() -> openreg_status {
    openreg_stream stream = 0;
    STEP(openreg_init());
    STEP(openreg_stream_from_pool(0, 0, &stream));
    for (size_t i = 0; i < 300; ++i) {
      void* block = &block;
      const openreg_status status = openreg_malloc(0, i % 2 == 0 ? 0 : stream, 600 + i, &block);
      EXPECT_EQ(block == nullptr, status != OPENREG_OK);
      if (block != nullptr) blocks.push_back(block);
      STEP(status);
    }
    for (const size_t size : {3 * kMib, 12 * kMib}) {
      void* block = nullptr;
      STEP(openreg_malloc(0, stream, size, &block));
      blocks.push_back(block);
      STEP(openreg_memory_record_stream(block, 0, 0));
    }
    while (blocks.size() > 100) {
      STEP(openreg_memory_record_stream(blocks.back(), 0, stream));
      STEP(openreg_free(blocks.back()));
      blocks.pop_back();
    }
    void* block = nullptr;
    STEP(openreg_malloc(0, 0, 40 * kMib, &block));  // after a flush
    blocks.push_back(block);
    return openreg_memory_empty_cache(0);
  };
  every_call(work, [&] {
    for (void* block : blocks) openreg_test::release(block);
    blocks.clear();
  });
}

// Pinned memory, queues that grow, copies between all kinds of memory, events; races are looked for, too: where memory is
// short for what orders them, uses are forgotten.
TEST_F(MemoryInjectionTest, CopiesAndPinnedMemory) {
  std::vector<void*> pinned;
  void* blocks[2] = {nullptr, nullptr};
  openreg_event event = nullptr;
  const auto work = [&]() -> openreg_status {
    openreg_stream stream = 0;
    STEP(openreg_init());
    STEP(openreg_stream_from_pool(0, 0, &stream));
    for (int32_t device = 0; device < 2; ++device) STEP(openreg_malloc(device, 0, kMib, &blocks[device]));
    for (size_t i = 0; i < 40; ++i) {
      void* block = &block;
      const openreg_status status = openreg_host_alloc(0, 1 + i * 100, &block);
      EXPECT_EQ(block == nullptr, status != OPENREG_OK);
      if (block != nullptr) pinned.push_back(block);
      STEP(status);
    }
    STEP(openreg_event_create(0, OPENREG_EVENT_TIMING, &event));
    for (int i = 0; i < 100; ++i) STEP(openreg_memset_async(0, stream, blocks[0], 1, kMib));
    STEP(openreg_event_record(event, 0, stream));
    STEP(openreg_stream_wait_event(1, 0, event));
    STEP(openreg_memcpy_async(1, 0, blocks[1], 1, blocks[0], 0, kMib));
    STEP(openreg_memcpy_async(1, 0, pinned[10], OPENREG_HOST, blocks[1], 1, 1000));
    STEP(openreg_stream_synchronize(1, 0));
    EXPECT_EQ(static_cast<char*>(pinned[10])[999], 1);
    STEP(openreg_memcpy(blocks[0], 0, pinned[3], OPENREG_HOST, 200));
    return openreg_device_synchronize(0);
  };
  const auto undo = [&] {
    EXPECT_EQ(openreg_event_destroy(event), OPENREG_OK);
    event = nullptr;
    for (void* block : pinned) EXPECT_EQ(openreg_host_free(block), OPENREG_OK) << last_message();
    pinned.clear();
    for (void*& block : blocks) {
      openreg_test::release(block);
      block = nullptr;
    }
  };
  every_call(work, undo);
  ASSERT_EQ(openreg_races_set(OPENREG_RACES_REPORT | OPENREG_RACES_RAISE, nullptr), OPENREG_OK);
  every_call(work, undo);
  EXPECT_EQ(openreg_races_count(), 0u);
  ASSERT_EQ(openreg_races_set(0, nullptr), OPENREG_OK);
}

// The thread that runs a host function for a driver without host_func(), and the worker of a simulated stream.
TEST_F(MemoryInjectionTest, HostFunction) {
  const auto add = [](void* argument) { ++*static_cast<int*>(argument); };
  use_full_toy([](openreg_driver& table) {
    table.name = "no_host_func";
    table.host_func = nullptr;
  });
  for (const char* driver : {"no_host_func", "sim"}) {
    int calls = 0;
    set("OPENREG_DRIVERS", driver);
    ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_device_synchronize(0), OPENREG_OK) << "a thread's first call allocates, and does without";
    int failures = 0;
    openreg_status status = OPENREG_E_NOMEM;
    for (int n = 1; status != OPENREG_OK && n < 20; ++n) {
      countdown = n;
      status = openreg_stream_launch_host_func(0, 0, add, &calls);
      countdown = 0;
      if (status == OPENREG_OK) break;
      ++failures;
      EXPECT_EQ(status, OPENREG_E_NOMEM);
      EXPECT_CONTAINS(last_message(), "openreg_stream_launch_host_func: ");
      EXPECT_EQ(calls, 0);
    }
    EXPECT_GT(failures, 0) << driver;
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
    EXPECT_EQ(calls, 1);
  }
}

// The staging buffer of a copy between drivers.
TEST_F(MemoryInjectionTest, StagingBuffer) {
  unset("OPENREG_SIM_RACES");  // the detector's own allocations would fail instead
  use_full_toy(openreg_test::hidden_from_host("hidden_a"));
  use_full_toy(openreg_test::hidden_from_host("hidden_b"));
  set("OPENREG_DRIVERS", "hidden_a,hidden_b");
  void* from = openreg_test::allocate(0, 100);
  void* to = openreg_test::allocate(2, 100);
  countdown = 1;
  EXPECT_EQ(openreg_memcpy(to, 2, from, 0, 100), OPENREG_E_NOMEM);
  EXPECT_EQ(countdown, 0);
  EXPECT_CONTAINS(last_message(), "openreg_memcpy: out of host memory for 100 bytes");
  EXPECT_EQ(openreg_memcpy(to, 2, from, 0, 100), OPENREG_OK);
  openreg_test::release(from);
  openreg_test::release(to);
}

}  // namespace
