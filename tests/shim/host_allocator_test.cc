// SPDX-License-Identifier: BSD-3-Clause
// Pinned host memory through PyTorch's caching host allocator.
#include "shim/memory/host_allocator.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>

#include <cstring>

#include "tests/shim/support.h"

namespace {

using namespace openreg_test;
using c10::openreg::host_allocator;

int32_t kind_of(const void* pointer) {
  openreg_pointer_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(openreg_pointer_get_info(pointer, &info), OPENREG_OK);
  return info.kind;
}

class HostAllocatorTest : public ShimTest {
 protected:
  void SetUp() override {
    ShimTest::SetUp();
    host_allocator().empty_cache();
  }
};

TEST_F(HostAllocatorTest, IsRegistered) {
  EXPECT_EQ(at::getHostAllocator(c10::DeviceType::PrivateUse1), &host_allocator());
  EXPECT_EQ(at::globalContext().getPinnedMemoryAllocator(c10::DeviceType::PrivateUse1), &host_allocator());
}

// The memory is pinned by the runtime, usable by the host, and a CPU DataPtr.
TEST_F(HostAllocatorTest, AllocatesPinnedMemory) {
  const c10::DataPtr block = host_allocator().allocate(10000);
  ASSERT_NE(block.get(), nullptr);
  EXPECT_EQ(block.device(), c10::Device(c10::DeviceType::CPU));
  EXPECT_EQ(kind_of(block.get()), OPENREG_POINTER_PINNED);
  std::memset(block.get(), 0x5a, 10000);
  const c10::DataPtr copy = host_allocator().clone(block.get(), 10000);
  EXPECT_EQ(std::memcmp(copy.get(), block.get(), 10000), 0);
  EXPECT_EQ(host_allocator().allocate(0).get(), nullptr);
}

// A freed block is given out again, and goes back to the driver when the cache is emptied.
TEST_F(HostAllocatorTest, CachesBlocks) {
  void* first = host_allocator().allocate(5000).get();
  const c10::DataPtr again = host_allocator().allocate(5000);
  EXPECT_EQ(again.get(), first);
  void* dropped = host_allocator().allocate(6000).get();
  EXPECT_EQ(kind_of(dropped), OPENREG_POINTER_PINNED);
  host_allocator().empty_cache();
  EXPECT_EQ(kind_of(dropped), OPENREG_POINTER_UNKNOWN);
  EXPECT_EQ(kind_of(again.get()), OPENREG_POINTER_PINNED);
}

}  // namespace
