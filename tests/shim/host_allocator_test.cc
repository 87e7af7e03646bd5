// SPDX-License-Identifier: BSD-3-Clause
// Pinned host memory through PyTorch's caching host allocator.
#include "shim/memory/host_allocator.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/shim/support.h"

namespace {

using namespace openreg_test;
using c10::openreg::host_allocator;

int32_t kind_of(const void* pointer) {
  openreg_pointer_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(openreg_get_pointer_info(pointer, &info), OPENREG_OK);
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

TEST_F(HostAllocatorTest, Statistics) {
  host_allocator().reset_accumulated_stats();
  host_allocator().reset_peak_stats();
  const c10::DataPtr block = host_allocator().allocate(4096);
  {
    const c10::DataPtr dropped = host_allocator().allocate(8192);
  }
  const at::HostStats stats = host_allocator().get_stats();
  EXPECT_EQ(stats.active_requests.current, 1);
  EXPECT_EQ(stats.active_bytes.current, 4096);
  EXPECT_EQ(stats.allocations.current, 2);
  EXPECT_EQ(stats.allocated_bytes.current, 4096 + 8192);
  EXPECT_EQ(stats.num_host_alloc, 2);
  EXPECT_EQ(stats.host_alloc_time.count, 2);
  host_allocator().empty_cache();
  EXPECT_EQ(host_allocator().get_stats().num_host_free, 1);
  EXPECT_EQ(host_allocator().get_stats().host_free_time.count, 1);
  EXPECT_EQ(host_allocator().get_stats().allocated_bytes.current, 4096);
}

// A pinned block serves asynchronous copies of every device, and a block in use is not given out again: what the
// device received is what was there when the copy was queued.
TEST_F(HostAllocatorTest, ABlockInUseIsNotReused) {
  constexpr size_t size = size_t{1} << 20;
  for (const c10::DeviceIndex index : {c10::DeviceIndex{0}, c10::DeviceIndex{1}}) {
    const c10::Stream stream = guard().getNewStream(device(index), 0);
    void* to = nullptr;
    ASSERT_EQ(openreg_malloc(index, size, stream.id(), &to), OPENREG_OK);
    for (int round = 0; round < 20; ++round) {
      {
        const c10::DataPtr block = host_allocator().allocate(size);
        std::memset(block.get(), round, size);
        ASSERT_EQ(openreg_memcpy_async(to, index, block.get(), OPENREG_HOST, size, index, stream.id()), OPENREG_OK);
        EXPECT_TRUE(host_allocator().record_event(block.get(), block.get_context(), stream));
      }
      const c10::DataPtr next = host_allocator().allocate(size);
      std::memset(next.get(), 0xff, size);  // would spoil a copy that still reads the block
      guard().synchronizeStream(stream);
      std::vector<unsigned char> back(size);
      ASSERT_EQ(openreg_memcpy(back.data(), OPENREG_HOST, to, index, size), OPENREG_OK);
      EXPECT_EQ(back, std::vector<unsigned char>(size, static_cast<unsigned char>(round)));
    }
    ASSERT_EQ(openreg_free(to), OPENREG_OK);
  }
  int on_the_stack = 0;
  EXPECT_FALSE(host_allocator().record_event(&on_the_stack, &on_the_stack, guard().getDefaultStream(device(0))));
}

// DataLoader's pin thread frees and allocates beside the main thread.
TEST_F(HostAllocatorTest, Threads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const c10::DataPtr block = host_allocator().allocate(static_cast<size_t>(512 << (i % 4)));
        std::memset(block.get(), t, 512);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(host_allocator().get_stats().active_requests.current, 0);
}

}  // namespace
