// SPDX-License-Identifier: BSD-3-Clause
#include "shim/memory/staging_buffers.h"

#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>
#include <openreg/openreg.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <vector>

namespace c10::openreg {
namespace {

struct Buffers {
  std::mutex lock;
  ska::flat_hash_map<void*, size_t> used;    // by address: the buffer's size
  std::map<size_t, std::vector<void*>> kept; // by size
  size_t kept_bytes = 0;
};

Buffers& buffers() {
  static auto& only = *new Buffers; // leaked: tensors may outlive every static object
  return only;
}

// Four sizes to a power of two, so that neighbouring sizes share buffers and at most a fifth is left over.
size_t rounded(size_t size) {
  const size_t step = std::bit_floor(std::max(size, kMinStagingBytes) - 1) / 4;
  return (std::max(size, kMinStagingBytes) + step - 1) / step * step;
}

void give_back(void* address) noexcept {
  if (openreg_in_bad_fork() == 0) { // else it is the parent's
    (void)give_back_staging_buffer(address);
  }
}

void* take_kept(size_t size) {
  Buffers& all = buffers();
  const auto found = all.kept.find(size);
  if (found == all.kept.end()) {
    return nullptr;
  }
  void* const address = found->second.back(); // the last one used is the likeliest to be in a processor's cache
  found->second.pop_back();
  if (found->second.empty()) {
    all.kept.erase(found);
  }
  all.kept_bytes -= size;
  return address;
}

} // namespace

c10::DataPtr take_staging_buffer(size_t size) {
  const size_t bytes = rounded(size);
  Buffers& all = buffers();
  const std::lock_guard<std::mutex> guard(all.lock);
  void* address = take_kept(bytes);
  if (address == nullptr) {
    // Without a reservation: a storage may be far larger than the part of it that an operator looks at.
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "No host memory to stage ", size, " bytes of a device's memory.");
  }
  all.used.emplace(address, bytes);
  return {address, address, &give_back, c10::Device(c10::DeviceType::CPU)};
}

bool give_back_staging_buffer(void* address) noexcept {
  Buffers& all = buffers();
  const std::unique_lock<std::mutex> guard = openreg_in_bad_fork() == 0
      ? std::unique_lock<std::mutex>(all.lock)
      : std::unique_lock<std::mutex>(all.lock, std::try_to_lock); // a thread that the child lacks may have held it
  if (!guard.owns_lock()) {
    return false;
  }
  const auto found = all.used.find(address);
  if (found == all.used.end()) {
    return false;
  }
  const size_t bytes = found->second;
  all.used.erase(found);
  if (all.kept_bytes + bytes <= kMaxKeptBytes) {
    try {
      all.kept[bytes].push_back(address);
      all.kept_bytes += bytes;
      return true;
    } catch (const std::bad_alloc&) { // not kept, then
    }
  }
  (void)munmap(address, bytes);
  return true;
}

void release_staging_buffers() noexcept {
  Buffers& all = buffers();
  const std::lock_guard<std::mutex> guard(all.lock);
  for (const auto& [bytes, addresses] : all.kept) {
    for (void* const address : addresses) {
      (void)munmap(address, bytes);
    }
  }
  all.kept.clear();
  all.kept_bytes = 0;
}

size_t kept_staging_bytes() noexcept {
  Buffers& all = buffers();
  const std::lock_guard<std::mutex> guard(all.lock);
  return all.kept_bytes;
}

} // namespace c10::openreg
