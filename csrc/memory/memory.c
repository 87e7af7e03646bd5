/* SPDX-License-Identifier: BSD-3-Clause */
// Bindings of the caching allocator: statistics, segments, free memory.
#include "csrc/memory/memory.h"

#include "csrc/base/bindings.h"
#include "csrc/base/python_support.h"
#include "csrc/base/torch_calls.h"

#include <openreg/allocator.h>
#include <openreg/openreg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static PyObject* stat_dict(const openreg_stat* stat) {
  PyObject* to = PyDict_New();
  if (to == NULL || openreg_dict_put(to, "current", PyLong_FromLongLong(stat->current)) ||
      openreg_dict_put(to, "peak", PyLong_FromLongLong(stat->peak)) ||
      openreg_dict_put(to, "allocated", PyLong_FromLongLong(stat->allocated)) ||
      openreg_dict_put(to, "freed", PyLong_FromLongLong(stat->freed))) {
    Py_CLEAR(to);
  }
  return to;
}

static PyObject* pools_dict(const openreg_stat stats[3]) {
  PyObject* to = PyDict_New();
  if (to == NULL || openreg_dict_put(to, "all", stat_dict(&stats[0])) ||
      openreg_dict_put(to, "small_pool", stat_dict(&stats[1])) ||
      openreg_dict_put(to, "large_pool", stat_dict(&stats[2]))) {
    Py_CLEAR(to);
  }
  return to;
}

// Copies of what the allocator shows. It does so under its lock: no Python there, since a collection could free tensors.
struct copies {
  void* items;
  size_t count, capacity;
  bool out_of_memory;
};

// Adds a copy of the `size` bytes of an item. Non-zero ends the walk: out of host memory.
static int collect(struct copies* to, const void* item, size_t size) {
  if (to->count == to->capacity) {
    const size_t larger = to->capacity == 0 ? 64 : 2 * to->capacity;
    void* grown = realloc(to->items, larger * size);
    if (grown == NULL) {
      to->out_of_memory = true;
      return 1;
    }
    to->items = grown;
    to->capacity = larger;
  }
  memcpy((char*)to->items + to->count++ * size, item, size);
  return 0;
}

static int collect_block(void* context, const openreg_block_info* block) {
  return collect(context, block, sizeof *block);
}

static int collect_pool(void* context, const openreg_memory_pool_info* pool) {
  return collect(context, pool, sizeof *pool);
}

// {(first, second): what is reserved} of the pools in use.
static PyObject* reserved_dict(const struct copies* pools) {
  const openreg_memory_pool_info* pool = pools->items;
  PyObject* to = PyDict_New();
  for (size_t i = 0; to != NULL && i < pools->count; ++i, ++pool) {
    if (pool->uses <= 0) {
      continue;
    }
    PyObject* id = Py_BuildValue("KK", (unsigned long long)pool->id.first, (unsigned long long)pool->id.second);
    PyObject* reserved = id == NULL ? NULL : pools_dict(pool->reserved);
    if (reserved == NULL || PyDict_SetItem(to, id, reserved) != 0) {
      Py_CLEAR(to);
    }
    Py_XDECREF(reserved);
    Py_XDECREF(id);
  }
  return to;
}

static PyObject* private_pools_dict(int32_t device) {
  struct copies pools = {NULL, 0, 0, false};
  const openreg_status status = openreg_memory_visit_pools(device, collect_pool, &pools);
  PyObject* to = NULL;
  if (status != OPENREG_OK) {
    openreg_raise(status);
  } else if (pools.out_of_memory) {
    PyErr_NoMemory();
  } else {
    to = reserved_dict(&pools);
  }
  free(pools.items);
  return to;
}

static const char* block_state(int32_t state) {
  switch (state) {
    case OPENREG_BLOCK_ALLOCATED:
      return "active_allocated";
    case OPENREG_BLOCK_AWAITING_FREE:
      return "active_awaiting_free";
    default:
      return "inactive";
  }
}

static PyObject* block_dict(const openreg_block_info* block) {
  PyObject* to = PyDict_New();
  if (to == NULL || openreg_dict_put(to, "address", PyLong_FromVoidPtr(block->address)) ||
      openreg_dict_put(to, "size", PyLong_FromUnsignedLongLong(block->size)) ||
      openreg_dict_put(to, "requested_size", PyLong_FromUnsignedLongLong(block->requested)) ||
      openreg_dict_put(to, "state", openreg_text(block_state(block->state)))) {
    Py_CLEAR(to);
  }
  return to;
}

static PyObject* blocks_list(const openreg_block_info* blocks, size_t count) {
  PyObject* list = PyList_New(0);
  for (size_t i = 0; list != NULL && i < count; ++i) {
    if (openreg_list_put(list, block_dict(&blocks[i])) != 0) {
      Py_CLEAR(list);
    }
  }
  return list;
}

// The keys of torch.cuda.memory_snapshot(), of the `count` blocks of one segment.
static PyObject* segment_dict(int32_t device, const openreg_block_info* blocks, size_t count) {
  uint64_t allocated = 0;
  uint64_t active = 0;
  uint64_t requested = 0;
  for (size_t i = 0; i < count; ++i) {
    if (blocks[i].state == OPENREG_BLOCK_ALLOCATED) {
      allocated += blocks[i].size;
      requested += blocks[i].requested;
    }
    if (blocks[i].state != OPENREG_BLOCK_FREE) {
      active += blocks[i].size;
    }
  }
  const unsigned long long pool[2] = {blocks->pool.first, blocks->pool.second};
  PyObject* to = PyDict_New();
  if (to == NULL || openreg_dict_put(to, "device", PyLong_FromLong(device)) ||
      openreg_dict_put(to, "address", PyLong_FromVoidPtr(blocks->segment)) ||
      openreg_dict_put(to, "total_size", PyLong_FromUnsignedLongLong(blocks->segment_size)) ||
      openreg_dict_put(to, "allocated_size", PyLong_FromUnsignedLongLong(allocated)) ||
      openreg_dict_put(to, "active_size", PyLong_FromUnsignedLongLong(active)) ||
      openreg_dict_put(to, "requested_size", PyLong_FromUnsignedLongLong(requested)) ||
      openreg_dict_put(to, "stream", PyLong_FromLongLong(blocks->stream)) ||
      openreg_dict_put(to, "segment_type", openreg_text(blocks->large ? "large" : "small")) ||
      openreg_dict_put(to, "segment_pool_id", Py_BuildValue("KK", pool[0], pool[1])) ||
      openreg_dict_put(to, "is_expandable", PyBool_FromLong(blocks->expandable)) ||
      openreg_dict_put(to, "blocks", blocks_list(blocks, count))) {
    Py_CLEAR(to);
  }
  return to;
}

static PyObject* segments_list(int32_t device, const struct copies* blocks) {
  const openreg_block_info* items = blocks->items;
  PyObject* segments = PyList_New(0);
  size_t begin = 0;
  while (segments != NULL && begin < blocks->count) {
    size_t end = begin + 1;
    while (end < blocks->count && items[end].segment == items[begin].segment) {
      ++end;
    }
    if (openreg_list_put(segments, segment_dict(device, &items[begin], end - begin)) != 0) {
      Py_CLEAR(segments);
    }
    begin = end;
  }
  return segments;
}

PyObject* openreg_memory_segments(int32_t device) {
  struct copies blocks = {NULL, 0, 0, false};
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_memory_visit_blocks(device, collect_block, &blocks);
  Py_END_ALLOW_THREADS
  PyObject* segments = NULL;
  if (status != OPENREG_OK) {
    openreg_raise(status);
  } else if (blocks.out_of_memory) {
    PyErr_NoMemory();
  } else {
    segments = segments_list(device, &blocks);
  }
  free(blocks.items);
  return segments;
}

static PyObject* get_stats(PyObject* self, PyObject* argument) {
  (void)self;
  int32_t device = 0;
  if (openreg_unpack_device(argument, "memoryStats", &device) != 0) {
    return NULL;
  }
  openreg_memory_stats stats = {.struct_size = sizeof stats};
  const openreg_status status = openreg_memory_get_stats(device, &stats);
  if (status != OPENREG_OK) {
    return openreg_raise(status);
  }
  PyObject* to = PyDict_New();
  if (to == NULL || openreg_dict_put(to, "allocation", pools_dict(stats.allocation)) ||
      openreg_dict_put(to, "segment", pools_dict(stats.segment)) ||
      openreg_dict_put(to, "active", pools_dict(stats.active)) ||
      openreg_dict_put(to, "inactive_split", pools_dict(stats.inactive_split)) ||
      openreg_dict_put(to, "allocated_bytes", pools_dict(stats.allocated_bytes)) ||
      openreg_dict_put(to, "reserved_bytes", pools_dict(stats.reserved_bytes)) ||
      openreg_dict_put(to, "active_bytes", pools_dict(stats.active_bytes)) ||
      openreg_dict_put(to, "inactive_split_bytes", pools_dict(stats.inactive_split_bytes)) ||
      openreg_dict_put(to, "requested_bytes", pools_dict(stats.requested_bytes)) ||
      openreg_dict_put(to, "oversize_allocations", stat_dict(&stats.oversize_allocations)) ||
      openreg_dict_put(to, "oversize_segments", stat_dict(&stats.oversize_segments)) ||
      openreg_dict_put(to, "num_alloc_retries", PyLong_FromLongLong(stats.num_alloc_retries)) ||
      openreg_dict_put(to, "num_ooms", PyLong_FromLongLong(stats.num_ooms)) ||
      openreg_dict_put(to, "num_device_alloc", PyLong_FromLongLong(stats.num_device_alloc)) ||
      openreg_dict_put(to, "num_device_free", PyLong_FromLongLong(stats.num_device_free)) ||
      openreg_dict_put(to, "num_sync_all_streams", PyLong_FromLongLong(stats.num_sync_all_streams)) ||
      openreg_dict_put(to, "max_split_size", PyLong_FromLongLong(stats.max_split_size)) ||
      openreg_dict_put(to, "reserved_bytes_by_private_pools", private_pools_dict(device))) {
    Py_CLEAR(to);
  }
  return to;
}

// The four figures that programs ask for again and again, without the dictionaries of all of them.
static PyObject* get_totals(PyObject* self, PyObject* argument) {
  (void)self;
  int32_t device = 0;
  if (openreg_unpack_device(argument, "memoryTotals", &device) != 0) {
    return NULL;
  }
  openreg_memory_stats stats = {.struct_size = sizeof stats};
  const openreg_status status = openreg_memory_get_stats(device, &stats);
  if (status != OPENREG_OK) {
    return openreg_raise(status);
  }
  const openreg_stat allocated = stats.allocated_bytes[OPENREG_POOL_ALL];
  const openreg_stat reserved = stats.reserved_bytes[OPENREG_POOL_ALL];
  return Py_BuildValue(
      "LLLL",
      (long long)allocated.current,
      (long long)allocated.peak,
      (long long)reserved.current,
      (long long)reserved.peak);
}

static PyObject* reset_stats(PyObject* argument, const char* function, openreg_status (*reset)(int32_t)) {
  int32_t device = 0;
  return openreg_unpack_device(argument, function, &device) != 0 ? NULL : openreg_none_or_raise(reset(device));
}

static PyObject* reset_peak_stats(PyObject* self, PyObject* argument) {
  (void)self;
  return reset_stats(argument, "resetPeakMemoryStats", openreg_memory_reset_peak_stats);
}

static PyObject* reset_accumulated_stats(PyObject* self, PyObject* argument) {
  (void)self;
  return reset_stats(argument, "resetAccumulatedMemoryStats", openreg_memory_reset_accumulated_stats);
}

static PyObject* empty_cache(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_memory_empty_cache(-1); // waits for recorded streams
  Py_END_ALLOW_THREADS
  return openreg_none_or_raise(status);
}

static PyObject* get_info(PyObject* self, PyObject* argument) {
  (void)self;
  int32_t device = 0;
  if (openreg_unpack_device(argument, "memGetInfo", &device) != 0) {
    return NULL;
  }
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  const openreg_status status = openreg_memory_get_info(device, &free_bytes, &total_bytes);
  if (status != OPENREG_OK) {
    return openreg_raise(status);
  }
  return Py_BuildValue("KK", (unsigned long long)free_bytes, (unsigned long long)total_bytes);
}

PyMethodDef openreg_memory_methods[] = {
    {"_memory_stats", get_stats, METH_O, "Statistics of a device, by the keys of torch.cuda's, nested."},
    {"_memory_totals", get_totals, METH_O, "Bytes allocated, their peak, bytes reserved, their peak."},
    {"_reset_peak_memory_stats", reset_peak_stats, METH_O, "peak = current."},
    {"_reset_accumulated_memory_stats", reset_accumulated_stats, METH_O, "allocated = freed = counts = 0."},
    {"_empty_cache", empty_cache, METH_NOARGS, "Releases cached memory of every device to its driver."},
    {"_mem_get_info", get_info, METH_O, "(free, total) bytes of a device."},
    {NULL, NULL, 0, NULL},
};
