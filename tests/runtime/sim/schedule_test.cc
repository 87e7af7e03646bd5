// SPDX-License-Identifier: BSD-3-Clause
// The simulated devices with a seed: the order of their work repeats, differs between seeds, and shows a wait that is
// missing, and nothing where none is.
#include <openreg/allocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "../runtime_test.h"

namespace openreg_test {
namespace {

constexpr size_t kSize = 4096;

class ScheduleTest : public SimDevicesTest {
 protected:
  void SetUp() override {
    SimDevicesTest::SetUp();
    unset("OPENREG_SIM_RACES");  // races are planted here, and show by their bytes
  }
  void TearDown() override {
    unlink(log_.c_str());
    SimDevicesTest::TearDown();
  }

  // Runs `program` with that seed, and gives what it returns.
  template <typename Program>
  auto with_seed(int seed, Program program, const char* order = "", const char* switches = "") {
    set("OPENREG_SIM_SEED", std::to_string(seed));
    set("OPENREG_SIM_SCHEDULE", order);
    set("OPENREG_SIM_SWITCHES", switches);
    auto result = program();
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
    return result;
  }
  // What a run has logged.
  template <typename Program>
  std::string log_of(int seed, Program program, const char* order = "") {
    set("OPENREG_SIM_SCHEDULE_LOG", log_);
    (void)with_seed(seed, program, order);
    unset("OPENREG_SIM_SCHEDULE_LOG");
    std::stringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }

  const std::string log_ = ::testing::TempDir() + "schedule." + std::to_string(getpid());
};

struct Memory {
  explicit Memory(int32_t device = 0) {
    EXPECT_EQ(openreg_malloc(device, 0, kSize, &block), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_host_alloc(device, kSize, &from), OPENREG_OK);
    EXPECT_EQ(openreg_host_alloc(device, kSize, &to), OPENREG_OK);
    memset(from, 1, kSize);
    memset(to, 0, kSize);
  }
  ~Memory() {
    EXPECT_EQ(openreg_free(block), OPENREG_OK);
    EXPECT_EQ(openreg_host_free(from), OPENREG_OK);
    EXPECT_EQ(openreg_host_free(to), OPENREG_OK);
  }
  int result() const { return *static_cast<unsigned char*>(to); }
  void *block = nullptr, *from = nullptr, *to = nullptr;
};

// Copies into a block on a side stream, and out of it on the default one, which waits for the side stream or doesn't.
int read_behind_a_side_stream(bool waits) {
  Memory memory;
  const openreg_stream side = from_pool(0);
  openreg_event event = nullptr;
  EXPECT_EQ(openreg_event_create(0, 0, &event), OPENREG_OK);
  EXPECT_EQ(openreg_memset_async(0, 0, memory.block, 0, kSize), OPENREG_OK);
  EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
  EXPECT_EQ(openreg_memcpy_async(0, side, memory.block, 0, memory.from, OPENREG_HOST, kSize), OPENREG_OK);
  if (waits) {
    EXPECT_EQ(openreg_event_record(event, 0, side), OPENREG_OK);
    EXPECT_EQ(openreg_stream_wait_event(0, 0, event), OPENREG_OK);
  }
  EXPECT_EQ(openreg_memcpy_async(0, 0, memory.to, OPENREG_HOST, memory.block, 0, kSize), OPENREG_OK);
  EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK);
  EXPECT_EQ(openreg_event_destroy(event), OPENREG_OK);
  return memory.result();
}

// A read that nothing orders sees the old bytes under some seed and the new ones under another; its correct twin never
// sees the old ones, in 40 seeds of each order
TEST_F(ScheduleTest, MissingWaitsShow) {
  for (const char* order : {"random", "pct", "latest"}) {
    int old = 0;
    for (int seed = 0; seed < 40; ++seed) {
      old += with_seed(seed, [] { return read_behind_a_side_stream(false); }, order) == 0;
      EXPECT_EQ(with_seed(seed, [] { return read_behind_a_side_stream(true); }, order), 1) << order << ' ' << seed;
    }
    EXPECT_GT(old, 0) << order;
    if (std::string(order) == "latest") {
      EXPECT_EQ(old, 40);
    } else {
      EXPECT_LT(old, 40) << order;
    }
  }
}

// The source of a copy that is changed before the copy was waited for: the copy may take the new bytes
TEST_F(ScheduleTest, EarlyChangesOfASourceShow) {
  int wrong = 0;
  for (int seed = 0; seed < 20; ++seed) {
    wrong += with_seed(seed, [] {
               Memory memory;
               EXPECT_EQ(openreg_memcpy_async(0, 0, memory.block, 0, memory.from, OPENREG_HOST, kSize), OPENREG_OK);
               memset(memory.from, 9, kSize);
               EXPECT_EQ(openreg_memcpy(memory.to, OPENREG_HOST, memory.block, 0, kSize), OPENREG_OK);
               return memory.result();
             }) == 9;
  }
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 20);
}

// Many streams of two devices, with events, fills, copies between the devices and functions of the host.
int busy_program() {
  Memory first(0), second(1);
  std::vector<openreg_stream> streams[2];
  for (int32_t device : {0, 1}) {
    for (int i = 0; i < 3; ++i) streams[device].push_back(from_pool(device));
  }
  openreg_event event = nullptr;
  EXPECT_EQ(openreg_event_create(0, OPENREG_EVENT_TIMING, &event), OPENREG_OK);
  static std::atomic<int> called;
  called = 0;
  for (int round = 0; round < 5; ++round) {
    for (const openreg_stream stream : streams[0]) {
      EXPECT_EQ(openreg_memset_async(0, stream, first.block, static_cast<uint8_t>(round), 64), OPENREG_OK);
      EXPECT_EQ(openreg_event_record(event, 0, stream), OPENREG_OK);
      EXPECT_EQ(openreg_stream_launch_host_func(0, stream, [](void*) { ++called; }, nullptr), OPENREG_OK);
    }
    for (const openreg_stream stream : streams[1]) {
      EXPECT_EQ(openreg_stream_wait_event(1, stream, event), OPENREG_OK);
      EXPECT_EQ(openreg_memcpy_async(1, stream, second.block, 1, first.block, 0, 64), OPENREG_OK);
    }
    EXPECT_EQ(openreg_stream_synchronize(1, streams[1][static_cast<size_t>(round) % 3]), OPENREG_OK);
  }
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK);
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_OK);
  EXPECT_EQ(openreg_event_destroy(event), OPENREG_OK);
  return called;
}

// One seed is one run, line by line of its log; other seeds are other runs; each function is called once
TEST_F(ScheduleTest, OneSeedIsOneRun) {
  std::set<std::string> logs;
  for (const char* order : {"random", "pct"}) {
    for (int seed = 0; seed < 10; ++seed) {
      const std::string log = log_of(seed, busy_program, order);
      EXPECT_EQ(log_of(seed, busy_program, order), log) << order << ' ' << seed;
      EXPECT_CONTAINS(log, "switch 1: device ");
      EXPECT_CONTAINS(log, ": function of the host\n");
      logs.insert(log);
    }
  }
  EXPECT_GT(logs.size(), 15u);
  EXPECT_EQ(log_of(1, busy_program, "latest"), log_of(2, busy_program, "latest"));
  EXPECT_EQ(with_seed(1, busy_program), 15);
}

// The number of tasks that may be put off: with none the program runs in the plain order, and a failing run is found again
// with as few as it needs
TEST_F(ScheduleTest, SwitchesAreCounted) {
  const auto broken = [] { return read_behind_a_side_stream(false); };
  EXPECT_EQ(with_seed(0, broken, "latest"), 0);
  EXPECT_EQ(with_seed(0, broken, "latest", "0"), 1);
  EXPECT_EQ(with_seed(0, broken, "latest", "1"), 1);  // the fill, which is waited for
  EXPECT_EQ(with_seed(0, broken, "latest", "2"), 0);
  EXPECT_EQ(with_seed(7, busy_program, "random", "0"), 15);
}

// Times are the seed's: equal in each run, and longer for more bytes
TEST_F(ScheduleTest, TimesRepeat) {
  const auto time_of = [](size_t size) {
    return [size] {
      openreg_event start = nullptr, end = nullptr;
      void* block = nullptr;
      int64_t nanoseconds = -1;
      EXPECT_EQ(openreg_malloc(0, 0, size, &block), OPENREG_OK);
      EXPECT_EQ(openreg_event_create(0, OPENREG_EVENT_TIMING, &start), OPENREG_OK);
      EXPECT_EQ(openreg_event_create(0, OPENREG_EVENT_TIMING, &end), OPENREG_OK);
      EXPECT_EQ(openreg_event_record(start, 0, 0), OPENREG_OK);
      EXPECT_EQ(openreg_memset_async(0, 0, block, 1, size), OPENREG_OK);
      EXPECT_EQ(openreg_event_record(end, 0, 0), OPENREG_OK);
      EXPECT_EQ(openreg_event_synchronize(end), OPENREG_OK);
      EXPECT_EQ(openreg_event_elapsed(start, end, &nanoseconds), OPENREG_OK) << last_message();
      EXPECT_EQ(openreg_event_destroy(start), OPENREG_OK);
      EXPECT_EQ(openreg_event_destroy(end), OPENREG_OK);
      EXPECT_EQ(openreg_free(block), OPENREG_OK);
      return static_cast<double>(nanoseconds) / 1e6;
    };
  };
  for (int seed = 0; seed < 6; ++seed) {
    const double small = with_seed(seed, time_of(1 << 10)), large = with_seed(seed, time_of(10 << 20));
    EXPECT_EQ(with_seed(seed, time_of(1 << 10)), small);
    EXPECT_GT(small, 0);
    EXPECT_GT(large, small + 0.9);
    EXPECT_LT(large, small + 1.5);
  }
}

// Who asks again and again whether a stream or an event is done sees the end, also behind a function of the host
TEST_F(ScheduleTest, QueriesComeToAnEnd) {
  for (int seed = 0; seed < 9; ++seed) {
    EXPECT_EQ(
        with_seed(seed,
                  [] {
                    Memory memory;
                    const openreg_stream side = from_pool(0);
                    openreg_event event = nullptr;
                    static std::atomic<int> called;
                    called = 0;
                    EXPECT_EQ(openreg_event_create(0, 0, &event), OPENREG_OK);
                    EXPECT_EQ(openreg_memcpy_async(0, side, memory.block, 0, memory.from, OPENREG_HOST, kSize),
                              OPENREG_OK);
                    EXPECT_EQ(openreg_stream_launch_host_func(0, side, [](void*) { ++called; }, nullptr), OPENREG_OK);
                    EXPECT_EQ(openreg_event_record(event, 0, side), OPENREG_OK);
                    EXPECT_EQ(openreg_stream_wait_event(0, 0, event), OPENREG_OK);
                    EXPECT_EQ(openreg_memcpy_async(0, 0, memory.to, OPENREG_HOST, memory.block, 0, kSize), OPENREG_OK);
                    int32_t done = 0;
                    while (done == 0) EXPECT_EQ(openreg_event_query(event, &done), OPENREG_OK);
                    EXPECT_EQ(called, 1);
                    for (done = 0; done == 0;) EXPECT_EQ(openreg_stream_query(0, 0, &done), OPENREG_OK);
                    EXPECT_EQ(openreg_event_destroy(event), OPENREG_OK);
                    return memory.result();
                  }),
        1);
  }
}

// Threads that give work and wait at the same time: everything that is ordered is as it should be
TEST_F(ScheduleTest, Threads) {
  for (int seed = 0; seed < 12; ++seed) {
    const bool is_right = with_seed(seed, [] {
      std::atomic<bool> good{true};
      Threads(4, [&good](int32_t number) {
        const int32_t device = number % 2;
        Memory memory(device);
        const openreg_stream stream = from_pool(device);
        for (int value = 1; value <= 20; ++value) {
          memset(memory.from, value, kSize);
          good = good && openreg_memcpy_async(device, stream, memory.block, device, memory.from, OPENREG_HOST, kSize) ==
                             OPENREG_OK;
          good = good && openreg_stream_launch_host_func(device, stream, [](void*) {}, nullptr) == OPENREG_OK;
          good = good && openreg_memcpy_async(device, stream, memory.to, OPENREG_HOST, memory.block, device, kSize) ==
                             OPENREG_OK;
          good = good && openreg_stream_synchronize(device, stream) == OPENREG_OK && memory.result() == value;
        }
      }).join();
      return good.load();
    });
    EXPECT_TRUE(is_right) << seed;
  }
}

// Fresh memory is not zero, and the same with one seed
TEST_F(ScheduleTest, FreshMemoryIsPoisoned) {
  const auto fresh = [] {
    Memory memory;
    EXPECT_EQ(openreg_memcpy(memory.to, OPENREG_HOST, memory.block, 0, kSize), OPENREG_OK);
    return memory.result();
  };
  EXPECT_NE(with_seed(1, fresh), 0);
  EXPECT_EQ(with_seed(1, fresh), with_seed(1, fresh));
  EXPECT_NE(with_seed(1, fresh), with_seed(2, fresh));
}

// The same with pinned memory, and with the memory that a growing segment gets
TEST_F(ScheduleTest, PinnedAndGrowingMemoryIsPoisoned) {
  constexpr size_t kMore = size_t{24} << 20;
  openreg_allocator_settings before = {}, growing = {};
  before.struct_size = growing.struct_size = sizeof growing;
  ASSERT_EQ(openreg_allocator_get_settings(&before), OPENREG_OK);
  growing = before;
  growing.expandable_segments = 1;
  ASSERT_EQ(openreg_allocator_set_settings(&growing), OPENREG_OK);
  const auto [pinned, last] = with_seed(1, [] {
    unsigned char* host = nullptr;
    void *one = nullptr, *other = nullptr;
    EXPECT_EQ(openreg_host_alloc(0, kSize, reinterpret_cast<void**>(&host)), OPENREG_OK);
    const int fresh = host[kSize - 1];
    EXPECT_EQ(openreg_malloc(0, 0, kMore, &one), OPENREG_OK);
    EXPECT_EQ(openreg_malloc(0, 0, kMore, &other), OPENREG_OK);
    EXPECT_EQ(openreg_memcpy(host, OPENREG_HOST, static_cast<char*>(other) + kMore - 1, 0, 1), OPENREG_OK);
    const int grown = host[0];
    EXPECT_EQ(openreg_free(one), OPENREG_OK);
    EXPECT_EQ(openreg_free(other), OPENREG_OK);
    EXPECT_EQ(openreg_host_free(host), OPENREG_OK);
    return std::make_pair(fresh, grown);
  });
  EXPECT_NE(pinned, 0);
  EXPECT_EQ(last, pinned);
  EXPECT_EQ(openreg_allocator_set_settings(&before), OPENREG_OK);
}

// A block that is freed and given out again, by the cache alone: who reads it before writing sees no old bytes, at its
// old size or cut from a joined one
TEST_F(ScheduleTest, FreedMemoryIsPoisoned) {
  const auto reuse = [] {
    void *block = nullptr, *again = nullptr;
    unsigned char seen[3 * kSize];
    for (const size_t size : {kSize, 3 * kSize}) {
      EXPECT_EQ(openreg_malloc(0, 0, size, &block), OPENREG_OK);
      EXPECT_EQ(openreg_memset_async(0, 0, block, 7, size), OPENREG_OK);
      EXPECT_EQ(openreg_free(block), OPENREG_OK);
      EXPECT_EQ(openreg_malloc(0, 0, size, &again), OPENREG_OK);
      EXPECT_EQ(again, block);
      EXPECT_EQ(openreg_memcpy(seen, OPENREG_HOST, again, 0, size), OPENREG_OK);
      EXPECT_EQ(openreg_free(again), OPENREG_OK);
      if (std::count(seen, seen + size, 7) != 0) return true;
    }
    return false;
  };
  for (const char* order : {"random", "pct", "latest"}) {
    for (int seed = 0; seed < 10; ++seed) EXPECT_FALSE(with_seed(seed, reuse, order)) << order << ' ' << seed;
  }
  unset("OPENREG_SIM_SEED");
  EXPECT_TRUE(reuse());  // without a seed nothing is written
}

// Work that was queued on the block's stream before the free, or behind which that stream waits, reads what was there
TEST_F(ScheduleTest, PoisonKeepsTheOrderOfStreams) {
  const auto free_behind_a_copy = [](openreg_stream stream, bool waits, bool records) {
    Memory memory;
    void* block = nullptr;
    openreg_event event = nullptr;
    EXPECT_EQ(openreg_malloc(0, 0, kSize, &block), OPENREG_OK);
    EXPECT_EQ(openreg_memset_async(0, 0, block, 7, kSize), OPENREG_OK);
    EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
    EXPECT_EQ(openreg_memcpy_async(0, stream, memory.to, OPENREG_HOST, block, 0, kSize), OPENREG_OK);
    if (waits) {
      EXPECT_EQ(openreg_event_create(0, 0, &event), OPENREG_OK);
      EXPECT_EQ(openreg_event_record(event, 0, stream), OPENREG_OK);
      EXPECT_EQ(openreg_stream_wait_event(0, 0, event), OPENREG_OK);
      EXPECT_EQ(openreg_event_destroy(event), OPENREG_OK);
    }
    if (records) {
      EXPECT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK);
    }
    EXPECT_EQ(openreg_free(block), OPENREG_OK);
    EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
    EXPECT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK);
    EXPECT_EQ(openreg_malloc(0, 0, kSize, &block), OPENREG_OK);  // a recorded one is free now, and so is poisoned
    EXPECT_EQ(openreg_memcpy(memory.from, OPENREG_HOST, block, 0, kSize), OPENREG_OK);
    EXPECT_NE(*static_cast<unsigned char*>(memory.from), 7);
    EXPECT_EQ(openreg_free(block), OPENREG_OK);
    return memory.result();
  };
  int shown = 0;
  for (const char* order : {"random", "pct", "latest"}) {
    for (int seed = 0; seed < 20; ++seed) {
      EXPECT_EQ(with_seed(seed, [&] { return free_behind_a_copy(0, false, false); }, order), 7) << order << seed;
      EXPECT_EQ(with_seed(seed, [&] { return free_behind_a_copy(from_pool(0), true, false); }, order), 7) << seed;
      EXPECT_EQ(with_seed(seed, [&] { return free_behind_a_copy(from_pool(0), false, true); }, order), 7) << seed;
      shown += with_seed(seed, [&] { return free_behind_a_copy(from_pool(0), false, false); }, order) != 7;
    }
  }
  EXPECT_GE(shown, 20);  // a forgotten record_stream() shows, with "latest" always
  EXPECT_LT(shown, 60);
}

// A block whose free is behind a function of the host is poisoned when that has ended, not before
TEST_F(ScheduleTest, PoisonComesBehindFunctions) {
  for (int seed = 0; seed < 9; ++seed) {
    EXPECT_EQ(with_seed(seed,
                        [] {
                          Memory memory;
                          void* block = allocate(0, kSize);
                          EXPECT_EQ(openreg_memset_async(0, 0, block, 7, kSize), OPENREG_OK);
                          EXPECT_EQ(openreg_stream_launch_host_func(0, 0, [](void*) {}, nullptr), OPENREG_OK);
                          EXPECT_EQ(openreg_memcpy_async(0, 0, memory.to, OPENREG_HOST, block, 0, kSize), OPENREG_OK);
                          EXPECT_EQ(openreg_stream_launch_host_func(0, 0, [](void*) {}, nullptr), OPENREG_OK);
                          EXPECT_EQ(openreg_free(block), OPENREG_OK);
                          int32_t done = 0;
                          while (done == 0) EXPECT_EQ(openreg_stream_query(0, 0, &done), OPENREG_OK);
                          block = allocate(0, kSize);
                          EXPECT_EQ(openreg_memcpy(memory.from, OPENREG_HOST, block, 0, kSize), OPENREG_OK);
                          EXPECT_NE(*static_cast<unsigned char*>(memory.from), 7);
                          EXPECT_EQ(openreg_free(block), OPENREG_OK);
                          return memory.result();
                        }),
              7);
  }
}

// Between the layer of OPENREG_VALIDATE and the runtime a seed is as without it, and no rule is broken
TEST_F(ScheduleTest, IsValidated) {
  set("OPENREG_VALIDATE", "1");
  for (int seed = 0; seed < 6; ++seed) {
    EXPECT_EQ(with_seed(seed,
                        [] {
                          void* const block = allocate(0, kSize);
                          EXPECT_EQ(openreg_free(block), OPENREG_OK);
                          return busy_program();
                        }),
              15);
  }
  EXPECT_EQ(count_lines(OPENREG_LOG_ERROR, "OPENREG_VALIDATE"), 0);
}

// What is no seed, schedule or number of switches fails the opening, by the variable's name
TEST_F(ScheduleTest, BadVariables) {
  const std::pair<const char*, const char*> cases[] = {
      {"OPENREG_SIM_SEED", "-1"}, {"OPENREG_SIM_SCHEDULE", "fifo"}, {"OPENREG_SIM_SWITCHES", "many"}};
  for (const auto& [name, value] : cases) {
    set(name, value);
    EXPECT_EQ(openreg_init(), OPENREG_E_INVALID) << name;
    EXPECT_CONTAINS(last_message(), std::string(name) + " must be ");
    EXPECT_CONTAINS(last_message(), std::string("but is \"") + value + "\"");
    unset(name);
  }
  set("OPENREG_SIM_SEED", "1");
  set("OPENREG_SIM_SCHEDULE_LOG", "/nowhere/log");
  expect_error(openreg_init(), OPENREG_E_INVALID, "OPENREG_SIM_SCHEDULE_LOG: \"/nowhere/log\" can't be written");
  unset("OPENREG_SIM_SCHEDULE_LOG");
  set("OPENREG_SIM_SEED", "");
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

}  // namespace
}  // namespace openreg_test
