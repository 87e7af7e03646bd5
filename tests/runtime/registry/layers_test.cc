// SPDX-License-Identifier: BSD-3-Clause
// OPENREG_LAYERS (openreg/layer.h): layers stand around any driver, stack, and say clearly why one can't.
#include <openreg/faults.h>
#include <openreg/flight_recorder.h>
#include <openreg/host_work.h>

#include <algorithm>

#include "../runtime_test.h"

namespace openreg_test {
namespace {

class LayersTest : public SimDevicesTest {
 protected:
  static std::string item(const std::string& name, const std::string& library) {
    return name + ":" + driver_path(library);
  }
  // The lines of layers, in their order.
  std::vector<std::string> seen() {
    std::vector<std::string> found;
    for (const auto& line : lines(OPENREG_LOG_INFO)) {
      if (line.find(" in layer ") != std::string::npos || line.find("bytes copied") != std::string::npos) {
        found.push_back(line);
      }
    }
    return found;
  }
  static void copy(size_t size) {
    std::vector<char> bytes(size, 7), back(size, 0);
    void* const block = allocate(0, size);
    ASSERT_EQ(openreg_memcpy_async(0, 0, block, 0, bytes.data(), OPENREG_HOST, size), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_memcpy(back.data(), OPENREG_HOST, block, 0, size), OPENREG_OK) << last_message();
    EXPECT_EQ(back, bytes);
    EXPECT_EQ(openreg_free(block), OPENREG_OK);
  }
};

using Lines = std::vector<std::string>;

// Three layers, the first outermost; each sees the call, and its own part ends at close()
TEST_F(LayersTest, ThreeStack) {
  set("OPENREG_LAYERS", item("one", "layer_a") + "," + item("two", "layer_b") + "," + item("three", "counting_layer"));
  copy(100);
  EXPECT_EQ(seen(), (Lines{"copy in layer a", "copy in layer b"}));
  forget_lines();
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  EXPECT_EQ(seen(), (Lines{"close in layer a", "close in layer b", "sim device 0: 100 bytes copied"}));
}

// They stand around any driver, outside the layer of OPENREG_VALIDATE, which has nothing to say of them
TEST_F(LayersTest, AroundValidationAndAnotherDriver) {
  use_full_toy();
  set("OPENREG_VALIDATE", "1");
  set("OPENREG_LAYERS", item("a", "layer_a") + "," + item("count", "counting_layer"));
  copy(64);
  EXPECT_GE(seen().size(), 1u);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(count_lines(OPENREG_LOG_ERROR, "OPENREG_VALIDATE"), 0);
  EXPECT_GE(count_lines(OPENREG_LOG_INFO, "full_toy device 0: "), 1);
}

// A layer of an older driver.h: what it doesn't know goes past it
TEST_F(LayersTest, OlderSize) {
  set("OPENREG_LAYERS", item("old", "layer_old"));
  copy(64);
  EXPECT_EQ(seen(), Lines{"copy in layer old"});
  int32_t queued = 0;
  ASSERT_EQ(openreg_host_func_is_queued(0, &queued), OPENREG_OK);
  EXPECT_EQ(queued, 1);
}

// The laboratory's own layers come and go around them while the driver is open
TEST_F(LayersTest, InsideThoseOfTheLaboratory) {
  set("OPENREG_LAYERS", item("a", "layer_a"));
  copy(64);
  ASSERT_EQ(openreg_flight_recorder_start(16), OPENREG_OK) << last_message();
  openreg_faults faults = nullptr;
  ASSERT_EQ(openreg_faults_begin("slow 1.5x at copy 1", &faults), OPENREG_OK) << last_message();
  forget_lines();
  copy(64);
  EXPECT_EQ(openreg_faults_hits(faults), 1u);
  EXPECT_EQ(seen().size(), 2u);  // also what the host copies otherwise
  openreg_faults_end(faults);
  ASSERT_EQ(openreg_flight_recorder_start(0), OPENREG_OK);
  forget_lines();
  copy(64);
  EXPECT_EQ(seen().size(), 1u);
}

// What can't be used fails the driver's opening, and the message names the file
TEST_F(LayersTest, Refused) {
  const std::pair<std::string, std::string> cases[] = {
      {"gone:/nowhere/gone.so", "layer \"gone\" can't be loaded from /nowhere/gone.so"},
      {item("none", "toy_driver"),
       driver_path("toy_driver") + " is not a layer: it does not export openreg_layer_query_v1"},
      {"/nowhere/gone.so", "\"/nowhere/gone.so\" in env var OPENREG_LAYERS is not name:path"},
      {item("a", "layer_a") + "," + item("refuses", "layer_refuses"), "layer refuses doesn't like sim"},
  };
  for (const auto& [layers, text] : cases) {
    set("OPENREG_LAYERS", layers);
    EXPECT_NE(openreg_init(), OPENREG_OK) << layers;
    EXPECT_CONTAINS(last_message(), text);
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  }
  unset("OPENREG_LAYERS");
  EXPECT_EQ(openreg_init(), OPENREG_OK) << last_message();
}

}  // namespace
}  // namespace openreg_test
