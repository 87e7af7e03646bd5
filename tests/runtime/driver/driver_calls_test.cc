// SPDX-License-Identifier: BSD-3-Clause
// What the runtime makes of a driver's memory slots that are missing, that fail half-way, or that break the contract.
#include <openreg/allocator.h>

#include <cstring>

#include "runtime_test.h"

using openreg_test::last_message;
using openreg_test::RuntimeTest;
using openreg_test::toy;

namespace {

class DriverCallsTest : public RuntimeTest {
 protected:
  static void* allocate(int32_t device, size_t size) {
    void* memory = nullptr;
    EXPECT_EQ(openreg_malloc(device, size, 0, &memory), OPENREG_OK) << last_message();
    return memory;
  }
};

openreg_status gives_nothing(openreg_instance, uint64_t, void**) { return OPENREG_OK; }
openreg_status no_alias(openreg_instance, int32_t, void*, void**) { return OPENREG_OK; }

// A slot that succeeds and gives nothing is a defect of the driver, and named as such.
TEST_F(DriverCallsTest, SuccessWithoutAResultIsADefect) {
  use_full_toy([](openreg_driver& table) {
    table.host_alloc = gives_nothing;
    table.host_alias = no_alias;
  });
  void* memory = this;
  EXPECT_EQ(openreg_malloc_host(0, 64, &memory), OPENREG_E_INTERNAL);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(last_message(),
            "openreg_malloc_host: driver \"full_toy\": host_alloc succeeded but gave no memory "
            "(OPENREG_E_INTERNAL)");
  EXPECT_STREQ(openreg_last_error()->driver, "full_toy");
  EXPECT_EQ(openreg_malloc(0, 64, 0, &memory), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(), "host_alias succeeded but gave no address");
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(toy().live("memory"), 0);
}

// Running out of memory keeps what the driver said of it, beside the runtime's figures.
TEST_F(DriverCallsTest, OutOfMemoryKeepsTheDriversText) {
  use_full_toy();
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  toy().fail("mem_alloc", 1, OPENREG_E_NOMEM, FULL_TOY_FOREVER);
  void* memory = nullptr;
  EXPECT_EQ(openreg_malloc(0, 3 << 20, 0, &memory), OPENREG_E_NOMEM);
  EXPECT_CONTAINS(last_message(), "Tried to allocate 3.00 MiB.");
  EXPECT_CONTAINS(last_message(), "unallocated; the driver said: mem_alloc was told to fail (vendor code 42)");
  EXPECT_EQ(openreg_last_error()->vendor_code, 42);
  EXPECT_STREQ(openreg_last_error()->driver, "full_toy");
  toy().fail("mem_alloc", 0, OPENREG_OK, 0);
  // A limit of the process is no word of the driver's.
  ASSERT_EQ(openreg_set_memory_fraction(0, 1e-6), OPENREG_OK);
  EXPECT_EQ(openreg_malloc(0, 3 << 20, 0, &memory), OPENREG_E_NOMEM);
  EXPECT_EQ(last_message().find("the driver said"), std::string::npos) << last_message();
  EXPECT_EQ(last_message().back(), '.');
}

// A fill by copying that fails in the middle is an error; the device is synchronised before the buffer that it
// copies from is freed.
TEST_F(DriverCallsTest, MadeUpFillThatFails) {
  use_full_toy([](openreg_driver& table) { table.fill = nullptr; });
  const size_t size = size_t{3} << 20;
  void* memory = allocate(0, size);
  toy().fail("copy", 2, OPENREG_E_DEVICE_LOST, 0);
  EXPECT_EQ(openreg_memset_async(memory, 0, 1, size, 0), OPENREG_E_DEVICE_LOST);
  EXPECT_CONTAINS(last_message(), "copy was told to fail");
  EXPECT_EQ(toy().calls("device_sync"), 1);
  toy().fail("device_sync", 1, OPENREG_E_DEVICE_LOST, 0);
  EXPECT_EQ(openreg_memset_async(memory, 0, 1, size, 0), OPENREG_E_DEVICE_LOST);
  EXPECT_CONTAINS(last_message(), "device_sync was told to fail");
  EXPECT_EQ(openreg_memset_async(memory, 0, 1, size, 0), OPENREG_OK);
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
}

// Size 0 is valid and reaches no driver.
TEST_F(DriverCallsTest, SizeZero) {
  use_full_toy();
  void* memory = allocate(0, 16);
  EXPECT_EQ(openreg_memset_async(memory, 0, 1, 0, 0), OPENREG_OK);
  EXPECT_EQ(openreg_memcpy_async(memory, 0, &memory, OPENREG_HOST, 0, 0, 0), OPENREG_OK);
  EXPECT_EQ(toy().calls("fill"), 0);
  EXPECT_EQ(toy().calls("copy"), 0);
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
}

// Native slots are used where they are there.
TEST_F(DriverCallsTest, NativeSlotsAreUsed) {
  use_full_toy();
  void* memory = allocate(1, 16);
  char bytes[16] = {};
  ASSERT_EQ(openreg_memset_async(memory, 1, 7, 16, 0), OPENREG_OK);
  EXPECT_EQ(toy().calls("fill"), 1);
  ASSERT_EQ(openreg_memcpy(bytes, OPENREG_HOST, memory, 1, 16), OPENREG_OK);
  EXPECT_EQ(bytes[15], 7);
  uint64_t free_bytes = 0;
  uint64_t total = 0;
  ASSERT_EQ(openreg_get_memory_info(1, &free_bytes, &total), OPENREG_OK);
  EXPECT_EQ(free_bytes, uint64_t{1} << 29);
  EXPECT_EQ(total, uint64_t{1} << 30);
  void* pinned = nullptr;
  ASSERT_EQ(openreg_malloc_host(1, 16, &pinned), OPENREG_OK);
  EXPECT_EQ(toy().live("host"), 1);
  EXPECT_EQ(openreg_free_host(pinned), OPENREG_OK);
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
}

}  // namespace
