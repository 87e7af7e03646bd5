// SPDX-License-Identifier: BSD-3-Clause
// Seven functions are a driver. Everything the API offers works on the toy driver, whose library was built by a
// C compiler alone and knows nothing of streams, events, fills or pinned memory: copies, streams and events of it are
// checked by openreg-check (CheckCommTest).
#include <cstring>
#include <numeric>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class ToyDriverTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
    set("OPENREG_DRIVERS", "toy");
    ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  }
};

// openreg-info's answer: seven native functions, the rest emulated.
TEST_F(ToyDriverTest, RecordSaysWhatItHas) {
  const openreg_driver_record record = record_of("toy");
  EXPECT_EQ(record.slots, 0x7fu);
  EXPECT_EQ(record.caps, 0u);
  EXPECT_EQ(record.device_count, 2);
}

TEST_F(ToyDriverTest, DeviceInformationIsMadeUp) {
  auto properties = properties_of(1);
  EXPECT_STREQ(properties.name, "toy device 1");
  EXPECT_EQ(properties.total_memory, 0u);
  EXPECT_EQ(properties.priority_low, 0);
  EXPECT_EQ(properties.priority_high, 0);
}

// fill() by copying, of sizes around the size of the buffer that it copies from.
TEST_F(ToyDriverTest, FillIsMadeUp) {
  for (const size_t size : {size_t{1}, size_t{1000}, size_t{1} << 20, (size_t{1} << 20) + 1, (size_t{3} << 20) - 7}) {
    std::vector<uint8_t> back(size + 1, 9);
    void* memory = allocate(0, size + 1);
    ASSERT_EQ(openreg_memset_async(0, 0, memory, 9, size + 1), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_memset_async(0, 0, memory, 0xa5, size), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_memcpy(back.data(), OPENREG_HOST, memory, 0, size + 1), OPENREG_OK);
    EXPECT_EQ(back, [&] {
      std::vector<uint8_t> expected(size, 0xa5);
      expected.push_back(9);
      return expected;
    }());
    EXPECT_EQ(openreg_memset_async(0, 0, memory, 1, 0), OPENREG_OK);
    EXPECT_EQ(openreg_free(memory), OPENREG_OK);
  }
}

TEST_F(ToyDriverTest, PinnedMemoryIsPlainMemory) {
  void* const pinned = make_pinned(4097);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned) % 64, 0u);
  std::memset(pinned, 1, 4097);
}

// Its memory is not the host's to see: no alias, no guess.
TEST_F(ToyDriverTest, MemoryIsNotHostVisible) {
  void* memory = allocate(0, 64);
  void* alias = nullptr;
  EXPECT_EQ(openreg_host_alias(memory, &alias), OPENREG_E_UNSUPPORTED);
  EXPECT_EQ(alias, nullptr);
  auto info = pointer_info(memory);
  EXPECT_EQ(info.kind, OPENREG_POINTER_DEVICE);
  EXPECT_EQ(info.device, 0);
}

// In one table with the simulator: copies between the two drivers are staged through the host, both ways. acceptance 5.21
TEST_F(ToyDriverTest, CopiesBetweenDrivers) {
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_DRIVERS", "toy,sim");
  ASSERT_EQ(openreg_device_count(), 4);
  std::vector<uint8_t> source(300001);
  std::iota(source.begin(), source.end(), uint8_t{3});
  std::vector<uint8_t> back(source.size());
  void* on_toy = allocate(0, source.size());
  void* on_sim = allocate(3, source.size());
  void* on_toy_again = allocate(1, source.size());
  ASSERT_EQ(openreg_memcpy(on_toy, 0, source.data(), OPENREG_HOST, source.size()), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy(on_sim, 3, on_toy, 0, source.size()), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy(on_toy_again, 1, on_sim, 3, source.size()), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy(back.data(), OPENREG_HOST, on_toy_again, 1, back.size()), OPENREG_OK) << last_message();
  EXPECT_EQ(back, source);
  for (void* memory : {on_toy, on_sim, on_toy_again}) EXPECT_EQ(openreg_free(memory), OPENREG_OK);
}

// A bad option is the driver's own error text, through the runtime.
TEST_F(ToyDriverTest, BadOption) {
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_TOY_DEVICES", "many");
  expect_error(openreg_init(), OPENREG_E_INVALID, "devices must be an integer from 0 to 8, but is \"many\"");
}

}  // namespace
}  // namespace openreg_test
