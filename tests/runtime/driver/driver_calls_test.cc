// SPDX-License-Identifier: BSD-3-Clause
// What the runtime makes of a driver's memory slots that are missing, that fail half-way, or that break the contract.
#include <openreg/allocator.h>

#include <cstring>
#include <map>
#include <string>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class DriverCallsTest : public RuntimeTest {
 protected:
};

openreg_status gives_nothing(openreg_instance, int32_t, const openreg_alloc_info*, void**) { return OPENREG_OK; }
openreg_status no_alias(openreg_instance, int32_t, void*, void**) { return OPENREG_OK; }

// A slot that succeeds and gives nothing is a defect of the driver, and named as such.
TEST_F(DriverCallsTest, SuccessWithoutAResultIsADefect) {
  use_full_toy([](openreg_driver& table) {
    table.host_alloc = gives_nothing;
    table.host_alias = no_alias;
  });
  void* memory = this;
  EXPECT_EQ(openreg_host_alloc(0, 64, &memory), OPENREG_E_INTERNAL);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(last_message(),
            "openreg_host_alloc: driver \"full_toy\": host_alloc returned OK without memory "
            "(OPENREG_E_INTERNAL)");
  EXPECT_STREQ(openreg_last_error()->driver, "full_toy");
  expect_error(openreg_malloc(0, 0, 64, &memory), OPENREG_E_INTERNAL, "host_alias returned OK without an address");
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(toy().live("memory"), 0);
}

// Running out of memory keeps what the driver said of it, beside the runtime's figures.
TEST_F(DriverCallsTest, OutOfMemoryKeepsTheDriversText) {
  use_full_toy();
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  toy().fail("mem_alloc", 1, OPENREG_E_NOMEM, FULL_TOY_FOREVER);
  void* memory = nullptr;
  expect_error(openreg_malloc(0, 0, 3 << 20, &memory), OPENREG_E_NOMEM, "Tried to allocate 3.00 MiB.");
  EXPECT_CONTAINS(last_message(), "unallocated; the driver said: mem_alloc was told to fail (vendor code 42)");
  EXPECT_EQ(openreg_last_error()->vendor_code, 42);
  EXPECT_STREQ(openreg_last_error()->driver, "full_toy");
  toy().fail("mem_alloc", 0, OPENREG_OK, 0);
  // A limit of the process is no word of the driver's.
  ASSERT_EQ(openreg_memory_set_fraction(0, 1e-6), OPENREG_OK);
  EXPECT_EQ(openreg_malloc(0, 0, 3 << 20, &memory), OPENREG_E_NOMEM);
  EXPECT_EQ(last_message().find("the driver said"), std::string::npos) << last_message();
  EXPECT_EQ(last_message().back(), '.');
}

// A fill by copying that fails in the middle is an error; the device is synchronised before the buffer that it
// copies from is freed.
TEST_F(DriverCallsTest, MadeUpFillThatFails) {
  use_full_toy([](openreg_driver& table) { table.fill = nullptr; });
  const size_t size = size_t{3} << 20;
  void* memory = allocate(0, size);
  toy().fail("copy", 2, OPENREG_E_INTERNAL, 0);
  expect_error(openreg_memset_async(0, 0, memory, 1, size), OPENREG_E_INTERNAL, "copy was told to fail");
  EXPECT_EQ(toy().calls("device_sync"), 1);
  toy().fail("device_sync", 1, OPENREG_E_INTERNAL, 0);
  expect_error(openreg_memset_async(0, 0, memory, 1, size), OPENREG_E_INTERNAL, "device_sync was told to fail");
  EXPECT_EQ(openreg_memset_async(0, 0, memory, 1, size), OPENREG_OK);
}

// Size 0 is valid and reaches no driver.
TEST_F(DriverCallsTest, SizeZero) {
  use_full_toy();
  void* memory = allocate(0, 16);
  EXPECT_EQ(openreg_memset_async(0, 0, memory, 1, 0), OPENREG_OK);
  EXPECT_EQ(openreg_memcpy_async(0, 0, memory, 0, &memory, OPENREG_HOST, 0), OPENREG_OK);
  EXPECT_EQ(toy().calls("fill"), 0);
  EXPECT_EQ(toy().calls("copy"), 0);
}

// Native slots are used where they are there.
TEST_F(DriverCallsTest, NativeSlotsAreUsed) {
  use_full_toy();
  void* memory = allocate(1, 16);
  char bytes[16] = {};
  ASSERT_EQ(openreg_memset_async(1, 0, memory, 7, 16), OPENREG_OK);
  EXPECT_EQ(toy().calls("fill"), 1);
  ASSERT_EQ(openreg_memcpy(bytes, OPENREG_HOST, memory, 1, 16), OPENREG_OK);
  EXPECT_EQ(bytes[15], 7);
  uint64_t free_bytes = 0;
  uint64_t total = 0;
  ASSERT_EQ(openreg_memory_get_info(1, &free_bytes, &total), OPENREG_OK);
  EXPECT_LT(free_bytes, total);  // the driver counts what is in use
  EXPECT_GT(free_bytes, total - (uint64_t{4} << 20));
  EXPECT_EQ(total, uint64_t{1} << 30);
  make_pinned(16, 1);
  EXPECT_EQ(toy().live("host"), 1);
}

// A device that is lost stays lost: later calls of it fail without reaching the driver, also those that need no driver
// call at all. What frees and destroys reaches it, and another device goes on. Selecting drivers again ends it.
TEST_F(DriverCallsTest, LossIsSticky) {
  use_full_toy(hidden_from_host("full_toy"));
  void* memory = allocate(1, 1 << 20);
  void* used_elsewhere = allocate(1, 4096);
  const openreg_stream stream = from_pool(1);
  ASSERT_EQ(openreg_memory_record_stream(used_elsewhere, 1, stream), OPENREG_OK);
  ASSERT_EQ(openreg_free(allocate(1, 4096)), OPENREG_OK);  // a cached block
  void* const pinned = make_pinned(64, 1);
  const openreg_event event = make_event(1);
  ASSERT_EQ(openreg_event_record(event, 1, stream), OPENREG_OK);
  const openreg_event elsewhere = make_event();
  void* on_other = allocate(0, 4096);
  char bytes[16] = {};
  int32_t done = 0;

  toy().fail("copy", 1, OPENREG_E_DEVICE_LOST, 0);
  EXPECT_EQ(openreg_memcpy(bytes, OPENREG_HOST, memory, 1, 16), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(last_message(), "openreg_memcpy: driver \"full_toy\": copy was told to fail (OPENREG_E_DEVICE_LOST)");
  const char* const slots[] = {"copy",         "fill",        "device_sync", "stream_sync",  "stream_query",
                               "event_record", "event_query", "event_sync",  "event_create", "mem_alloc",
                               "stream_wait",  "host_alloc",  "device_bind", "mem_info",     "host_func"};
  std::map<std::string, int> calls;
  for (const char* slot : slots) calls[slot] = toy().calls(slot);
  void* out = nullptr;
  openreg_event made = nullptr;
  uint64_t free_bytes = 0;
  uint64_t total = 0;
  const auto all_fail = [&] {
    EXPECT_EQ(openreg_memcpy(bytes, OPENREG_HOST, memory, 1, 16), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(last_message(),
              "openreg_memcpy: driver \"full_toy\": openreg:1 was lost in an earlier call: copy was told to fail "
              "(OPENREG_E_DEVICE_LOST)");
    EXPECT_EQ(openreg_last_error()->vendor_code, 42);
    EXPECT_EQ(openreg_memcpy_async(0, 0, on_other, 0, memory, 1, 16), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_memcpy_async(0, 0, memory, 1, on_other, 0, 16), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_memset_async(1, 0, memory, 0, 16), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_malloc(1, 0, 4096, &out), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_malloc(1, 0, 100 << 20, &out), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_host_alloc(1, 64, &out), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_device_synchronize(1), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_stream_synchronize(1, stream), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_stream_query(1, stream, &done), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_event_record(event, 1, stream), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_event_query(event, &done), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_event_synchronize(event), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_stream_wait_event(0, 0, event), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_event_create(1, 0, &made), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_set_device(1), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_memory_get_info(1, &free_bytes, &total), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_stream_launch_host_func(1, stream, [](void*) {}, nullptr), OPENREG_E_DEVICE_LOST);
  };
  all_fail();
  for (const char* slot : slots) EXPECT_EQ(toy().calls(slot), calls[slot]) << slot;

  EXPECT_EQ(openreg_memset_async(0, 0, on_other, 1, 16), OPENREG_OK);
  EXPECT_EQ(openreg_event_record(elsewhere, 0, 0), OPENREG_OK);
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK);
  EXPECT_EQ(openreg_free(allocate(0, 100 << 10)), OPENREG_OK);

  for (void* ptr : {memory, used_elsewhere, on_other}) EXPECT_EQ(openreg_free(ptr), OPENREG_OK) << last_message();
  free_pinned(pinned);
  destroy(event);
  destroy(elsewhere);
  EXPECT_EQ(openreg_memory_empty_cache(1), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
  EXPECT_EQ(toy().live("memory"), 0);
  EXPECT_EQ(toy().live("host"), 0);
  forget_lines();
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(toy().live("stream"), 0);
  EXPECT_EQ(toy().live("event"), 0);
  EXPECT_TRUE(lines(OPENREG_LOG_WARNING).empty());
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_OK);
}

// Selecting the same drivers again ends a loss, too, once nothing is in use.
TEST_F(DriverCallsTest, LossEndsWithTheSameDrivers) {
  use_full_toy();
  void* const block = allocate(1, 4096);
  toy().fail("device_sync", 1, OPENREG_E_DEVICE_LOST, 0);
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_E_DEVICE_LOST);
  expect_error(openreg_drivers_use("full_toy"), OPENREG_E_BUSY, "1 live allocation(s) on driver 'full_toy'");
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  EXPECT_EQ(openreg_drivers_use("full_toy"), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_OK) << last_message();
}

// Blocks that wait for a stream of a device are free once it is lost: nothing runs there any more.
TEST_F(DriverCallsTest, LossEndsWaiting) {
  use_full_toy();
  for (const char* slot : {"event_sync", "event_query", "event_create", "event_record"}) {
    SCOPED_TRACE(slot);
    const openreg_stream stream = from_pool(0);
    void* kept = allocate(0, 4096);
    void* block = allocate(0, 30 << 20);
    ASSERT_EQ(openreg_memory_record_stream(block, 0, stream), OPENREG_OK);
    toy().hold(1);
    toy().fail(slot, 1, OPENREG_E_DEVICE_LOST, 0);
    EXPECT_EQ(openreg_free(block), OPENREG_OK) << last_message();
    void* out = nullptr;
    if (std::string(slot) == "event_query") {
      EXPECT_EQ(openreg_malloc(0, 0, 512, &out), OPENREG_E_DEVICE_LOST);
    }
    EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
    EXPECT_EQ(toy().live("memory"), 1);
    EXPECT_EQ(openreg_malloc(0, 0, 512, &out), OPENREG_E_DEVICE_LOST);
    EXPECT_EQ(openreg_memcpy(kept, 0, &out, OPENREG_HOST, sizeof out), OPENREG_E_DEVICE_LOST);  // visible to the host
    EXPECT_EQ(openreg_free(kept), OPENREG_OK);
    toy().hold(0);
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  }
}

}  // namespace
}  // namespace openreg_test
