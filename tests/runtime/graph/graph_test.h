/* SPDX-License-Identifier: BSD-3-Clause */
/* graph_test.h: captures and launches on the simulated devices. */
#ifndef OPENREG_TESTS_GRAPH_TEST_H
#define OPENREG_TESTS_GRAPH_TEST_H

#include <openreg/graphs.h>

#include "runtime_test.h"

namespace openreg_test {

constexpr size_t kSize = 10000;

class GraphsTest : public SimDevicesTest {
 protected:
  static void* allocate(int32_t device, openreg_stream stream = OPENREG_STREAM_DEFAULT) {
    return openreg_test::allocate(device, kSize, stream);
  }
  static void begin(openreg_stream stream, int32_t mode = OPENREG_CAPTURE_GLOBAL) {
    ASSERT_EQ(openreg_graph_begin(0, stream, mode), OPENREG_OK) << last_message();
  }
  openreg_graph_exec end(openreg_stream stream) {
    openreg_graph graph = nullptr;
    openreg_graph_exec exec = nullptr;
    EXPECT_EQ(openreg_graph_end(0, stream, &graph), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_graph_instantiate(graph, &exec), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_graph_destroy(graph), OPENREG_OK) << last_message();
    return owned_.add(exec, [this, exec] { destroy(exec); });
  }
  using SimDevicesTest::destroy;
  void destroy(openreg_graph_exec exec) {
    EXPECT_EQ(openreg_graph_exec_destroy(exec), OPENREG_OK) << last_message();
    owned_.remove(exec);
  }
  static void fill(void* memory, int32_t device, uint8_t value, openreg_stream stream) {
    ASSERT_EQ(openreg_memset_async(device, stream, memory, value, kSize), OPENREG_OK) << last_message();
  }
  static void launch(openreg_graph_exec exec, openreg_stream stream) {
    ASSERT_EQ(openreg_graph_launch(exec, stream), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK) << last_message();
  }
  static std::set<int> values(const void* memory, int32_t device) {
    std::vector<uint8_t> bytes(kSize);
    EXPECT_EQ(openreg_memcpy(bytes.data(), OPENREG_HOST, memory, device, kSize), OPENREG_OK) << last_message();
    return {bytes.begin(), bytes.end()};
  }
  // The capture is invalid because of what `call` was, and says so at its end.
  static void is_invalid_by(openreg_status status, const char* call, openreg_stream stream) {
    EXPECT_EQ(status, OPENREG_E_CAPTURE);
    EXPECT_CONTAINS(last_message(), std::string(call) + ": ");
    openreg_graph graph = nullptr;
    EXPECT_EQ(openreg_graph_end(0, stream, &graph), OPENREG_E_CAPTURE);
    EXPECT_CONTAINS(last_message(), std::string("openreg_graph_end: the capture is invalid: ") + call + ": ");
    EXPECT_EQ(graph, nullptr);
  }
};

}  // namespace openreg_test

#endif
