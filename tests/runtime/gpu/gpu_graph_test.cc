// SPDX-License-Identifier: BSD-3-Clause
// The extension openreg.graph of cuda and hip: each function is a call of the vendor's.
#include <openreg/graph.h>

#include "gpu_test.h"

namespace openreg_test {
namespace {

class GpuGraph : public FakeGpuTest {
 protected:
  const openreg_graph_table* graphs() {
    return static_cast<const openreg_graph_table*>(
        table_->extension(instance_, OPENREG_GRAPH_NAME, OPENREG_GRAPH_VERSION));
  }
};

// A captured fill runs at each launch, by the vendor's own graph.
TEST_P(GpuGraph, IsTheVendors) {
  const openreg_graph_table* graph = graphs();
  ASSERT_NE(graph, nullptr);
  const openreg_driver_stream stream = make_stream(1), other = make_stream(1);
  void* memory = allocate(1);
  fill(1, memory, 1);
  openreg_driver_graph made = nullptr;
  openreg_driver_graph_exec exec = nullptr;
  int32_t status = -1;
  succeeds([&] { return graph->begin(instance_, 1, stream, OPENREG_CAPTURE_GLOBAL); });
  succeeds([&] { return graph->status(instance_, 1, stream, &status); });
  EXPECT_EQ(status, OPENREG_CAPTURE_ACTIVE);
  fill(1, memory, 2, 4096, stream);
  void* meanwhile = allocate(1);  // in the driver's relaxed mode
  succeeds([&] { return graph->end(instance_, 1, stream, &made); });
  release(1, meanwhile);
  EXPECT_EQ(bytes(1, memory), filled(1));
  succeeds([&] { return graph->instantiate(instance_, made, 0, &exec); });
  for (int i = 1; i <= 2; ++i) {
    fill(1, memory, 3, 4096, other);
    succeeds([&] { return graph->launch(instance_, 1, other, exec); });
    EXPECT_EQ(bytes(1, memory), filled(2));
    EXPECT_EQ(hooks_->calls("GraphLaunch"), i);
  }
  succeeds([&] { return graph->destroy_exec(instance_, exec); });
  succeeds([&] { return graph->destroy_graph(instance_, made); });
}

// The vendor's errors of captures are OPENREG_E_CAPTURE, and an update that doesn't fit is an answer.
TEST_P(GpuGraph, Errors) {
  const openreg_graph_table* graph = graphs();
  ASSERT_NE(graph, nullptr);
  const openreg_driver_stream stream = make_stream(0);
  openreg_driver_graph empty = nullptr, made = nullptr;
  openreg_driver_graph_exec exec = nullptr;
  void* memory = allocate(0);
  int32_t fits = -1;
  EXPECT_EQ(fails([&] { return graph->end(instance_, 0, stream, &made); }), OPENREG_E_CAPTURE);
  EXPECT_EQ(fails([&] { return graph->begin(instance_, 0, nullptr, OPENREG_CAPTURE_GLOBAL); }), OPENREG_E_CAPTURE);
  succeeds([&] { return graph->begin(instance_, 0, stream, OPENREG_CAPTURE_GLOBAL); });
  EXPECT_EQ(fails([&] { return graph->begin(instance_, 0, stream, OPENREG_CAPTURE_GLOBAL); }), OPENREG_E_CAPTURE);
  EXPECT_EQ(fails([&] { return table_->stream_sync(instance_, 0, stream); }), OPENREG_E_CAPTURE);
  EXPECT_EQ(fails([&] { return graph->end(instance_, 0, stream, &made); }), OPENREG_E_CAPTURE);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(hooks_->peek_error(), 0) << "an error of ours is left to others";
  succeeds([&] { return graph->begin(instance_, 0, stream, OPENREG_CAPTURE_GLOBAL); });
  succeeds([&] { return graph->end(instance_, 0, stream, &empty); });
  succeeds([&] { return graph->begin(instance_, 0, stream, OPENREG_CAPTURE_GLOBAL); });
  fill(0, memory, 2, 4096, stream);
  succeeds([&] { return graph->end(instance_, 0, stream, &made); });
  succeeds([&] { return graph->instantiate(instance_, made, 0, &exec); });
  succeeds([&] { return graph->update(instance_, exec, empty, &fits); });
  EXPECT_EQ(fits, 0);
  EXPECT_EQ(hooks_->peek_error(), 0) << "an error of ours is left to others";
  succeeds([&] { return graph->update(instance_, exec, made, &fits); });
  EXPECT_EQ(fits, 1);
  succeeds([&] { return graph->destroy_exec(instance_, exec); });
  succeeds([&] { return graph->destroy_graph(instance_, made); });
  succeeds([&] { return graph->destroy_graph(instance_, empty); });
}

INSTANTIATE_TEST_SUITE_P(Fakes, GpuGraph, ::testing::ValuesIn(gpus()), gpu_name);

}  // namespace
}  // namespace openreg_test
