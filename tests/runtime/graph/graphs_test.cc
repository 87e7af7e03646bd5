// SPDX-License-Identifier: BSD-3-Clause
// Graphs that the runtime records (openreg/graphs.h): what becomes a node, how errors read, and what a process pays that
// captures nothing. What holds of every driver's graphs is checked by openreg-check (runtime/check/graph_checks.c).
#include <openreg/communicators.h>
#include <openreg/faults.h>
#include <openreg/kernels.h>
#include <openreg/races.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include "graph_test.h"

namespace openreg_test {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A process that captures nothing has neither the library nor the recorder.
TEST_F(GraphsTest, LoadedByTheFirstCapture) {
  const openreg_stream stream = from_pool(0);
  void* const memory = allocate(0);
  fill(memory, 0, 1, stream);
  EXPECT_EQ(text_of("/proc/self/maps").find("libopenreg_graph"), std::string::npos);
  begin(stream);
  EXPECT_NE(text_of("/proc/self/maps").find("libopenreg_graph"), std::string::npos);
  end(stream);
}

// A stream of another device joins; copies between devices and work of both run in the order of the capture.
TEST_F(GraphsTest, TwoDevices) {
  const openreg_stream here = from_pool(0), there = from_pool(1);
  void *const first = allocate(0, here), *const second = allocate(1, there);
  const openreg_event forked = make_event(0), joined = make_event(1);
  begin(here);
  fill(first, 0, 7, here);
  ASSERT_EQ(openreg_event_record(forked, 0, here), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_wait_event(1, there, forked), OPENREG_OK) << last_message();
  fill(second, 1, 8, there);
  ASSERT_EQ(openreg_memcpy_async(1, there, second, 1, first, 0, kSize / 2), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_event_record(joined, 1, there), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_wait_event(0, here, joined), OPENREG_OK) << last_message();
  fill(first, 0, 9, here);
  openreg_graph_exec exec = end(here);
  for (int i = 0; i < 3; ++i) {
    fill(second, 1, 0, there);
    ASSERT_EQ(openreg_stream_synchronize(1, there), OPENREG_OK);
    launch(exec, here);
    EXPECT_EQ(values(first, 0), (std::set<int>{9}));
    EXPECT_EQ(values(second, 1), (std::set<int>{7, 8}));
  }
}

// Each call that can't be captured is named, at once and at the end; then the stream works.
TEST_F(GraphsTest, RefusedCallsAreNamed) {
  const openreg_stream stream = from_pool(0);
  void* const memory = allocate(0, stream);
  std::vector<uint8_t> pageable(kSize);
  int32_t done = 0;
  const openreg_event event = make_event();
  begin(stream);
  is_invalid_by(openreg_memcpy_async(0, stream, memory, 0, pageable.data(), OPENREG_HOST, kSize),
                "openreg_memcpy_async", stream);
  begin(stream);
  is_invalid_by(openreg_stream_query(0, stream, &done), "openreg_stream_query", stream);
  begin(stream);
  ASSERT_EQ(openreg_event_record(event, 0, stream), OPENREG_OK);
  is_invalid_by(openreg_event_query(event, &done), "openreg_event_query", stream);
  ASSERT_EQ(openreg_set_current_stream(0, stream), OPENREG_OK);
  begin(stream);
  is_invalid_by(openreg_memcpy(pageable.data(), OPENREG_HOST, memory, 0, kSize), "openreg_memcpy", stream);
  ASSERT_EQ(openreg_set_current_stream(0, OPENREG_STREAM_DEFAULT), OPENREG_OK);
  fill(memory, 0, 5, stream);
  ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(values(memory, 0), (std::set<int>{5}));
  EXPECT_EQ(openreg_event_query(event, &done), OPENREG_OK) << last_message();
  EXPECT_EQ(done, 1) << "an event that was recorded in a capture stands for nothing outside";
}

std::vector<std::string> refused_calls;

// All but waits.
int note_refused(int32_t /*device*/, openreg_stream /*stream*/, const char* call) {
  if (std::string(call) == "openreg_stream_synchronize") {
    return 0;
  }
  refused_calls.emplace_back(call);
  return 1;
}

// Calls on a stream that is held are refused as its holder says, but for those of a thread that passes.
TEST_F(GraphsTest, HeldStreamsAreTheirHolders) {
  const openreg_stream stream = from_pool(0);
  void* const memory = allocate(0);
  int32_t done = 0;
  const openreg_event event = make_event();
  refused_calls.clear();
  ASSERT_EQ(openreg_graph_hold(0, stream, &note_refused), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_hold(0, stream, &note_refused), OPENREG_E_CAPTURE);
  EXPECT_EQ(openreg_graph_begin(0, stream, OPENREG_CAPTURE_RELAXED), OPENREG_E_CAPTURE);
  EXPECT_EQ(openreg_memset_async(0, stream, memory, 1, kSize), OPENREG_E_CAPTURE);
  EXPECT_CONTAINS(last_message(),
                  "openreg_memset_async: the stream is being captured, and this call is not part of the capture");
  EXPECT_EQ(openreg_stream_query(0, stream, &done), OPENREG_E_CAPTURE);
  EXPECT_EQ(openreg_event_record(event, 0, stream), OPENREG_E_CAPTURE);
  EXPECT_EQ(openreg_stream_launch_host_func(0, stream, [](void*) {}, nullptr), OPENREG_E_CAPTURE);
  EXPECT_EQ(refused_calls, (std::vector<std::string>{"openreg_memset_async", "openreg_stream_query",
                                                     "openreg_event_record", "openreg_stream_launch_host_func"}));
  EXPECT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK) << last_message();
  fill(memory, 0, 2, OPENREG_STREAM_DEFAULT);
  ASSERT_EQ(openreg_stream_synchronize(0, OPENREG_STREAM_DEFAULT), OPENREG_OK) << last_message();

  (void)openreg_graph_pass(1);
  fill(memory, 0, 3, stream);
  EXPECT_EQ(openreg_graph_pass(0), 0) << "it has only queued";
  EXPECT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_pass(0), 1) << "it has waited";
  fill(memory, 0, 3, OPENREG_STREAM_DEFAULT);
  EXPECT_EQ(openreg_graph_pass(-1), 1) << "it has queued elsewhere";
  EXPECT_EQ(openreg_graph_pass(0), 0);
  ASSERT_EQ(openreg_stream_synchronize(0, OPENREG_STREAM_DEFAULT), OPENREG_OK) << last_message();

  EXPECT_EQ(openreg_graph_hold(0, stream, nullptr), OPENREG_OK);
  EXPECT_EQ(openreg_graph_hold(0, stream, nullptr), OPENREG_OK) << "nobody holds it";
  fill(memory, 0, 4, stream);
  EXPECT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(values(memory, 0), (std::set<int>{4}));
  EXPECT_EQ(refused_calls.size(), 4U);
}

// Memory isn't given back to the driver during a capture, but where the mode, of the capture or of the thread, allows it.
TEST_F(GraphsTest, MemoryIsKeptMeanwhile) {
  const openreg_stream stream = from_pool(0);
  EXPECT_EQ(openreg_free(allocate(0)), OPENREG_OK);
  begin(stream);
  is_invalid_by(openreg_memory_empty_cache(0), "openreg_memory_empty_cache", stream);
  begin(stream, OPENREG_CAPTURE_RELAXED);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
  destroy(end(stream));
  EXPECT_EQ(openreg_free(allocate(0)), OPENREG_OK);
  begin(stream);
  int32_t mode = OPENREG_CAPTURE_RELAXED;
  EXPECT_EQ(openreg_graph_exchange_mode(0, &mode), OPENREG_OK) << last_message();
  EXPECT_EQ(mode, OPENREG_CAPTURE_GLOBAL);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_exchange_mode(0, &mode), OPENREG_OK) << last_message();
  end(stream);
}

// What another thread does on streams of its own is done at once, and captures of two threads don't meet.
TEST_F(GraphsTest, ThreadsCaptureAtOnce) {
  Threads(4, [this](int t) {
    const openreg_stream stream = from_pool(0), own = from_pool(0);
    void *const memory = allocate(0, stream), *const other = allocate(0, own);
    for (int i = 0; i < 30; ++i) {
      begin(stream, OPENREG_CAPTURE_THREAD_LOCAL);
      fill(memory, 0, static_cast<uint8_t>(50 + t), stream);
      fill(other, 0, static_cast<uint8_t>(i), own);
      ASSERT_EQ(openreg_stream_synchronize(0, own), OPENREG_OK) << last_message();
      openreg_graph_exec exec = end(stream);
      EXPECT_EQ(values(other, 0), (std::set<int>{i}));
      launch(exec, stream);
      EXPECT_EQ(values(memory, 0), (std::set<int>{50 + t}));
      destroy(exec);
    }
    EXPECT_EQ(openreg_free(memory), OPENREG_OK);
    EXPECT_EQ(openreg_free(other), OPENREG_OK);
  }).join();
}

// Graphs pin the device table, and a node whose memory has gone is an error of the launch.
TEST_F(GraphsTest, Life) {
  const openreg_stream stream = from_pool(0);
  void* const memory = allocate(0, stream);
  begin(stream);
  EXPECT_EQ(openreg_shutdown(), OPENREG_E_BUSY);
  fill(memory, 0, 1, stream);
  openreg_graph_exec exec = end(stream);
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
  expect_error(openreg_graph_launch(exec, stream), OPENREG_E_INVALID, "was freed already");
  expect_error(openreg_shutdown(), OPENREG_E_BUSY, "1 live graph(s) on driver 'sim'; destroy them first");
  destroy(exec);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
}

// A launch on a stream that is captured makes its nodes that capture's.
TEST_F(GraphsTest, LaunchInACapture) {
  const openreg_stream stream = from_pool(0);
  void* const memory = allocate(0, stream);
  begin(stream);
  fill(memory, 0, 41, stream);
  openreg_graph_exec inner = end(stream);
  begin(stream);
  ASSERT_EQ(openreg_graph_launch(inner, stream), OPENREG_OK) << last_message();
  openreg_graph_exec outer = end(stream);
  destroy(inner);
  launch(outer, stream);
  EXPECT_EQ(values(memory, 0), (std::set<int>{41}));
}

// Nodes and edges as text.
TEST_F(GraphsTest, Dump) {
  const openreg_stream stream = from_pool(0);
  void* const memory = allocate(0, stream);
  openreg_graph graph = nullptr;
  begin(stream);
  fill(memory, 0, 1, stream);
  fill(memory, 0, 2, stream);
  ASSERT_EQ(openreg_graph_end(0, stream, &graph), OPENREG_OK) << last_message();
  const std::string path = ::testing::TempDir() + "openreg_graph_" + std::to_string(getpid()) + ".dot";
  ASSERT_EQ(openreg_graph_dump(graph, path.c_str()), OPENREG_OK) << last_message();
  const std::string text = text_of(path);
  EXPECT_CONTAINS(text, "n1 [label=\"openreg_memset_async\\ndevice 0, 10000 bytes\"]");
  EXPECT_CONTAINS(text, "n0 -> n1;");
  EXPECT_EQ(openreg_graph_dump(graph, "/nowhere/at/all"), OPENREG_E_INVALID);
  EXPECT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(openreg_graph_destroy(graph), OPENREG_OK);
}

// The race detector sees nothing of a capture, and of a launch what it does.
TEST_F(GraphsTest, RacesAreOfLaunches) {
  const openreg_stream stream = from_pool(0), other = from_pool(0);
  void* const memory = allocate(0, stream);
  uint32_t before = 0;
  ASSERT_EQ(openreg_races_set(OPENREG_RACES_REPORT, &before), OPENREG_OK) << last_message();
  fill(memory, 0, 1, other);
  ASSERT_EQ(openreg_stream_synchronize(0, other), OPENREG_OK);
  begin(stream);
  fill(memory, 0, 2, stream);
  openreg_graph_exec exec = end(stream);
  fill(memory, 0, 3, other);
  openreg_races_mute(1);  // a wait that the detector doesn't know of: the race is real to it alone
  ASSERT_EQ(openreg_stream_synchronize(0, other), OPENREG_OK);
  openreg_races_mute(-1);
  EXPECT_EQ(openreg_races_count(), 0u);
  ASSERT_EQ(openreg_graph_launch(exec, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_races_count(), 1u);
  openreg_races_clear();
  ASSERT_EQ(openreg_races_set(before, &before), OPENREG_OK);
  ASSERT_EQ(openreg_device_synchronize(0), OPENREG_OK);
}

// A plan of faults hits the calls of launches.
TEST_F(GraphsTest, FaultsAreOfLaunches) {
  const openreg_stream stream = from_pool(0);
  void* const memory = allocate(0, stream);
  openreg_faults faults = nullptr;
  ASSERT_EQ(openreg_faults_begin("error at fill 2", &faults), OPENREG_OK) << last_message();
  begin(stream);
  fill(memory, 0, 2, stream);
  openreg_graph_exec exec = end(stream);
  launch(exec, stream);
  EXPECT_EQ(openreg_faults_hits(faults), 0u);
  EXPECT_EQ(openreg_graph_launch(exec, stream), OPENREG_OK) << last_message();
  EXPECT_NE(openreg_stream_synchronize(0, stream), OPENREG_OK);
  EXPECT_EQ(openreg_faults_hits(faults), 1u);
  openreg_faults_end(faults);
}

// ------------------------------------------------------------------------------------- kernels and collectives

std::vector<std::string> calls;
bool refuses = false;

openreg_status run(openreg_instance, const openreg_kernel_call* call) {
  const openreg_tensor* input = openreg_tensor_argument(call, 0);
  if (refuses) return OPENREG_E_UNSUPPORTED;
  EXPECT_NE(call->workspace(call, 100), nullptr);
  calls.push_back(std::string(call->name) + " " + call->argument_names[1] + "=" + call->arguments[1]->text + " " +
                  std::to_string(input->shape[0]) + " " + std::to_string(call->arguments[2]->integers[1]) + " " +
                  std::to_string(call->arguments[3]->tensors[1]->strides[0]));
  return OPENREG_OK;
}

class GraphKernelsTest : public ToysTest {
 protected:
  void SetUp() override {
    ToysTest::SetUp();
    static openreg_driver driver = *toy().table();
    static const openreg_kernel entries[] = {{"aten::mm", run, 0, nullptr}};
    static const openreg_kernels kernels = {sizeof(openreg_kernels), OPENREG_KERNELS_VERSION, sizeof(openreg_kernel), 1,
                                            entries};
    kernel_ = entries;
    driver.name = "with_graphs";
    driver.extension = [](openreg_instance, const char* name, uint32_t) -> const void* {
      return std::string(name) == OPENREG_KERNELS_NAME ? &kernels : nullptr;
    };
    ASSERT_EQ(openreg_driver_register_table(&driver), OPENREG_OK) << last_message();
    set("OPENREG_DRIVERS", "with_graphs");
    calls.clear();
    refuses = false;
  }
  const openreg_kernel* kernel_ = nullptr;
};

// A kernel's call is a node with all of its arguments copied; a launch gives it scratch memory; a refusal is its error.
TEST_F(GraphKernelsTest, ArgumentsAreCopied) {
  const openreg_stream stream = from_pool(0);
  openreg_graph graph = nullptr;
  openreg_graph_exec exec = nullptr;
  ASSERT_EQ(openreg_graph_begin(0, stream, OPENREG_CAPTURE_GLOBAL), OPENREG_OK) << last_message();
  {
    std::vector<int64_t> shape{5}, strides{3}, integers{1, 22};
    std::string text = "none", name = "aten::mm", argument = "mode";
    openreg_tensor tensor{};
    tensor.device_type = OPENREG_TENSOR_DEVICE_TYPE;
    tensor.ndim = 1;
    tensor.dtype = {OPENREG_DTYPE_FLOAT, 32, 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();
    const openreg_tensor* tensors[] = {nullptr, &tensor};
    openreg_value values[4] = {};
    values[0].kind = OPENREG_VALUE_TENSOR;
    values[0].tensor = &tensor;
    values[1].kind = OPENREG_VALUE_STRING;
    values[1].text = text.c_str();
    values[1].count = text.size();
    values[2].kind = OPENREG_VALUE_INTS;
    values[2].integers = integers.data();
    values[2].count = 2;
    values[3].kind = OPENREG_VALUE_TENSORS;
    values[3].tensors = tensors;
    values[3].count = 2;
    const char* names[] = {"self", argument.c_str(), "sizes", "list"};
    auto call = sized<openreg_kernel_call>();
    call.name = name.c_str();
    const openreg_value* const arguments[] = {&values[0], &values[1], &values[2], &values[3]};
    call.arguments = arguments;
    call.argument_count = 4;
    call.argument_names = names;
    call.results = arguments;
    call.result_count = 1;
    ASSERT_EQ(openreg_kernel_run(kernel_, 0, stream, &call), OPENREG_OK) << last_message();
    for (auto* list : {&shape, &strides, &integers}) std::fill(list->begin(), list->end(), -1);
    text = "????", name = "????????", argument = "????";
  }
  EXPECT_TRUE(calls.empty());
  ASSERT_EQ(openreg_graph_end(0, stream, &graph), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_graph_instantiate(graph, &exec), OPENREG_OK) << last_message();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(openreg_graph_launch(exec, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(calls, (std::vector<std::string>(2, "aten::mm mode=none 5 22 3")));
  refuses = true;
  EXPECT_EQ(openreg_graph_launch(exec, stream), OPENREG_E_UNSUPPORTED);
  EXPECT_CONTAINS(last_message(), "the driver's kernel aten::mm refuses these arguments");
  EXPECT_EQ(openreg_graph_exec_destroy(exec), OPENREG_OK);
  EXPECT_EQ(openreg_graph_destroy(graph), OPENREG_OK);
}

// A group of collectives is a node, with its counts copied.
TEST_F(GraphsTest, Collectives) {
  set("OPENREG_MUTANT", "odd_alignment");  // a right driver, without graphs of its own
  set("OPENREG_DRIVER_LIBRARIES", "mutants:" + driver_path("mutants"));
  set("OPENREG_DRIVERS", "mutants");
  const openreg_stream stream = from_pool(0);
  uint32_t size = 0;
  ASSERT_EQ(openreg_communicator_id_size(0, &size), OPENREG_OK) << last_message();
  std::vector<unsigned char> id(size);
  openreg_communicator communicator = nullptr;
  ASSERT_EQ(openreg_communicator_id(0, id.data(), size), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_communicator_create(0, 0, 1, id.data(), size, &communicator), OPENREG_OK) << last_message();
  void *const from = allocate(0, stream), *const to = allocate(0, stream);
  fill(to, 0, 0, stream);
  ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK);
  begin(stream);
  {
    std::vector<uint64_t> counts{kSize};
    auto gather = sized<openreg_collective>();
    gather.kind = OPENREG_COLLECTIVE_ALL_GATHER;
    gather.send = from;
    gather.recv = to;
    gather.recv_counts = counts.data();
    gather.type = {OPENREG_DTYPE_UINT, 8, 1};
    ASSERT_EQ(openreg_communicator_queue(communicator, stream, &gather, 1), OPENREG_OK) << last_message();
    counts[0] = 1;
    gather.send = nullptr;
  }
  openreg_graph_exec exec = end(stream);
  EXPECT_EQ(values(to, 0), (std::set<int>{0}));
  for (uint8_t i = 4; i < 7; ++i) {
    fill(from, 0, i, stream);
    launch(exec, stream);
    EXPECT_EQ(values(to, 0), (std::set<int>{i}));
  }
  destroy(exec);
  EXPECT_EQ(openreg_communicator_destroy(communicator), OPENREG_OK);
}

// Captures of a driver's own pass the layer of OPENREG_VALIDATE, which has nothing to say of them: forks, functions, what is
// refused, launches. Memory that is given back while a graph uses it is the caller's mistake.
TEST_F(GraphsTest, OfTheDriverValidated) {
  set("OPENREG_VALIDATE", "1");
  set("OPENREG_DRIVER_LIBRARIES", "mutants:" + driver_path("mutants_exporting"));  // a right driver with graphs
  set("OPENREG_DRIVERS", "mutants");
  const auto reports = [this] { return count_lines(OPENREG_LOG_ERROR, "OPENREG_VALIDATE: "); };
  const openreg_stream stream = from_pool(0), other = from_pool(0);
  void *const first = allocate(0, stream), *const second = allocate(0, stream);
  const openreg_event forked = make_event(), joined = make_event();
  int32_t status = -1, fits = -1;
  std::atomic<int> runs{0};
  ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK);
  begin(stream);
  EXPECT_EQ(openreg_stream_synchronize(0, stream), OPENREG_E_CAPTURE);
  openreg_graph graph = nullptr;
  EXPECT_EQ(openreg_graph_end(0, stream, &graph), OPENREG_E_CAPTURE);
  begin(stream);
  ASSERT_EQ(openreg_event_record(forked, 0, stream), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_wait_event(0, other, forked), OPENREG_OK) << last_message();
  fill(first, 0, 3, stream);
  fill(second, 0, 4, other);
  const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
  ASSERT_EQ(openreg_stream_launch_host_func(0, other, count, &runs), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_event_record(joined, 0, other), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_wait_event(0, stream, joined), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_status(0, other, &status), OPENREG_OK);
  EXPECT_EQ(status, OPENREG_CAPTURE_ACTIVE);
  ASSERT_EQ(openreg_graph_end(0, stream, &graph), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_dump(graph, "/tmp/none"), OPENREG_E_UNSUPPORTED) << "these are the driver's";
  openreg_graph_exec exec = nullptr;
  ASSERT_EQ(openreg_graph_instantiate(graph, &exec), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_update(exec, graph, &fits), OPENREG_OK) << last_message();
  EXPECT_EQ(fits, 1);
  EXPECT_EQ(openreg_graph_destroy(graph), OPENREG_OK);
  for (int i = 1; i < 4; ++i) {
    launch(exec, i == 2 ? other : stream);
    EXPECT_EQ(runs, i);
    EXPECT_EQ(values(first, 0), (std::set<int>{3}));
    EXPECT_EQ(values(second, 0), (std::set<int>{4}));
  }
  for (openreg_event event : {forked, joined}) destroy(event);
  for (void* memory : {first, second}) EXPECT_EQ(openreg_free(memory), OPENREG_OK);
  EXPECT_EQ(reports(), 0);
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
  EXPECT_EQ(reports(), 1);
  EXPECT_GE(count_lines(OPENREG_LOG_ERROR, "a captured graph uses what begins at"), 1);
  EXPECT_EQ(openreg_graph_exec_destroy(exec), OPENREG_OK);
}

// What watches a stream wraps functions that run once; those in a driver's graph run at each launch.
TEST_F(GraphsTest, OfTheDriverWatched) {
  set("OPENREG_RACES", "report");
  set("OPENREG_DRIVER_LIBRARIES", "mutants:" + driver_path("mutants_exporting"));
  set("OPENREG_DRIVERS", "mutants");
  const openreg_stream stream = from_pool(0);
  void *const first = allocate(0, stream), *const second = allocate(0, stream);
  openreg_faults faults = nullptr;
  ASSERT_EQ(openreg_faults_begin("copies slow 2x", &faults), OPENREG_OK) << last_message();
  std::atomic<int> runs{0};
  const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
  begin(stream);
  ASSERT_EQ(openreg_stream_launch_host_func(0, stream, count, &runs), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy_async(0, stream, second, 0, first, 0, kSize), OPENREG_OK) << last_message();
  openreg_graph_exec exec = end(stream);
  for (int i = 1; i < 4; ++i) {
    fill(first, 0, static_cast<uint8_t>(i), stream);
    launch(exec, stream);
    EXPECT_EQ(runs, i);
    EXPECT_EQ(values(second, 0), (std::set<int>{i}));
  }
  openreg_faults_end(faults);
  destroy(exec);
  for (void* memory : {first, second}) EXPECT_EQ(openreg_free(memory), OPENREG_OK);
}

// A driver of seven functions, without streams, events and host functions: each stream is a capture's own.
TEST_F(GraphsTest, DriverOfSevenFunctions) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
  set("OPENREG_DRIVERS", "toy");
  const openreg_stream stream = from_pool(0), other = from_pool(0);
  void* const memory = allocate(0, stream);
  fill(memory, 0, 1, other);
  begin(stream);
  fill(memory, 0, 2, stream);
  fill(memory, 0, 3, other);
  openreg_graph_exec exec = end(stream);
  ASSERT_EQ(openreg_stream_synchronize(0, other), OPENREG_OK);
  EXPECT_EQ(values(memory, 0), (std::set<int>{3}));
  launch(exec, other);
  EXPECT_EQ(values(memory, 0), (std::set<int>{2}));
}

}  // namespace
}  // namespace openreg_test
