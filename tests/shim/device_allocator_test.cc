// SPDX-License-Identifier: BSD-3-Clause
// c10::DeviceAllocator on the runtime's caching allocator.
#include "shim/memory/device_allocator.h"

#include <c10/core/Allocator.h>
#include <openreg/allocator.h>

#include <numeric>
#include <thread>
#include <vector>

#include "shim/device/device.h"
#include "tests/shim/support.h"

namespace {

using namespace openreg_test;
using c10::openreg::device_allocator;

class DeviceAllocatorTest : public ShimTest {
 protected:
  static int64_t allocated(c10::DeviceIndex index) {
    return device_allocator().getDeviceStats(index).allocated_bytes[0].current;
  }
};

// It is what PyTorch finds, and what torch.accelerator.memory_* need.
TEST_F(DeviceAllocatorTest, IsRegistered) {
  EXPECT_EQ(c10::GetAllocator(c10::DeviceType::PrivateUse1), &device_allocator());
  EXPECT_EQ(c10::getDeviceAllocator(c10::DeviceType::PrivateUse1), &device_allocator());
}

// allocate() uses the current device, allocate_on() any, and neither changes it.
TEST_F(DeviceAllocatorTest, Allocates) {
  const int64_t before[] = {allocated(0), allocated(1)};
  {
    const c10::DataPtr here = device_allocator().allocate(1000);
    const c10::DataPtr there = device_allocator().allocate_on(1, 5000);
    EXPECT_EQ(here.device(), device(0));
    EXPECT_EQ(there.device(), device(1));
    EXPECT_NE(here.get(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(here.get()) % 512, 0u);
    EXPECT_EQ(allocated(0), before[0] + 1024);
    EXPECT_EQ(allocated(1), before[1] + 5120);
    const c10::DeviceGuard on(device(1));
    EXPECT_EQ(device_allocator().allocate(8).device(), device(1));
    EXPECT_EQ(device_allocator().allocate_on(-1, 8).device(), device(1));
  }
  EXPECT_EQ(allocated(0), before[0]);
  EXPECT_EQ(allocated(1), before[1]);
}

// A block belongs to the stream that is current on its own device, whichever device is current.
TEST_F(DeviceAllocatorTest, BelongsToTheCurrentStreamOfItsDevice) {
  const c10::Stream stream = guard().getNewStream(device(1), 0);
  const c10::Stream before = guard().exchangeStream(stream);
  const c10::DataPtr block = device_allocator().allocate_on(1, 100);
  guard().exchangeStream(before);

  struct Search {
    const void* address;
    openreg_stream stream = -1;
  } search{block.get()};
  const auto visit = [](void* context, const openreg_block_info* info) {
    auto& wanted = *static_cast<Search*>(context);
    if (info->address == wanted.address) {
      wanted.stream = info->stream;
    }
    return 0;
  };
  ASSERT_EQ(openreg_memory_visit_blocks(1, visit, &search), OPENREG_OK);
  EXPECT_EQ(search.stream, stream.id());
}

// 0 bytes: no memory, but a device.
TEST_F(DeviceAllocatorTest, NoBytes) {
  const c10::DataPtr nothing = device_allocator().allocate_on(1, 0);
  EXPECT_EQ(nothing.get(), nullptr);
  EXPECT_EQ(nothing.device(), device(1));
  EXPECT_EQ(nothing.get_deleter(), device_allocator().raw_deleter());
}

// The raw interface needs one constant deleter and context == data.
TEST_F(DeviceAllocatorTest, RawInterface) {
  const int64_t before = allocated(0);
  void* block = device_allocator().raw_allocate(512);
  EXPECT_EQ(allocated(0), before + 512);
  device_allocator().raw_deallocate(block);
  EXPECT_EQ(allocated(0), before);
  device_allocator().raw_deallocate(nullptr);
  EXPECT_EQ(device_allocator().raw_deleter(), device_allocator().raw_deleter());
}

// A block may be freed by a thread that never used the device, and stays with its device.
TEST_F(DeviceAllocatorTest, FreedInAnotherThread) {
  const int64_t before = allocated(1);
  c10::DataPtr block = device_allocator().allocate_on(1, 4096);
  std::thread([&] { block.clear(); }).join();
  EXPECT_EQ(allocated(1), before);
}

// copy_data() and clone() move bytes, also between devices.
TEST_F(DeviceAllocatorTest, CopiesData) {
  std::vector<unsigned char> bytes(3000);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(7));
  const c10::DataPtr source = device_allocator().allocate_on(0, bytes.size());
  ASSERT_EQ(openreg_memcpy(source.get(), 0, bytes.data(), OPENREG_HOST, bytes.size()), OPENREG_OK);
  const c10::DataPtr same = device_allocator().clone(source.get(), bytes.size());
  const c10::DataPtr other = device_allocator().allocate_on(1, bytes.size());
  device_allocator().copy_data(other.get(), source.get(), bytes.size());
  device_allocator().copy_data(nullptr, nullptr, 0);
  for (const c10::DataPtr* copy : {&same, &other}) {
    std::vector<unsigned char> back(bytes.size());
    ASSERT_EQ(openreg_memcpy(back.data(), OPENREG_HOST, copy->get(), copy->device().index(), back.size()), OPENREG_OK);
    EXPECT_EQ(back, bytes);
  }
}

// Too much is a typed error with figures, nothing is lost, and what fits still works.
TEST_F(DeviceAllocatorTest, OutOfMemory) {
  const int64_t before = allocated(0);
  const int64_t ooms = device_allocator().getDeviceStats(0).num_ooms;
  const std::string text = error_of<c10::OutOfMemoryError>([] { device_allocator().allocate(size_t{1} << 40); });
  EXPECT_HAS(text, "OPENREG_E_NOMEM");
  EXPECT_EQ(allocated(0), before);
  EXPECT_EQ(device_allocator().getDeviceStats(0).num_ooms, ooms + 1);
  EXPECT_NE(device_allocator().allocate(1 << 20).get(), nullptr);
  // So is a size that no address space has.
  EXPECT_HAS(error_of<c10::OutOfMemoryError>([] { device_allocator().allocate(size_t{1} << 60); }),
             "at most 2^47 bytes");
}

// Every figure of the runtime reaches its field.
TEST_F(DeviceAllocatorTest, StatisticsAreTheRuntimes) {
  device_allocator().emptyCache();
  device_allocator().resetPeakStats(0);
  device_allocator().resetAccumulatedStats(0);
  {
    const c10::DataPtr dropped = device_allocator().allocate(4 << 20);
  }
  const c10::DataPtr small = device_allocator().allocate(1000);
  const c10::DataPtr large = device_allocator().allocate(3 << 20);

  openreg_memory_stats raw{};
  raw.struct_size = sizeof raw;
  ASSERT_EQ(openreg_memory_get_stats(0, &raw), OPENREG_OK);
  const auto stats = device_allocator().getDeviceStats(0);
  const auto same = [](const c10::CachingAllocator::Stat& left, const openreg_stat& right) {
    return left.current == right.current && left.peak == right.peak && left.allocated == right.allocated &&
           left.freed == right.freed;
  };
  for (size_t pool = 0; pool < 3; ++pool) {
    EXPECT_TRUE(same(stats.allocation[pool], raw.allocation[pool])) << pool;
    EXPECT_TRUE(same(stats.segment[pool], raw.segment[pool])) << pool;
    EXPECT_TRUE(same(stats.active[pool], raw.active[pool])) << pool;
    EXPECT_TRUE(same(stats.inactive_split[pool], raw.inactive_split[pool])) << pool;
    EXPECT_TRUE(same(stats.allocated_bytes[pool], raw.allocated_bytes[pool])) << pool;
    EXPECT_TRUE(same(stats.reserved_bytes[pool], raw.reserved_bytes[pool])) << pool;
    EXPECT_TRUE(same(stats.active_bytes[pool], raw.active_bytes[pool])) << pool;
    EXPECT_TRUE(same(stats.inactive_split_bytes[pool], raw.inactive_split_bytes[pool])) << pool;
    EXPECT_TRUE(same(stats.requested_bytes[pool], raw.requested_bytes[pool])) << pool;
  }
  EXPECT_EQ(stats.num_device_alloc, raw.num_device_alloc);
  EXPECT_EQ(stats.num_device_free, raw.num_device_free);
  EXPECT_EQ(stats.num_alloc_retries, raw.num_alloc_retries);
  EXPECT_EQ(stats.max_split_size, raw.max_split_size);
  // And the figures themselves: 4 MiB came and went, 1000 bytes and 3 MiB are held.
  EXPECT_EQ(stats.allocation[0].allocated, 3);
  EXPECT_EQ(stats.allocation[0].freed, 1);
  EXPECT_EQ(stats.requested_bytes[0].current, 1000 + (3 << 20));
  EXPECT_EQ(stats.allocated_bytes[1].current, 1024);
  EXPECT_GE(stats.reserved_bytes[0].current, stats.allocated_bytes[0].current);

  device_allocator().resetAccumulatedStats(0);
  device_allocator().resetPeakStats(0);
  const auto reset = device_allocator().getDeviceStats(0);
  EXPECT_EQ(reset.allocation[0].allocated, 0);
  EXPECT_EQ(reset.allocated_bytes[0].peak, reset.allocated_bytes[0].current);
  EXPECT_THROW(device_allocator().getDeviceStats(2), c10::Error);
}

// emptyCache() gives memory back to the driver; with the id of a private pool, that pool's alone. A pool that does not
// exist has nothing to give.
TEST_F(DeviceAllocatorTest, EmptiesTheCache) {
  {
    const c10::DataPtr dropped = device_allocator().allocate(32 << 20);
  }
  EXPECT_GE(device_allocator().getDeviceStats(0).reserved_bytes[0].current, 32 << 20);
  const auto [free_before, total] = device_allocator().getMemoryInfo(0);
  device_allocator().emptyCache();
  const auto [free_after, total_after] = device_allocator().getMemoryInfo(0);
  EXPECT_EQ(total, size_t{256} << 20);
  EXPECT_EQ(total_after, total);
  EXPECT_GE(free_after, free_before + (size_t{32} << 20));
  ASSERT_EQ(openreg_memory_pool_retain(0, {0, 7}, 0), OPENREG_OK);
  ASSERT_EQ(openreg_memory_pool_enter(0, {0, 7}), OPENREG_OK);
  (void)device_allocator().allocate_on(0, 100);
  ASSERT_EQ(openreg_memory_pool_leave(0, {0, 7}), OPENREG_OK);
  const auto reserved = [] { return device_allocator().getDeviceStats(0).reserved_bytes[0].current; };
  const int64_t before = reserved();
  device_allocator().emptyCache();
  EXPECT_EQ(reserved(), before);
  const auto pools = c10::openreg::private_pools(0);
  ASSERT_EQ(pools.size(), 1u);
  EXPECT_EQ(pools[0].first, c10::MempoolId_t(0, 7));
  EXPECT_EQ(pools[0].second[0].current, 2 << 20);
  device_allocator().emptyCache({0, 8});
  EXPECT_EQ(reserved(), before);
  device_allocator().emptyCache({0, 7});
  EXPECT_EQ(reserved(), before - (2 << 20));
  EXPECT_EQ(openreg_memory_pool_release(0, {0, 7}), OPENREG_OK);
}

// Streams of every openreg device may use the block, others not; memory of others is ignored.
TEST_F(DeviceAllocatorTest, RecordStreamChecksItsArguments) {
  const c10::DataPtr block = device_allocator().allocate(1000);
  const c10::Stream mine = guard().getNewStream(device(0), 0);
  EXPECT_NO_THROW(guard().recordDataPtrOnStream(block, mine));
  EXPECT_NO_THROW(device_allocator().recordStream(c10::DataPtr(), mine));
  EXPECT_NO_THROW(device_allocator().recordStream(block, guard().getDefaultStream(device(1))));
  EXPECT_THROW(
      device_allocator().recordStream(block, c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CPU))),
      c10::Error);
  int on_the_stack = 0;
  EXPECT_NO_THROW(device_allocator().recordStream(c10::DataPtr(&on_the_stack, device(0)), mine));
}

// The deleter may not throw: freeing twice is a warning.
TEST_F(DeviceAllocatorTest, FreeingTwiceWarns) {
  struct Handler : c10::WarningHandler {
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
    std::vector<std::string> texts;
  } handler;
  const c10::WarningUtils::WarningHandlerGuard installed(&handler);
  void* block = device_allocator().raw_allocate(512);
  device_allocator().raw_deallocate(block);
  EXPECT_TRUE(handler.texts.empty());
  device_allocator().raw_deallocate(block);
  ASSERT_EQ(handler.texts.size(), 1u);
  EXPECT_HAS(handler.texts[0], "could not be freed");
}

}  // namespace
