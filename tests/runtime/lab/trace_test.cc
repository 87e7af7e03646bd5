// SPDX-License-Identifier: BSD-3-Clause
// Traces: what is told of copies, fills, kernels and waits, with which times, to whom, and until when (openreg/trace.h).
#include <openreg/kernels.h>
#include <openreg/trace.h>

#include <atomic>
#include <thread>

#include "../gate.h"
#include "runtime_test.h"

namespace openreg_test {
namespace {

struct Told {
  openreg_trace_record record;
  std::string call, name;
  std::thread::id by;
};

class TraceTest : public SimDevicesTest {
 protected:
  void TearDown() override {
    (void)openreg_trace_stop();
    SimDevicesTest::TearDown();
  }
  void start() {
    const openreg_tracer tracer = {sizeof tracer, 0, this, &TraceTest::begin, &TraceTest::tell};
    ASSERT_EQ(openreg_trace_start(&tracer), OPENREG_OK) << last_message();
  }
  std::vector<Told> stop() {
    EXPECT_EQ(openreg_trace_stop(), OPENREG_OK) << last_message();
    return told();
  }
  size_t count_told() {
    std::lock_guard<std::mutex> guard(mutex_);
    return told_.size();
  }
  std::vector<Told> told() {
    std::lock_guard<std::mutex> guard(mutex_);
    return told_;
  }
  Told only() {
    const auto all = told();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? Told{} : all[0];
  }

  struct Block {
    Block(int32_t device, size_t size) { EXPECT_EQ(openreg_malloc(device, 0, size, &data), OPENREG_OK); }
    ~Block() { EXPECT_EQ(openreg_free(data), OPENREG_OK); }
    void* data = nullptr;
  };

  std::atomic<uint64_t> next_tag{100};

 private:
  static uint64_t begin(void* self) { return static_cast<TraceTest*>(self)->next_tag++; }
  static void tell(void* self, const openreg_trace_record* record) {
    auto* test = static_cast<TraceTest*>(self);
    std::lock_guard<std::mutex> guard(test->mutex_);
    test->told_.push_back({*record, record->call, record->name, std::this_thread::get_id()});
  }
  std::mutex mutex_;
  std::vector<Told> told_;
};

void is_ordered(const openreg_trace_record& record) {
  EXPECT_GT(record.host_begin, 0u);
  EXPECT_GE(record.host_end, record.host_begin);
  EXPECT_GE(record.device_begin, record.host_begin);
  EXPECT_GE(record.device_end, record.device_begin);
}

// A copy that returns when it is done is told at once, by the thread that made it, with the host's times.
TEST_F(TraceTest, CopyByTheHost) {
  Block block(1, 4096);
  std::vector<char> host(4096, 7);
  start();
  const uint64_t before = openreg_trace_clock();
  ASSERT_EQ(openreg_memcpy(block.data, 1, host.data(), OPENREG_HOST, host.size()), OPENREG_OK);
  const Told told = only();
  EXPECT_EQ(told.record.struct_size, sizeof told.record);
  EXPECT_EQ(told.record.kind, OPENREG_TRACE_COPY);
  EXPECT_EQ(told.record.timing, OPENREG_TIMING_BY_HOST);
  EXPECT_EQ(told.record.device, 1);
  EXPECT_EQ(told.record.source, OPENREG_HOST);
  EXPECT_EQ(told.record.destination, 1);
  EXPECT_EQ(told.record.bytes, 4096u);
  EXPECT_EQ(told.record.tag, 100u);
  EXPECT_EQ(told.call, "openreg_memcpy");
  EXPECT_EQ(told.name, "");
  EXPECT_EQ(told.by, std::this_thread::get_id());
  is_ordered(told.record);
  EXPECT_GE(told.record.host_begin, before);
  EXPECT_LE(told.record.host_end, openreg_trace_clock());
}

// Queued work is told when its times are known: measured by the driver, on the clock of the host, inside what the host saw.
TEST_F(TraceTest, QueuedWorkIsMeasured) {
  constexpr size_t kSize = 8 << 20;
  Block block(0, kSize), other(1, kSize);
  openreg_stream stream = from_pool(0);
  start();
  ASSERT_EQ(openreg_memset_async(0, stream, block.data, 3, kSize), OPENREG_OK);
  ASSERT_EQ(openreg_memcpy_async(0, stream, other.data, 1, block.data, 0, kSize), OPENREG_OK);
  ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK);
  const uint64_t done = openreg_trace_clock();
  const auto all = stop();
  ASSERT_EQ(all.size(), 3u);
  openreg_trace_record fill{}, copy{}, wait{};
  for (const auto& told : all) {
    (told.record.kind == OPENREG_TRACE_FILL   ? fill
     : told.record.kind == OPENREG_TRACE_COPY ? copy
                                              : wait) = told.record;
  }
  for (const auto& record : {fill, copy}) {
    is_ordered(record);
    EXPECT_EQ(record.timing, OPENREG_TIMING_MEASURED);
    EXPECT_EQ(record.device, 0);
    EXPECT_EQ(record.stream, stream);
    EXPECT_EQ(record.bytes, kSize);
    EXPECT_LE(record.device_end, done + 1000000) << "clocks are compared to better than a millisecond";
  }
  EXPECT_EQ(fill.destination, 0);
  EXPECT_EQ(copy.source, 0);
  EXPECT_EQ(copy.destination, 1);
  EXPECT_GE(copy.device_end - copy.device_begin, 100000u) << "8 MiB take longer than 0.1 ms";
  EXPECT_GE(copy.device_begin, fill.device_end - 1000) << "a stream is in order";
  EXPECT_EQ(wait.kind, OPENREG_TRACE_WAIT);
  EXPECT_EQ(wait.timing, OPENREG_TIMING_NONE);
  EXPECT_EQ(wait.device_begin, 0u);
  EXPECT_EQ(wait.device_end, 0u);
  EXPECT_LT(copy.tag, wait.tag);
}

// What the device does later than the host asked for it has the device's times: the copy waits for one on hold.
TEST_F(TraceTest, TimesAreTheDevices) {
  use_full_toy(hidden_from_host("full_toy"));
  Block block(0, 64);
  char host[64] = {};
  start();
  ASSERT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_OK);  // compares the clocks, which waits
  toy().hold(1);
  ASSERT_EQ(openreg_memcpy_async(0, 0, block.data, 0, host, OPENREG_HOST, 64), OPENREG_OK) << last_message();
  int32_t done = 1;
  ASSERT_EQ(openreg_stream_query(0, 0, &done), OPENREG_OK);
  EXPECT_EQ(done, 0);
  EXPECT_EQ(told().size(), 0u) << "nothing is told before its time is known";
  toy().hold(0);
  ASSERT_EQ(openreg_trace_flush(), OPENREG_OK);
  ASSERT_EQ(told().size(), 2u);
  for (const auto& told : told()) EXPECT_EQ(told.record.timing, OPENREG_TIMING_MEASURED);
  ASSERT_EQ(openreg_trace_stop(), OPENREG_OK);
  EXPECT_EQ(toy().live("event"), 0) << "the trace gives its events back";
}

// A driver that can't time gives the times of the call, and no stream is waited for on its account.
TEST_F(TraceTest, WithoutTimedEvents) {
  use_full_toy([](openreg_driver& table) {
    hidden_from_host("untimed")(table);
    table.event_elapsed = nullptr;
  });
  Block block(0, 64);
  start();
  toy().hold(1);
  ASSERT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_OK);
  const Told told = only();
  EXPECT_EQ(told.record.timing, OPENREG_TIMING_ASSUMED);
  EXPECT_EQ(told.record.device_begin, told.record.host_begin);
  EXPECT_EQ(told.record.device_end, told.record.host_end);
  EXPECT_EQ(toy().calls("stream_sync"), 0);
  toy().hold(0);
}

const openreg_kernel* kernels_given = nullptr;
openreg_status kernel_answer = OPENREG_OK;
openreg_status run_kernel(openreg_instance, const openreg_kernel_call*) { return kernel_answer; }
const void* kernel_table(openreg_instance, const char* name, uint32_t) {
  static const openreg_kernel list[] = {{"aten::mm", run_kernel, 0, nullptr}};
  static const openreg_kernels table = {sizeof table, OPENREG_KERNELS_VERSION, sizeof list[0], 1, list};
  kernels_given = list;
  return std::string(name) == OPENREG_KERNELS_NAME ? &table : nullptr;
}

// A kernel is told with the operator's name, which is kept longer than the caller's; one that refuses is not told.
TEST_F(TraceTest, Kernels) {
  use_full_toy([](openreg_driver& table) {
    table.name = "traced_kernels";
    table.extension = kernel_table;
  });
  const openreg_kernels* table = nullptr;
  ASSERT_EQ(openreg_device_get_kernels(0, &table), OPENREG_OK) << last_message();
  start();
  std::string name(200, 'x');
  auto call = sized<openreg_kernel_call>();
  call.name = name.c_str();
  kernel_answer = OPENREG_OK;
  ASSERT_EQ(openreg_kernel_run(kernels_given, 0, 0, &call), OPENREG_OK) << last_message();
  kernel_answer = OPENREG_E_UNSUPPORTED;
  EXPECT_EQ(openreg_kernel_run(kernels_given, 0, 0, &call), OPENREG_E_UNSUPPORTED);
  name.assign(200, 'y');
  const auto all = stop();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].record.kind, OPENREG_TRACE_KERNEL);
  EXPECT_EQ(all[0].name, std::string(127, 'x'));
  is_ordered(all[0].record);
}

// A call that fails is not told, and the trace never changes the status or the thread's last error, also where its own
// calls of the driver fail.
TEST_F(TraceTest, FailuresAreNotTold) {
  use_full_toy(hidden_from_host("full_toy"));
  Block block(0, 64);
  openreg_clear_error();
  start();
  toy().fail("fill", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_E_INTERNAL);
  const std::string text = last_message();
  EXPECT_CONTAINS(text, "openreg_memset_async");
  for (const char* slot : {"event_create", "event_record", "event_sync", "event_elapsed"}) {
    toy().fail(slot, 1, OPENREG_E_INTERNAL, FULL_TOY_FOREVER);
    EXPECT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_OK) << slot;
    EXPECT_EQ(openreg_trace_flush(), OPENREG_OK) << slot;
    EXPECT_EQ(last_message(), text) << slot;
    toy().fail(slot, 0, OPENREG_OK, 0);
  }
  EXPECT_EQ(openreg_trace_stop(), OPENREG_OK);
  EXPECT_EQ(toy().live("event"), 0);
}

// Who may begin and end a trace, and with what.
TEST_F(TraceTest, WrongUse) {
  const openreg_tracer good = {sizeof good, 0, nullptr, nullptr, [](void*, const openreg_trace_record*) {}};
  openreg_tracer bad = good;
  bad.record = nullptr;
  EXPECT_EQ(openreg_trace_start(&bad), OPENREG_E_INVALID);
  bad = good;
  bad.struct_size = 8;
  EXPECT_EQ(openreg_trace_start(&bad), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_trace_start(nullptr), OPENREG_E_INVALID);
  expect_error(openreg_trace_stop(), OPENREG_E_INVALID, "openreg_trace_stop: no trace is active");
  EXPECT_EQ(openreg_trace_flush(), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_trace_start(&good), OPENREG_OK);
  expect_error(openreg_trace_start(&good), OPENREG_E_BUSY, "a trace is active already");
  EXPECT_EQ(openreg_trace_stop(), OPENREG_OK);
}

// Of threads that begin a trace at once, one does.
TEST_F(TraceTest, OneOfSeveralStarts) {
  const openreg_tracer tracer = {sizeof tracer, 0, nullptr, nullptr, [](void*, const openreg_trace_record*) {}};
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> waiting{4}, begun{0}, busy{0};
    Threads(4, [&] {
      --waiting;
      while (waiting.load() > 0) std::this_thread::yield();
      const openreg_status status = openreg_trace_start(&tracer);
      begun += status == OPENREG_OK;
      busy += status == OPENREG_E_BUSY;
    }).join();
    EXPECT_EQ(begun.load(), 1);
    EXPECT_EQ(busy.load(), 3);
    ASSERT_EQ(openreg_trace_stop(), OPENREG_OK);
  }
}

// After a stop nothing is told; a shutdown flushes and lets the trace go on with the next devices.
TEST_F(TraceTest, StopAndShutdown) {
  start();
  {
    Block block(0, 64);
    ASSERT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_OK);
  }
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  EXPECT_EQ(told().size(), 1u);
  {
    Block block(0, 64);
    ASSERT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_OK);
  }
  EXPECT_EQ(stop().size(), 2u);
  {
    Block block(0, 64);
    ASSERT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_OK);
  }
  EXPECT_EQ(told().size(), 2u);
}

// A call that queues its work after the end of the trace in which it began leaves nothing behind
TEST_F(TraceTest, WorkThatIsQueuedAfterTheEnd) {
  static const openreg_observer stops_at_the_begin = [] {
    auto made = sized<openreg_observer>();
    made.span = [](void*, int32_t step, const openreg_span*, void**) {
      if (step == OPENREG_SPAN_BEGIN) {
        EXPECT_EQ(openreg_trace_stop(), OPENREG_OK) << last_message();
      }
    };
    return made;
  }();
  use_full_toy();
  Block block(0, 64);
  start();  // sees the begin first
  ASSERT_EQ(openreg_observe(&stops_at_the_begin, OPENREG_OBSERVE_SPANS), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_observe(&stops_at_the_begin, 0), OPENREG_OK);
  ASSERT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().live("event"), 0);
}

// Threads that work while a trace ends and the next begins: every record is told once, to a listener that listens.
TEST_F(TraceTest, ThreadsAndStops) {
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (int32_t device : {0, 1}) {
    threads.emplace_back([&, device] {
      Block block(device, 256);
      const openreg_stream stream = from_pool(device);
      while (!ends) ASSERT_EQ(openreg_memset_async(device, stream, block.data, 1, 256), OPENREG_OK);
      ASSERT_EQ(openreg_stream_synchronize(device, stream), OPENREG_OK);
    });
  }
  size_t total = 0;
  for (int i = 0; i < 8; ++i) {
    const size_t before = total;
    start();
    // A machine under load may take its time over ten records.
    while (count_told() < before + 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    total = stop().size();
    const size_t later = told().size();
    EXPECT_EQ(later, total) << "told after the stop";
  }
  ends = true;
  for (auto& thread : threads) thread.join();
  EXPECT_GE(total, 80u);
  std::set<uint64_t> tags;
  for (const auto& told : told()) EXPECT_TRUE(tags.insert(told.record.tag).second) << "told twice";
}

Gate gate;
constexpr char kSync[] = "event_sync";

// A flush that waits for a device keeps no other thread's traced calls waiting.
TEST_F(TraceTest, AFlushDelaysNobodyElse) {
  use_full_toy([](openreg_driver& table) {
    table.event_sync = [](openreg_instance instance, int32_t device, openreg_driver_event event) {
      gate.pass(kSync);
      return toy().table()->event_sync(instance, device, event);
    };
  });
  start();
  {
    Block block(0, 64);
    const auto fill = [&] { ASSERT_EQ(openreg_memset_async(0, 0, block.data, 1, 64), OPENREG_OK); };
    fill();
    gate.close(kSync);
    std::thread flushes([] { EXPECT_EQ(openreg_trace_flush(), OPENREG_OK); });
    gate.await();
    for (int i = 0; i < 3000; ++i) fill();  // some of them look for what has ended
    gate.open();
    flushes.join();
  }
  EXPECT_FALSE(gate.gave_up()) << "a traced call waited for another thread's flush";
  EXPECT_EQ(stop().size(), 3001u);
}

// A forked child inherits no trace: what it does is not told, and it may begin one of its own.
TEST_F(TraceTest, ForkedChild) {
  start();
  EXPECT_TRUE(in_child([this] {
    const openreg_tracer tracer = {sizeof tracer, 0, nullptr, nullptr, [](void*, const openreg_trace_record*) {}};
    return openreg_trace_stop() == OPENREG_E_INVALID && openreg_trace_start(&tracer) == OPENREG_OK &&
           openreg_trace_stop() == OPENREG_OK && told().empty();
  }));
  EXPECT_EQ(stop().size(), 0u);
}

}  // namespace
}  // namespace openreg_test
