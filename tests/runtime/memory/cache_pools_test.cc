// SPDX-License-Identifier: BSD-3-Clause
// The caching allocator's settings, limits, private pools and events (openreg/allocator.h).
#include <openreg/observer.h>

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cache_check.h"
#include "sanitizer.h"

namespace openreg_test {
namespace {

constexpr size_t kMib = 1024 * 1024;
constexpr openreg_memory_pool_id kPool{0, 1}, kOther{0, 2};

std::vector<openreg_memory_event> events;

// Keeps what the allocator does.
const openreg_observer& keeper() {
  static const openreg_observer observer = [] {
    auto made = sized<openreg_observer>();
    made.memory = [](void*, const openreg_memory_event* event) { events.push_back(*event); };
    return made;
  }();
  return observer;
}

class CachePoolsTest : public SimDevicesTest {
 protected:
  void TearDown() override {
    EXPECT_EQ(openreg_observe(&keeper(), 0), OPENREG_OK);
    use_settings([](auto&) {});
    openreg_allocator_set_caching(1);
    SimDevicesTest::TearDown();
  }

  static void* allocate_in(openreg_memory_pool_id id, size_t size, openreg_stream stream = OPENREG_STREAM_DEFAULT) {
    EXPECT_EQ(openreg_memory_pool_enter(0, id), OPENREG_OK) << last_message();
    void* block = allocate(0, size, stream);
    EXPECT_EQ(openreg_memory_pool_leave(0, id), OPENREG_OK) << last_message();
    return block;
  }

  static openreg_block_info info_of(void* address) {
    for (const auto& block : snapshot(0))
      if (block.address == address) return block;
    ADD_FAILURE() << "no such block";
    return {};
  }

  static int64_t reserved() { return stats_of(0).reserved_bytes[0].current; }
};

int count_pools() {
  int count = 0;
  const auto visit = [](void* ctx, const openreg_memory_pool_info*) {
    ++*static_cast<int*>(ctx);
    return 0;
  };
  EXPECT_EQ(openreg_memory_visit_pools(0, visit, &count), OPENREG_OK);
  return count;
}

// Many pools, released in another order than they were made and than their blocks are freed: each keeps just the
// segments that have a live block, its id may be that of a new pool meanwhile, and it is gone with its last block.
TEST_F(CachePoolsTest, ManyPoolsComeAndGo) {
  constexpr uint64_t kPools = 12;
  const auto id_of = [](uint64_t i) { return openreg_memory_pool_id{i % 3, i + 1}; };
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> old(kPools), recent(kPools);
    for (uint64_t i = 0; i < kPools; ++i) {
      ASSERT_EQ(openreg_memory_pool_retain(0, id_of(i), 0), OPENREG_OK) << last_message();
      old[i] = allocate_in(id_of(i), 512);
      release(allocate_in(id_of(i), 512));  // and stays at hand
    }
    for (uint64_t i = 0; i < kPools; ++i) EXPECT_EQ(openreg_memory_pool_release(0, id_of(i * 7 % kPools)), OPENREG_OK);
    EXPECT_EQ(reserved(), static_cast<int64_t>(kPools * 2 * kMib));
    for (uint64_t i = 0; i < kPools; ++i) {
      EXPECT_EQ(openreg_memory_pool_enter(0, id_of(i)), OPENREG_E_INVALID);
      ASSERT_EQ(openreg_memory_pool_retain(0, id_of(i), 0), OPENREG_OK) << last_message();
      recent[i] = allocate_in(id_of(i), 512);
      EXPECT_NE(info_of(recent[i]).segment, info_of(old[i]).segment);
    }
    EXPECT_EQ(count_pools(), static_cast<int>(2 * kPools));
    for (uint64_t i = 0; i < kPools; ++i) {
      release(old[i * 5 % kPools]);
      EXPECT_EQ(reserved(), static_cast<int64_t>((2 * kPools - 1 - i) * 2 * kMib));
    }
    EXPECT_EQ(count_pools(), static_cast<int>(kPools));
    for (void* block : recent) release(block);
    for (uint64_t i = 0; i < kPools; ++i) EXPECT_EQ(openreg_memory_pool_release(0, id_of(i * 5 % kPools)), OPENREG_OK);
    EXPECT_EQ(count_pools(), 0);
    EXPECT_EQ(reserved(), 0);
    check_cache(0);
  }
}

// Without caching each block goes back as it is freed, whichever others live.
TEST_F(CachePoolsTest, UncachedBlocksGoBackAtOnce) {
  openreg_allocator_set_caching(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocate(0, 512));
  for (size_t i = 0; i < blocks.size(); ++i) {
    release(blocks[i * 3 % blocks.size()]);
    EXPECT_EQ(reserved(), static_cast<int64_t>((blocks.size() - 1 - i) * 2 * kMib));
  }
}

// Values outside their range are refused by name and change nothing; NULL and short structures are errors.
TEST_F(CachePoolsTest, BadSettings) {
  const auto refused = [](openreg_allocator_settings settings, const char* name) {
    EXPECT_EQ(openreg_allocator_set_settings(&settings), OPENREG_E_INVALID);
    EXPECT_NE(last_message().find(name), std::string::npos) << last_message();
  };
  auto settings = default_settings();
  settings.max_split_size = kMib;
  refused(settings, "max_split_size");
  settings = default_settings();
  settings.large_segment_size = kMib;
  refused(settings, "large_segment_size");
  for (const double wrong : {-0.5, 1.0, std::nan("")}) {
    settings = default_settings();
    settings.garbage_collection_threshold = wrong;
    refused(settings, "garbage_collection_threshold");
    settings = default_settings();
    settings.memory_fraction = wrong == 1.0 ? 1.5 : wrong;
    refused(settings, "memory_fraction");
    EXPECT_EQ(openreg_memory_set_fraction(0, settings.memory_fraction), OPENREG_E_INVALID);
  }
  settings = default_settings();
  settings.roundup_divisions[3] = 6;
  refused(settings, "roundup_divisions[3]");
  settings.struct_size = 4;
  refused(settings, "struct_size");
  EXPECT_EQ(openreg_allocator_set_settings(nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_allocator_get_settings(nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_get_fraction(0, nullptr), OPENREG_E_INVALID);
  auto now = sized<openreg_allocator_settings>();
  ASSERT_EQ(openreg_allocator_get_settings(&now), OPENREG_OK);
  EXPECT_EQ(now.max_split_size, UINT64_MAX);
  EXPECT_EQ(now.memory_fraction, 1.0);
}

// A driver without growing segments: one warning, however often it is asked for, and ordinary segments.
TEST_F(CachePoolsTest, GrowingSegmentsThatADriverLacks) {
  use_full_toy([](openreg_driver& table) { table.extension = nullptr; });
  use_settings([](auto& settings) { settings.expandable_segments = 1; });
  void* blocks[] = {allocate(0, 100), allocate(0, 2 * kMib), allocate(0, 30 * kMib)};
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "expandable_segments is ignored"), 1);
  EXPECT_EQ(stats_of(0).segment[0].current, 3);
  for (void* block : blocks) {
    EXPECT_EQ(info_of(block).expandable, 0);
    release(block);
  }
}

// On the simulated devices a pool has one segment, which grows in place, and gives its end back.
TEST_F(CachePoolsTest, GrowingSegments) {
  use_settings([](auto& settings) { settings.expandable_segments = 1; });
  events.clear();
  ASSERT_EQ(openreg_observe(&keeper(), OPENREG_OBSERVE_MEMORY), OPENREG_OK);
  void* first = allocate(0, 3 * kMib);
  void* second = allocate(0, 25 * kMib);
  void* third = allocate(0, 3 * kMib);
  EXPECT_EQ(static_cast<char*>(second), static_cast<char*>(first) + 3 * kMib);
  EXPECT_EQ(stats_of(0).segment[0].current, 1);
  EXPECT_EQ(info_of(first).expandable, 1);
  EXPECT_EQ(reserved(), static_cast<int64_t>(32 * kMib));  // by 20 MiB at a time, and by less at the end of its room
  check_cache(0);
  uint64_t unused = 0, total = 0;
  ASSERT_EQ(openreg_memory_get_info(0, &unused, &total), OPENREG_OK);
  EXPECT_EQ(total - unused, 32 * kMib);
  auto beyond = pointer_info(static_cast<char*>(first) + 32 * kMib);
  EXPECT_EQ(beyond.kind, OPENREG_POINTER_UNKNOWN);
  EXPECT_EQ(openreg_free(static_cast<char*>(first) + 32 * kMib), OPENREG_E_INVALID);

  release(third);
  release(second);
  check_cache(0);
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  check_cache(0);
  EXPECT_EQ(reserved(), static_cast<int64_t>(4 * kMib));  // the unit in which the first block ends
  ASSERT_EQ(openreg_memory_get_info(0, &unused, &total), OPENREG_OK);
  EXPECT_EQ(total - unused, 4 * kMib);
  beyond.struct_size = sizeof beyond;
  ASSERT_EQ(openreg_pointer_get_info(second, &beyond), OPENREG_OK);  // it began in what is left
  EXPECT_EQ(beyond.live, 0);
  second = allocate(0, 20 * kMib);
  EXPECT_EQ(static_cast<char*>(second), static_cast<char*>(first) + 3 * kMib);
  check_cache(0);
  release(second);
  release(first);
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(reserved(), 0);
  std::vector<int32_t> actions;
  for (const auto& event : events)
    if (event.action >= OPENREG_MEMORY_EVENT_SEGMENT_ALLOC) actions.push_back(event.action);
  EXPECT_EQ(actions, (std::vector<int32_t>{OPENREG_MEMORY_EVENT_SEGMENT_ALLOC, OPENREG_MEMORY_EVENT_SEGMENT_MAP,
                                           OPENREG_MEMORY_EVENT_SEGMENT_MAP, OPENREG_MEMORY_EVENT_SEGMENT_UNMAP,
                                           OPENREG_MEMORY_EVENT_SEGMENT_MAP, OPENREG_MEMORY_EVENT_SEGMENT_FREE}));
}

// Where a segment has grown, memory keeps what is in it; the device's memory is all there is, and out of memory says so.
TEST_F(CachePoolsTest, GrowingKeepsContentsAndLimits) {
  use_settings([](auto& settings) { settings.expandable_segments = 1; });
  void* first = allocate(0, 2 * kMib);
  void* alias = nullptr;
  ASSERT_EQ(openreg_host_alias(first, &alias), OPENREG_OK);
  *static_cast<int*>(alias) = 77;
  void* second = allocate(0, 20 * kMib);
  EXPECT_EQ(*static_cast<int*>(alias), 77);
  void* other = nullptr;
  EXPECT_EQ(openreg_malloc(0, OPENREG_STREAM_DEFAULT, 44 * kMib, &other), OPENREG_E_NOMEM);
  release(second);
  second = allocate(0, 50 * kMib);  // more than the addresses of the first segment: the cached end goes back for it
  check_cache(0);
  EXPECT_EQ(*static_cast<int*>(alias), 77);
}

// Threads that fill a device together through one growing segment: where one finds the segment being changed by another
// it waits and tries again, so none is refused while there is room for all.
TEST_F(CachePoolsTest, ThreadsGrowOneSegment) {
  use_settings([](auto& settings) { settings.expandable_segments = 1; });
  constexpr int kThreads =
      4;  // each has 6 of 64 MiB at most; a large segment grows by 20, and there are addresses for two
  std::atomic<int> refused{0};
  Threads(kThreads, [&](int id) {
    for (int step = 0; step < 400; ++step) {
      void* block = nullptr;
      const size_t size = static_cast<size_t>(2 + (step * 7 + id * 3) % 5) * kMib;
      if (openreg_malloc(0, OPENREG_STREAM_DEFAULT, size, &block) != OPENREG_OK) ++refused;
      openreg_free(block);
      if (step % 8 == id && openreg_memory_empty_cache(0) != OPENREG_OK) ++refused;
    }
  }).join();
  EXPECT_EQ(refused, 0) << last_message();
  check_cache(0);
}

// The free end of a growing segment that max_split_size keeps whole is neither split nor grown for a smaller request; one
// for a request above the limit is no bigger than what such a request may have.
TEST_F(CachePoolsTest, GrowingSegmentsKeepTheSplitLimit) {
  auto settings = default_settings();
  settings.expandable_segments = 1;
  settings.max_split_size = 20 * kMib;
  settings.max_non_split_rounding = 4 * kMib;
  ASSERT_EQ(openreg_allocator_set_settings(&settings), OPENREG_OK);
  void* first = allocate(0, 3 * kMib);
  void* large = allocate(0, 25 * kMib);
  release(large);
  void* small = allocate(0, 5 * kMib);  // beside it, in a segment of its own
  EXPECT_EQ(stats_of(0).segment[0].current, 2);
  EXPECT_EQ(stats_of(0).inactive_split_bytes[0].current, static_cast<int64_t>((25 + 15) * kMib));
  check_cache(0);
  void* again = allocate(0, 24 * kMib);
  EXPECT_EQ(again, large);
  check_cache(0);
  for (void* block : {first, small, again}) release(block);
  check_cache(0);
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(reserved(), 0);
}

// Warm blocks join their free neighbours before a segment grows: if the request fits then, the driver isn't called.
TEST_F(CachePoolsTest, GrowingSegmentsLookBeforeTheyGrow) {
  use_settings([](auto& settings) { settings.expandable_segments = 1; });
  void* first = allocate(0, kMib);
  std::vector<void*> warm;
  for (int i = 0; i < 16; ++i) warm.push_back(allocate(0, 8 << 10));
  const auto before = stats_of(0);          // which looks at the whole cache, so that nothing is warm
  for (void* block : warm) release(block);  // between `first` and 896 free KiB
  void* second = allocate(0, 1000 << 10);
  EXPECT_EQ(stats_of(0).num_device_alloc, before.num_device_alloc);
  check_cache(0);
  release(second);
  release(first);
  check_cache(0);
}

// Many threads with sizes around the limit, on a device that is nearly full: nothing that a thread has looked at is taken for
// granted after the driver was called without the lock.
TEST_F(CachePoolsTest, ThreadsGrowSegmentsWithASplitLimit) {
  auto settings = default_settings();
  settings.expandable_segments = 1;
  settings.max_split_size = 20 * kMib;
  ASSERT_EQ(openreg_allocator_set_settings(&settings), OPENREG_OK);
  Threads(4, [](unsigned id) {
    std::mt19937 random(id);
    std::vector<void*> mine;
    for (int step = 0; step < 3000; ++step) {
      void* block = nullptr;
      const size_t size = random() % 3 == 0 ? 1 + random() % kMib : 1 + random() % (22 * kMib);
      if (mine.size() < 4 && openreg_malloc(0, OPENREG_STREAM_DEFAULT, size, &block) == OPENREG_OK)
        mine.push_back(block);
      while (mine.size() > random() % 5) {
        release(mine.back());
        mine.pop_back();
      }
      if (random() % 50 == 0) (void)!openreg_memory_empty_cache(0);
    }
    for (void* block : mine) release(block);
  }).join();
  check_cache(0);
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(reserved(), 0);
  check_cache(0);
}

// Threads that end inside a private pool make no other thread's requests slower, which still go to the pool entered last.
TEST_F(CachePoolsTest, ThreadsThatEndInsideAPool) {
  const openreg_memory_pool_id outer = {1, 1}, inner = {1, 2};
  for (const auto pool : {outer, inner}) ASSERT_EQ(openreg_memory_pool_retain(0, pool, 0), OPENREG_OK);
  const auto nanoseconds_of_a_batch = [] {  // of this thread alone, the best of ten: others may have the processor
    int64_t best = INT64_MAX;
    for (int round = 0; round < 10; ++round) {
      timespec before{}, after{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
      for (int i = 0; i < 500; ++i) release(allocate(0, 4096));
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
      best = std::min<int64_t>(best, (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec);
    }
    return best;
  };
  const auto end_inside = [&](int threads) {
    for (int i = 0; i < threads; ++i)
      std::thread([&] { EXPECT_EQ(openreg_memory_pool_enter(0, outer), OPENREG_OK); }).join();
  };
  end_inside(10);
  const int64_t few = nanoseconds_of_a_batch();
  end_inside(OPENREG_TEST_SANITIZER ? 100 : 8000);  // a sanitizer's own work grows with the threads that have been
  if (!OPENREG_TEST_SANITIZER) {
    EXPECT_LT(nanoseconds_of_a_batch(), 8 * few);
  }

  ASSERT_EQ(openreg_memory_pool_enter(0, outer), OPENREG_OK);
  ASSERT_EQ(openreg_memory_pool_enter(0, inner), OPENREG_OK);
  EXPECT_EQ(openreg_memory_pool_enter(0, outer), OPENREG_E_INVALID);
  void* in_inner = allocate(0, 4096);
  ASSERT_EQ(openreg_memory_pool_leave(0, outer), OPENREG_OK);  // not the latest: requests still go to `inner`
  void* also_in_inner = allocate(0, 4096);
  ASSERT_EQ(openreg_memory_pool_leave(0, inner), OPENREG_OK);
  EXPECT_EQ(openreg_memory_pool_leave(0, inner), OPENREG_E_INVALID);
  EXPECT_EQ(info_of(in_inner).pool.second, inner.second);
  EXPECT_EQ(info_of(also_in_inner).pool.second, inner.second);
  release(in_inner);
  release(also_in_inner);
  for (const auto pool : {outer, inner}) EXPECT_EQ(openreg_memory_pool_release(0, pool), OPENREG_OK);
  check_cache(0);
}

// large_segment_size is the size of segments for blocks between 1 and 10 MiB.
TEST_F(CachePoolsTest, LargeSegmentSize) {
  use_settings([](auto& settings) { settings.large_segment_size = 32 * kMib; });
  void* block = allocate(0, 2 * kMib);
  EXPECT_EQ(reserved(), static_cast<int64_t>(32 * kMib));
  release(block);
  check_cache(0);
}

// A request that rounding makes larger is still freed, counted and known by the bytes that were asked for.
TEST_F(CachePoolsTest, RoundingKeepsTheRequestedSize) {
  use_settings([](auto& settings) {
    std::fill(std::begin(settings.roundup_divisions), std::end(settings.roundup_divisions), 2u);
  });
  void* block = allocate(0, 5 * kMib);
  EXPECT_EQ(info_of(block).size, 6 * kMib);
  EXPECT_EQ(info_of(block).requested, 5 * kMib);
  EXPECT_EQ(pointer_info(block).size, 5 * kMib);
  check_cache(0);
}

// What a driver allocates at once is no less for a program that has requests rounded.
TEST_F(CachePoolsTest, RoundingStaysBelowTheMostOfOneAllocation) {
  use_full_toy([](openreg_driver& table) {
    table.device_info = device_info_of([](auto& info) {
      info.max_allocation = 5 * kMib;
      info.min_alignment = 512;
    });
  });
  use_settings([](auto& settings) {
    std::fill(std::begin(settings.roundup_divisions), std::end(settings.roundup_divisions), 2u);
  });
  void* const block = allocate(0, 9 * kMib / 2);  // 6 MiB by the settings
  EXPECT_EQ(info_of(block).size, 5 * kMib);       // the segment, of which no rest is split off
  release(block);
  check_cache(0);
}

// Each interval between powers of two has its own number of steps; the first one is for all that is smaller too.
TEST_F(CachePoolsTest, RoundingByInterval) {
  auto settings = default_settings();
  settings.roundup_divisions[0] = 4;
  settings.roundup_divisions[2] = 2;
  ASSERT_EQ(openreg_allocator_set_settings(&settings), OPENREG_OK);
  const auto size_of = [](size_t size) {
    void* block = allocate(0, size);
    const size_t rounded = info_of(block).size;
    release(block);
    return rounded;
  };
  EXPECT_EQ(size_of(65 * 1024), 80u * 1024);
  EXPECT_EQ(size_of(kMib + 1), kMib * 5 / 4);
  EXPECT_EQ(size_of(2 * kMib + 1), 2 * kMib + 512);
  EXPECT_EQ(size_of(4 * kMib + 1), 6 * kMib);
  check_cache(0);
}

// From the limit on, and not below, blocks and their segments count as oversize, as long as they live.
TEST_F(CachePoolsTest, OversizeIsCounted) {
  use_settings([](auto& settings) { settings.max_split_size = 32 * kMib; });
  const auto oversize = [] {
    const auto stats = stats_of(0);
    return std::pair(stats.oversize_allocations.current, stats.oversize_segments.current);
  };
  void* below = allocate(0, 30 * kMib);
  EXPECT_EQ(oversize(), std::pair(int64_t{0}, int64_t{0}));
  void* at = allocate(0, 32 * kMib);
  EXPECT_EQ(oversize(), std::pair(int64_t{1}, int64_t{1}));
  release(below);
  EXPECT_EQ(oversize(), std::pair(int64_t{1}, int64_t{1}));
  release(at);
  EXPECT_EQ(oversize(), std::pair(int64_t{0}, int64_t{1}));
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(oversize(), std::pair(int64_t{0}, int64_t{0}));
}

// Segments of a pool that is not to be split serve one block each.
TEST_F(CachePoolsTest, PoolWithoutSplits) {
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, OPENREG_MEMORY_POOL_NO_SPLIT), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memory_pool_retain(0, kOther, 0), OPENREG_OK) << last_message();
  void* first = allocate_in(kPool, kMib / 4);
  const int64_t one = reserved();
  void* second = allocate_in(kPool, kMib / 4);
  EXPECT_EQ(reserved(), 2 * one);
  void* shared = allocate_in(kOther, kMib / 4);
  void* neighbour = allocate_in(kOther, kMib / 4);
  EXPECT_EQ(reserved(), 3 * one);
  for (void* block : {first, second, shared, neighbour}) release(block);
  check_cache(0);
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
  EXPECT_EQ(openreg_memory_pool_release(0, kOther), OPENREG_OK);
}

// What graphs replay in keeps its memory, and copies use its free blocks, also across their borders.
TEST_F(CachePoolsTest, PoolOfGraphs) {
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, OPENREG_MEMORY_POOL_USE_ON_OOM), OPENREG_OK) << last_message();
  auto* const first = static_cast<char*>(allocate_in(kPool, kMib / 4));
  void* second = allocate_in(kPool, kMib / 4);
  release(first);
  std::vector<char> bytes(kMib / 4 + 1, 'x');
  const auto copy = [&](char* to) { return openreg_memcpy(to, 0, bytes.data(), OPENREG_HOST, bytes.size()); };
  EXPECT_EQ(copy(first), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, OPENREG_MEMORY_POOL_REPLAYED), OPENREG_OK) << last_message();
  EXPECT_EQ(copy(first), OPENREG_OK) << last_message();
  EXPECT_EQ(copy(first + static_cast<std::ptrdiff_t>(reserved()) - 1), OPENREG_E_INVALID);
  release(second);
  const int64_t kept = reserved();
  EXPECT_EQ(openreg_memory_pool_trim(0, kPool), OPENREG_OK);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(reserved(), kept);
  EXPECT_EQ(copy(first), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
  EXPECT_EQ(copy(first), OPENREG_E_INVALID);
  EXPECT_EQ(reserved(), 0);
  check_cache(0);
}

// The limit holds for what is reserved, cached memory is given back first, and the text names it.
TEST_F(CachePoolsTest, Fraction) {
  ASSERT_EQ(openreg_memory_set_fraction(0, 0.5), OPENREG_OK);
  double fraction = 0;
  ASSERT_EQ(openreg_memory_get_fraction(0, &fraction), OPENREG_OK);
  EXPECT_EQ(fraction, 0.5);
  release(allocate(0, 20 * kMib));
  allocate(0, 30 * kMib);
  EXPECT_EQ(reserved(), static_cast<int64_t>(30 * kMib));
  void* more = nullptr;
  EXPECT_EQ(openreg_malloc(0, OPENREG_STREAM_DEFAULT, 4 * kMib, &more), OPENREG_E_NOMEM);
  EXPECT_NE(last_message().find("limited to 32.00 MiB"), std::string::npos) << last_message();
  EXPECT_EQ(stats_of(0).num_ooms, 1);
  allocate(1, 50 * kMib);
}

// One release too many does not free a pool that a thread is in.
TEST_F(CachePoolsTest, ReleasedOncePerRetain) {
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, 0), OPENREG_OK);
  ASSERT_EQ(openreg_memory_pool_enter(0, kPool), OPENREG_OK);
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
  expect_error(openreg_memory_pool_release(0, kPool), OPENREG_E_INVALID, "released as often as it was retained");
  release(allocate(0, kMib));
  release(allocate(0, kMib));
  EXPECT_EQ(openreg_memory_pool_leave(0, kPool), OPENREG_OK);
  expect_error(openreg_memory_pool_release(0, kPool), OPENREG_E_INVALID, "there is no memory pool");
}

// A thread that ends inside a pool leaves it to no other thread, whatever pthread_t that gets.
TEST_F(CachePoolsTest, EndedThreadsLeaveNoPoolBehind) {
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, 0), OPENREG_OK);
  std::thread([] { EXPECT_EQ(openreg_memory_pool_enter(0, kPool), OPENREG_OK); }).join();
  for (int i = 0; i < 20; ++i)
    std::thread([] {
      void* block = allocate(0, kMib);
      const openreg_memory_pool_id id = info_of(block).pool;
      EXPECT_TRUE(id.first == 0 && id.second == 0);
      EXPECT_EQ(openreg_memory_pool_leave(0, kPool), OPENREG_E_INVALID);
      release(block);
    }).join();
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
}

// A pool that is gone gives back what is free at once and the rest with its last block, also one that waits for a
// stream.
TEST_F(CachePoolsTest, GonePoolGivesBack) {
  const openreg_stream stream = from_pool(0);
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, 0), OPENREG_OK);
  void* small = allocate_in(kPool, 100);
  void* large = allocate_in(kPool, 12 * kMib);
  release(allocate_in(kPool, 14 * kMib));
  EXPECT_EQ(reserved(), static_cast<int64_t>(28 * kMib));
  ASSERT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
  EXPECT_EQ(reserved(), static_cast<int64_t>(14 * kMib));
  check_cache(0);
  ASSERT_EQ(openreg_memory_record_stream(large, 0, stream), OPENREG_OK);
  release(large);
  ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK);
  release(allocate(0, 100));  // notices that the stream has passed
  EXPECT_EQ(reserved(), static_cast<int64_t>(4 * kMib));
  release(small);
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kMib));
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_E_INVALID);
  check_cache(0);
}

// Pools and the rest never serve one another; statistics of a pool are its own.
TEST_F(CachePoolsTest, PoolsAreApart) {
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, 0), OPENREG_OK);
  ASSERT_EQ(openreg_memory_pool_retain(0, kOther, 0), OPENREG_OK);
  void* blocks[3] = {allocate(0, 5000), allocate_in(kPool, 5000), allocate_in(kOther, 5000)};
  void* segments[3];
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(info_of(blocks[i]).pool.second, static_cast<uint64_t>(i));
    segments[i] = info_of(blocks[i]).segment;
    release(blocks[i]);
  }
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);  // not the pools'
  EXPECT_EQ(reserved(), static_cast<int64_t>(4 * kMib));
  void* again = allocate_in(kPool, 4000);
  EXPECT_EQ(info_of(again).segment, segments[1]);
  struct Seen {
    int pools = 0;
    int64_t bytes = 0;
  } seen;
  const auto visit = [](void* ctx, const openreg_memory_pool_info* pool) {
    auto* const to = static_cast<Seen*>(ctx);
    ++to->pools;
    to->bytes += pool->reserved[1].current;
    EXPECT_EQ(pool->uses, 1);
    return 0;
  };
  ASSERT_EQ(openreg_memory_visit_pools(0, visit, &seen), OPENREG_OK);
  EXPECT_EQ(seen.pools, 2);
  EXPECT_EQ(seen.bytes, static_cast<int64_t>(4 * kMib));
  ASSERT_EQ(openreg_memory_pool_trim(0, kOther), OPENREG_OK);
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kMib));
  release(again);
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
  EXPECT_EQ(openreg_memory_pool_release(0, kOther), OPENREG_OK);
  EXPECT_EQ(reserved(), 0);
}

// Only the thread that is in the pool allocates from it.
TEST_F(CachePoolsTest, PoolOfAThread) {
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, 0), OPENREG_OK);
  ASSERT_EQ(openreg_memory_pool_enter(0, kPool), OPENREG_OK);
  void* theirs = nullptr;
  std::thread([&theirs] { theirs = allocate(0, 100); }).join();
  void* mine = allocate(0, 100);
  EXPECT_EQ(info_of(theirs).pool.second, 0u);
  EXPECT_EQ(info_of(mine).pool.second, kPool.second);
  EXPECT_EQ(openreg_memory_pool_enter(0, kPool), OPENREG_E_INVALID);  // already
  EXPECT_EQ(openreg_memory_pool_enter(1, kPool), OPENREG_E_INVALID);  // not there
  EXPECT_EQ(openreg_memory_pool_leave(0, kPool), OPENREG_OK);
  EXPECT_EQ(openreg_memory_pool_leave(0, kPool), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_pool_retain(0, {0, 0}, 0), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_pool_retain(0, kOther, 64), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_pool_trim(0, kOther), OPENREG_OK);
  EXPECT_EQ(openreg_memory_visit_pools(0, nullptr, nullptr), OPENREG_E_INVALID);
  release(theirs);
  release(mine);
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
}

// A pool in use and a thread in it do not keep the runtime from shutting down.
TEST_F(CachePoolsTest, ShutdownWithPools) {
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, 0), OPENREG_OK);
  release(allocate_in(kPool, 100));
  ASSERT_EQ(openreg_memory_pool_enter(0, kPool), OPENREG_OK);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  void* block = allocate(0, 100);
  EXPECT_EQ(info_of(block).pool.second, 0u);
}

// Every event, in order, with its figures; none when nobody listens.
TEST_F(CachePoolsTest, Events) {
  events.clear();
  const openreg_stream stream = from_pool(0);
  ASSERT_EQ(openreg_observe(&keeper(), OPENREG_OBSERVE_MEMORY), OPENREG_OK);
  ASSERT_EQ(openreg_memory_pool_retain(0, kPool, 0), OPENREG_OK);
  void* block = allocate_in(kPool, 30 * kMib, stream);
  ASSERT_EQ(openreg_memory_record_stream(block, 0, OPENREG_STREAM_DEFAULT), OPENREG_OK);
  release(block);
  EXPECT_EQ(openreg_memory_pool_trim(0, kPool), OPENREG_OK);
  void* none = nullptr;
  EXPECT_EQ(openreg_malloc(0, OPENREG_STREAM_DEFAULT, 100 * kMib, &none), OPENREG_E_NOMEM);
  EXPECT_EQ(openreg_observe(&keeper(), 0), OPENREG_OK);
  release(allocate(0, 100));
  const int32_t actions[] = {OPENREG_MEMORY_EVENT_SEGMENT_ALLOC,  OPENREG_MEMORY_EVENT_ALLOC,
                             OPENREG_MEMORY_EVENT_FREE_REQUESTED, OPENREG_MEMORY_EVENT_FREE_COMPLETED,
                             OPENREG_MEMORY_EVENT_SEGMENT_FREE,   OPENREG_MEMORY_EVENT_OOM};
  ASSERT_EQ(events.size(), std::size(actions));
  for (size_t i = 0; i < events.size(); ++i) {
    SCOPED_TRACE(i);
    const bool oom = actions[i] == OPENREG_MEMORY_EVENT_OOM;
    EXPECT_EQ(events[i].action, actions[i]);
    EXPECT_EQ(events[i].device, 0);
    EXPECT_EQ(events[i].address, oom ? 64 * kMib : reinterpret_cast<uint64_t>(block));
    EXPECT_EQ(events[i].size, (oom ? 100 : 30) * kMib);
    EXPECT_EQ(events[i].stream, oom ? OPENREG_STREAM_DEFAULT : stream);
    EXPECT_EQ(events[i].pool.second, oom ? 0 : kPool.second);
  }
  EXPECT_EQ(openreg_memory_pool_release(0, kPool), OPENREG_OK);
}

}  // namespace
}  // namespace openreg_test
