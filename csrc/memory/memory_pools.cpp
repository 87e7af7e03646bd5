// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the allocator's private pools, limits and settings, of blocks without a tensor, and of pinned memory.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>
#include <openreg/allocator.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/base/arguments.h"
#include "csrc/base/bindings.h"
#include "csrc/base/device_index.h"
#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/memory/device_allocator.h"
#include "shim/memory/host_allocator.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

struct PoolArguments {
  c10::DeviceIndex device;
  openreg_memory_pool_id id;
};

// (device, (first, second))
PoolArguments pool_arguments(PyObject* arguments) {
  const auto [device, id] = argument_as<std::pair<int64_t, std::pair<uint64_t, uint64_t>>>(arguments, "memoryPool");
  return {c10::openreg::narrow_device_index(device), {id.first, id.second}};
}

// Runs a call of the runtime that may wait for a device.
template <class Call>
PyObject* run_without_gil(const Call& call) {
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(call());
  }
  Py_RETURN_NONE;
}

PyObject* _memoryPoolRetain(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const auto [device, id, use_on_oom, no_split] =
      argument_as<std::tuple<int64_t, std::pair<uint64_t, uint64_t>, bool, bool>>(arguments, "memoryPoolRetain");
  const uint32_t flags =
      (use_on_oom ? OPENREG_MEMORY_POOL_USE_ON_OOM : 0u) | (no_split ? OPENREG_MEMORY_POOL_NO_SPLIT : 0u);
  OPENREG_CHECK(openreg_memory_pool_retain(c10::openreg::narrow_device_index(device), {id.first, id.second}, flags));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _memoryPoolRelease(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const PoolArguments pool = pool_arguments(arguments);
  return run_without_gil([&pool] { return openreg_memory_pool_release(pool.device, pool.id); });
  END_HANDLE_TH_ERRORS
}

PyObject* _memoryPoolEnter(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const PoolArguments pool = pool_arguments(arguments);
  return run_without_gil([&pool] { return openreg_memory_pool_enter(pool.device, pool.id); });
  END_HANDLE_TH_ERRORS
}

PyObject* _memoryPoolLeave(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const PoolArguments pool = pool_arguments(arguments);
  return run_without_gil([&pool] { return openreg_memory_pool_leave(pool.device, pool.id); });
  END_HANDLE_TH_ERRORS
}

struct UseSearch {
  openreg_memory_pool_id id;
  int64_t uses;
};

int find_uses(void* context, const openreg_memory_pool_info* pool) noexcept {
  auto& search = *static_cast<UseSearch*>(context);
  if (pool->id.first != search.id.first || pool->id.second != search.id.second || pool->uses == 0) {
    return 0;
  }
  search.uses = pool->uses;
  return 1;
}

PyObject* _memoryPoolUses(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const PoolArguments pool = pool_arguments(arguments);
  UseSearch search{pool.id, 0};
  OPENREG_CHECK(openreg_memory_visit_pools(pool.device, &find_uses, &search));
  return PyLong_FromLongLong(search.uses);
  END_HANDLE_TH_ERRORS
}

PyObject* _rawAlloc(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const auto [device, size, stream] = argument_as<std::tuple<int64_t, size_t, openreg_stream>>(arguments, "rawAlloc");
  const c10::DeviceIndex index = c10::openreg::narrow_device_index(device);
  void* block = nullptr;
  {
    const py::gil_scoped_release no_gil;
    block = c10::openreg::device_allocator().allocate_block(index, size, stream);
  }
  return PyLong_FromVoidPtr(block);
  END_HANDLE_TH_ERRORS
}

PyObject* _rawDelete(PyObject* /*self*/, PyObject* address) {
  HANDLE_TH_ERRORS
  // Checked, unlike a tensor's deleter: the address is a caller's.
  auto* const block = reinterpret_cast<void*>(argument_as<uintptr_t>(address, "rawDelete"));
  return run_without_gil([block] { return openreg_free(block); });
  END_HANDLE_TH_ERRORS
}

PyObject* _setMemoryFraction(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const auto [device, fraction] = argument_as<std::pair<int64_t, double>>(arguments, "setMemoryFraction");
  OPENREG_CHECK(openreg_memory_set_fraction(c10::openreg::narrow_device_index(device), fraction));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _getMemoryFraction(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  double fraction = 1;
  OPENREG_CHECK(openreg_memory_get_fraction(unpack_device_index(device, "getMemoryFraction"), &fraction));
  return PyFloat_FromDouble(fraction);
  END_HANDLE_TH_ERRORS
}

PyObject* _setCaching(PyObject* /*self*/, PyObject* on) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(openreg_allocator_set_caching(argument_as<bool>(on, "setCaching") ? 1 : 0));
  END_HANDLE_TH_ERRORS
}

PyObject* _allocatorSettings(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  openreg_allocator_settings settings{};
  settings.struct_size = sizeof settings;
  OPENREG_CHECK(openreg_allocator_get_settings(&settings));
  py::dict divisions;
  for (size_t i = 0; i < OPENREG_ROUNDUP_INTERVALS; ++i) {
    divisions[py::str(std::to_string(size_t{1} << i))] = settings.roundup_divisions[i];
  }
  py::dict to;
  to["max_split_size"] =
      settings.max_split_size == UINT64_MAX ? int64_t{-1} : static_cast<int64_t>(settings.max_split_size);
  to["max_non_split_rounding"] = settings.max_non_split_rounding;
  to["large_segment_size"] = settings.large_segment_size;
  to["garbage_collection_threshold"] = settings.garbage_collection_threshold;
  to["per_process_memory_fraction"] = settings.memory_fraction;
  to["expandable_segments"] = settings.expandable_segments != 0;
  to["roundup_power2_divisions"] = std::move(divisions);
  to["last_allocator_settings"] = c10::CachingAllocator::getAllocatorSettings();
  return to.release().ptr();
  END_HANDLE_TH_ERRORS
}

template <class Stat>
py::dict stat_dict(const Stat& stat) {
  py::dict to;
  to["current"] = stat.current;
  to["peak"] = stat.peak;
  to["allocated"] = stat.allocated;
  to["freed"] = stat.freed;
  return to;
}

template <class Stat>
py::dict duration_dict(const Stat& stat) {
  py::dict to;
  to["total"] = stat.total;
  to["max"] = stat.max;
  to["min"] = stat.min;
  to["count"] = stat.count;
  to["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
  return to;
}

PyObject* _hostMemoryStats(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  const at::HostStats stats = c10::openreg::host_allocator().get_stats();
  py::dict to;
  to["allocations"] = stat_dict(stats.allocations);
  to["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  to["active_requests"] = stat_dict(stats.active_requests);
  to["active_bytes"] = stat_dict(stats.active_bytes);
  to["host_alloc_time"] = duration_dict(stats.host_alloc_time);
  to["host_free_time"] = duration_dict(stats.host_free_time);
  to["num_host_alloc"] = stats.num_host_alloc;
  to["num_host_free"] = stats.num_host_free;
  return to.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _resetAccumulatedHostMemoryStats(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  c10::openreg::host_allocator().reset_accumulated_stats();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _resetPeakHostMemoryStats(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  c10::openreg::host_allocator().reset_peak_stats();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _emptyHostCache(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS {
    const py::gil_scoped_release no_gil;
    c10::openreg::host_allocator().empty_cache();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_memory_pool_methods[] = {
    {"_memory_pool_retain",
     torch_openreg::_memoryPoolRetain,
     METH_VARARGS,
     "(device, id, use_on_oom, no_split): a pool, or a use."},
    {"_memory_pool_release", torch_openreg::_memoryPoolRelease, METH_VARARGS, "(device, id): one use less."},
    {"_memory_pool_enter",
     torch_openreg::_memoryPoolEnter,
     METH_VARARGS,
     "(device, id): this thread allocates from it."},
    {"_memory_pool_leave", torch_openreg::_memoryPoolLeave, METH_VARARGS, "(device, id): no longer."},
    {"_memory_pool_uses",
     torch_openreg::_memoryPoolUses,
     METH_VARARGS,
     "(device, id): how many uses it has, 0 if there is none."},
    {"_raw_alloc", torch_openreg::_rawAlloc, METH_VARARGS, "(device, size, stream): the address of a block."},
    {"_raw_delete", torch_openreg::_rawDelete, METH_O, "Frees such a block."},
    {"_set_memory_fraction",
     torch_openreg::_setMemoryFraction,
     METH_VARARGS,
     "(device, fraction): what the process may use."},
    {"_get_memory_fraction", torch_openreg::_getMemoryFraction, METH_O, "That fraction."},
    {"_set_caching", torch_openreg::_setCaching, METH_O, "Whether freed memory is kept; returns what it was."},
    {"_allocator_settings", torch_openreg::_allocatorSettings, METH_NOARGS, "The settings in force, as a dict."},
    {"_host_memory_stats", torch_openreg::_hostMemoryStats, METH_NOARGS, "Statistics of pinned memory, nested."},
    {"_reset_accumulated_host_memory_stats",
     torch_openreg::_resetAccumulatedHostMemoryStats,
     METH_NOARGS,
     "allocated = freed = 0."},
    {"_reset_peak_host_memory_stats", torch_openreg::_resetPeakHostMemoryStats, METH_NOARGS, "peak = current."},
    {"_empty_host_cache", torch_openreg::_emptyHostCache, METH_NOARGS, "Releases cached pinned memory."},
    {nullptr, nullptr, 0, nullptr},
};
