// SPDX-License-Identifier: BSD-3-Clause
// The caching allocator: segments, splitting, coalescing, streams, statistics, running out of memory.
#include <openreg/allocator.h>
#include <openreg/vmm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "../gate.h"
#include "cache_check.h"

namespace openreg_test {
namespace {

std::atomic<int> allocations{0};  // of use_addresses_only()

constexpr size_t kKib = 1024, kMib = 1024 * kKib;

class CacheTest : public SimDevicesTest {};

// A block is a multiple of 512 bytes, from segments of 2 MiB, of 20 MiB, or of its own size rounded up to 2 MiB.
TEST_F(CacheTest, SegmentSizes) {
  struct Case {
    size_t size, block, segment;
  };
  for (const Case& c : {Case{1, 512, 2 * kMib}, Case{512, 512, 2 * kMib}, Case{513, 1024, 2 * kMib},
                        Case{kMib, kMib, 2 * kMib}, Case{kMib + 1, kMib + 512, 20 * kMib},
                        Case{10 * kMib - 512, 10 * kMib - 512, 20 * kMib}, Case{10 * kMib, 10 * kMib, 10 * kMib},
                        Case{11 * kMib + 1, 12 * kMib, 12 * kMib}, Case{24 * kMib, 24 * kMib, 24 * kMib}}) {
    SCOPED_TRACE(c.size);
    void* block = allocate(0, c.size);
    const auto blocks = snapshot(0);
    ASSERT_FALSE(blocks.empty());
    EXPECT_EQ(blocks[0].address, block);
    EXPECT_EQ(blocks[0].size, c.block);
    EXPECT_EQ(blocks[0].requested, c.size);
    EXPECT_EQ(blocks[0].segment_size, c.segment);
    EXPECT_EQ(stats_of(0).reserved_bytes[0].current, static_cast<int64_t>(c.segment));
    check_cache(0);
    release(block);
    check_cache(0);
    EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
    EXPECT_EQ(stats_of(0).reserved_bytes[0].current, 0);
  }
}

// A large block is split only if more than 1 MiB is left; a small one from 512 bytes on.
TEST_F(CacheTest, SplitRules) {
  void* whole = allocate(0, 12 * kMib - kMib);  // 1 MiB would be left of the segment: it stays whole
  EXPECT_EQ(snapshot(0).size(), 1u);
  EXPECT_EQ(stats_of(0).allocated_bytes[2].current, static_cast<int64_t>(12 * kMib));
  EXPECT_EQ(stats_of(0).requested_bytes[2].current, static_cast<int64_t>(11 * kMib));
  release(whole);
  void* part = allocate(0, 11 * kMib - 512);
  EXPECT_EQ(part, whole);
  EXPECT_EQ(snapshot(0).size(), 2u);
  check_cache(0);
  release(part);
  void* small = allocate(0, 2 * kMib - 1024);
  void* large = allocate(0, kMib);
  check_cache(0);
  release(small);
  release(large);
  check_cache(0);
}

// Freed neighbours join in whatever order they come back, and the segment is whole again.
TEST_F(CacheTest, Coalesces) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<void*> blocks;
    for (int i = 0; i < 64; ++i) blocks.push_back(allocate(0, 1 + random() % (30 * kKib)));
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (void* block : blocks) release(block);
    check_cache(0);
  }
  for (const auto& block : snapshot(0)) EXPECT_EQ(block.size, block.segment_size);
}

// Small blocks of a size come back as they are, the last one first, whatever was freed meanwhile.
TEST_F(CacheTest, SmallBlocksComeBackAsTheyAre) {
  std::vector<void*> blocks[2];
  for (int i = 0; i < 8; ++i)
    for (int kind = 0; kind < 2; ++kind) blocks[kind].push_back(allocate(0, kind == 0 ? 512 : 8 * kKib));
  for (int i = 0; i < 8; ++i)
    for (auto& of_size : blocks) release(of_size[static_cast<size_t>(i)]);
  for (int i = 8; i-- > 0;)
    for (int kind = 0; kind < 2; ++kind)
      EXPECT_EQ(allocate(0, kind == 0 ? 512 : 8 * kKib), blocks[kind][static_cast<size_t>(i)]);
  check_cache(0);
  for (auto& of_size : blocks)
    for (void* block : of_size) release(block);
  check_cache(0);
}

// So many of a size are kept from joining and no more: what is freed beyond them serves larger requests.
TEST_F(CacheTest, FewBlocksAreKeptFromJoining) {
  std::vector<void*> blocks;
  for (size_t i = 0; i < 2 * kMib / kKib; ++i) blocks.push_back(allocate(0, kKib));  // a whole segment
  const auto reserved = stats_of(0).reserved_bytes[0].current;
  for (void* block : blocks) release(block);
  // 16 of this size, and the one freed last; the rest lies in one piece behind them.
  void* large = allocate(0, kMib);
  EXPECT_EQ(stats_of(0).reserved_bytes[0].current, reserved);
  release(large);
  check_cache(0);
  EXPECT_EQ(snapshot(0).size(), 1u);
}

// A size that was freed is served from the cache: the driver is not asked again.
TEST_F(CacheTest, ReusesWithoutTheDriver) {
  use_full_toy();
  std::vector<size_t> sizes;
  for (size_t size = 512; size <= 64 * kMib; size *= 2) sizes.push_back(size);
  for (const size_t size : sizes) release(allocate(0, size));
  const int calls = toy().calls("mem_alloc");
  for (int round = 0; round < 3; ++round) {
    for (const size_t size : sizes) {
      void* first = allocate(0, size);
      release(first);
      EXPECT_EQ(allocate(0, size), first) << size;  // the block freed last comes back
      release(first);
    }
  }
  EXPECT_EQ(toy().calls("mem_alloc"), calls);
  EXPECT_EQ(stats_of(0).num_device_alloc, calls);
}

// A driver of addresses without memory behind them, for tests with many large blocks that nobody touches.
void use_addresses_only(openreg_driver& table) {
  hide_from_host(table);
  table.mem_alloc = [](openreg_instance, int32_t, const openreg_alloc_info* info, void** out) {
    static std::atomic<uintptr_t> next{uintptr_t{1} << 40};
    *out = reinterpret_cast<void*>(next.fetch_add(info->size));
    ++allocations;
    return openreg_status{OPENREG_OK};
  };
  table.mem_free = [](openreg_instance, int32_t, void*) { return openreg_status{OPENREG_OK}; };
}

// Among free blocks of a like size the best fit is taken, and one that lies deep in its list is found before the
// driver is asked.
TEST_F(CacheTest, FindsTheFitThatIsThere) {
  use_full_toy(use_addresses_only);
  allocations = 0;
  std::vector<void*> blocks;
  // 32 segments of which the first fits the request; the rest, freed later, are a little too small and hide it.
  blocks.push_back(allocate(0, 514 * kMib));
  for (int i = 0; i < 31; ++i) blocks.push_back(allocate(0, 512 * kMib));
  for (void* block : blocks) release(block);
  EXPECT_EQ(allocations, 32);
  EXPECT_EQ(allocate(0, 513 * kMib), blocks[0]);
  EXPECT_EQ(allocations, 32);
  release(blocks[0]);
  check_cache(0);
}

// Of many free blocks whose sizes share a bin the smallest that fits is taken, wherever it lies among those that don't
// and those that are larger.
TEST_F(CacheTest, TakesTheSmallestThatFits) {
  use_full_toy(use_addresses_only);
  constexpr size_t kSizes = 16;
  std::vector<void*> blocks;
  for (size_t i = 0; i < kSizes; ++i) blocks.push_back(allocate(0, (512 + 2 * i) * kMib));
  for (size_t i = 0; i < kSizes; ++i) release(blocks[i * 7 % kSizes]);
  for (const size_t wanted : {size_t{3}, size_t{11}, size_t{5}, size_t{0}, size_t{15}})
    EXPECT_EQ(allocate(0, (512 + 2 * wanted) * kMib - 512 * kKib), blocks[wanted]);
  for (const size_t given : {3, 11, 5, 0, 15}) release(blocks[given]);
  check_cache(0);
}

// Blocks belong to the stream that they were allocated for: another stream never gets them from the cache.
TEST_F(CacheTest, PoolsByStream) {
  const openreg_stream stream = from_pool(0);
  void* block = allocate(0, 4096);
  release(block);
  void* other = allocate(0, 4096, stream);
  EXPECT_NE(other, block);
  EXPECT_EQ(stats_of(0).segment[1].current, 2);
  release(other);
  EXPECT_EQ(allocate(0, 4096), block);
  EXPECT_EQ(allocate(0, 4096, stream), other);
  release(block);
  release(other);
  int of_default = 0, of_stream = 0;
  for (const auto& info : snapshot(0)) {
    of_default += info.stream == OPENREG_STREAM_DEFAULT;
    of_stream += info.stream == stream;
  }
  EXPECT_EQ(of_default, 1);
  EXPECT_EQ(of_stream, 1);
}

// size 0 is NULL; a stream of another device, a size above 2^47, a bad device and a NULL out are refused.
TEST_F(CacheTest, BadRequests) {
  void* block = &block;
  EXPECT_EQ(openreg_malloc(0, OPENREG_STREAM_DEFAULT, 0, &block), OPENREG_OK);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(openreg_free(nullptr), OPENREG_OK);

  block = &block;
  EXPECT_EQ(openreg_malloc(0, from_pool(1), 1, &block), OPENREG_E_INVALID);
  EXPECT_EQ(block, nullptr);
  EXPECT_CONTAINS(last_message(), "openreg_malloc");
  EXPECT_CONTAINS(last_message(), "openreg:1");

  block = &block;
  EXPECT_EQ(openreg_malloc(0, 0, (size_t{1} << 47) + 1, &block), OPENREG_E_INVALID);
  EXPECT_EQ(block, nullptr);
  EXPECT_CONTAINS(last_message(), "2^47");
  EXPECT_EQ(openreg_malloc(0, 0, SIZE_MAX, &block), OPENREG_E_INVALID);

  for (const int32_t device : {-2, -1, 2, 200, INT32_MAX, INT32_MIN}) {
    block = &block;
    EXPECT_EQ(openreg_malloc(device, 0, 1, &block), OPENREG_E_INVALID);
    EXPECT_EQ(block, nullptr);
    EXPECT_CONTAINS(last_message(), "[0, 2), but got " + std::to_string(device));
  }
  EXPECT_EQ(openreg_malloc(0, 0, 1, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(stats_of(0).segment[0].current, 0);
}

// What is not the start of a live block is refused, and the text says what it is instead.
TEST_F(CacheTest, BadFrees) {
  void* block = allocate(0, 4096);
  void* behind = allocate(0, 4096);
  void* large = allocate(0, 3 * kMib);
  expect_error(openreg_free(static_cast<char*>(block) + 24), OPENREG_E_INVALID, "openreg_free");
  EXPECT_CONTAINS(last_message(), "24 bytes behind its start");
  expect_error(openreg_free(static_cast<char*>(large) + 2 * kMib), OPENREG_E_INVALID, "2097152 bytes behind its start");
  int on_stack = 0;
  expect_error(openreg_free(&on_stack), OPENREG_E_INVALID, "is not memory of openreg");
  EXPECT_EQ(openreg_free(reinterpret_cast<void*>(UINTPTR_MAX - 7)), OPENREG_E_INVALID);
  void* alias = nullptr;
  ASSERT_EQ(openreg_host_alias(block, &alias), OPENREG_OK);
  expect_error(openreg_free(alias), OPENREG_E_INVALID, "alias");
  void* const pinned = make_pinned(4096);
  expect_error(openreg_free(pinned), OPENREG_E_INVALID, "pinned");
  free_pinned(pinned);

  release(block);
  for (int i = 0; i < 2; ++i) {
    expect_error(openreg_free(block), OPENREG_E_INVALID, "was freed already");
  }
  expect_error(openreg_memory_record_stream(block, 0, from_pool(0)), OPENREG_E_INVALID, "openreg_memory_record_stream");
  release(behind);
  EXPECT_EQ(openreg_free(behind), OPENREG_E_INVALID);  // now in the middle of a joined block
  EXPECT_CONTAINS(last_message(), "was freed already");
  release(large);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  expect_error(openreg_free(large), OPENREG_E_INVALID, "or was freed already");
  check_cache(0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Recorded streams

// A block that another stream uses is not given out again before that stream has passed.
TEST_F(CacheTest, RecordedStreamDelaysReuse) {
  use_full_toy();
  const openreg_stream stream = from_pool(0);
  void* block = allocate(0, 4096);
  EXPECT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK);
  EXPECT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK);                  // once is enough
  EXPECT_EQ(openreg_memory_record_stream(block, 0, OPENREG_STREAM_DEFAULT), OPENREG_OK);  // its own: nothing to note
  toy().hold(1);
  release(block);
  EXPECT_EQ(toy().calls("event_record"), 1);
  EXPECT_EQ(snapshot(0)[0].state, OPENREG_BLOCK_AWAITING_FREE);
  EXPECT_EQ(stats_of(0).allocation[1].current, 0);
  EXPECT_EQ(stats_of(0).active[1].current, 1);
  expect_error(openreg_free(block), OPENREG_E_INVALID, "was freed already (a stream may still use it)");
  void* other = allocate(0, 4096);
  EXPECT_NE(other, block);
  EXPECT_EQ(stats_of(0).active[0].peak, 2);
  EXPECT_EQ(stats_of(0).allocation[0].peak, 1);
  check_cache(0);
  toy().hold(0);
  release(other);
  check_cache(0);                       // who looks at all blocks sees them joined
  EXPECT_EQ(allocate(0, 8192), block);  // passed, and joined with its neighbours
  check_cache(0);
  release(block);
  // The marker is used again.
  block = allocate(0, 4096);
  EXPECT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK);
  release(block);
  EXPECT_EQ(toy().calls("event_create"), 1);
}

// A block that a stream of another device, also of another driver, uses is not given out again before that stream has
// passed, nor is it while the block's own device is idle.
TEST_F(CacheTest, RecordedStreamsOfOtherDevices) {
  use_full_toy();
  set("OPENREG_DRIVERS", "sim,full_toy");
  ASSERT_EQ(openreg_device_count(), 4);  // 2 and 3 are the toy's
  for (const int32_t user : {2, 3}) {
    for (const openreg_stream stream : {OPENREG_STREAM_DEFAULT, from_pool(user)}) {
      SCOPED_TRACE(std::to_string(user) + ", " + std::to_string(stream));
      void* const block = allocate(user == 2 ? 0 : 2, 4 * kMib);  // of the other driver; of the same one
      const int32_t owner = user == 2 ? 0 : 2;
      void* const used = allocate(user, 64);
      toy().hold(1);
      ASSERT_EQ(openreg_memset_async(user, stream, used, 1, 64), OPENREG_OK) << last_message();
      ASSERT_EQ(openreg_memory_record_stream(block, user, stream), OPENREG_OK) << last_message();
      release(block);
      void* const other = allocate(owner, 4 * kMib);
      EXPECT_NE(other, block);
      toy().hold(0);
      ASSERT_EQ(openreg_stream_synchronize(user, stream), OPENREG_OK) << last_message();
      release(other);
      void* const first = allocate(owner, 4 * kMib);
      void* const second = allocate(owner, 4 * kMib);
      EXPECT_TRUE(first == block || second == block);
      for (void* each : {first, second, used}) release(each);
      check_cache(owner);
    }
  }
  // Markers of the toy's are given back when the caches go, whichever goes first.
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().live("event"), 0);
}

// A block may wait for a device that is lost: nothing runs there any more.
TEST_F(CacheTest, RecordedStreamOfALostDevice) {
  use_full_toy();
  set("OPENREG_DRIVERS", "sim,full_toy");
  void* const block = allocate(0, 4 * kMib);
  void* const used = allocate(2, 64);
  ASSERT_EQ(openreg_memory_record_stream(block, 2, OPENREG_STREAM_DEFAULT), OPENREG_OK) << last_message();
  toy().fail("fill", 1, OPENREG_E_DEVICE_LOST, 0);
  EXPECT_EQ(openreg_memset_async(2, OPENREG_STREAM_DEFAULT, used, 1, 64), OPENREG_E_DEVICE_LOST);
  release(block);
  EXPECT_EQ(allocate(0, 4 * kMib), block);
}

// Several streams: the slowest decides. A block that waits does not keep openreg_shutdown() from working.
TEST_F(CacheTest, SeveralRecordedStreams) {
  use_full_toy();
  void* block = allocate(0, 2 * kMib);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(openreg_memory_record_stream(block, 0, from_pool(0)), OPENREG_OK);
  expect_error(openreg_memory_record_stream(block, 0, from_pool(1)), OPENREG_E_INVALID, "openreg:1");
  toy().hold(1);
  release(block);
  EXPECT_EQ(toy().calls("event_record"), 3);
  EXPECT_EQ(stats_of(0).active_bytes[2].current, static_cast<int64_t>(2 * kMib));
  EXPECT_EQ(openreg_memory_reset_peak_stats(0), OPENREG_OK);
  EXPECT_EQ(stats_of(0).active_bytes[2].peak, static_cast<int64_t>(2 * kMib));
  EXPECT_EQ(stats_of(0).allocated_bytes[2].peak, 0);
  EXPECT_EQ(openreg_memory_reset_accumulated_stats(0), OPENREG_OK);
  EXPECT_EQ(stats_of(0).active[2].allocated, 0);
  EXPECT_EQ(stats_of(0).active[2].freed, 0);
  toy().hold(0);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(stats_of(0).active[2].freed, 1);
  EXPECT_EQ(stats_of(0).num_sync_all_streams, 1);
  EXPECT_EQ(stats_of(0).segment[0].current, 0);

  block = allocate(0, 4096);
  EXPECT_EQ(openreg_memory_record_stream(block, 0, from_pool(0)), OPENREG_OK);
  release(block);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
}

// Out of memory while blocks wait for a stream: they are waited for, and serve the request.
TEST_F(CacheTest, OutOfMemoryWaitsForStreams) {
  set("OPENREG_SIM_DEVICES", "1");
  const openreg_stream stream = from_pool(0);
  void* const pinned = make_pinned(32 * kMib);
  void* block = allocate(0, 40 * kMib);
  for (int i = 0; i < 4; ++i)
    ASSERT_EQ(openreg_memcpy_async(0, stream, block, 0, pinned, OPENREG_HOST, 32 * kMib), OPENREG_OK);
  ASSERT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK);
  release(block);
  EXPECT_EQ(allocate(0, 40 * kMib), block);
  int32_t done = 0;
  EXPECT_EQ(openreg_stream_query(0, stream, &done), OPENREG_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);  // a success leaves the last error alone
}

// Where a marker can't be had, the stream is waited for instead; where that fails too, the block stays allocated.
TEST_F(CacheTest, MarkerFailures) {
  use_full_toy();
  void* block = allocate(0, 4096);
  ASSERT_EQ(openreg_memory_record_stream(block, 0, from_pool(0)), OPENREG_OK);
  toy().fail("event_create", 1, OPENREG_E_NOMEM, 0);
  EXPECT_EQ(openreg_free(block), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().calls("stream_sync"), 1);
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  check_cache(0);

  const auto no_marker = [](openreg_instance, int32_t, openreg_driver_stream, openreg_driver_event) {
    return openreg_status{OPENREG_E_INTERNAL};
  };
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  use_full_toy([&](openreg_driver& table) { table.event_record = no_marker; });
  block = allocate(0, 4096);
  ASSERT_EQ(openreg_memory_record_stream(block, 0, from_pool(0)), OPENREG_OK);
  toy().fail("stream_sync", 1, OPENREG_E_INTERNAL, 0);
  expect_error(openreg_free(block), OPENREG_E_INTERNAL, "openreg_free");
  EXPECT_EQ(snapshot(0)[0].state, OPENREG_BLOCK_ALLOCATED);
  check_cache(0);
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  check_cache(0);
}

// A driver whose calls for events wait for the test.
Gate gate;
constexpr char kRecord[] = "event_record", kQuery[] = "event_query", kSync[] = "event_sync";

void wait_at_gate(openreg_driver& table) {
  table.event_record = [](openreg_instance instance, int32_t device, openreg_driver_stream stream,
                          openreg_driver_event event) {
    gate.pass(kRecord);
    return toy().table()->event_record(instance, device, stream, event);
  };
  table.event_query = [](openreg_instance instance, int32_t device, openreg_driver_event event, int32_t* done) {
    gate.pass(kQuery);
    return toy().table()->event_query(instance, device, event, done);
  };
  table.event_sync = [](openreg_instance instance, int32_t device, openreg_driver_event event) {
    gate.pass(kSync);
    return toy().table()->event_sync(instance, device, event);
  };
}

// A driver that takes its time over an event keeps no other thread from allocating on the device: while a free puts
// markers into streams, while a request asks for them, and while the cache is emptied.
TEST_F(CacheTest, SlowEventsDelayNobodyElse) {
  use_full_toy(wait_at_gate);
  const openreg_stream stream = from_pool(0);
  void* block = allocate(0, 4096);
  ASSERT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK);
  toy().hold(1);

  gate.close(kRecord);
  std::thread frees([&] { release(block); });
  gate.await();
  void* other = allocate(0, 4096);
  EXPECT_NE(other, block);
  EXPECT_EQ(openreg_free(block), OPENREG_E_INVALID);  // it is being freed
  EXPECT_CONTAINS(last_message(), "was freed already");
  EXPECT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_E_INVALID);
  release(other);
  gate.open();
  frees.join();
  EXPECT_EQ(stats_of(0).active[1].current, 1);
  check_cache(0);

  gate.close(kQuery);
  std::thread asks([] { release(allocate(0, 4096)); });
  gate.await();
  other = allocate(0, 8192);
  release(other);
  gate.open();
  asks.join();
  check_cache(0);

  gate.close(kSync);
  std::thread empties([] { EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK); });
  gate.await();
  other = allocate(0, 8192);
  release(other);
  toy().hold(0);
  gate.open();
  empties.join();
  EXPECT_FALSE(gate.gave_up()) << "a thread waited for another one's driver call";
  EXPECT_EQ(stats_of(0).active[1].current, 0);
  check_cache(0);
}

// A driver error met while looking after waiting blocks is reported; nothing is lost.
TEST_F(CacheTest, QueryOfWaitingBlockFails) {
  use_full_toy();
  void* block = allocate(0, 4096);
  ASSERT_EQ(openreg_memory_record_stream(block, 0, from_pool(0)), OPENREG_OK);
  toy().hold(1);
  release(block);
  toy().fail("event_query", 1, OPENREG_E_INTERNAL, 0);
  void* out = &out;
  EXPECT_EQ(openreg_malloc(0, 0, 512, &out), OPENREG_E_INTERNAL);
  EXPECT_EQ(out, nullptr);
  toy().hold(0);
  toy().fail("event_sync", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_E_INTERNAL);
  check_cache(0);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(stats_of(0).segment[0].current, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Running out of memory

// The text has the figures, in PyTorch's units; the next smaller allocation works.
TEST_F(CacheTest, OutOfMemoryText) {
  void* big = allocate(0, 40 * kMib);
  void* small = allocate(0, 4096);
  void* out = &out;
  EXPECT_EQ(openreg_malloc(0, 0, 30 * kMib, &out), OPENREG_E_NOMEM);
  EXPECT_EQ(out, nullptr);
  const std::string text = last_message();
  EXPECT_CONTAINS(text, "openreg_malloc: out of memory on openreg:0 (driver \"sim\")");
  EXPECT_CONTAINS(text, "Tried to allocate 30.00 MiB");
  EXPECT_CONTAINS(text, "openreg:0 has 64.00 MiB in all, of which 22.00 MiB are free");
  EXPECT_CONTAINS(text, "40.00 MiB are allocated by openreg, and 2.00 MiB are reserved by openreg but unallocated");
  EXPECT_STREQ(openreg_last_error()->driver, "sim");
  EXPECT_EQ(stats_of(0).num_ooms, 1);
  EXPECT_EQ(stats_of(0).num_alloc_retries, 1);
  check_cache(0);
  void* smaller = allocate(0, 22 * kMib);
  EXPECT_EQ(openreg_malloc(0, 0, 2 * kMib, &out), OPENREG_E_NOMEM);
  release(smaller);
  release(small);
  release(big);
  release(allocate(0, 64 * kMib));  // after the flush, all of it
  check_cache(0);
}

// Cached segments of other sizes and other streams are given back to serve a request.
TEST_F(CacheTest, FlushesBeforeGivingUp) {
  const openreg_stream stream = from_pool(0);
  release(allocate(0, 20 * kMib));
  release(allocate(0, 24 * kMib, stream));
  allocate(0, 1024);
  EXPECT_EQ(stats_of(0).reserved_bytes[0].current, static_cast<int64_t>(46 * kMib));
  allocate(0, 60 * kMib);
  EXPECT_EQ(stats_of(0).reserved_bytes[0].current, static_cast<int64_t>(62 * kMib));
  EXPECT_EQ(stats_of(0).num_alloc_retries, 1);
  EXPECT_EQ(stats_of(0).num_ooms, 0);
  EXPECT_EQ(stats_of(0).num_device_free, 2);
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  check_cache(0);
}

// Where a segment for several requests is too large, one for the request alone: all of a small memory is of use.
TEST_F(CacheTest, SmallSegmentsOfWhatIsLeft) {
  void* const big = allocate(0, 40 * kMib);
  void* const medium = allocate(0, 16 * kMib);
  void* const first = allocate(0, 3 * kMib);
  void* const second = allocate(0, 3 * kMib);
  EXPECT_EQ(stats_of(0).reserved_bytes[0].current, 64 * kMib);
  void* out = &out;
  EXPECT_EQ(openreg_malloc(0, 0, 3 * kMib, &out), OPENREG_E_NOMEM);
  release(first);
  release(allocate(0, 3 * kMib));
  for (void* block : {big, medium, second}) release(block);
  check_cache(0);
}

// A driver that can't say how much is free: the figures come from the runtime's books.
TEST_F(CacheTest, OutOfMemoryTextFromTheBooks) {
  use_full_toy([](openreg_driver& table) { table.mem_info = nullptr; });
  void* kept = allocate(0, 512 * kMib);
  toy().fail("mem_alloc", 1, OPENREG_E_NOMEM, FULL_TOY_FOREVER);
  void* out = nullptr;
  expect_error(openreg_malloc(0, 0, kMib, &out), OPENREG_E_NOMEM, "1.00 GiB in all, of which 512.00 MiB are free");
  EXPECT_EQ(openreg_last_error()->vendor_code, 42);
  release(kept);
  // What was freed serves the request: no more out of memory.
  allocate(0, 512 * kMib);
}

// ---------------------------------------------------------------------------------------------------------------------
// Drivers that misbehave

// Segments are aligned to 512 bytes even if the driver aligns to 16.
TEST_F(CacheTest, DriverWithLittleAlignment) {
  static std::map<void*, void*> given;  // what the cache got -> what the toy gave
  const auto alloc = [](openreg_instance instance, int32_t dev, const openreg_alloc_info* info, void** out) {
    void* start = nullptr;
    const openreg_status status = toy().table()->mem_alloc(instance, dev, Bytes(info->size + 16), &start);
    if (status == OPENREG_OK) {
      *out = static_cast<char*>(start) + 16;
      given[*out] = start;
    }
    return status;
  };
  const auto free = [](openreg_instance instance, int32_t dev, void* ptr) {
    return toy().table()->mem_free(instance, dev, given.at(ptr));
  };
  use_full_toy([&](openreg_driver& table) {
    table.mem_alloc = alloc;
    table.mem_free = free;
    table.device_info = device_info_of([](auto& info) { info.min_alignment = 16; });
  });
  std::vector<void*> blocks;
  for (const size_t size : {size_t{1}, 3 * kMib, 30 * kMib}) {
    blocks.push_back(allocate(0, size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()) % 512, 0u);
    std::memset(blocks.back(), 1, size);  // the toy's memory is plain memory
  }
  check_cache(0);
  for (void* block : blocks) release(block);
  EXPECT_EQ(openreg_memory_empty_cache(-1), OPENREG_OK);
  EXPECT_EQ(toy().live("memory"), 0);
}

// A device with a limit for one allocation: segments are no larger, a request above it fails without the driver, whatever
// is free.
TEST_F(CacheTest, MostOfOneAllocation) {
  static std::atomic<int> asked{0};
  static std::atomic<uint64_t> largest{0};
  use_full_toy([&](openreg_driver& table) {
    table.device_info = device_info_of([](auto& info) {
      info.max_allocation = 4 * kMib + 100;
      info.min_alignment = 512;
    });
    table.mem_alloc = [](openreg_instance instance, int32_t dev, const openreg_alloc_info* info, void** out) {
      ++asked;
      largest = std::max(largest.load(), info->size);
      return toy().table()->mem_alloc(instance, dev, info, out);
    };
  });
  EXPECT_EQ(properties_of(0).max_allocation, 4 * kMib + 100);
  void* const whole = allocate(0, 4 * kMib);
  void* const part = allocate(0, 3 * kMib);
  EXPECT_EQ(largest, 4 * kMib);
  EXPECT_EQ(asked, 2);
  void* out = nullptr;
  EXPECT_EQ(openreg_malloc(0, 0, 4 * kMib + 1, &out), OPENREG_E_NOMEM);
  EXPECT_CONTAINS(last_message(), "Tried to allocate 4.00 MiB. One allocation can have at most 4.00 MiB.");
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(stats_of(0).num_ooms, 1);
  EXPECT_EQ(stats_of(0).num_alloc_retries, 0);
  release(whole);
  release(part);
  check_cache(0);
}

// A driver that promises little, but gives aligned addresses, is asked for what is needed and not a byte more: a device of
// 2 MiB serves its first block.
TEST_F(CacheTest, SegmentsAreNotPaddedForNothing) {
  static std::atomic<uint64_t> asked{0};
  use_full_toy([&](openreg_driver& table) {
    table.device_info = device_info_of([](auto& info) {
      info.min_alignment = 256;
      info.total_bytes = 2 * kMib;
    });
    table.mem_alloc = [](openreg_instance instance, int32_t dev, const openreg_alloc_info* info, void** out) {
      asked = info->size;
      if (info->size > 2 * kMib) return openreg_status{OPENREG_E_NOMEM};
      return toy().table()->mem_alloc(instance, dev, Bytes(info->size), out);
    };
  });
  release(allocate(0, 1));
  EXPECT_EQ(asked, 2 * kMib);
}

// An address that breaks the driver's own promise is an error that names the driver, and goes back to it.
TEST_F(CacheTest, MisalignedAddressesAreErrors) {
  static std::atomic<uint64_t> alignment{0}, offset{0};
  static std::atomic<int> live{0};
  use_full_toy([&](openreg_driver& table) {
    table.device_info = device_info_of([](auto& info) { info.min_alignment = alignment; });
    table.mem_alloc = [](openreg_instance, int32_t, const openreg_alloc_info* info, void** out) {
      ++live;
      *out = static_cast<char*>(aligned_alloc(4096, (info->size + 8192) / 4096 * 4096)) + offset;
      return openreg_status{OPENREG_OK};
    };
    table.mem_free = [](openreg_instance, int32_t, void* ptr) {
      --live;
      free(static_cast<char*>(ptr) - offset);
      return openreg_status{OPENREG_OK};
    };
  });
  for (const auto& [promised, given] : std::vector<std::pair<uint64_t, uint64_t>>{{0, 8}, {256, 128}, {1024, 512}}) {
    SCOPED_TRACE(promised);
    alignment = promised;
    offset = given;
    void* out = nullptr;
    EXPECT_EQ(openreg_malloc(0, 0, 100, &out), OPENREG_E_INTERNAL);
    EXPECT_CONTAINS(last_message(), "driver \"full_toy\": mem_alloc gave the address 0x");
    EXPECT_CONTAINS(last_message(), "not a multiple of " + std::to_string(promised == 0 ? 16 : promised) + " bytes");
    EXPECT_EQ(live, 0);
    offset = promised == 0 ? 16 : promised;
    release(allocate(0, 100));
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
    EXPECT_EQ(live, 0);
  }
}

// A driver that hands out the same memory twice, or addresses that can't be, is caught; its memory goes back to it.
TEST_F(CacheTest, DriverGivesImpossibleMemory) {
  static std::atomic<char*> next{nullptr};
  static std::atomic<int> frees{0};
  const auto alloc = [](openreg_instance, int32_t, const openreg_alloc_info*, void** out) {
    *out = next.load();
    return openreg_status{OPENREG_OK};
  };
  const auto free = [](openreg_instance, int32_t, void*) {
    ++frees;
    return openreg_status{OPENREG_OK};
  };
  use_full_toy([&](openreg_driver& table) {
    table.mem_alloc = alloc;
    table.mem_free = free;
    hide_from_host(table);
  });
  next = reinterpret_cast<char*>(uintptr_t{7} << 30);
  void* first = allocate(0, 4 * kMib);  // a segment of 20 MiB
  EXPECT_EQ(first, next.load());
  void* out = &out;
  for (const uintptr_t address :
       {uintptr_t{7} << 30, (uintptr_t{7} << 30) + 10 * kMib, (uintptr_t{7} << 30) - 10 * kMib, uintptr_t{1} << 48,
        (uintptr_t{1} << 48) - kMib, UINTPTR_MAX - kMib + 1}) {
    SCOPED_TRACE(address);
    next = reinterpret_cast<char*>(address);
    frees = 0;
    EXPECT_EQ(openreg_malloc(1, 0, 20 * kMib, &out), OPENREG_E_INTERNAL);
    EXPECT_EQ(out, nullptr);
    EXPECT_CONTAINS(last_message(), "driver \"full_toy\": gave 20971520 bytes at 0x");
    EXPECT_EQ(frees, 1);
    EXPECT_EQ(stats_of(1).segment[0].current, 0);
  }
  // Right behind, and right before, is fine; so is a start in the middle of a granule of the address map.
  next = reinterpret_cast<char*>((uintptr_t{7} << 30) + 20 * kMib);
  allocate(1, 21 * kMib);
  next = reinterpret_cast<char*>((uintptr_t{7} << 30) + 42 * kMib + 512);
  void* third = allocate(1, 26 * kMib);
  auto info = pointer_info(static_cast<char*>(third) + 26 * kMib - 1);
  EXPECT_EQ(info.base, third);
  EXPECT_EQ(openreg_pointer_get_info(static_cast<char*>(first) + 4 * kMib - 1, &info), OPENREG_OK);
  EXPECT_EQ(info.base, first);
  EXPECT_EQ(info.device, 0);
  EXPECT_EQ(openreg_pointer_get_info(static_cast<char*>(third) - 1, &info), OPENREG_OK);
  EXPECT_EQ(info.kind, OPENREG_POINTER_UNKNOWN);
}

// A driver that fails to take memory back: the segment stays in the cache, whole and usable, and goes at the next try.
TEST_F(CacheTest, DriverKeepsRefusingMemory) {
  use_full_toy();
  void* block = allocate(0, 4 * kMib);
  release(block);
  release(allocate(0, 100));
  toy().fail("mem_free", 1, OPENREG_E_INTERNAL, 0);
  expect_error(openreg_memory_empty_cache(0), OPENREG_E_INTERNAL, "openreg_memory_empty_cache");
  EXPECT_EQ(stats_of(0).segment[0].current, 1);
  check_cache(0);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(stats_of(0).segment[0].current, 0);
}

// The same when the runtime shuts down: it asks once more, and then lets go.
TEST_F(CacheTest, DriverRefusesMemoryAtShutdown) {
  use_full_toy();
  release(allocate(0, 4 * kMib));
  release(allocate(0, 100));
  toy().fail("mem_free", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().live("memory"), 0);
  EXPECT_EQ(toy().calls("mem_free"), 3);
}

// Every driver call of a scenario fails once: for every slot and every n until it passes. No crash, the books are in
// order, and afterwards everything can be freed.
TEST_F(CacheTest, EveryDriverCallFails) {
  use_full_toy();
  const auto scenario = [](std::vector<void*>& blocks) {
    const auto get = [&](size_t size, openreg_stream stream) {
      void* block = nullptr;
      const openreg_status status = openreg_malloc(0, stream, size, &block);
      EXPECT_EQ(block == nullptr, status != OPENREG_OK);
      if (block != nullptr) blocks.push_back(block);
      return status;
    };
    openreg_stream stream = 0;
    openreg_status worst = openreg_stream_from_pool(0, 0, &stream);
    if (worst != OPENREG_OK) return worst;
    for (const size_t size : {size_t{100}, 3 * kMib, 30 * kMib}) {
      for (const openreg_stream on : {openreg_stream{0}, stream}) {
        const openreg_status status = get(size, on);
        if (status != OPENREG_OK) worst = status;
      }
    }
    while (!blocks.empty()) {
      void* block = blocks.back();
      openreg_status status = openreg_memory_record_stream(block, 0, stream);
      if (status == OPENREG_OK) status = openreg_free(block);
      if (status != OPENREG_OK) return status;
      blocks.pop_back();
    }
    const openreg_status status = openreg_memory_empty_cache(0);
    return status != OPENREG_OK ? status : worst;
  };
  for (const char* slot : {"mem_alloc", "mem_free", "host_alias", "event_create", "event_record", "event_query",
                           "event_sync", "stream_create", "stream_sync", "mem_info"}) {
    for (const openreg_status code : {OPENREG_E_NOMEM, OPENREG_E_INTERNAL, OPENREG_E_DEVICE_LOST}) {
      for (int n = 1;; ++n) {
        SCOPED_TRACE(std::string(slot) + " " + std::to_string(code) + " " + std::to_string(n));
        ASSERT_LT(n, 100);
        const int before = toy().calls(slot);
        std::vector<void*> blocks;
        openreg_clear_error();
        toy().fail(slot, n, code, 0);
        const openreg_status status = scenario(blocks);
        const bool reached = toy().calls(slot) - before >= n;
        toy().fail(slot, 0, OPENREG_OK, 0);
        if (status != OPENREG_OK) {
          EXPECT_EQ(openreg_last_error()->code, status) << last_message();
          EXPECT_TRUE(reached);
        }
        check_cache(0);
        for (void* block : blocks) release(block);
        EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
        check_cache(0);
        ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
        EXPECT_EQ(toy().live("memory") + toy().live("event") + toy().live("stream"), 0);
        if (!reached) break;
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Statistics

TEST_F(CacheTest, Statistics) {
  auto zero = sized<openreg_memory_stats>();
  zero.max_split_size = -1;
  const auto fresh = stats_of(0);
  EXPECT_EQ(std::memcmp(&fresh, &zero, sizeof zero), 0);

  void* a = allocate(0, 100);
  void* b = allocate(0, 2000);
  void* c = allocate(0, 3 * kMib);
  auto stats = stats_of(0);
  EXPECT_EQ(stats.allocation[0].current, 3);
  EXPECT_EQ(stats.allocation[1].current, 2);
  EXPECT_EQ(stats.allocation[2].current, 1);
  EXPECT_EQ(stats.allocated_bytes[1].current, 512 + 2048);
  EXPECT_EQ(stats.requested_bytes[1].current, 2100);
  EXPECT_EQ(stats.reserved_bytes[0].current, static_cast<int64_t>(22 * kMib));
  EXPECT_EQ(stats.inactive_split[0].current, 2);
  EXPECT_EQ(stats.num_device_alloc, 2);
  release(b);
  release(c);
  stats = stats_of(0);
  EXPECT_EQ(stats.allocation[0].current, 1);
  EXPECT_EQ(stats.allocation[0].peak, 3);
  EXPECT_EQ(stats.allocation[0].allocated, 3);
  EXPECT_EQ(stats.allocation[0].freed, 2);
  EXPECT_EQ(stats.allocated_bytes[0].peak, static_cast<int64_t>(512 + 2048 + 3 * kMib));
  EXPECT_EQ(openreg_memory_reset_peak_stats(0), OPENREG_OK);
  EXPECT_EQ(openreg_memory_reset_accumulated_stats(0), OPENREG_OK);
  stats = stats_of(0);
  EXPECT_EQ(stats.allocation[0].current, 1);
  EXPECT_EQ(stats.allocation[0].peak, 1);
  EXPECT_EQ(stats.allocation[0].allocated, 0);
  EXPECT_EQ(stats.allocation[0].freed, 0);
  EXPECT_EQ(stats.num_device_alloc, 0);
  release(a);
  stats = stats_of(0);
  EXPECT_EQ(stats.allocation[0].allocated, 0);
  EXPECT_EQ(stats.allocation[0].freed, 1);
  EXPECT_EQ(stats.allocated_bytes[1].freed, 512);
  EXPECT_EQ(stats_of(1).allocation[0].allocated, 0);
}

TEST_F(CacheTest, StatisticsOfWhatIsNotThere) {
  openreg_memory_stats stats{};
  EXPECT_EQ(openreg_memory_get_stats(0, &stats), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_get_stats(0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_visit_blocks(0, nullptr, nullptr), OPENREG_E_INVALID);
  stats.struct_size = sizeof stats;
  EXPECT_EQ(openreg_memory_get_stats(2, &stats), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_reset_peak_stats(-1), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_reset_accumulated_stats(9), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_empty_cache(9), OPENREG_E_INVALID);
}

// The walk stops where the visitor says so. Emptying "all" caches starts nothing.
TEST_F(CacheTest, SnapshotStopsAndEmptyStartsNothing) {
  EXPECT_EQ(openreg_memory_empty_cache(-1), OPENREG_OK);
  EXPECT_EQ(openreg_is_initialized(), 0);
  void* a = allocate(0, 100);
  void* b = allocate(0, 100);
  int visits = 0;
  const auto visit = [](void* ctx, const openreg_block_info*) -> int { return ++*static_cast<int*>(ctx) == 2; };
  EXPECT_EQ(openreg_memory_visit_blocks(0, visit, &visits), OPENREG_OK);
  EXPECT_EQ(visits, 2);
  release(a);
  release(b);
  release(allocate(1, 100));
  EXPECT_EQ(openreg_memory_empty_cache(-1), OPENREG_OK);
  EXPECT_EQ(stats_of(0).segment[0].current + stats_of(1).segment[0].current, 0);
}

// Threads that find the cache's lock held go to sleep, and all of them get it.
TEST_F(CacheTest, LockIsWaitedFor) {
  release(allocate(0, 100));
  static std::atomic<pid_t> waiting[4];
  std::atomic<int> inside{0}, through{0};
  std::vector<std::thread> threads;
  const auto visit = [](void* ctx, const openreg_block_info*) -> int {
    *static_cast<std::atomic<int>*>(ctx) = 1;
    for (const auto& thread : waiting) {
      while (thread == 0) std::this_thread::yield();
      await_sleep(thread);
    }
    return 1;
  };
  threads.emplace_back([&] { EXPECT_EQ(openreg_memory_visit_blocks(0, visit, &inside), OPENREG_OK); });
  while (inside == 0) std::this_thread::yield();
  for (auto& thread : waiting) {
    threads.emplace_back([&] {
      thread = gettid();
      release(allocate(0, 100));
      ++through;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(through, 4);
  check_cache(0);
}

// A device with memory for one segment, which the driver takes its time to give.
std::atomic<int> asked{0}, reserved{0};
constexpr char kMemAlloc[] = "mem_alloc", kMap[] = "map";

void give_one_segment_at_gate(openreg_driver& table) {
  use_addresses_only(table);
  asked = 0;
  table.mem_alloc = [](openreg_instance, int32_t, const openreg_alloc_info*, void** out) {
    if (++asked > 1) return openreg_status{OPENREG_E_NOMEM};
    gate.pass(kMemAlloc);
    *out = reinterpret_cast<void*>(uintptr_t{1} << 41);
    return openreg_status{OPENREG_OK};
  };
}

// The same with one segment that grows, and nothing else.
void grow_one_segment_at_gate(openreg_driver& table) {
  use_addresses_only(table);
  asked = reserved = 0;
  table.mem_alloc = [](openreg_instance, int32_t, const openreg_alloc_info*, void**) {
    ++asked;
    return openreg_status{OPENREG_E_NOMEM};
  };
  table.extension = [](openreg_instance, const char* name, uint32_t) -> const void* {
    static openreg_vmm growing = {};
    growing.struct_size = sizeof growing;
    growing.version = OPENREG_VMM_VERSION;
    growing.reserve = [](openreg_instance, int32_t, uint64_t, void** out) {
      if (++reserved > 1) return openreg_status{OPENREG_E_NOMEM};
      *out = reinterpret_cast<void*>(uintptr_t{1} << 41);
      return openreg_status{OPENREG_OK};
    };
    growing.granularity = [](openreg_instance, int32_t, uint64_t* out) {
      *out = 4 * kMib;
      return openreg_status{OPENREG_OK};
    };
    growing.map = [](openreg_instance, int32_t, void*, uint64_t offset, uint64_t size) {
      EXPECT_EQ(offset % (4 * kMib) + size % (4 * kMib), 0u);
      gate.pass(kMap);
      return openreg_status{OPENREG_OK};
    };
    growing.unmap = [](openreg_instance, int32_t, void*, uint64_t offset, uint64_t size) {
      EXPECT_EQ(offset % (4 * kMib) + size % (4 * kMib), 0u);
      return openreg_status{OPENREG_OK};
    };
    growing.release = [](openreg_instance, int32_t, void*) { return openreg_status{OPENREG_OK}; };
    return std::strcmp(name, OPENREG_VMM_NAME) == 0 ? &growing : nullptr;
  };
}

// Two threads ask for memory, the second while the first waits in the driver's slot, until the driver was asked so many
// times and refuses: what each of them gets.
std::pair<void*, void*> refused_at_gate(const char* slot, size_t size, size_t other_size, int times_asked) {
  void *one = nullptr, *other = nullptr;
  gate.close(slot);
  std::thread first([&] { one = allocate(0, size); });
  gate.await();
  std::atomic<pid_t> waiter{0};
  std::thread second([&] {
    waiter = gettid();
    other = allocate(0, other_size);
  });
  while (asked < times_asked) std::this_thread::yield();
  await_sleep(waiter);
  gate.open();
  first.join();
  second.join();
  EXPECT_FALSE(gate.gave_up());
  return {one, other};
}

// A thread is refused while the driver is about to give another one a segment that has room for both: it waits for that.
TEST_F(CacheTest, RefusedWhileASegmentComes) {
  use_full_toy(give_one_segment_at_gate);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  // The second is refused, and once more after it has given back what there was.
  auto [one, other] = refused_at_gate(kMemAlloc, 2 * kMib, 3 * kMib, 3);
  EXPECT_EQ(other, static_cast<char*>(one) + 2 * kMib);
  EXPECT_EQ(stats_of(0).num_ooms, 0);
  release(one);
  release(other);
  EXPECT_EQ(openreg_malloc(0, OPENREG_STREAM_DEFAULT, 30 * kMib, &one), OPENREG_E_NOMEM);  // nobody else asks: at once
  EXPECT_EQ(stats_of(0).num_ooms, 1);
  check_cache(0);
}

// The same while another thread lets the pool's segment grow: it can't grow for both at a time.
TEST_F(CacheTest, RefusedWhileASegmentGrows) {
  use_settings([](auto& settings) { settings.expandable_segments = 1; });
  use_full_toy(grow_one_segment_at_gate);
  void* start = allocate(0, 20 * kMib);
  const auto [one, other] = refused_at_gate(kMap, 20 * kMib, 20 * kMib, 2);
  EXPECT_EQ(other, static_cast<char*>(one) + 20 * kMib);
  for (void* block : {start, one, other}) release(block);
  check_cache(0);
  use_settings([](auto&) {});
}

// Several threads out of memory at once: whoever comes late finds what the first has freed.
TEST_F(CacheTest, ThreadsOutOfMemory) {
  constexpr int kThreads = 3;  // together 60 of 64 MiB
  for (int round = 0; round < 20; ++round) {
    std::vector<void*> pieces;
    for (int i = 0; i < 6; ++i) pieces.push_back(allocate(0, 10 * kMib));
    for (void* piece : pieces) release(piece);  // all is cached, in pieces that are too small
    std::atomic<int> refused{0};
    Threads(kThreads, [&] {
      void* block = nullptr;
      if (openreg_malloc(0, 0, 20 * kMib, &block) != OPENREG_OK) ++refused;
      openreg_free(block);
    }).join();
    EXPECT_EQ(refused, 0);
    check_cache(0);
    EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  }
}

}  // namespace
}  // namespace openreg_test
