// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the caching allocator: statistics, segments, free memory.
#include <openreg/allocator.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings.h"
#include "shim/device.h"
#include "shim/device_allocator.h"
#include "shim/status.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

c10::DeviceIndex device_argument(PyObject* device, const char* function) {
  return c10::openreg::index_or_current(unpack_device_index(device, function));
}

py::dict stat_dict(const openreg_stat& stat) {
  py::dict to;
  to["current"] = stat.current;
  to["peak"] = stat.peak;
  to["allocated"] = stat.allocated;
  to["freed"] = stat.freed;
  return to;
}

py::dict stat_dict(const openreg_stat (&stats)[3]) {
  py::dict to;
  to["all"] = stat_dict(stats[0]);
  to["small_pool"] = stat_dict(stats[1]);
  to["large_pool"] = stat_dict(stats[2]);
  return to;
}

// Called under the allocator's lock: no Python here.
int collect_pool(void* context, const openreg_memory_pool_info* pool) noexcept {
  try {
    static_cast<std::vector<openreg_memory_pool_info>*>(context)->push_back(*pool);
    return 0;
  } catch (...) {
    return 1; // out of host memory: ends the walk
  }
}

py::dict private_pools_dict(c10::DeviceIndex device) {
  std::vector<openreg_memory_pool_info> pools;
  OPENREG_CHECK(openreg_visit_memory_pools(device, &collect_pool, &pools));
  py::dict to;
  for (const openreg_memory_pool_info& pool : pools) {
    if (pool.uses > 0) {
      to[py::make_tuple(pool.id.first, pool.id.second)] = stat_dict(pool.reserved);
    }
  }
  return to;
}

const char* block_state(int32_t state) {
  switch (state) {
    case OPENREG_BLOCK_ALLOCATED:
      return "active_allocated";
    case OPENREG_BLOCK_AWAITING_FREE:
      return "active_awaiting_free";
    default:
      return "inactive";
  }
}

// Called under the allocator's lock: no Python here, since a collection could free tensors.
int collect(void* context, const openreg_block_info* block) noexcept {
  try {
    static_cast<std::vector<openreg_block_info>*>(context)->push_back(*block);
    return 0;
  } catch (...) {
    return 1; // out of host memory: ends the walk
  }
}

py::dict block_dict(const openreg_block_info& block) {
  py::dict to;
  to["address"] = reinterpret_cast<uintptr_t>(block.address);
  to["size"] = block.size;
  to["requested_size"] = block.requested;
  to["state"] = block_state(block.state);
  return to;
}

// The keys of torch.cuda.memory_snapshot(). `begin` to `end` are the blocks of one segment.
template <class Iterator>
py::dict segment_dict(c10::DeviceIndex device, Iterator begin, Iterator end) {
  uint64_t allocated = 0;
  uint64_t active = 0;
  uint64_t requested = 0;
  py::list blocks;
  for (Iterator block = begin; block != end; ++block) {
    blocks.append(block_dict(*block));
    if (block->state == OPENREG_BLOCK_ALLOCATED) {
      allocated += block->size;
      requested += block->requested;
    }
    if (block->state != OPENREG_BLOCK_FREE) {
      active += block->size;
    }
  }
  py::dict to;
  to["device"] = static_cast<int>(device);
  to["address"] = reinterpret_cast<uintptr_t>(begin->segment);
  to["total_size"] = begin->segment_size;
  to["allocated_size"] = allocated;
  to["active_size"] = active;
  to["requested_size"] = requested;
  to["stream"] = begin->stream;
  to["segment_type"] = begin->large != 0 ? "large" : "small";
  to["segment_pool_id"] = py::make_tuple(begin->pool[0], begin->pool[1]);
  to["is_expandable"] = begin->expandable != 0;
  to["blocks"] = std::move(blocks);
  return to;
}

} // namespace

PyObject* _memoryStats(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  openreg_memory_stats stats{};
  stats.struct_size = sizeof stats;
  const c10::DeviceIndex index = device_argument(device, "memoryStats");
  OPENREG_CHECK(openreg_get_memory_stats(index, &stats));
  py::dict to;
  to["allocation"] = stat_dict(stats.allocation);
  to["segment"] = stat_dict(stats.segment);
  to["active"] = stat_dict(stats.active);
  to["inactive_split"] = stat_dict(stats.inactive_split);
  to["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  to["reserved_bytes"] = stat_dict(stats.reserved_bytes);
  to["active_bytes"] = stat_dict(stats.active_bytes);
  to["inactive_split_bytes"] = stat_dict(stats.inactive_split_bytes);
  to["requested_bytes"] = stat_dict(stats.requested_bytes);
  to["oversize_allocations"] = stat_dict(stats.oversize_allocations);
  to["oversize_segments"] = stat_dict(stats.oversize_segments);
  to["num_alloc_retries"] = stats.num_alloc_retries;
  to["num_ooms"] = stats.num_ooms;
  to["num_device_alloc"] = stats.num_device_alloc;
  to["num_device_free"] = stats.num_device_free;
  to["num_sync_all_streams"] = stats.num_sync_all_streams;
  to["max_split_size"] = stats.max_split_size;
  to["reserved_bytes_by_private_pools"] = private_pools_dict(index);
  return to.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _resetPeakMemoryStats(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  c10::openreg::device_allocator().resetPeakStats(unpack_device_index(device, "resetPeakMemoryStats"));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _resetAccumulatedMemoryStats(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  c10::openreg::device_allocator().resetAccumulatedStats(unpack_device_index(device, "resetAccumulatedMemoryStats"));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _emptyCache(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS {
    const py::gil_scoped_release no_gil; // waits for recorded streams
    c10::openreg::device_allocator().emptyCache();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _memGetInfo(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const auto [free_bytes, total_bytes] =
      c10::openreg::device_allocator().getMemoryInfo(unpack_device_index(device, "memGetInfo"));
  return py::make_tuple(free_bytes, total_bytes).release().ptr();
  END_HANDLE_TH_ERRORS
}

py::list memory_segments(c10::DeviceIndex device) {
  std::vector<openreg_block_info> blocks;
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_memory_snapshot(device, &collect, &blocks));
  }
  py::list segments;
  for (auto begin = blocks.begin(); begin != blocks.end();) {
    auto end = begin;
    while (end != blocks.end() && end->segment == begin->segment) {
      ++end;
    }
    segments.append(segment_dict(device, begin, end));
    begin = end;
  }
  return segments;
}

} // namespace torch_openreg
