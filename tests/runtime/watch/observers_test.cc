// SPDX-License-Identifier: BSD-3-Clause
// openreg/observer.h: observers see what they want while they want it, and libopenreg_lab.so is opened when asked for.
#include <openreg/faults.h>
#include <openreg/flight_recorder.h>
#include <openreg/observer.h>
#include <openreg/races.h>
#include <openreg/trace.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "../runtime_test.h"

namespace openreg_test {
namespace {

bool lab_is_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libopenreg_lab") != std::string::npos) return true;
  }
  return false;
}

class ObserversTest : public SimDevicesTest {};

struct Seen {
  std::atomic<int> given{0}, freed{0}, orders{0}, spans{0}, events{0};
};

Seen& seen_by(void* ctx) { return *static_cast<Seen*>(ctx); }

openreg_observer make_observer(Seen* seen) {
  auto made = sized<openreg_observer>();
  made.ctx = seen;
  made.memory = [](void* ctx, const openreg_memory_event*) { ++seen_by(ctx).events; };
  made.block = [](void* ctx, int32_t what, const void*, uint64_t, int32_t, openreg_stream) {
    ++(what == OPENREG_BLOCK_ALLOCATED ? seen_by(ctx).given : seen_by(ctx).freed);
  };
  made.order = [](void* ctx, const openreg_order*) { ++seen_by(ctx).orders; };
  made.span = [](void* ctx, int32_t step, const openreg_span*, void** kept) {
    ++seen_by(ctx).spans;
    *kept = step == OPENREG_SPAN_END ? nullptr : ctx;
  };
  return made;
}

// Nothing that watches is in a process that asks for nothing
TEST_F(ObserversTest, LibraryIsOpenedWhenAskedFor) {
  void* block = nullptr;
  if (is_validated()) return;
  unset("OPENREG_SIM_RACES");
  // In a child, as this program's other tests ask for it.
  EXPECT_EXIT(
      {
        openreg_faults faults = nullptr;
        bool ok = openreg_malloc(0, 0, 64, &block) == OPENREG_OK && openreg_free(block) == OPENREG_OK &&
                  openreg_races_flags() == 0 && !lab_is_mapped() && openreg_lab_peek() == nullptr;
        ok = ok && openreg_faults_begin("nomem", &faults) == OPENREG_OK && lab_is_mapped() &&
             openreg_lab_peek() != nullptr;
        _exit(ok ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// Each event comes while it is wanted, and not after
TEST_F(ObserversTest, EventsThatAreWanted) {
  static Seen seen;
  static const openreg_observer observer = make_observer(&seen);
  unset("OPENREG_SIM_RACES");  // which observe, too
  ASSERT_EQ(openreg_observe(&observer, OPENREG_OBSERVE_USES | OPENREG_OBSERVE_SPANS), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_observed(), OPENREG_OBSERVE_USES | OPENREG_OBSERVE_SPANS);
  const auto work = [] {
    void* const block = allocate(0, 64);
    ASSERT_EQ(openreg_memset_async(0, 0, block, 1, 64), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
    ASSERT_EQ(openreg_free(block), OPENREG_OK);
  };
  work();
  EXPECT_EQ(seen.given, 1);
  EXPECT_EQ(seen.freed, 1);
  EXPECT_EQ(seen.orders, 1);
  EXPECT_GE(seen.spans, 5);  // of a fill the begin, where it is queued and the end; of a wait two
  EXPECT_EQ(seen.events, 0);
  ASSERT_EQ(openreg_observe(&observer, 0), OPENREG_OK);
  EXPECT_EQ(openreg_observed(), 0u);
  const int spans = seen.spans;
  work();
  EXPECT_EQ(seen.given, 1);
  EXPECT_EQ(seen.spans, spans);
}

// A block's states come with its address and the size that was requested; a call that is refused changes no state
TEST_F(ObserversTest, StatesOfABlock) {
  struct State {
    int32_t what;
    const void* address;
    uint64_t size;
    bool operator==(const State&) const = default;
  };
  static std::vector<State> states;
  static openreg_observer observer{};
  observer.struct_size = sizeof observer;
  observer.block = [](void*, int32_t what, const void* address, uint64_t size, int32_t, openreg_stream) {
    states.push_back({what, address, size});
  };
  const openreg_stream stream = from_pool(0);
  ASSERT_EQ(openreg_observe(&observer, OPENREG_OBSERVE_USES), OPENREG_OK) << last_message();
  void* const block = allocate(0, 1000);
  ASSERT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_free(static_cast<char*>(block) + 8), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_free(block), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_free(block), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_observe(&observer, 0), OPENREG_OK);
  openreg_observer_remove(&observer);
  EXPECT_EQ(states, (std::vector<State>{{OPENREG_BLOCK_ALLOCATED, block, 1000},
                                        {OPENREG_BLOCK_RECORDED, block, 1000},
                                        {OPENREG_BLOCK_FREE, block, 1000}}));
}

// One that was removed is not called again, not for spans that have begun either, and may be freed at once
TEST_F(ObserversTest, RemovedWhileThreadsWork) {
  std::atomic<bool> stops{false};
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  Threads threads(2, [&] {
    void* block = nullptr;
    while (!stops) {
      EXPECT_EQ(openreg_malloc(0, 0, 256, &block), OPENREG_OK);
      EXPECT_EQ(openreg_memset_async(0, 0, block, 1, 256), OPENREG_OK);
      EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
      EXPECT_EQ(openreg_free(block), OPENREG_OK);
    }
  });
  for (int round = 0; round < 200; ++round) {
    auto seen = std::make_unique<Seen>();
    auto observer = std::make_unique<openreg_observer>(make_observer(seen.get()));
    ASSERT_EQ(openreg_observe(observer.get(), OPENREG_OBSERVE_ALL), OPENREG_OK) << last_message();
    std::this_thread::yield();
    openreg_observer_remove(observer.get());
    std::memset(static_cast<void*>(observer.get()), 0xff, sizeof *observer);  // a call of it would crash
  }
  stops = true;
  threads.join();
  openreg_observer_remove(nullptr);
}

// An observer that removes itself from its own function doesn't wait for itself
TEST_F(ObserversTest, RemovesItself) {
  static openreg_observer observer{};
  static int calls = 0;
  observer.struct_size = sizeof observer;
  observer.order = [](void*, const openreg_order*) {
    ++calls;
    openreg_observer_remove(&observer);
  };
  ASSERT_EQ(openreg_observe(&observer, OPENREG_OBSERVE_USES), OPENREG_OK) << last_message();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
  EXPECT_EQ(calls, 1);
}

// An observer that keeps nothing of a span sees its begin alone
TEST_F(ObserversTest, SpansThatAreNotKept) {
  static Seen seen;
  static const openreg_observer observer = [] {
    openreg_observer made = make_observer(&seen);
    made.span = [](void* ctx, int32_t step, const openreg_span*, void**) {
      EXPECT_EQ(step, OPENREG_SPAN_BEGIN);
      ++seen_by(ctx).spans;
    };
    return made;
  }();
  ASSERT_EQ(openreg_observe(&observer, OPENREG_OBSERVE_SPANS), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_observe(&observer, 0), OPENREG_OK);
  EXPECT_EQ(seen.spans, 1);
}

// Wrong arguments are refused, and so is one observer too many; one that wants nothing takes no place
TEST_F(ObserversTest, WrongArguments) {
  static std::array<openreg_observer, OPENREG_OBSERVERS_MAX + 1> many{};
  EXPECT_EQ(openreg_observe(nullptr, 0), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_observe(&many[0], 0), OPENREG_E_INVALID);
  many[0].struct_size = sizeof many[0];
  expect_error(openreg_observe(&many[0], OPENREG_OBSERVE_ALL + 1), OPENREG_E_INVALID, "unknown events");
  EXPECT_EXIT(
      {
        openreg_status status = OPENREG_OK;
        for (auto& one : many) {
          one.struct_size = sizeof one;
          if (openreg_observe(&one, 0) != OPENREG_OK) _exit(2);
        }
        for (auto& one : many) {
          status = openreg_observe(&one, OPENREG_OBSERVE_MEMORY);
        }
        _exit(status == OPENREG_E_NOMEM ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// Instruments come and go while other threads work: each call is seen whole, or not at all (for ThreadSanitizer, too)
TEST_F(ObserversTest, ComeAndGoWhileThreadsWork) {
  static Seen seen;
  static const openreg_observer observer = make_observer(&seen);
  std::atomic<bool> stops{false};
  std::atomic<int> failures{0};
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  Threads threads(3, [&] {
    std::vector<char> bytes(256, 3), back(256);
    while (!stops) {
      void* block = nullptr;
      const bool ok = openreg_malloc(0, 0, bytes.size(), &block) == OPENREG_OK &&
                      openreg_memcpy_async(0, 0, block, 0, bytes.data(), OPENREG_HOST, bytes.size()) == OPENREG_OK &&
                      openreg_memcpy(back.data(), OPENREG_HOST, block, 0, back.size()) == OPENREG_OK && back == bytes &&
                      openreg_free(block) == OPENREG_OK;
      failures += ok ? 0 : 1;
    }
  });
  auto tracer = sized<openreg_tracer>();
  tracer.record = [](void*, const openreg_trace_record*) {};
  for (int round = 0; round < 40; ++round) {
    openreg_faults faults = nullptr;
    EXPECT_EQ(openreg_observe(&observer, OPENREG_OBSERVE_MEMORY | OPENREG_OBSERVE_SPANS), OPENREG_OK);
    EXPECT_EQ(openreg_flight_recorder_start(64), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_faults_begin("corrupt at copy 1000000000", &faults), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_trace_start(&tracer), OPENREG_OK) << last_message();
    std::this_thread::yield();
    EXPECT_EQ(openreg_flight_recorder_start(0), OPENREG_OK);
    openreg_faults_end(faults);
    EXPECT_EQ(openreg_trace_stop(), OPENREG_OK);
    EXPECT_EQ(openreg_observe(&observer, 0), OPENREG_OK);
  }
  stops = true;
  threads.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace openreg_test
