// Bindings of the caching allocator: statistics, snapshot, free memory.
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

void add(py::dict& to, const std::string& prefix, const openreg_stat& stat) {
  to[py::str(prefix + ".current")] = stat.current;
  to[py::str(prefix + ".peak")] = stat.peak;
  to[py::str(prefix + ".allocated")] = stat.allocated;
  to[py::str(prefix + ".freed")] = stat.freed;
}

void add(py::dict& to, const std::string& name, const openreg_stat (&stats)[3]) {
  add(to, name + ".all", stats[0]);
  add(to, name + ".small_pool", stats[1]);
  add(to, name + ".large_pool", stats[2]);
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
  to["segment_pool_id"] = py::make_tuple(0, 0);
  to["is_expandable"] = false;
  to["blocks"] = std::move(blocks);
  return to;
}

} // namespace

PyObject* _memoryStats(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  openreg_memory_stats stats{};
  stats.struct_size = sizeof stats;
  OPENREG_CHECK(openreg_get_memory_stats(device_argument(device, "memoryStats"), &stats));
  py::dict to;
  add(to, "allocation", stats.allocation);
  add(to, "segment", stats.segment);
  add(to, "active", stats.active);
  add(to, "inactive_split", stats.inactive_split);
  add(to, "allocated_bytes", stats.allocated_bytes);
  add(to, "reserved_bytes", stats.reserved_bytes);
  add(to, "active_bytes", stats.active_bytes);
  add(to, "inactive_split_bytes", stats.inactive_split_bytes);
  add(to, "requested_bytes", stats.requested_bytes);
  add(to, "oversize_allocations", stats.oversize_allocations);
  add(to, "oversize_segments", stats.oversize_segments);
  to["num_alloc_retries"] = stats.num_alloc_retries;
  to["num_ooms"] = stats.num_ooms;
  to["num_device_alloc"] = stats.num_device_alloc;
  to["num_device_free"] = stats.num_device_free;
  to["num_sync_all_streams"] = stats.num_sync_all_streams;
  to["max_split_size"] = stats.max_split_size;
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
  c10::openreg::device_allocator().resetAccumulatedStats(
      unpack_device_index(device, "resetAccumulatedMemoryStats"));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _emptyCache(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  {
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

PyObject* _memorySnapshot(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const c10::DeviceIndex index = device_argument(device, "memorySnapshot");
  std::vector<openreg_block_info> blocks;
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_memory_snapshot(index, &collect, &blocks));
  }
  py::list segments;
  for (auto begin = blocks.begin(); begin != blocks.end();) {
    auto end = begin;
    while (end != blocks.end() && end->segment == begin->segment) {
      ++end;
    }
    segments.append(segment_dict(index, begin, end));
    begin = end;
  }
  return segments.release().ptr();
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
