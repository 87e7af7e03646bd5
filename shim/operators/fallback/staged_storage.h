/* SPDX-License-Identifier: BSD-3-Clause */
// The host's copy of a storage for the length of one staged call.
//
// It has the storage's size, so that offsets and resizes are what they are on the CPU, but only the bytes that the call's
// tensors cover are copied, in either direction: the cost of `x[:4] + 1` follows the four elements and not the storage.
// Pages of the copy that nobody touches take no memory (shim/memory/staging_buffers.h).
//
// An operator of PyTorch's touches no more of a storage than its tensors cover, and writes what its schema says. Those that
// don't, and operators of others, of which nobody knows, are copied whole, and what they wrote is found by comparing
// checksums: covers_what_it_touches().
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <set>
#include <string>

#include "shim/base/export.h"

namespace c10::openreg {

// Bytes [begin, end) of a storage.
struct Extent {
  size_t begin = 0;
  size_t end = 0;
  bool is_empty() const {
    return begin >= end;
  }
};

// From the first to the last element of a dense tensor; empty where it has none.
Extent extent_of(const c10::TensorImpl& tensor);

// Whether the operator touches no other bytes than its tensors cover and writes no others than those of the arguments that
// its schema calls written. `name` as in the schema, with its namespace.
TORCH_OPENREG_API bool covers_what_it_touches(const std::string& name);

// While it is on, operators for which covers_what_it_touches() are watched, and the names of those that write what they
// don't declare are kept: for tests, which sweep all operators.
TORCH_OPENREG_API void watch_undeclared_writes(bool on);
TORCH_OPENREG_API std::set<std::string> undeclared_writes();

class StagedStorage {
 public:
  // `data`: the storage's memory on the device, `size` bytes. `is_whole`: copied whole at once, and watched.
  StagedStorage(DeviceIndex device, void* data, size_t size, bool is_whole);

  // Uninitialised memory for the copy. Called once; the caller keeps the memory as long as this object is used.
  c10::DataPtr take_memory();

  // Copies to the host the parts of `extent` that it lacks; returns the bytes copied. Throws c10::Error if the device fails.
  size_t bring(Extent extent);

  // What is to be copied back.
  void note_written(Extent extent);

  // Whether something is to be copied back. Where the storage is watched, what the kernel wrote undeclared is looked for
  // first: it counts, or is noted for undeclared_writes(), by the operator's name.
  bool has_writes(const std::string& name);

  // Copies back what was written; the bytes that were copied. `data`: the storage's memory now, of the same size.
  size_t write_back(void* data);

  // The kernel has moved the copy into other memory of `size` bytes: fills in there what was neither
  // brought nor written.
  size_t complete(void* memory, size_t size);

 private:
  using Extents = c10::SmallVector<Extent, 2>;
  struct Piece {
    Extent extent;
    uint64_t checksum;
  };

  size_t copy_in(Extent extent, void* memory);
  bool has_undeclared_writes() const;

  DeviceIndex device_;
  void* data_;
  char* memory_ = nullptr;
  size_t size_;
  bool is_whole_;
  bool is_watched_;
  Extents there_;                     // sorted and disjoint
  Extents written_;                   // sorted and disjoint, too
  c10::SmallVector<Piece, 1> pieces_; // as they were brought, where the storage is watched
};

} // namespace c10::openreg
