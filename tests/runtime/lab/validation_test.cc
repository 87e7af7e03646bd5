// SPDX-License-Identifier: BSD-3-Clause
// OPENREG_VALIDATE=1: the layer between the runtime and a driver says which rule a driver breaks, once, and says nothing of
// a driver that keeps them.
#include <openreg/allocator.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "../../drivers/mutants/mutants.h"
#include "validation_test.h"

namespace openreg_test {
namespace {

void wait_a_while(void* milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<intptr_t>(milliseconds)));
}

// What a program does with a device: memory, copies, streams, events and host functions. A driver with a defect may
// refuse any of it.
void use_device() {
  void* block = nullptr;
  void* more[3] = {nullptr, nullptr, nullptr};
  void* host = nullptr;
  void* const pause = reinterpret_cast<void*>(intptr_t{30});
  uint64_t free_bytes = 0, total = 0;
  int32_t done = 0;
  int64_t elapsed = 0;
  openreg_stream stream = 0, other = 0;
  openreg_event event = nullptr, second = nullptr, unused = nullptr;
  std::vector<char> bytes(1 << 16, 1);
  (void)!openreg_malloc(0, 0, size_t{1} << 45, &block);
  for (void*& memory : more) (void)!openreg_malloc(0, 0, 30 << 20, &memory);
  (void)!openreg_malloc(0, 0, 3 << 20, &block);
  (void)!openreg_host_alloc(0, bytes.size(), &host);
  void* second_host = nullptr;
  (void)!openreg_host_alloc(0, bytes.size(), &second_host);
  (void)!openreg_memory_get_info(0, &free_bytes, &total);
  if (block != nullptr) (void)!openreg_memcpy(block, 0, bytes.data(), OPENREG_HOST, bytes.size());
  (void)!openreg_stream_from_pool(0, 0, &stream);
  (void)!openreg_stream_from_pool(0, 0, &other);
  (void)!openreg_event_create(0, OPENREG_EVENT_TIMING, &event);
  (void)!openreg_event_create(0, OPENREG_EVENT_TIMING, &second);
  (void)!openreg_event_create(0, 0, &unused);
  (void)!openreg_event_query(unused, &done);
  (void)!openreg_event_record(event, 0, stream);
  (void)!openreg_stream_synchronize(0, stream);
  (void)!openreg_stream_query(0, stream, &done);
  (void)!openreg_stream_launch_host_func(0, stream, wait_a_while, pause);
  (void)!openreg_event_record(second, 0, stream);
  (void)!openreg_event_query(second, &done);
  (void)!openreg_stream_query(0, stream, &done);
  (void)!openreg_event_synchronize(second);
  (void)!openreg_event_query(second, &done);
  (void)!openreg_event_elapsed(event, second, &elapsed);
  for (const openreg_stream queue : {stream, openreg_stream{0}}) {
    (void)!openreg_stream_launch_host_func(0, queue, wait_a_while, pause);
    (void)!openreg_stream_synchronize(0, queue);
    (void)!openreg_stream_launch_host_func(0, queue, wait_a_while, pause);
    (void)!openreg_device_synchronize(0);
  }
  wait_a_while(reinterpret_cast<void*>(intptr_t{100}));  // what was not waited for ends before its stream
  for (const openreg_event it : {event, second, unused}) (void)!openreg_event_destroy(it);
  for (void* memory : {block, more[0], more[1], more[2]}) (void)!openreg_free(memory);
  for (void* memory : {host, second_host}) {
    if (memory != nullptr) (void)!openreg_host_free(memory);
  }
  (void)!openreg_memory_empty_cache(0);
}

class ValidationProgramTest : public ValidationTest {
 protected:
  // What the layer says of a mutant, one report a line, from a process of its own.
  static std::string reports_of(const std::string& mutant) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      openreg_log_set_callback(
          [](void* context, int32_t, const char* text) {
            const std::string line = std::string(text) + "\n";
            if (line.rfind(kReport, 0) == 0 && write(*static_cast<int*>(context), line.data(), line.size()) < 0) {
              _exit(3);
            }
          },
          &ends[1]);
      setenv(OPENREG_MUTANT_VARIABLE, mutant.c_str(), 1);
      setenv("OPENREG_DRIVER_LIBRARIES", ("mutants:" + driver_path("mutants")).c_str(), 1);
      setenv("OPENREG_DRIVERS", "mutants", 1);
      if (openreg_init() == OPENREG_OK) use_device();
      (void)openreg_shutdown();
      _exit(0);
    }
    close(ends[1]);
    std::string all;
    char buffer[4096];
    for (ssize_t length; (length = read(ends[0], buffer, sizeof buffer)) > 0;) all.append(buffer, length);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return all;
  }
};

// A driver that keeps the rules gives no report.
TEST_F(ValidationProgramTest, ForkedRightDriver) { EXPECT_EQ(reports_of(""), ""); }

struct Finding {
  const char* mutant;
  const char* part;  // of the first report
};

void PrintTo(const Finding& finding, std::ostream* out) { *out << finding.mutant; }

class ValidationMutantsTest : public ValidationProgramTest, public ::testing::WithParamInterface<Finding> {};

// What can be seen call by call is reported, with the slot and what was seen; of each defect the first report.
TEST_P(ValidationMutantsTest, ForkedMutant) {
  const std::string all = reports_of(GetParam().mutant);
  EXPECT_EQ(all.substr(0, all.find('\n')).find(kReport), 0u) << all;
  EXPECT_NE(all.substr(0, all.find('\n')).find(GetParam().part), std::string::npos) << all;
}

const Finding kFindings[] = {
    {"error_on_success", "event_query() of driver \"mutants\" breaks a rule of driver.h: it called set_error() and"},
    {"nomem_silent",
     "mem_alloc() of driver \"mutants\" breaks a rule of driver.h: it returned OPENREG_E_NOMEM without"},
    {"nomem_twice", "it called set_error() 2 times before it returned OPENREG_E_NOMEM"},
    {"nomem_writes", "it returned OPENREG_E_NOMEM and wrote its out-parameter"},
    {"nomem_two_codes", "it gave set_error() OPENREG_E_INVALID and returned OPENREG_E_NOMEM"},
    {"info_overruns", "device_info() of driver \"mutants\" breaks a rule of driver.h: it wrote beyond the structure"},
    {"memory_swapped", "The rule: \"Free and total bytes of the device, free <= total\""},
    {"misaligned", "which isn't a multiple of 4096"},
    {"overlaps", "The rule: \"No two live allocations of a process overlap\""},
    {"host_overlaps", "host_alloc() of driver \"mutants\" breaks a rule of driver.h: it gave 65536 bytes at"},
    {"stream_twice", "which is live already"},
    {"event_twice", "which is live already"},
    {"sync_not", "stream_sync() of driver \"mutants\" breaks a rule of driver.h: 1 host functions of the stream"},
    {"sync_default_not", "stream_sync()"},
    {"device_sync_not", "device_sync() of driver \"mutants\" breaks a rule of driver.h: 1 host functions have not"},
    {"device_sync_default", "device_sync()"},
    {"query_done", "stream_query()"},
    {"query_never_done", "it gave 0, but the stream was waited for and has no work since"},
    {"event_done", "event_query()"},
    {"event_never_done", "it gave 0, but the event was never recorded"},
    {"event_sync_not", "event_sync()"},
    {"unrecorded_pending", "it gave 0, but the event was never recorded"},
    {"event_one_flag", "it gave 0, but the event was never recorded"},
    {"func_early", "have not returned"},
    {"func_twice", "The rule: \"it runs once, when the work queued before has ended\""},
    {"func_detached", "have not returned"},
    {"func_inline", "the function ran on the thread that queued it"},
};
INSTANTIATE_TEST_SUITE_P(Mutants, ValidationMutantsTest, ::testing::ValuesIn(kFindings),
                         [](const auto& finding) { return std::string(finding.param.mutant); });

// The rules are quotes: each is in a public header, but for line ends and the stars of comments.
TEST(ValidationRulesTest, AreQuotes) {
  std::string text;
  for (const char* header : {"driver.h", "ipc.h", "vmm.h", "comm.h", "graph.h"}) {
    std::ifstream file(std::string(OPENREG_HEADERS_DIR) + "/" + header);
    ASSERT_TRUE(file) << header;
    for (std::string word; file >> word;) {
      if (word != "*" && word != "/*" && word != "*/") text += word + " ";
    }
  }
#define RULE_TEXT(name, quoted) quoted,
  for (const std::string rule : {OPENREG_RULE_MAP(RULE_TEXT)}) EXPECT_NE(text.find(rule), std::string::npos) << rule;
}

// Functions that the driver lacks stay away, so that the runtime emulates them.
TEST_F(ValidationLayerTest, KeepsWhatIsMissing) {
  table_.fill = nullptr;
  table_.mem_info = nullptr;
  table_.host_func = nullptr;
  table_.extension = nullptr;
  open();
  EXPECT_EQ(table_.fill, nullptr);
  EXPECT_EQ(table_.mem_info, nullptr);
  EXPECT_EQ(table_.host_func, nullptr);
  EXPECT_EQ(table_.extension, nullptr);
  close();
  EXPECT_EQ(reports().size(), 0u);
}

// A caller that names memory which isn't alive, or too much of it: refused, and the driver is not called. One report a rule.
TEST_F(ValidationLayerTest, MemoryOfTheCaller) {
  // What overlaps is passed on, and this driver's own copy is a memcpy().
  table_.copy = [](openreg_instance, int32_t, openreg_driver_stream, void*, int32_t, const void*, int32_t, uint64_t) {
    return openreg_status{OPENREG_OK};
  };
  open();
  void* const block = allocate(0, 4096);
  char bytes[8192] = {0};
  EXPECT_EQ(table_.mem_free(layer_, 0, static_cast<char*>(block) + 16), OPENREG_E_INVALID);
  EXPECT_TRUE(has(last_of(1), "mem_free() of driver \"full_toy\" breaks a rule of driver.h")) << last_of(1);
  EXPECT_EQ(table_.mem_free(layer_, 1, block), OPENREG_E_INVALID);
  EXPECT_EQ(table_.mem_free(layer_, 0, bytes), OPENREG_E_INVALID);
  EXPECT_EQ(table_.copy(layer_, 0, nullptr, block, 0, bytes, -1, sizeof bytes), OPENREG_E_INVALID);
  EXPECT_EQ(table_.copy(layer_, 0, nullptr, block, 1, bytes, -1, 16), OPENREG_E_INVALID);
  EXPECT_EQ(table_.copy(layer_, 0, nullptr, block, 2, bytes, -1, 16), OPENREG_E_INVALID);
  EXPECT_TRUE(has(last_of(2), "device 2 of 2 was requested")) << last_of(2);
  EXPECT_EQ(table_.fill(layer_, 0, nullptr, static_cast<char*>(block) + 4000, 1, 97), OPENREG_E_INVALID);
  EXPECT_EQ(table_.copy(layer_, 0, nullptr, block, 0, static_cast<char*>(block) + 10, 0, 20), OPENREG_OK);
  EXPECT_TRUE(has(last_of(3), "overlap")) << last_of(3);
  EXPECT_EQ(table_.copy(layer_, 0, nullptr, block, 0, bytes, -1, 4096), OPENREG_OK);
  EXPECT_EQ(table_.fill(layer_, 0, nullptr, static_cast<char*>(block) + 4000, 1, 96), OPENREG_OK);
  EXPECT_EQ(table_.mem_free(layer_, 0, block), OPENREG_OK);
  EXPECT_EQ(table_.mem_free(layer_, 0, block), OPENREG_E_INVALID);
  close();
  last_of(3);
}

// Streams and events that are not alive, or of another device, never reach the driver.
TEST_F(ValidationLayerTest, HandlesOfTheCaller) {
  open();
  openreg_driver_stream stream = nullptr;
  openreg_driver_event event = nullptr;
  int32_t done = 0;
  ASSERT_EQ(table_.stream_create(layer_, 1, 0, 0, &stream), OPENREG_OK);
  ASSERT_EQ(table_.event_create(layer_, 1, 0, &event), OPENREG_OK);
  EXPECT_EQ(table_.stream_query(layer_, 0, stream, &done), OPENREG_E_INVALID);
  EXPECT_TRUE(has(last_of(1), "of device 1 was used for device 0")) << last_of(1);
  EXPECT_EQ(table_.event_record(layer_, 0, nullptr, event), OPENREG_E_INVALID);
  EXPECT_TRUE(has(last_of(2), "of device 1 was given with device 0")) << last_of(2);
  for (const openreg_status status : {table_.event_query(layer_, 0, event, &done), table_.event_sync(layer_, 0, event),
                                      table_.event_destroy(layer_, 0, event)}) {
    EXPECT_EQ(status, OPENREG_E_INVALID);  // which each leaves it alive
  }
  EXPECT_EQ(table_.stream_destroy(layer_, 1, nullptr), OPENREG_OK);
  EXPECT_EQ(table_.event_destroy(layer_, 0, nullptr), OPENREG_OK);
  EXPECT_EQ(table_.stream_destroy(layer_, 1, stream), OPENREG_OK);
  EXPECT_EQ(table_.stream_destroy(layer_, 1, stream), OPENREG_E_INVALID);
  EXPECT_EQ(table_.event_destroy(layer_, 1, event), OPENREG_OK);
  EXPECT_EQ(table_.event_destroy(layer_, 1, event), OPENREG_E_INVALID);
  EXPECT_EQ(table_.event_sync(layer_, 1, event), OPENREG_E_INVALID);
  EXPECT_EQ(table_.stream_wait(layer_, 1, nullptr, event), OPENREG_E_INVALID);
  close();
  last_of(2);
}

// What is alive at close() is reported with its number.
TEST_F(ValidationLayerTest, LeaksAtClose) {
  table_.mem_alloc = [](openreg_instance, int32_t dev, const openreg_alloc_info*, void** out) {
    alignas(4096) static char memory[2][4096];
    *out = memory[dev];
    return openreg_status{OPENREG_OK};
  };
  open();
  (void)allocate(0, 64);
  (void)allocate(1, 64);
  close();
  EXPECT_TRUE(has(last_of(1), "2 object(s) made by mem_alloc() still live")) << last_of(1);
}

// A handle that another call is using is destroyed: here from inside of that call.
TEST_F(ValidationLayerTest, DestroyedWhileInUse) {
  static openreg_driver* table;
  static openreg_instance layer;
  table_.event_sync = [](openreg_instance, int32_t dev, openreg_driver_event event) {
    return table->event_destroy(layer, dev, event);
  };
  open();
  table = &table_;
  layer = layer_;
  openreg_driver_event event = nullptr;
  ASSERT_EQ(table_.event_create(layer_, 0, 0, &event), OPENREG_OK);
  EXPECT_EQ(table_.event_sync(layer_, 0, event), OPENREG_OK);
  EXPECT_TRUE(has(last_of(1), "event_destroy() of driver \"full_toy\" breaks a rule of driver.h: 1 calls use event"));
  close();
}

// A host function that still runs when close() returns finds the layer's books, which go with the last of them.
TEST_F(ValidationLayerTest, HostFunctionOutlivesClose) {
  static std::vector<std::thread>* runners;
  static std::atomic<int> begun, may_end;
  begun = may_end = 0;
  std::vector<std::thread> threads;
  runners = &threads;
  table_.host_func = [](openreg_instance, int32_t, openreg_driver_stream, void (*function)(void*), void* argument) {
    runners->emplace_back(function, argument);
    return openreg_status{OPENREG_OK};
  };
  open();
  const auto wait = [](void*) {
    ++begun;
    while (may_end == 0) std::this_thread::yield();
  };
  for (int32_t device = 0; device < 2; ++device)
    ASSERT_EQ(table_.host_func(layer_, device, nullptr, wait, nullptr), OPENREG_OK);
  while (begun < 2) std::this_thread::yield();
  close();
  may_end = 1;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(reports().size(), 0u);
}

// Many threads allocate, copy, record and free: the driver may give an address again while its last free returns.
TEST_F(ValidationLayerTest, Threads) {
  open();
  Threads(8, [this](int i) {
    char bytes[512] = {0};
    for (int round = 0; round < 300; ++round) {
      void* memory = nullptr;
      openreg_driver_event event = nullptr;
      EXPECT_EQ(table_.mem_alloc(layer_, i % 2, Bytes(512), &memory), OPENREG_OK);
      EXPECT_EQ(table_.copy(layer_, i % 2, nullptr, memory, i % 2, bytes, -1, sizeof bytes), OPENREG_OK);
      EXPECT_EQ(table_.event_create(layer_, i % 2, 0, &event), OPENREG_OK);
      EXPECT_EQ(table_.event_record(layer_, i % 2, nullptr, event), OPENREG_OK);
      EXPECT_EQ(table_.event_sync(layer_, i % 2, event), OPENREG_OK);
      EXPECT_EQ(table_.event_destroy(layer_, i % 2, event), OPENREG_OK);
      EXPECT_EQ(table_.mem_free(layer_, i % 2, memory), OPENREG_OK);
    }
  }).join();
  close();
  EXPECT_EQ(reports().size(), 0u);
}

// Only "1" turns the layer on; a value that means nothing is said.
TEST_F(ValidationTest, Variable) {
  const std::pair<const char*, int> cases[] = {{"", 0}, {"0", 0}, {"yes", 1}};
  for (const auto& [value, warnings] : cases) {
    set("OPENREG_VALIDATE", value);
    ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
    EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "in env var OPENREG_VALIDATE"), warnings) << value;
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  }
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "invalid value yes in env var OPENREG_VALIDATE"), 1);
}

}  // namespace
}  // namespace openreg_test
