// SPDX-License-Identifier: BSD-3-Clause
// The race detector: what orders two uses of memory, which bytes they share, and what a report says.
#include <openreg/allocator.h>
#include <openreg/faults.h>
#include <openreg/kernels.h>
#include <openreg/races.h>

#include <malloc.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime_test.h"
#include "sanitizer.h"

// The thread sanitizer sees the races that the tests plant, where the simulator's workers run both uses at once.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:openreg_sim_stream_run\n"; }

using openreg_test::from_pool;
using openreg_test::last_message;
using openreg_test::SimDevicesTest;

namespace {

struct Report {
  int32_t kind;
  std::string first, second, remedy, text, freed;
  uint64_t address, size, offset;
};

class RacesTest : public SimDevicesTest {
 protected:
  void SetUp() override {
    SimDevicesTest::SetUp();
    openreg_races_clear();
    turn_on();
  }
  void TearDown() override {
    EXPECT_EQ(openreg_races_set(0, nullptr), OPENREG_OK);
    openreg_races_clear();
    openreg_set_places(nullptr);
    SimDevicesTest::TearDown();
  }
  static void turn_on(uint32_t flags = OPENREG_RACES_REPORT) {
    ASSERT_EQ(openreg_races_set(flags, nullptr), OPENREG_OK) << last_message();
  }
  static char* allocate(size_t size, openreg_stream stream = 0, int32_t device = 0) {
    return static_cast<char*>(openreg_test::allocate(device, size, stream));
  }
  static void release(void* block) { EXPECT_EQ(openreg_free(block), OPENREG_OK) << last_message(); }
  static openreg_status use(int32_t device, openreg_stream stream, const void* at, uint64_t size, bool writes,
                            const char* what) {
    return openreg_races_use(openreg_races_origin(what), device, stream, at, size, writes);
  }
  static void write(openreg_stream stream, const void* at, uint64_t size, const char* what = "write") {
    EXPECT_EQ(use(0, stream, at, size, true, what), OPENREG_OK);
  }
  static void read(openreg_stream stream, const void* at, uint64_t size, const char* what = "read") {
    EXPECT_EQ(use(0, stream, at, size, false, what), OPENREG_OK);
  }
  openreg_event record(openreg_stream stream, int32_t device = 0) {
    const openreg_event event = make_event(device);
    EXPECT_EQ(openreg_event_record(event, device, stream), OPENREG_OK);
    return event;
  }
  static std::vector<Report> reports() {
    std::vector<Report> found;
    const auto keep = [](void* to, const openreg_race* race) {
      static_cast<std::vector<Report>*>(to)->push_back({race->kind, race->first.what, race->second.what, race->remedy,
                                                        race->text, race->freed, race->address, race->size,
                                                        race->offset});
      return 0;
    };
    EXPECT_EQ(openreg_races_visit(0, keep, &found), OPENREG_OK);
    return found;
  }
  static std::vector<int32_t> kinds() {
    std::vector<int32_t> found;
    for (const auto& report : reports()) found.push_back(report.kind);
    return found;
  }
};

using Kinds = std::vector<int32_t>;

// With a block of the default stream's, and another stream.
class RacesOfStreamsTest : public RacesTest {
 protected:
  void SetUp() override {
    RacesTest::SetUp();
    block_ = allocate(4096);
    other_ = from_pool(0);
  }
  char* block_ = nullptr;
  openreg_stream other_ = 0;
};

// Off, nothing is noted and nothing reported, and the flags say so.
TEST_F(RacesTest, OffNotesNothing) {
  turn_on(0);
  char* const block = allocate(4096);
  const openreg_stream other = from_pool(0);
  write(0, block, 64);
  write(other, block, 64);
  EXPECT_EQ(openreg_races_flags(), 0u);
  EXPECT_EQ(openreg_races_count(), 0u);
}

// Uses of one stream are in order; two reads of two streams are not in each other's way.
TEST_F(RacesOfStreamsTest, OneStreamAndReadsAreInOrder) {
  write(0, block_, 64);
  write(0, block_, 64);
  read(0, block_, 64);
  EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
  read(0, block_, 64);
  read(other_, block_, 64);
  EXPECT_EQ(kinds(), Kinds{});
}

// A write and a read, a read and a write, and two writes of unordered streams, whichever comes first.
TEST_F(RacesOfStreamsTest, UnorderedUsesAreFound) {
  write(0, block_, 64, "a");
  read(other_, block_, 64, "b");
  read(0, block_ + 1024, 64, "c");
  write(other_, block_ + 1024, 64, "d");
  write(0, block_ + 2048, 64, "e");
  write(other_, block_ + 2048, 64, "f");
  EXPECT_EQ(kinds(), (Kinds{OPENREG_RACE_READ_WRITE, OPENREG_RACE_READ_WRITE, OPENREG_RACE_WRITE_WRITE}));
  EXPECT_EQ(reports()[1].first, "c");
  EXPECT_EQ(reports()[1].second, "d");
  EXPECT_EQ(reports()[1].offset, 1024u);
  EXPECT_EQ(reports()[1].size, 64u);
  EXPECT_NE(reports()[0].text.find("stream 0x"), std::string::npos) << reports()[0].text;
  EXPECT_NE(reports()[0].remedy.find("b.wait_stream(a)"), std::string::npos) << reports()[0].remedy;
}

// A pair of operators is reported once, until the reports are cleared.
TEST_F(RacesOfStreamsTest, EachPairOnce) {
  for (int round = 0; round < 3; ++round) {
    write(0, block_, 64, "a");
    write(other_, block_, 64, "b");
  }
  EXPECT_EQ(openreg_races_count(), 2u);  // a then b, b then a
  openreg_races_clear();
  write(0, block_, 64, "a");
  EXPECT_EQ(openreg_races_count(), 1u);
}

// Ranges that share no byte don't race; those that share one do, and the report names it.
TEST_F(RacesOfStreamsTest, BytesCount) {
  write(0, block_, 100);
  write(other_, block_ + 100, 100);
  EXPECT_EQ(kinds(), Kinds{});
  write(other_, block_ + 99, 2);
  ASSERT_EQ(openreg_races_count(), 1u);
  EXPECT_EQ(reports()[0].address, reinterpret_cast<uintptr_t>(block_) + 99);
  EXPECT_EQ(reports()[0].size, 1u);
}

// Columns of a matrix are apart from each other, though their extents overlap; a column and a row are not.
TEST_F(RacesOfStreamsTest, StridedTensorsByTheirRows) {
  const int64_t half[] = {8, 4}, strides[] = {8, 1}, row[] = {8}, one[] = {1};
  const uint32_t origin = openreg_races_origin("matrix");
  EXPECT_EQ(openreg_races_use_tensor(origin, 0, 0, block_, 2, half, strides, 4, 1), OPENREG_OK);
  EXPECT_EQ(openreg_races_use_tensor(origin, 0, other_, block_ + 16, 2, half, strides, 4, 1), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_EQ(openreg_races_use_tensor(origin, 0, other_, block_ + 32, 1, row, one, 4, 0), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_READ_WRITE});
}

// Transposed, expanded and scalar tensors are the bytes that they are.
TEST_F(RacesOfStreamsTest, ShapesAreReadAsBytes) {
  const int64_t square[] = {8, 8}, transposed[] = {1, 8}, expanded[] = {0, 1};
  const uint32_t origin = openreg_races_origin("tensor");
  EXPECT_EQ(openreg_races_use_tensor(origin, 0, 0, block_, 2, square, transposed, 4, 1), OPENREG_OK);
  EXPECT_EQ(openreg_races_use_tensor(origin, 0, other_, block_ + 256, 2, square, expanded, 4, 1), OPENREG_OK);
  EXPECT_EQ(openreg_races_use_tensor(origin, 0, 0, block_ + 288, 0, nullptr, nullptr, 4, 1), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_EQ(openreg_races_use_tensor(origin, 0, other_, block_ + 252, 0, nullptr, nullptr, 4, 0), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_READ_WRITE});
}

// An event orders what was before its record, and not what came behind it.
TEST_F(RacesOfStreamsTest, EventsOrderWhatIsBeforeTheirRecord) {
  write(0, block_, 64);
  const openreg_event event = record(0);
  write(0, block_ + 64, 64);
  EXPECT_EQ(openreg_stream_wait_event(0, other_, event), OPENREG_OK);
  write(other_, block_, 64);
  EXPECT_EQ(kinds(), Kinds{});
  write(other_, block_ + 64, 64);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_WRITE_WRITE});
}

// Order is handed on: from a stream to another to a third, and through the host.
TEST_F(RacesTest, OrderIsHandedOn) {
  char* const block = allocate(4096);
  const openreg_stream second = from_pool(0), third = from_pool(0), fourth = from_pool(0);
  write(0, block, 64);
  const openreg_event first = record(0);
  EXPECT_EQ(openreg_stream_wait_event(0, second, first), OPENREG_OK);
  const openreg_event next = record(second);
  EXPECT_EQ(openreg_stream_wait_event(0, third, next), OPENREG_OK);
  write(third, block, 64);
  EXPECT_EQ(openreg_stream_synchronize(0, third), OPENREG_OK);
  write(fourth, block, 64);
  EXPECT_EQ(kinds(), Kinds{});
}

// What the host has seen done is in the past of what it queues then: by event, stream, device, or a query's answer.
TEST_F(RacesTest, TheHostOrders) {
  const openreg_stream other = from_pool(0);
  for (int way = 0; way < 5; ++way) {
    char* const block = allocate(4096);
    write(0, block, 64);
    const openreg_event event = record(0);
    int32_t done = 0;
    switch (way) {
      case 0:
        EXPECT_EQ(openreg_event_synchronize(event), OPENREG_OK);
        break;
      case 1:
        EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
        break;
      case 2:
        EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK);
        break;
      case 3:
        while (done == 0) EXPECT_EQ(openreg_event_query(event, &done), OPENREG_OK);
        break;
      default:
        while (done == 0) EXPECT_EQ(openreg_stream_query(0, 0, &done), OPENREG_OK);
    }
    write(other, block, 64);
    EXPECT_EQ(kinds(), Kinds{}) << way;
    EXPECT_EQ(openreg_stream_synchronize(0, other), OPENREG_OK);
    destroy(event);
    release(block);
  }
}

// Synchronising another stream or another device orders nothing.
TEST_F(RacesTest, OtherSynchronisationsDontOrder) {
  char* const block = allocate(4096);
  const openreg_stream other = from_pool(0), third = from_pool(0);
  write(0, block, 64);
  EXPECT_EQ(openreg_stream_synchronize(0, third), OPENREG_OK);
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_OK);
  write(other, block, 64);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_WRITE_WRITE});
}

// A host function has seen what is before it in its stream.
TEST_F(RacesOfStreamsTest, HostFunctionsOrder) {
  write(0, block_, 64);
  std::atomic<bool> has_run{false};
  const auto run = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); };
  ASSERT_EQ(openreg_stream_launch_host_func(0, 0, run, &has_run), OPENREG_OK) << last_message();
  while (!has_run) std::this_thread::yield();
  write(other_, block_, 64);
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
}

// The runtime's own copies and fills are uses; a copy that waits orders.
TEST_F(RacesOfStreamsTest, CopiesAndFillsAreUses) {
  char* const target = allocate(4096);
  char bytes[64] = {};
  ASSERT_EQ(openreg_memset_async(0, 0, block_, 7, 64), OPENREG_OK);
  ASSERT_EQ(openreg_memcpy_async(0, other_, target, 0, block_, 0, 64), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_READ_WRITE});
  EXPECT_EQ(reports()[0].first, "openreg_memset_async");
  ASSERT_EQ(openreg_memcpy(bytes, OPENREG_HOST, block_, 0, 64), OPENREG_OK);
  openreg_races_clear();
  ASSERT_EQ(openreg_memset_async(0, other_, block_ + 64, 7, 64), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK);
}

// Pinned memory that a stream copies from or to is not the host's until it has waited.
TEST_F(RacesOfStreamsTest, PinnedMemoryUnderACopy) {
  void* const pinned = make_pinned(4096);
  ASSERT_EQ(openreg_memcpy_async(0, other_, block_, 0, pinned, OPENREG_HOST, 64), OPENREG_OK);
  const uint32_t origin = openreg_races_origin("host");
  EXPECT_TRUE(openreg_races_knows(pinned, 1));
  EXPECT_EQ(openreg_races_host_use(origin, pinned, 64, 0), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_EQ(openreg_races_host_use(origin, pinned, 64, 1), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_HOST});
  EXPECT_NE(reports()[0].remedy.find("synchronize()"), std::string::npos);
  openreg_races_clear();
  EXPECT_EQ(openreg_stream_synchronize(0, other_), OPENREG_OK);
  EXPECT_EQ(openreg_races_host_use(origin, pinned, 64, 1), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{});
  release(block_);
  free_pinned(pinned);
  EXPECT_FALSE(openreg_races_knows(pinned, 1));
}

// A block that was freed while another stream used it, and then given out again: the missing openreg_memory_record_stream().
TEST_F(RacesOfStreamsTest, ReuseWithoutRecordStream) {
  write(0, block_, 4096);
  const openreg_event event = record(0);
  EXPECT_EQ(openreg_stream_wait_event(0, other_, event), OPENREG_OK);
  read(other_, block_, 4096, "reader");
  release(block_);
  char* const again = allocate(4096);
  ASSERT_EQ(again, block_);
  write(0, again, 4096, "new owner");
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_REUSE});
  EXPECT_EQ(reports()[0].first, "reader");
  EXPECT_NE(reports()[0].remedy.find("record_stream"), std::string::npos);
}

// The report of such a race says where the block was freed: by the owner whose use it is, not
// by later ones.
TEST_F(RacesTest, ReuseNamesWhereTheBlockWasFreed) {
  static std::string here;
  openreg_places places{};
  places.place = [](char* out, size_t size) {
    (void)snprintf(out, size, "%s", here.c_str());
    return here.empty() ? 0 : 1;
  };
  openreg_set_places(&places);
  const openreg_stream other = from_pool(0);
  for (const std::string place : {"train.py:17 in step", ""}) {
    char* const block = allocate(4096);
    write(other, block, 4096, "user");
    here = place;
    release(block);
    here = "other.py:3 in later";
    char* again = allocate(4096);  // and goes unused
    ASSERT_EQ(again, block);
    release(again);
    again = allocate(4096);
    ASSERT_EQ(again, block);
    write(0, again, 4096, "new owner");
    ASSERT_EQ(kinds(), Kinds{OPENREG_RACE_REUSE});
    const Report report = reports()[0];
    EXPECT_EQ(report.freed, place);
    EXPECT_EQ(report.text.find("\n  freed at " + place + "\n") != std::string::npos, !place.empty()) << report.text;
    write(other, again, 4096, "unordered");  // its own memory: no reuse
    ASSERT_EQ(reports().size(), 2u);
    EXPECT_EQ(reports()[1].freed, "");
    release(again);
    ASSERT_EQ(openreg_device_synchronize(0), OPENREG_OK);
    ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
    openreg_races_clear();
  }
}

// To its last byte, and not by a second free, which is refused.
TEST_F(RacesTest, WhereAllOfABlockWasFreed) {
  static std::string here;
  openreg_places places{};
  places.place = [](char* out, size_t size) { return snprintf(out, size, "%s", here.c_str()) > 0 ? 1 : 0; };
  openreg_set_places(&places);
  char* const block = allocate(4096);
  write(from_pool(0), block, 4096, "user");
  here = "train.py:17 in step";
  release(block);
  here = "other.py:3 in later";
  EXPECT_EQ(openreg_free(block), OPENREG_E_INVALID);
  char* const again = allocate(4096);
  ASSERT_EQ(again, block);
  write(0, again + 4095, 1, "new owner");
  ASSERT_EQ(kinds(), Kinds{OPENREG_RACE_REUSE});
  EXPECT_EQ(reports()[0].freed, "train.py:17 in step");
}

// A block that was freed while nobody looked says nothing of the one in its place.
TEST_F(RacesTest, BlocksThatWereFreedWhileNobodyLooked) {
  const size_t half = 4u << 20;  // of a size whose free blocks join
  const openreg_stream other = from_pool(0);
  openreg_places places{};
  places.place = [](char* out, size_t size) { return snprintf(out, size, "train.py:17 in step") > 0 ? 1 : 0; };
  openreg_set_places(&places);
  char* const part = allocate(half);
  ASSERT_EQ(openreg_races_set(0, nullptr), OPENREG_OK);
  release(part);
  char* const whole = allocate(2 * half);
  ASSERT_EQ(whole, part);
  turn_on();
  write(other, whole + half, half, "user");
  release(whole);
  char* const again = allocate(2 * half);
  ASSERT_EQ(again, whole);
  write(0, again + half, half, "new owner");
  ASSERT_EQ(kinds(), Kinds{OPENREG_RACE_REUSE});
  EXPECT_EQ(reports()[0].freed, "train.py:17 in step");
}

// Likewise for a stream of another device, its default one too: the block's reuse has to wait for it.
TEST_F(RacesTest, ReuseAcrossDevices) {
  for (const openreg_stream other : {openreg_stream{0}, from_pool(1)}) {
    for (const bool is_recorded : {false, true}) {
      openreg_races_clear();
      char* const block = allocate(4096);
      write(0, block, 4096);
      const openreg_event event = record(0);
      EXPECT_EQ(openreg_stream_wait_event(1, other, event), OPENREG_OK);
      EXPECT_EQ(use(1, other, block, 4096, false, "reader"), OPENREG_OK);
      if (is_recorded) {
        EXPECT_EQ(openreg_memory_record_stream(block, 1, other), OPENREG_OK);
      }
      release(block);
      char* const again = allocate(4096);
      ASSERT_EQ(again, block);  // nothing is queued, so the streams have passed
      write(0, again, 4096, "new owner");
      EXPECT_EQ(kinds(), is_recorded ? Kinds{} : Kinds{OPENREG_RACE_REUSE});
      release(again);
      destroy(event);
    }
  }
}

// The same with openreg_memory_record_stream(), or with a wait, or on the same stream, is in order.
TEST_F(RacesTest, ReuseInOrder) {
  const openreg_stream other = from_pool(0);
  for (int way = 0; way < 3; ++way) {
    char* const block = allocate(4096);
    const openreg_stream stream = way == 2 ? 0 : other;
    write(stream, block, 4096, "user");
    if (way == 0) {
      EXPECT_EQ(openreg_memory_record_stream(block, 0, other), OPENREG_OK);
    }
    release(block);
    if (way == 1) {
      EXPECT_EQ(openreg_stream_synchronize(0, other), OPENREG_OK);
    }
    char* again = allocate(4096);
    write(0, again, 4096, "new owner");
    EXPECT_EQ(kinds(), Kinds{}) << way;
    EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK);
    release(again);
  }
}

// Memory that goes back to the driver, and comes again, has no past.
TEST_F(RacesTest, SegmentsThatGoBackAreForgotten) {
  const openreg_stream other = from_pool(0);
  char* const block = allocate(4 << 20);
  write(other, block, 64);
  release(block);
  ASSERT_EQ(openreg_memory_empty_cache(-1), OPENREG_OK);
  char* const again = allocate(4 << 20);
  write(0, again, 64);
  EXPECT_EQ(kinds(), Kinds{});
}

// A read of memory that nothing wrote is told of where that is asked for, and no other way.
TEST_F(RacesTest, UnwrittenMemory) {
  char* const block = allocate(4096);
  read(0, block, 64);
  EXPECT_EQ(kinds(), Kinds{});
  turn_on(OPENREG_RACES_REPORT | OPENREG_RACES_UNINITIALIZED);
  write(0, block, 64);
  read(0, block, 64);
  EXPECT_EQ(kinds(), Kinds{});
  read(0, block + 32, 64);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_UNINITIALIZED});
}

// The end of a growing segment that goes back has been waited for: what comes there later is nobody's reuse.
TEST_F(RacesTest, MemoryThatASegmentGaveBackIsForgotten) {
  auto settings = openreg_test::sized<openreg_allocator_settings>();
  ASSERT_EQ(openreg_allocator_get_settings(&settings), OPENREG_OK);
  settings.expandable_segments = 1;
  ASSERT_EQ(openreg_allocator_set_settings(&settings), OPENREG_OK);
  const openreg_stream other = from_pool(0);
  char* const first = allocate(3 << 20);
  char* const block = allocate(16 << 20);
  write(other, block, 16 << 20);
  release(block);
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  char* const again = allocate(16 << 20);
  EXPECT_EQ(again, block);
  write(0, again + (4 << 20), 4096);
  EXPECT_EQ(kinds(), Kinds{});
  write(0, again, 4096);  // in the unit that stayed, the first use still counts
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_REUSE});
  release(again);
  release(first);
  settings.expandable_segments = 0;
  ASSERT_EQ(openreg_allocator_set_settings(&settings), OPENREG_OK);
}

// Recording the same few streams for a block again and again keeps each of them once.
TEST_F(RacesTest, RecordingAgainKeepsNothingMore) {
  char* const block = allocate(4096);
  const openreg_stream streams[] = {from_pool(0), from_pool(0)};
  for (const openreg_stream stream : streams) ASSERT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK);
#if !OPENREG_TEST_SANITIZER  // whose allocators tell nothing here
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
#endif
  for (int i = 0; i < 20000; ++i) ASSERT_EQ(openreg_memory_record_stream(block, 0, streams[i % 2]), OPENREG_OK);
#if !OPENREG_TEST_SANITIZER
  EXPECT_LE(mallinfo2().uordblks + mallinfo2().hblkhd, before + 16 * 1024);
#endif
  write(streams[0], block, 64);
  write(streams[1], block + 64, 64);
  release(block);
  char* const again = allocate(4096);
  EXPECT_EQ(again, block);
  write(0, again, 128);  // both streams have been waited for
  EXPECT_EQ(kinds(), Kinds{});
}

// With RAISE the second use fails before it has begun, with the report as its text, each time.
TEST_F(RacesOfStreamsTest, RaiseRefusesTheSecondUse) {
  turn_on(OPENREG_RACES_REPORT | OPENREG_RACES_RAISE);
  ASSERT_EQ(openreg_memset_async(0, 0, block_, 1, 64), OPENREG_OK);
  EXPECT_EQ(openreg_memset_async(0, other_, block_, 2, 64), OPENREG_E_INVALID);
  EXPECT_NE(last_message().find("race: nothing orders two writes"), std::string::npos) << last_message();
  EXPECT_EQ(openreg_memset_async(0, 0, block_, 2, 64), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_races_count(), 1u);
}

// A use by the host can't be stopped, so its report is logged besides, once: the error may find nobody who raises it.
TEST_F(RacesTest, RaiseLogsUsesByTheHost) {
  turn_on(OPENREG_RACES_REPORT | OPENREG_RACES_RAISE);
  void* const pinned = make_pinned(4096);
  char* const block = allocate(4096);
  ASSERT_EQ(openreg_memcpy_async(0, 0, block, 0, pinned, OPENREG_HOST, 4096), OPENREG_OK);
  const uint32_t origin = openreg_races_origin("aten::fill_");
  EXPECT_EQ(openreg_races_host_use(origin, pinned, 64, 1), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_races_host_use(origin, pinned, 64, 1), OPENREG_E_INVALID);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "race: the host uses pinned memory that a stream still uses"), 1);
  EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
}

// What is allowed, and what a muted thread does, is in no report.
TEST_F(RacesOfStreamsTest, AllowedAndMuted) {
  write(0, block_, 64, "a");
  openreg_races_allow(1);
  write(other_, block_, 64, "b");
  openreg_races_allow(-1);
  write(0, block_, 64, "c");  // of a pair with b
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
  openreg_races_mute(1);
  ASSERT_EQ(openreg_memset_async(0, other_, block_, 1, 64), OPENREG_OK);
  EXPECT_EQ(openreg_stream_synchronize(0, other_), OPENREG_OK);
  openreg_races_mute(-1);
  ASSERT_EQ(openreg_memset_async(0, 0, block_, 1, 64), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{});
}

// A language says where it is, and that a place is allowed.
TEST_F(RacesOfStreamsTest, PlacesAreTold) {
  static thread_local uint32_t at = 1;
  openreg_places places{};
  places.here = [](int32_t wants_stack) { return wants_stack == 0 ? at : 0; };
  places.here_text = [](uint32_t place, int32_t* allowed) -> const char* {
    *allowed = place == 3;
    return place == 1 ? "train.py:12" : place == 2 ? "train.py:15" : "train.py:20";
  };
  openreg_set_places(&places);
  write(0, block_, 64);
  at = 2;
  write(other_, block_, 64);
  at = 3;
  write(0, block_, 64);
  at = 1;
  ASSERT_EQ(openreg_races_count(), 1u);
  EXPECT_NE(reports()[0].text.find("first: write writes on the default stream of openreg:0, at train.py:12"),
            std::string::npos)
      << reports()[0].text;
  EXPECT_NE(reports()[0].text.find("at train.py:15"), std::string::npos);
}

// Stacks are asked for where they are wanted, and come with the report and its text; a long one is logged in parts.
TEST_F(RacesOfStreamsTest, StacksAreTold) {
  static const std::string deep = [] {
    std::string lines = "    train.py:1 in first\n";
    for (int i = 0; i < 200; ++i) lines += "    deep.py:" + std::to_string(i) + " in nested\n";
    return lines;
  }();
  openreg_places places{};
  places.here = [](int32_t wants_stack) { return wants_stack == 0 ? 1u : 2u; };
  places.here_text = [](uint32_t, int32_t* allowed) -> const char* {
    *allowed = 0;
    return "train.py:1";
  };
  places.here_stack = [](uint32_t place) { return place == 2 ? deep.c_str() : ""; };
  openreg_set_places(&places);
  write(0, block_, 64, "short");
  write(other_, block_, 64, "short");
  EXPECT_EQ(reports().at(0).text.find("stack of"), std::string::npos);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "stack of the"), 0);
  turn_on(OPENREG_RACES_REPORT | OPENREG_RACES_STACKS);
  write(0, block_ + 64, 64, "deep");
  write(other_, block_ + 64, 64, "deep");
  ASSERT_EQ(openreg_races_count(), 2u);
  const std::string text = reports().at(1).text;
  EXPECT_NE(text.find("\n  stack of the first use:\n    train.py:1 in first\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  stack of the second use:\n" + deep), std::string::npos) << text;
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "race: stack of the first use:"), 1);
  EXPECT_GE(count_lines(OPENREG_LOG_WARNING, "race: more of the stack of the second use:\n    deep.py:"), 2);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "deep.py:199 in nested"), 2);
}

// Calls that use a stream or an event of a lost device are reported, with the call that lost it; they fail by themselves,
// in mode raise too. Those that clean up are not.
TEST_F(RacesTest, StreamsAndEventsOfALostDevice) {
  turn_on(OPENREG_RACES_REPORT | OPENREG_RACES_RAISE);
  char* const block = allocate(4096, 0, 1);
  char* const alive = allocate(4096, 0, 0);
  const openreg_stream side = from_pool(1);
  const openreg_event event = record(side, 1);
  openreg_faults faults = nullptr;
  ASSERT_EQ(openreg_faults_begin("openreg:1 lost at fill 1", &faults), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_memset_async(1, side, block, 0, 64), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(kinds(), Kinds{}) << "the call that loses it is the first error";
  int32_t done = 0;
  EXPECT_EQ(openreg_stream_query(1, side, &done), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_stream_synchronize(1, side), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_event_query(event, &done), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_event_record(event, 1, side), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_stream_wait_event(0, 0, event), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_memset_async(1, side, block, 0, 64), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_memcpy_async(1, side, block, 1, block + 64, 1, 64), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(kinds(), Kinds(7, OPENREG_RACE_LOST_DEVICE));
  EXPECT_EQ(openreg_memset_async(0, 0, alive, 0, 64), OPENREG_OK);
  destroy(event);
  release(block);
  EXPECT_EQ(openreg_races_count(), 7u);
  EXPECT_EQ(reports()[0].first, "openreg_memset_async");
  EXPECT_EQ(reports()[0].second, "openreg_stream_query");
  EXPECT_EQ(reports()[0].text.find("race: a stream or event is used of a device that was lost\n"
                                   "  lost: openreg_memset_async is called on openreg:1\n"
                                   "  use: openreg_stream_query is called on stream 0x"),
            0u)
      << reports()[0].text;
  openreg_faults_end(faults);
}

// More streams than can be followed: what was known before is forgotten, and no order is lost on the way through them.
TEST_F(RacesTest, ManyStreams) {
  char* const block = allocate(4096);
  write(1, block, 64);
  for (openreg_stream stream = 2; stream < 3000; ++stream) {
    openreg_races_stream_waits(0, stream, 0, stream - 1);
    write(stream, block, 64);
  }
  EXPECT_EQ(kinds(), Kinds{});
  write(3000, block, 64);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_WRITE_WRITE});
}

// Peers are copied between in order with the current streams of both devices.
TEST_F(RacesTest, CopiesBetweenDevices) {
  char* const here = allocate(4096, 0, 0);
  char* const there = allocate(4096, 0, 1);
  ASSERT_EQ(openreg_memset_async(0, 0, here, 1, 64), OPENREG_OK);
  ASSERT_EQ(openreg_memset_async(1, 0, there, 1, 64), OPENREG_OK);
  ASSERT_EQ(openreg_memcpy_async(0, 0, there, 1, here, 0, 64), OPENREG_OK);
  ASSERT_EQ(openreg_memset_async(1, 0, there, 1, 64), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{});
  const openreg_stream other = from_pool(1);
  ASSERT_EQ(openreg_memset_async(1, other, there, 1, 64), OPENREG_OK);
  EXPECT_EQ(kinds(), Kinds{OPENREG_RACE_WRITE_WRITE});
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_OK);
}

// The variable switches detection on with the device table, and off with it; a bad value is told.
TEST_F(RacesTest, TheVariable) {
  turn_on(0);
  set("OPENREG_SIM_RACES", "raise,uninitialized,stacks");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_races_flags(),
            OPENREG_RACES_REPORT | OPENREG_RACES_RAISE | OPENREG_RACES_UNINITIALIZED | OPENREG_RACES_STACKS);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_races_flags(), 0u);
  set("OPENREG_RACES", "loudly");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_races_flags(), 0u);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "invalid value loudly in env var OPENREG_RACES"), 1);
}

// Wrong arguments are refused.
TEST_F(RacesTest, WrongArguments) {
  EXPECT_EQ(openreg_races_set(64, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_races_visit(0, nullptr, nullptr), OPENREG_E_INVALID);
  uint32_t before = 99;
  EXPECT_EQ(openreg_races_set(OPENREG_RACES_REPORT, &before), OPENREG_OK);
  EXPECT_EQ(before, OPENREG_RACES_REPORT);
}

// Random programs of three streams, events and overlapping ranges: every report of a byte, and none else, is what full
// sets of pasts, kept byte by byte, give for the first race of each program.
TEST_F(RacesTest, AgreesWithASimpleModel) {
  constexpr int kBytes = 24, kStreams = 3;
  char* const block = allocate(4096);
  std::mt19937 random(7);
  for (int program = 0; program < 400; ++program) {
    turn_on(0);
    turn_on();
    openreg_races_clear();
    const openreg_stream streams[kStreams] = {0, from_pool(0), from_pool(0)};
    struct Use {
      int stream, number;
      bool writes;
    };
    std::vector<Use> uses[kBytes];
    std::vector<int> known[kStreams], host(kStreams, 0);  // by stream: how many uses of each are in its past
    int made[kStreams] = {};
    for (auto& one : known) one.assign(kStreams, 0);
    bool expected = false;
    for (int step = 0; step < 30 && !expected; ++step) {
      const int stream = static_cast<int>(random() % kStreams);
      const auto learn = [](std::vector<int>& to, const std::vector<int>& from) {
        for (int i = 0; i < kStreams; ++i) to[i] = std::max(to[i], from[i]);
      };
      switch (random() % 6) {
        case 0: {
          const int other = static_cast<int>(random() % kStreams);
          learn(known[stream], host);
          const openreg_event event = record(streams[stream]);
          EXPECT_EQ(openreg_stream_wait_event(0, streams[other], event), OPENREG_OK);
          learn(known[other], known[stream]);
          destroy(event);
          break;
        }
        case 1:
          if (random() % 3 == 0) {
            learn(known[stream], host);
            EXPECT_EQ(openreg_stream_synchronize(0, streams[stream]), OPENREG_OK);
            learn(host, known[stream]);
          }
          break;
        default: {
          const int begin = static_cast<int>(random() % kBytes),
                    size = 1 + static_cast<int>(random() % (kBytes - begin));
          const bool writes = random() % 3 == 0;
          learn(known[stream], host);
          const int number = ++made[stream];
          known[stream][stream] = number;
          for (int byte = begin; byte < begin + size; ++byte) {
            for (const Use& use : uses[byte])
              expected |= (use.writes || writes) && known[stream][use.stream] < use.number;
            uses[byte].push_back({stream, number, writes});
          }
          EXPECT_EQ(use(0, streams[stream], block + begin, size, writes, "use"), OPENREG_OK);
        }
      }
      ASSERT_EQ(openreg_races_count() > 0, expected) << program << " " << step;
    }
  }
}

}  // namespace
