/* SPDX-License-Identifier: BSD-3-Clause */
// cache_check.h: checks that what the caching allocator says about itself fits together.
#ifndef OPENREG_TESTS_CACHE_CHECK_H
#define OPENREG_TESTS_CACHE_CHECK_H

#include <openreg/openreg.h>

#include <cstring>
#include <map>
#include <vector>

#include "runtime_test.h"

namespace openreg_test {

// For a driver's device_info(): what `Change` writes.
template <typename Change>
auto device_info_of(Change) {
  return [](openreg_instance, int32_t, openreg_device_info* inout) {
    Change{}(*inout);
    return openreg_status{OPENREG_OK};
  };
}

inline std::vector<openreg_block_info> snapshot(int32_t device) {
  std::vector<openreg_block_info> blocks;
  const auto visit = [](void* ctx, const openreg_block_info* block) {
    static_cast<std::vector<openreg_block_info>*>(ctx)->push_back(*block);
    return 0;
  };
  EXPECT_EQ(openreg_memory_visit_blocks(device, visit, &blocks), OPENREG_OK) << last_message();
  return blocks;
}

inline openreg_memory_stats stats_of(int32_t device) {
  auto stats = sized<openreg_memory_stats>();
  EXPECT_EQ(openreg_memory_get_stats(device, &stats), OPENREG_OK) << last_message();
  return stats;
}

// Blocks tile their segments; no two neighbours are both free; every sum over the snapshot equals its statistic; pools
// add up. Only for a device that no other thread uses meanwhile.
inline void check_cache(int32_t device) {
  struct Sums {
    int64_t allocation = 0, allocated_bytes = 0, requested_bytes = 0, active = 0, active_bytes = 0, segment = 0,
            reserved_bytes = 0, inactive_split = 0, inactive_split_bytes = 0;
  };
  Sums sums[3];
  const auto blocks = snapshot(device);
  std::map<void*, int> blocks_of_segment;
  for (const auto& block : blocks) ++blocks_of_segment[block.segment];
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& block = blocks[i];
    const bool first = i == 0 || blocks[i - 1].segment != block.segment;
    const bool last = i + 1 == blocks.size() || blocks[i + 1].segment != block.segment;
    auto* const start = static_cast<char*>(block.segment);
    auto* const address = static_cast<char*>(block.address);
    ASSERT_EQ(block.size % 512, 0u);
    ASSERT_GT(block.size, 0u);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(address) % 512, 0u);
    if (first) {
      ASSERT_EQ(address, start);
    } else {
      ASSERT_EQ(address, static_cast<char*>(blocks[i - 1].address) + blocks[i - 1].size);
      ASSERT_FALSE(block.state == OPENREG_BLOCK_FREE && blocks[i - 1].state == OPENREG_BLOCK_FREE);
    }
    if (last) {
      ASSERT_EQ(address + block.size, start + block.segment_size);
    }
    for (const int pool : {0, block.large ? 2 : 1}) {
      Sums& sum = sums[pool];
      if (first) {
        ++sum.segment;
        sum.reserved_bytes += static_cast<int64_t>(block.segment_size);
      }
      const auto size = static_cast<int64_t>(block.size);
      if (block.state == OPENREG_BLOCK_ALLOCATED) {
        ASSERT_LE(block.requested, block.size);
        ++sum.allocation;
        sum.allocated_bytes += size;
        sum.requested_bytes += static_cast<int64_t>(block.requested);
      }
      if (block.state != OPENREG_BLOCK_FREE) {
        ++sum.active;
        sum.active_bytes += size;
      } else if (blocks_of_segment[block.segment] > 1) {
        ++sum.inactive_split;
        sum.inactive_split_bytes += size;
      }
    }
  }
  const auto stats = stats_of(device);
  for (int pool = 0; pool < 3; ++pool) {
    SCOPED_TRACE(pool);
    ASSERT_EQ(stats.allocation[pool].current, sums[pool].allocation);
    ASSERT_EQ(stats.allocated_bytes[pool].current, sums[pool].allocated_bytes);
    ASSERT_EQ(stats.requested_bytes[pool].current, sums[pool].requested_bytes);
    ASSERT_EQ(stats.active[pool].current, sums[pool].active);
    ASSERT_EQ(stats.active_bytes[pool].current, sums[pool].active_bytes);
    ASSERT_EQ(stats.segment[pool].current, sums[pool].segment);
    ASSERT_EQ(stats.reserved_bytes[pool].current, sums[pool].reserved_bytes);
    ASSERT_EQ(stats.inactive_split[pool].current, sums[pool].inactive_split);
    ASSERT_EQ(stats.inactive_split_bytes[pool].current, sums[pool].inactive_split_bytes);
    for (const openreg_stat* stat :
         {&stats.allocation[pool], &stats.allocated_bytes[pool], &stats.requested_bytes[pool], &stats.active[pool],
          &stats.active_bytes[pool], &stats.segment[pool], &stats.reserved_bytes[pool], &stats.inactive_split[pool],
          &stats.inactive_split_bytes[pool]}) {
      ASSERT_EQ(stat->allocated - stat->freed, stat->current);  // no reset in between
      ASSERT_GE(stat->peak, stat->current);
      ASSERT_GE(stat->freed, 0);
    }
    ASSERT_GE(stats.active[pool].peak, stats.allocation[pool].peak);
  }
}

}  // namespace openreg_test

#endif
