// SPDX-License-Identifier: BSD-3-Clause
// Graphs that the runtime records: a launch queues each branch on a stream of its own.
#include <openreg/races.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "graph_test.h"

namespace openreg_test {
namespace {

// Two functions that each wait until the other runs, too.
struct Meeting {
  std::atomic<int> here{0}, met{0};
  static void come(void* argument) {
    auto& self = *static_cast<Meeting*>(argument);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (++self.here; self.here < 2 && std::chrono::steady_clock::now() < until;) std::this_thread::yield();
    if (self.here >= 2) ++self.met;
  }
};

// Captures a fork: what `left` queues on the stream, and beside it what `right` queues on another, which is joined again.
class GraphBranchesTest : public GraphsTest {
 protected:
  void SetUp() override {
    GraphsTest::SetUp();
    stream_ = from_pool(0);
  }
  template <class Left, class Right>
  void fork(int32_t device, openreg_stream other, const Left& left, const Right& right) {
    const openreg_event forked = make_event(0), joined = make_event(device);
    ASSERT_EQ(openreg_event_record(forked, 0, stream_), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_stream_wait_event(device, other, forked), OPENREG_OK) << last_message();
    right(other);
    left(stream_);
    ASSERT_EQ(openreg_event_record(joined, device, other), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_stream_wait_event(0, stream_, joined), OPENREG_OK) << last_message();
  }
  openreg_stream stream_ = OPENREG_STREAM_DEFAULT;
};

// Branches run beside each other, on one device and on two, as on the streams that they were captured on.
TEST_F(GraphBranchesTest, RunBesideEachOther) {
  for (const int32_t device : {0, 1}) {
    Meeting meeting;
    begin(stream_);
    fork(
        device, from_pool(device),
        [&](openreg_stream on) {
          ASSERT_EQ(openreg_stream_launch_host_func(0, on, Meeting::come, &meeting), OPENREG_OK) << last_message();
        },
        [&](openreg_stream on) {
          ASSERT_EQ(openreg_stream_launch_host_func(device, on, Meeting::come, &meeting), OPENREG_OK) << last_message();
        });
    openreg_graph_exec exec = end(stream_);
    for (int i = 1; i < 4; ++i) {
      meeting.here = 0;
      launch(exec, stream_);
      EXPECT_EQ(meeting.met, 2 * i);
    }
    destroy(exec);
  }
}

// Many forks and joins: a branch reads what was written before the fork, and is read behind the join; the next launch, on
// another stream, comes after all of it.
TEST_F(GraphBranchesTest, KeepTheirOrder) {
  const openreg_stream right = from_pool(0), elsewhere = from_pool(0);
  void *const a = allocate(0, stream_), *const b = allocate(0, stream_), *const c = allocate(0, stream_),
              *const sum = allocate(0, stream_);
  const auto copy = [](void* to, const void* from, size_t size, openreg_stream on) {
    ASSERT_EQ(openreg_memcpy_async(0, on, to, 0, from, 0, size), OPENREG_OK) << last_message();
  };
  ASSERT_EQ(openreg_stream_synchronize(0, stream_), OPENREG_OK);
  begin(stream_);
  for (uint8_t i = 1; i < 20; ++i) {
    fill(a, 0, i, stream_);
    fork(
        0, right, [&](openreg_stream on) { copy(b, a, kSize, on); }, [&](openreg_stream on) { copy(c, a, kSize, on); });
    copy(sum, b, kSize / 2, stream_);
    copy(static_cast<char*>(sum) + kSize / 2, c, kSize / 2, stream_);
  }
  openreg_graph_exec exec = end(stream_);
  for (int i = 0; i < 20; ++i) {
    const openreg_stream on = i % 3 == 0 ? elsewhere : stream_;
    ASSERT_EQ(openreg_graph_launch(exec, on), OPENREG_OK) << last_message();
    if (i % 4 != 3) continue;
    ASSERT_EQ(openreg_stream_synchronize(0, on), OPENREG_OK) << last_message();
    EXPECT_EQ(values(sum, 0), (std::set<int>{19}));
    fill(a, 0, 0, on);
    fill(sum, 0, 0, on);
  }
  ASSERT_EQ(openreg_device_synchronize(0), OPENREG_OK);
  destroy(exec);
  for (void* memory : {a, b, c, sum}) EXPECT_EQ(openreg_free(memory), OPENREG_OK);
}

// A launch runs while all other streams of the pool are captured, and is no part of that; in a capture it is a part.
TEST_F(GraphBranchesTest, BesideCaptures) {
  void *const first = allocate(0, stream_), *const second = allocate(0, stream_);
  begin(stream_);
  fork(
      0, from_pool(0), [&](openreg_stream on) { fill(first, 0, 7, on); },
      [&](openreg_stream on) { fill(second, 0, 8, on); });
  openreg_graph_exec exec = end(stream_);
  launch(exec, stream_);
  std::set<openreg_stream> others;
  while (others.size() < 31) {
    const openreg_stream other = from_pool(0);
    if (other != stream_ && others.insert(other).second) begin(other, OPENREG_CAPTURE_RELAXED);
  }
  for (int i = 0; i < 3; ++i) {
    fill(first, 0, 0, stream_);
    fill(second, 0, 0, stream_);
    launch(exec, stream_);
    EXPECT_EQ(values(first, 0), (std::set<int>{7}));
    EXPECT_EQ(values(second, 0), (std::set<int>{8}));
  }
  const openreg_stream around = *others.begin();
  ASSERT_EQ(openreg_graph_launch(exec, around), OPENREG_OK) << last_message();
  fill(first, 0, 0, stream_);
  launch(exec, stream_);  // not behind the one that was captured
  openreg_graph_exec outer = end(around);
  others.erase(around);
  for (const openreg_stream other : others) destroy(end(other));
  destroy(exec);
  fill(second, 0, 0, stream_);
  launch(outer, stream_);
  EXPECT_EQ(values(first, 0), (std::set<int>{7}));
  EXPECT_EQ(values(second, 0), (std::set<int>{8}));
  destroy(outer);
  for (void* memory : {first, second}) EXPECT_EQ(openreg_free(memory), OPENREG_OK);
}

// Where a node fails, what was queued of the other branch is still before what follows on the launch's stream.
TEST_F(GraphBranchesTest, AreJoinedAfterAFailure) {
  void* const memory = allocate(0, stream_);
  std::atomic<bool> may_end{false};
  begin(stream_);
  fork(
      0, from_pool(0), [&](openreg_stream on) { fill(memory, 0, 7, on); },
      [&](openreg_stream on) {
        const auto run = [](void* end) {
          while (!*static_cast<std::atomic<bool>*>(end)) std::this_thread::yield();
        };
        ASSERT_EQ(openreg_stream_launch_host_func(0, on, run, &may_end), OPENREG_OK) << last_message();
      });
  openreg_graph_exec exec = end(stream_);
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  expect_error(openreg_graph_launch(exec, stream_), OPENREG_E_INVALID, "openreg_memset_async");
  int32_t done = 1;
  EXPECT_EQ(openreg_stream_query(0, stream_, &done), OPENREG_OK);
  EXPECT_EQ(done, 0);
  may_end = true;
  EXPECT_EQ(openreg_stream_synchronize(0, stream_), OPENREG_OK) << last_message();
}

// The race detector sees the branches of a launch as work of streams. What orders them here it doesn't know of.
TEST_F(GraphBranchesTest, RaceInALaunch) {
  void* const memory = allocate(0, stream_);
  uint32_t before = 0;
  std::atomic<bool> is_written{false};
  ASSERT_EQ(openreg_races_set(OPENREG_RACES_REPORT, &before), OPENREG_OK) << last_message();
  begin(stream_);
  fork(
      0, from_pool(0),
      [&](openreg_stream on) {
        fill(memory, 0, 7, on);
        const auto tell = [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; };
        ASSERT_EQ(openreg_stream_launch_host_func(0, on, tell, &is_written), OPENREG_OK) << last_message();
      },
      [&](openreg_stream on) {
        const auto wait = [](void* flag) {
          while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
        };
        ASSERT_EQ(openreg_stream_launch_host_func(0, on, wait, &is_written), OPENREG_OK) << last_message();
        fill(memory, 0, 8, on);
      });
  openreg_graph_exec exec = end(stream_);
  EXPECT_EQ(openreg_races_count(), 0u);
  launch(exec, stream_);
  EXPECT_EQ(openreg_races_count(), 1u);
  EXPECT_EQ(values(memory, 0), (std::set<int>{8}));
  openreg_races_clear();
  ASSERT_EQ(openreg_races_set(before, &before), OPENREG_OK);
}

}  // namespace
}  // namespace openreg_test
