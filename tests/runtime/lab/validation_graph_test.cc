// SPDX-License-Identifier: BSD-3-Clause
// OPENREG_VALIDATE=1: what the layer says of a driver's captures and graphs (openreg/graph.h), and of those who call it.
#include <openreg/graph.h>

#include <thread>

#include "validation_test.h"

using openreg_test::has;
using openreg_test::ValidationLayerTest;

namespace {

// What a driver's openreg.graph answers; a test changes one answer, or more.
struct GraphAnswers {
  openreg_status begin = OPENREG_OK, end = OPENREG_OK, sync = OPENREG_OK;
  int32_t status = OPENREG_CAPTURE_NONE, fits = 1, mode = OPENREG_CAPTURE_GLOBAL;
  bool has_graph = true, has_exec = true;
  int launches = 0;
  void (*function)(void*) = nullptr;  // that the last host_func() was given
} graphs;

openreg_status answer(openreg_status status) {
  if (status != OPENREG_OK) openreg_host_services.set_error(openreg_host_services.ctx, status, 0, "a test wants it");
  return status;
}

int made[2][8];  // their addresses are graphs, and executable ones
size_t made_count[2];

class ValidationGraphTest : public ValidationLayerTest {
 protected:
  void SetUp() override {
    ValidationLayerTest::SetUp();
    graphs = {};
    made_count[0] = made_count[1] = 0;
    table_.extension = [](openreg_instance, const char*, uint32_t) -> const void* {
      static openreg_graph_table table;
      table.struct_size = sizeof table;
      table.version = OPENREG_GRAPH_VERSION;
      table.begin = [](openreg_instance, int32_t, openreg_driver_stream, int32_t) { return answer(graphs.begin); };
      table.end = [](openreg_instance, int32_t, openreg_driver_stream, openreg_driver_graph* out) {
        if (graphs.end != OPENREG_OK) return answer(graphs.end);
        void* const graph = graphs.has_graph ? &made[0][made_count[0]++] : nullptr;
        *out = static_cast<openreg_driver_graph>(graph);
        return openreg_status{OPENREG_OK};
      };
      table.status = [](openreg_instance, int32_t, openreg_driver_stream, int32_t* out) {
        *out = graphs.status;
        return openreg_status{OPENREG_OK};
      };
      table.instantiate = [](openreg_instance, openreg_driver_graph, uint32_t, openreg_driver_graph_exec* out) {
        void* const exec = graphs.has_exec ? &made[1][made_count[1]++] : &made[1][0];
        *out = static_cast<openreg_driver_graph_exec>(exec);
        return openreg_status{OPENREG_OK};
      };
      table.launch = [](openreg_instance, int32_t, openreg_driver_stream, openreg_driver_graph_exec) {
        ++graphs.launches;
        return openreg_status{OPENREG_OK};
      };
      table.update = [](openreg_instance, openreg_driver_graph_exec, openreg_driver_graph, int32_t* fits) {
        *fits = graphs.fits;
        return openreg_status{OPENREG_OK};
      };
      table.destroy_graph = [](openreg_instance, openreg_driver_graph) { return openreg_status{OPENREG_OK}; };
      table.destroy_exec = [](openreg_instance, openreg_driver_graph_exec) { return openreg_status{OPENREG_OK}; };
      table.exchange_mode = [](openreg_instance, int32_t* mode) {
        *mode = graphs.mode;
        return openreg_status{OPENREG_OK};
      };
      return &table;
    };
    // Captured work is the graph's: the driver does none of it.
    table_.stream_sync = [](openreg_instance, int32_t, openreg_driver_stream) { return answer(graphs.sync); };
    table_.event_sync = [](openreg_instance, int32_t, openreg_driver_event) { return answer(graphs.sync); };
    table_.event_query = [](openreg_instance, int32_t, openreg_driver_event, int32_t* done) {
      *done = 0;
      return openreg_status{OPENREG_OK};
    };
    table_.fill = [](openreg_instance, int32_t, openreg_driver_stream, void*, uint8_t, uint64_t) {
      return openreg_status{OPENREG_OK};
    };
    table_.host_func = [](openreg_instance, int32_t, openreg_driver_stream, void (*function)(void*), void*) {
      graphs.function = function;
      return openreg_status{OPENREG_OK};
    };
    open();
    graph_ =
        static_cast<const openreg_graph_table*>(table_.extension(layer_, OPENREG_GRAPH_NAME, OPENREG_GRAPH_VERSION));
    ASSERT_NE(graph_, nullptr);
    EXPECT_EQ(graph_->dump, nullptr) << "the driver has none";
    for (openreg_driver_stream& stream : streams_) {
      ASSERT_EQ(table_.stream_create(layer_, 0, 0, 0, &stream), OPENREG_OK);
    }
  }
  void TearDown() override {
    if (layer_ != nullptr) finish();
    ValidationLayerTest::TearDown();
  }
  void finish() {
    for (const openreg_driver_stream stream : streams_) {
      EXPECT_EQ(table_.stream_destroy(layer_, 0, stream), OPENREG_OK);
    }
    close();
    layer_ = nullptr;
  }
  void begin(int32_t mode = OPENREG_CAPTURE_GLOBAL) {
    ASSERT_EQ(graph_->begin(layer_, 0, streams_[0], mode), OPENREG_OK);
    graphs.status = OPENREG_CAPTURE_ACTIVE;
  }
  openreg_status end(openreg_driver_graph* out) {
    const openreg_status status = graph_->end(layer_, 0, streams_[0], out);
    graphs.status = OPENREG_CAPTURE_NONE;
    return status;
  }
  openreg_driver_graph ended() {
    openreg_driver_graph graph = nullptr;
    EXPECT_EQ(end(&graph), OPENREG_OK);
    return graph;
  }
  // A call that is refused makes the capture invalid.
  void invalidate() {
    graphs.sync = OPENREG_E_CAPTURE;
    graphs.status = OPENREG_CAPTURE_INVALIDATED;
    EXPECT_EQ(table_.stream_sync(layer_, 0, streams_[0]), OPENREG_E_CAPTURE);
  }
  // The end of a capture that is invalid.
  void end_refused() {
    openreg_driver_graph graph = nullptr;
    graphs.end = OPENREG_E_CAPTURE;
    graphs.status = OPENREG_CAPTURE_NONE;
    EXPECT_EQ(end(&graph), OPENREG_E_CAPTURE);
    EXPECT_EQ(graph, nullptr);
  }
  openreg_driver_graph captured() {
    begin();
    return ended();
  }
  openreg_driver_graph_exec instantiated(openreg_driver_graph graph) {
    openreg_driver_graph_exec exec = nullptr;
    EXPECT_EQ(graph_->instantiate(layer_, graph, 0, &exec), OPENREG_OK);
    return exec;
  }
  void destroy(openreg_driver_graph graph, openreg_driver_graph_exec exec = nullptr) {
    EXPECT_EQ(graph_->destroy_graph(layer_, graph), OPENREG_OK);
    EXPECT_EQ(graph_->destroy_exec(layer_, exec), OPENREG_OK);
  }
  // The one report, of this rule.
  void breaks(const std::string& slot, const std::string& seen) {
    const std::string text = last_of(1);
    EXPECT_TRUE(has(text, slot + "() of driver \"full_toy\" breaks a rule of driver.h: " + seen)) << text;
  }

  const openreg_graph_table* graph_ = nullptr;
  openreg_driver_stream streams_[2] = {nullptr, nullptr};
};

// A capture with a fork, a refused one, launches and an update: nothing is to be said of them. A function that is captured
// reaches the driver as it is, as each launch runs it.
TEST_F(ValidationGraphTest, RightDriver) {
  openreg_driver_event event = nullptr;
  int32_t status = -1, fits = -1;
  const auto nothing = [](void*) {};
  ASSERT_EQ(table_.event_create(layer_, 0, 0, &event), OPENREG_OK);
  begin();
  ASSERT_EQ(table_.host_func(layer_, 0, streams_[0], nothing, nullptr), OPENREG_OK);
  EXPECT_EQ(graphs.function, static_cast<void (*)(void*)>(nothing));
  ASSERT_EQ(table_.event_record(layer_, 0, streams_[0], event), OPENREG_OK);
  ASSERT_EQ(table_.stream_wait(layer_, 0, streams_[1], event), OPENREG_OK);
  for (const openreg_driver_stream stream : streams_) {
    ASSERT_EQ(graph_->status(layer_, 0, stream, &status), OPENREG_OK);
    EXPECT_EQ(status, OPENREG_CAPTURE_ACTIVE);
  }
  openreg_driver_graph graph = ended();
  ASSERT_EQ(graph_->status(layer_, 0, streams_[1], &status), OPENREG_OK);
  begin(OPENREG_CAPTURE_RELAXED);
  invalidate();
  std::thread([this] { end_refused(); }).join();
  graphs = {};
  openreg_driver_graph_exec exec = instantiated(graph);
  for (const openreg_driver_stream stream : {streams_[0], streams_[1], openreg_driver_stream{nullptr}}) {
    EXPECT_EQ(graph_->launch(layer_, 0, stream, exec), OPENREG_OK);
  }
  EXPECT_EQ(graphs.launches, 3);
  EXPECT_EQ(graph_->update(layer_, exec, graph, &fits), OPENREG_OK);
  EXPECT_EQ(fits, 1);
  destroy(graph, exec);
  EXPECT_EQ(table_.event_destroy(layer_, 0, event), OPENREG_OK);
  EXPECT_EQ(reports().size(), 0u);
}

// What a driver answers to begin() and end() must fit the captures that there are.
TEST_F(ValidationGraphTest, BeginOfTheDefaultStream) {
  EXPECT_EQ(graph_->begin(layer_, 0, nullptr, OPENREG_CAPTURE_GLOBAL), OPENREG_OK);
  breaks("begin", "it returned OPENREG_OK for the default stream");
}

TEST_F(ValidationGraphTest, BeginOfACapturedStream) {
  begin();
  EXPECT_EQ(graph_->begin(layer_, 0, streams_[0], OPENREG_CAPTURE_GLOBAL), OPENREG_OK);
  breaks("begin", "it returned OPENREG_OK for a stream that is captured");
  destroy(ended());
}

TEST_F(ValidationGraphTest, EndWithoutABegin) {
  openreg_driver_graph graph = ended();
  breaks("end", "it returned OPENREG_OK, and no capture has begun on the stream");
  destroy(graph);
}

TEST_F(ValidationGraphTest, EndByAnotherThread) {
  openreg_driver_graph graph = nullptr;
  begin();
  std::thread([&] { graph = ended(); }).join();
  breaks("end", "it returned OPENREG_OK, and another thread has begun the capture");
  destroy(graph, instantiated(graph));
  EXPECT_EQ(graph_->begin(layer_, 0, streams_[0], OPENREG_CAPTURE_GLOBAL), OPENREG_OK);  // it has ended
  destroy(ended());
  EXPECT_EQ(reports().size(), 1u);
}

TEST_F(ValidationGraphTest, EndOfAnInvalidCapture) {
  begin();
  invalidate();
  openreg_driver_graph graph = ended();
  breaks("end", "it returned OPENREG_OK, and the capture is invalid");
  destroy(graph);
}

TEST_F(ValidationGraphTest, EndThatDoesNotEnd) {
  openreg_driver_graph graph = nullptr;
  begin();
  graphs.end = OPENREG_E_CAPTURE;
  EXPECT_EQ(end(&graph), OPENREG_E_CAPTURE);
  breaks("end", "it returned OPENREG_E_CAPTURE, and the stream is still captured");
}

// A wait that is refused says nothing of the event: that it isn't complete afterwards breaks no rule.
TEST_F(ValidationGraphTest, RefusedWaitForAnEvent) {
  openreg_driver_event event = nullptr;
  int32_t done = -1;
  ASSERT_EQ(table_.event_create(layer_, 0, 0, &event), OPENREG_OK);
  begin();
  ASSERT_EQ(table_.event_record(layer_, 0, streams_[0], event), OPENREG_OK);
  graphs.sync = OPENREG_E_CAPTURE;
  graphs.status = OPENREG_CAPTURE_INVALIDATED;
  EXPECT_EQ(table_.event_sync(layer_, 0, event), OPENREG_E_CAPTURE);
  end_refused();
  EXPECT_EQ(table_.event_query(layer_, 0, event, &done), OPENREG_OK);
  EXPECT_EQ(table_.event_destroy(layer_, 0, event), OPENREG_OK);
  EXPECT_EQ(reports().size(), 0u);
}

// A call that is refused must make the capture invalid; the refusal stays the thread's error.
TEST_F(ValidationGraphTest, RefusalThatInvalidatesNothing) {
  begin();
  graphs.sync = OPENREG_E_CAPTURE;
  EXPECT_EQ(table_.stream_sync(layer_, 0, streams_[0]), OPENREG_E_CAPTURE);
  breaks("stream_sync", "it returned OPENREG_E_CAPTURE, and the capture is still active");
  end_refused();
}

// status() answers what the calls before mean.
TEST_F(ValidationGraphTest, StatusOutOfRange) {
  int32_t status = -1;
  graphs.status = 3;
  EXPECT_EQ(graph_->status(layer_, 0, streams_[0], &status), OPENREG_E_INTERNAL);
  breaks("status", "it gave 3");
  EXPECT_EQ(status, -1);
}

TEST_F(ValidationGraphTest, StatusOfAStreamThatHasJoined) {
  openreg_driver_event event = nullptr;
  int32_t status = -1;
  ASSERT_EQ(table_.event_create(layer_, 0, 0, &event), OPENREG_OK);
  begin();
  ASSERT_EQ(table_.event_record(layer_, 0, streams_[0], event), OPENREG_OK);
  ASSERT_EQ(table_.stream_wait(layer_, 0, streams_[1], event), OPENREG_OK);
  graphs.status = OPENREG_CAPTURE_NONE;
  EXPECT_EQ(graph_->status(layer_, 0, streams_[1], &status), OPENREG_OK);
  breaks("status", "it gave 0 for a stream that is part of a capture");
  destroy(ended());
  EXPECT_EQ(table_.event_destroy(layer_, 0, event), OPENREG_OK);
}

TEST_F(ValidationGraphTest, StatusOfAStreamApart) {
  int32_t status = -1;
  graphs.status = OPENREG_CAPTURE_ACTIVE;
  EXPECT_EQ(graph_->status(layer_, 0, streams_[0], &status), OPENREG_OK);
  breaks("status", "it gave 1 for a stream that is part of none");
}

// Handles, answers and modes that can't be.
TEST_F(ValidationGraphTest, NoGraph) {
  openreg_driver_graph graph = nullptr;
  graphs.has_graph = false;
  begin();
  EXPECT_EQ(end(&graph), OPENREG_E_INTERNAL);
  breaks("end", "it returned OK with a NULL graph");
}

TEST_F(ValidationGraphTest, ExecutableGraphTwice) {
  openreg_driver_graph graph = captured();
  openreg_driver_graph_exec exec = instantiated(graph), again = nullptr;
  graphs.has_exec = false;
  EXPECT_EQ(graph_->instantiate(layer_, graph, 0, &again), OPENREG_E_INTERNAL);
  breaks("instantiate", "it gave the executable graph 0x");
  destroy(graph, exec);
}

TEST_F(ValidationGraphTest, UpdateThatFitsInPart) {
  openreg_driver_graph graph = captured();
  openreg_driver_graph_exec exec = instantiated(graph);
  int32_t fits = -1;
  graphs.fits = 2;
  EXPECT_EQ(graph_->update(layer_, exec, graph, &fits), OPENREG_E_INTERNAL);
  breaks("update", "it gave 2");
  destroy(graph, exec);
}

TEST_F(ValidationGraphTest, ModeOutOfRange) {
  int32_t mode = OPENREG_CAPTURE_RELAXED;
  EXPECT_EQ(graph_->exchange_mode(layer_, &mode), OPENREG_OK);
  EXPECT_EQ(mode, OPENREG_CAPTURE_GLOBAL);
  graphs.mode = 9;
  EXPECT_EQ(graph_->exchange_mode(layer_, &mode), OPENREG_E_INTERNAL);
  breaks("exchange_mode", "it gave 9");
}

// Graphs that are gone never reach the driver.
TEST_F(ValidationGraphTest, GraphsOfTheCaller) {
  openreg_driver_graph graph = captured();
  openreg_driver_graph_exec exec = instantiated(graph), again = nullptr;
  int32_t fits = 0;
  EXPECT_EQ(graph_->instantiate(layer_, graph, 1, &again), OPENREG_OK);
  EXPECT_TRUE(has(last_of(1), "a call of instantiate() of driver \"full_toy\" breaks a rule of driver.h: flags are 1"));
  EXPECT_EQ(graph_->launch(layer_, 1, nullptr, exec), OPENREG_E_INVALID);
  EXPECT_TRUE(has(last_of(2), "a graph of device 0 was launched on device 1")) << last_of(2);
  destroy(graph, again);
  EXPECT_EQ(graph_->launch(layer_, 0, nullptr, again), OPENREG_E_INVALID);
  EXPECT_TRUE(has(last_of(3), "a call of launch() of driver")) << last_of(3);
  EXPECT_TRUE(has(last_of(3), "is not live")) << last_of(3);
  EXPECT_EQ(graph_->destroy_exec(layer_, again), OPENREG_E_INVALID);
  EXPECT_EQ(graph_->destroy_graph(layer_, graph), OPENREG_E_INVALID);
  EXPECT_EQ(graph_->instantiate(layer_, graph, 0, &again), OPENREG_E_INVALID);
  EXPECT_EQ(graph_->update(layer_, exec, graph, &fits), OPENREG_E_INVALID);
  EXPECT_EQ(graph_->begin(layer_, 1, streams_[0], OPENREG_CAPTURE_GLOBAL), OPENREG_E_INVALID);
  EXPECT_EQ(graph_->begin(layer_, 2, nullptr, OPENREG_CAPTURE_GLOBAL), OPENREG_E_INVALID);
  EXPECT_EQ(graphs.launches, 0);
  destroy(nullptr, exec);
  last_of(4);
}

// What nodes use stays until capture, graph and executable graph are gone; also where a graph was launched in a capture.
TEST_F(ValidationGraphTest, MemoryOfTheCaller) {
  void* const memory[2] = {allocate(0, 4096), allocate(0, 4096)};
  begin();
  ASSERT_EQ(table_.fill(layer_, 0, streams_[0], memory[0], 1, 64), OPENREG_OK);
  ASSERT_EQ(table_.fill(layer_, 0, streams_[0], static_cast<char*>(memory[1]) + 64, 1, 64), OPENREG_OK);
  openreg_driver_graph graph = ended();
  openreg_driver_graph_exec exec = instantiated(graph);
  begin();
  EXPECT_EQ(graph_->launch(layer_, 0, streams_[0], exec), OPENREG_OK);
  openreg_driver_graph around = ended();
  destroy(graph, exec);
  EXPECT_EQ(table_.mem_free(layer_, 0, memory[0]), OPENREG_OK);
  EXPECT_TRUE(
      has(last_of(1), "a call of mem_free() of driver \"full_toy\" breaks a rule of driver.h: a captured graph uses"))
      << last_of(1);
  destroy(around);
  EXPECT_EQ(table_.mem_free(layer_, 0, memory[1]), OPENREG_OK);
  last_of(1);
}

TEST_F(ValidationGraphTest, MemoryOfGraphsThatAreGone) {
  void* const memory = allocate(0, 4096);
  begin();
  ASSERT_EQ(table_.fill(layer_, 0, streams_[0], memory, 1, 64), OPENREG_OK);
  openreg_driver_graph graph = ended();
  destroy(graph, instantiated(graph));
  EXPECT_EQ(table_.mem_free(layer_, 0, memory), OPENREG_OK);
  EXPECT_EQ(reports().size(), 0u);
}

// Graphs that are alive at close(), and captures that haven't ended.
TEST_F(ValidationGraphTest, GraphsAtClose) {
  (void)instantiated(captured());
  finish();
  EXPECT_TRUE(has(last_of(1), "1 object(s) made by end() of graph.h still live")) << last_of(1);
}

TEST_F(ValidationGraphTest, CapturesAtClose) {
  begin();
  finish();
  EXPECT_TRUE(has(last_of(1), "1 captures had not ended")) << last_of(1);
}

}  // namespace
