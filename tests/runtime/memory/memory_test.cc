// SPDX-License-Identifier: BSD-3-Clause
// Copies, fills, host aliases, pinned memory, pointer queries: what works and what is refused.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "cache_check.h"

namespace openreg_test {
namespace {

constexpr size_t kMib = size_t{1} << 20;

std::vector<unsigned char> pattern(size_t size, unsigned seed) {
  std::vector<unsigned char> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(i * 31 + (i >> 8) + seed);
  return bytes;
}

std::vector<unsigned char> read_back(const void* block, int32_t device, size_t size) {
  std::vector<unsigned char> bytes(size);
  EXPECT_EQ(openreg_memcpy(bytes.data(), OPENREG_HOST, block, device, size), OPENREG_OK) << last_message();
  return bytes;
}

void write(void* block, int32_t device, const std::vector<unsigned char>& bytes) {
  EXPECT_EQ(openreg_memcpy(block, device, bytes.data(), OPENREG_HOST, bytes.size()), OPENREG_OK) << last_message();
}

char* at(void* base, size_t offset) { return static_cast<char*>(base) + offset; }

class MemoryTest : public SimDevicesTest {};

// ---------------------------------------------------------------------------------------------------------------------
// Copies

// Host to host, to the device and back, inside a device, between devices; whole blocks and parts of them.
TEST_F(MemoryTest, CopiesInAllDirections) {
  for (const size_t size : {size_t{1}, size_t{511}, size_t{4096}, 3 * kMib + 7}) {
    SCOPED_TRACE(size);
    const auto bytes = pattern(size, 1);
    std::vector<unsigned char> copy(size);
    EXPECT_EQ(openreg_memcpy(copy.data(), OPENREG_HOST, bytes.data(), OPENREG_HOST, size), OPENREG_OK);
    EXPECT_EQ(copy, bytes);
    void* a = allocate(0, size);
    void* b = allocate(0, size);
    void* c = allocate(1, size);
    write(a, 0, bytes);
    EXPECT_EQ(read_back(a, 0, size), bytes);
    EXPECT_EQ(openreg_memcpy(b, 0, a, 0, size), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_memcpy(c, 1, b, 0, size), OPENREG_OK) << last_message();
    EXPECT_EQ(read_back(c, 1, size), bytes);
    const size_t half = size / 2;
    EXPECT_EQ(openreg_memcpy(at(a, 0), 0, at(c, half), 1, size - half), OPENREG_OK) << last_message();
    EXPECT_EQ(read_back(a, 0, size - half),
              std::vector<unsigned char>(bytes.begin() + static_cast<ptrdiff_t>(half), bytes.end()));
    for (void* block : {a, b, c}) release(block);
  }
}

// The same, queued: on the stream of either device, then waited for. Also from and to pageable memory.
TEST_F(MemoryTest, AsynchronousCopies) {
  constexpr size_t kSize = 2 * kMib + 3;
  const auto bytes = pattern(kSize, 2);
  void *const from = make_pinned(kSize), *const to = make_pinned(kSize);
  std::memcpy(from, bytes.data(), kSize);
  void* a = allocate(0, kSize);
  void* b = allocate(1, kSize);
  const openreg_stream first = from_pool(0), second = from_pool(1);
  const openreg_event event = make_event();
  for (int round = 0; round < 20; ++round) {
    std::memset(to, 0, kSize);
    ASSERT_EQ(openreg_memcpy_async(0, first, a, 0, from, OPENREG_HOST, kSize), OPENREG_OK) << last_message();
    const bool peer_on_source = round % 2 == 0;
    if (peer_on_source) {
      ASSERT_EQ(openreg_memcpy_async(0, first, b, 1, a, 0, kSize), OPENREG_OK) << last_message();
    }
    ASSERT_EQ(openreg_event_record(event, 0, first), OPENREG_OK);
    ASSERT_EQ(openreg_stream_wait_event(1, second, event), OPENREG_OK);
    if (!peer_on_source) {
      ASSERT_EQ(openreg_memcpy_async(1, second, b, 1, a, 0, kSize), OPENREG_OK) << last_message();
    }
    ASSERT_EQ(openreg_memcpy_async(1, second, to, OPENREG_HOST, b, 1, kSize), OPENREG_OK) << last_message();
    ASSERT_EQ(openreg_stream_synchronize(1, second), OPENREG_OK);
    ASSERT_EQ(std::memcmp(to, from, kSize), 0);
  }
  // Pageable memory may be changed as soon as the call has returned.
  auto pageable = bytes;
  ASSERT_EQ(openreg_memcpy_async(0, first, a, 0, pageable.data(), OPENREG_HOST, kSize), OPENREG_OK);
  std::fill(pageable.begin(), pageable.end(), static_cast<unsigned char>(0));
  ASSERT_EQ(openreg_memcpy_async(0, first, pageable.data(), OPENREG_HOST, a, 0, kSize), OPENREG_OK);
  EXPECT_EQ(pageable, bytes);
  // Host to host needs no stream, so the one named does not matter.
  std::vector<unsigned char> copy(kSize);
  EXPECT_EQ(openreg_memcpy_async(-5, 12345, copy.data(), OPENREG_HOST, from, OPENREG_HOST, kSize), OPENREG_OK);
  EXPECT_EQ(copy, bytes);
}

// openreg_memcpy() is in order behind the thread's current stream, of both devices.
TEST_F(MemoryTest, CopyWaitsForTheCurrentStreams) {
  use_full_toy();
  void* a = allocate(0, 100);
  void* b = allocate(1, 100);
  ASSERT_EQ(openreg_set_current_stream(0, from_pool(0)), OPENREG_OK);
  const int before = toy().calls("stream_sync");
  EXPECT_EQ(openreg_memcpy(a, 0, b, 1, 100), OPENREG_OK);
  EXPECT_EQ(toy().calls("stream_sync"), before + 2);
  for (int n = 1; n <= 2; ++n) {
    toy().fail("stream_sync", n, OPENREG_E_INTERNAL, 0);
    expect_error(openreg_memcpy(a, 0, b, 1, 100), OPENREG_E_INTERNAL, "openreg_memcpy");
  }
  EXPECT_EQ(toy().calls("copy"), 0);  // the host sees this memory, and copies
}

// A driver whose memory the host can't see: every copy goes through it, on the current stream, and is waited for.
TEST_F(MemoryTest, CopiesByTheDriver) {
  use_full_toy(hide_from_host);
  const auto bytes = pattern(5000, 3);
  void* a = allocate(0, bytes.size());
  void* b = allocate(1, bytes.size());
  write(a, 0, bytes);
  EXPECT_EQ(openreg_memcpy(b, 1, a, 0, bytes.size()), OPENREG_OK) << last_message();
  EXPECT_EQ(read_back(b, 1, bytes.size()), bytes);
  EXPECT_EQ(toy().calls("copy"), 3);
  EXPECT_EQ(toy().calls("stream_sync"), 4);  // one each, and one more for the source of the peer copy
  toy().fail("copy", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_memcpy(b, 1, a, 0, bytes.size()), OPENREG_E_INTERNAL);
  EXPECT_EQ(openreg_memcpy_async(1, 0, b, 1, a, 0, bytes.size()), OPENREG_OK);
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_OK);
}

// Between two devices a copy is in order with the current streams of both, whichever runs it.
TEST_F(MemoryTest, CopiesBetweenPeersAreInOrderWithBoth) {
  constexpr size_t kSize = 8 * kMib;
  void* a = allocate(0, kSize);
  void* b = allocate(1, kSize);
  void* const seen = make_pinned(kSize, 1);
  for (const int32_t on : {0, 1}) {
    SCOPED_TRACE("run by device " + std::to_string(on));
    const openreg_stream source = from_pool(0), destination = from_pool(1);
    ASSERT_EQ(openreg_set_current_stream(0, source), OPENREG_OK);
    ASSERT_EQ(openreg_set_current_stream(1, destination), OPENREG_OK);
    for (int i = 0; i < 8; ++i) {  // what the destination still has to do
      ASSERT_EQ(openreg_memset_async(1, destination, b, 0x11, kSize), OPENREG_OK);
      ASSERT_EQ(openreg_memset_async(0, source, a, 0x22, kSize), OPENREG_OK);
    }
    ASSERT_EQ(openreg_memcpy_async(on, on == 0 ? source : destination, b, 1, a, 0, kSize), OPENREG_OK)
        << last_message();
    ASSERT_EQ(openreg_memset_async(0, source, a, 0x33, kSize), OPENREG_OK);
    ASSERT_EQ(openreg_memcpy_async(1, destination, seen, OPENREG_HOST, b, 1, kSize), OPENREG_OK);
    ASSERT_EQ(openreg_stream_synchronize(1, destination), OPENREG_OK);
    EXPECT_EQ(std::vector<unsigned char>(kSize, 0x22),
              std::vector<unsigned char>(static_cast<unsigned char*>(seen), static_cast<unsigned char*>(seen) + kSize));
    ASSERT_EQ(openreg_stream_synchronize(0, source), OPENREG_OK);
  }
}

// Copies between drivers, one or both of which hide their memory from the host, longer than the staging buffer.
TEST_F(MemoryTest, CopiesBetweenDrivers) {
  constexpr size_t kSize = 9 * kMib + 5;
  const auto bytes = pattern(kSize, 4);
  use_full_toy(hidden_from_host("hidden_a"));
  use_full_toy(hidden_from_host("hidden_b"));
  set("OPENREG_DRIVERS", "sim,hidden_a,hidden_b");  // devices 0, 1; 2, 3; 4, 5
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_device_count(), 6);
  void* blocks[6];
  for (int device = 0; device < 6; ++device) blocks[device] = allocate(device, kSize);
  for (const auto& [from, to] : {std::pair{0, 2}, {2, 1}, {2, 4}, {5, 3}}) {
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
    write(blocks[from], from, bytes);
    for (const bool async : {false, true}) {
      write(blocks[to], to, pattern(kSize, 99));
      const openreg_status status =
          async ? openreg_memcpy_async(to, OPENREG_STREAM_DEFAULT, blocks[to], to, blocks[from], from, kSize)
                : openreg_memcpy(blocks[to], to, blocks[from], from, kSize);
      ASSERT_EQ(status, OPENREG_OK) << last_message();
      ASSERT_EQ(read_back(blocks[to], to, kSize), bytes);
    }
  }
  // Any call of the driver may fail: the error comes out, and nothing is left behind.
  for (const char* slot : {"copy", "stream_sync"}) {
    for (int n = 1; n < 20; ++n) {
      const int before = toy().calls(slot);
      toy().fail(slot, n, OPENREG_E_INTERNAL, 0);
      const openreg_status status = openreg_memcpy(blocks[4], 4, blocks[2], 2, kSize);
      const bool reached = toy().calls(slot) - before >= n;
      EXPECT_EQ(status, reached ? OPENREG_E_INTERNAL : OPENREG_OK);
      toy().fail(slot, 0, OPENREG_OK, 0);
      if (!reached) break;
    }
  }
}

// What is refused, with a text that names the call, the device, the block, the offset and the size. Nothing is copied.
TEST_F(MemoryTest, BadCopies) {
  const auto bytes = pattern(4096, 5);
  void* a = allocate(0, 1000);
  void* b = allocate(1, 1000);
  write(a, 0, pattern(1000, 6));
  auto* host = const_cast<unsigned char*>(bytes.data());
  const auto refused = [&](openreg_status status, const std::string& part) {
    EXPECT_EQ(status, OPENREG_E_INVALID);
    EXPECT_CONTAINS(last_message(), "openreg_memcpy: ");
    EXPECT_CONTAINS(last_message(), part);
  };
  refused(openreg_memcpy(a, 0, host, OPENREG_HOST, 1001),
          "the destination, 1001 bytes at offset 0, exceeds its block of 1000 bytes at 0x");
  refused(openreg_memcpy(at(a, 10), 0, host, OPENREG_HOST, 991), "991 bytes at offset 10, exceeds");
  refused(openreg_memcpy(at(a, 1001), 0, host, OPENREG_HOST, 1), "1 bytes at offset 1001, exceeds");
  refused(openreg_memcpy(host, OPENREG_HOST, a, 0, SIZE_MAX), "leaves the address space");
  refused(openreg_memcpy(at(a, 16), 0, b, 1, SIZE_MAX - 8), "exceeds its block of 1000 bytes");
  refused(openreg_memcpy(host, OPENREG_HOST, at(b, 500), 1, 501),
          "the source, 501 bytes at offset 500, exceeds its block of 1000 bytes at 0x");
  EXPECT_CONTAINS(last_message(), "on openreg:1");
  refused(openreg_memcpy(a, 1, host, OPENREG_HOST, 8), "is memory of openreg:0, not memory of openreg:1");
  refused(openreg_memcpy(host, 0, a, 0, 8), "is not memory of openreg:0");
  refused(openreg_memcpy(nullptr, 0, a, 0, 8), "is not memory of openreg:0");
  refused(openreg_memcpy(nullptr, OPENREG_HOST, a, 0, 8), "the destination is NULL");
  refused(openreg_memcpy(host, OPENREG_HOST, nullptr, OPENREG_HOST, 8), "the source is NULL");
  refused(openreg_memcpy(a, OPENREG_HOST, host, OPENREG_HOST, 8),
          "was given as host memory, but it is memory of openreg:0");
  refused(openreg_memcpy(host, OPENREG_HOST, b, OPENREG_HOST, 8), "but it is memory of openreg:1");
  void* alias = nullptr;
  ASSERT_EQ(openreg_host_alias(a, &alias), OPENREG_OK);
  refused(openreg_memcpy(alias, 0, host, OPENREG_HOST, 8), "is the host's alias of memory of openreg:0");
  EXPECT_EQ(read_back(alias, OPENREG_HOST, 1000), pattern(1000, 6));  // as host memory it is fine
  for (const int32_t device : {-2, 2, 127}) {
    refused(openreg_memcpy(a, device, host, OPENREG_HOST, 8), "[0, 2), but got " + std::to_string(device));
    refused(openreg_memcpy(host, OPENREG_HOST, a, device, 8), "[0, 2), but got " + std::to_string(device));
  }
  release(b);
  refused(openreg_memcpy(host, OPENREG_HOST, b, 1, 8), "on openreg:1 was freed already");
  EXPECT_EQ(openreg_memory_empty_cache(1), OPENREG_OK);
  refused(openreg_memcpy(host, OPENREG_HOST, b, 1, 8), "or was freed already");
  // 0 bytes are fine, wherever they are; but the devices must be.
  EXPECT_EQ(openreg_memcpy(nullptr, 0, nullptr, OPENREG_HOST, 0), OPENREG_OK);
  refused(openreg_memcpy(nullptr, 5, nullptr, OPENREG_HOST, 0), "but got 5");
  EXPECT_EQ(bytes, pattern(4096, 5));
  EXPECT_EQ(read_back(a, 0, 1000), pattern(1000, 6));
}

TEST_F(MemoryTest, BadAsynchronousCopiesAndFills) {
  void* a = allocate(0, 1000);
  void* b = allocate(1, 1000);
  unsigned char host[8] = {};
  const openreg_stream foreign = from_pool(1);
  EXPECT_EQ(openreg_memcpy_async(1, 0, a, 0, host, OPENREG_HOST, 8), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(),
                  "stream_device must be the device of the destination (0) or of the source (-1), but is 1");
  EXPECT_EQ(openreg_memcpy_async(-1, 0, a, 0, host, OPENREG_HOST, 8), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memcpy_async(0, foreign, a, 0, host, OPENREG_HOST, 8), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "belongs to openreg:1");
  EXPECT_EQ(openreg_memcpy_async(0, 0, a, 0, b, 1, 1001), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "openreg_memcpy_async: the destination, 1001 bytes at offset 0, exceeds");
  EXPECT_EQ(openreg_memcpy_async(1, 0, nullptr, 0, nullptr, 1, 0), OPENREG_OK);
  EXPECT_EQ(openreg_memset_async(0, 0, a, 1, 1001), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "openreg_memset_async: the destination, 1001 bytes at offset 0, exceeds");
  EXPECT_EQ(openreg_memset_async(1, 0, a, 1, 1000), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memset_async(OPENREG_HOST, 0, a, 1, 1000), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memset_async(0, foreign, a, 1, 1000), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memset_async(0, 0, nullptr, 1, 0), OPENREG_OK);
}

// A fill writes its bytes and no other; a fill of part of a block too.
TEST_F(MemoryTest, Fill) {
  void* a = allocate(0, 3000);
  const openreg_stream stream = from_pool(0);
  ASSERT_EQ(openreg_memset_async(0, stream, a, 0x11, 3000), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memset_async(0, stream, at(a, 7), 0xfe, 100), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK);
  std::vector<unsigned char> expected(3000, 0x11);
  std::fill_n(expected.begin() + 7, 100, static_cast<unsigned char>(0xfe));
  EXPECT_EQ(read_back(a, 0, 3000), expected);
}

// ---------------------------------------------------------------------------------------------------------------------
// Addresses

TEST_F(MemoryTest, PointerQuery) {
  EXPECT_EQ(pointer_info(nullptr).kind, OPENREG_POINTER_UNKNOWN);
  EXPECT_EQ(openreg_is_initialized(), 0);  // asking starts nothing
  for (const size_t size : {size_t{5}, size_t{100000}, 5 * kMib, 21 * kMib}) {
    SCOPED_TRACE(size);
    void* before = allocate(1, size);
    void* block = allocate(1, size);
    void* alias = nullptr;
    ASSERT_EQ(openreg_host_alias(block, &alias), OPENREG_OK);
    for (const size_t offset : {size_t{0}, size_t{1}, size / 2, size - 1}) {
      auto info = pointer_info(at(block, offset));
      EXPECT_EQ(info.kind, OPENREG_POINTER_DEVICE);
      EXPECT_EQ(info.device, 1);
      EXPECT_EQ(info.live, 1);
      EXPECT_EQ(info.base, block);
      EXPECT_EQ(info.size, size);
      info = pointer_info(at(alias, offset));
      EXPECT_EQ(info.kind, OPENREG_POINTER_ALIAS);
      EXPECT_EQ(info.device, 1);
      EXPECT_EQ(info.base, alias);
      EXPECT_EQ(info.size, size);
    }
    release(block);
    const auto info = pointer_info(at(block, size - 1));
    EXPECT_EQ(info.kind, OPENREG_POINTER_DEVICE);
    EXPECT_EQ(info.live, 0);
    release(before);
    EXPECT_EQ(openreg_memory_empty_cache(1), OPENREG_OK);
    EXPECT_EQ(pointer_info(block).kind, OPENREG_POINTER_UNKNOWN);
  }
  int local = 0;
  const auto info = pointer_info(&local);
  EXPECT_EQ(info.kind, OPENREG_POINTER_UNKNOWN);
  EXPECT_EQ(info.device, -1);
  EXPECT_EQ(info.base, nullptr);

  EXPECT_EQ(openreg_pointer_get_info(&local, nullptr), OPENREG_E_INVALID);
}

// In a segment of many blocks the block around any address is found.
TEST_F(MemoryTest, PointerQueryAmongMany) {
  std::vector<std::pair<void*, size_t>> blocks;
  for (size_t i = 0; i < 500; ++i) {
    const size_t size = 1 + (i * 7919) % 9000;
    blocks.emplace_back(allocate(0, size), size);
  }
  for (size_t i = 0; i < 500; i += 3) {
    release(blocks[i].first);
    blocks[i].second = 0;
  }
  for (const auto& [block, size] : blocks) {
    for (size_t offset = 0; offset < size; offset += 1 + size / 7) {
      const auto info = pointer_info(at(block, offset));
      ASSERT_EQ(info.base, block);
      ASSERT_EQ(info.size, size);
      ASSERT_EQ(info.live, 1);
    }
  }
  for (const auto& [block, size] : blocks)
    if (size != 0) release(block);
}

TEST_F(MemoryTest, HostAlias) {
  void* block = allocate(1, 3 * kMib);
  void *alias = nullptr, *back = nullptr;
  for (const size_t offset : {size_t{0}, size_t{13}, 3 * kMib - 1}) {
    ASSERT_EQ(openreg_host_alias(at(block, offset), &alias), OPENREG_OK);
    ASSERT_EQ(openreg_device_address(alias, &back), OPENREG_OK);
    EXPECT_EQ(back, at(block, offset));
    EXPECT_NE(alias, back);
  }
  std::memset(at(alias, 1) - 3 * kMib, 0x42, 3 * kMib);
  EXPECT_EQ(read_back(block, 1, 3 * kMib), std::vector<unsigned char>(3 * kMib, 0x42));
  int local = 0;
  expect_error(openreg_host_alias(&local, &alias), OPENREG_E_INVALID, "openreg_host_alias");
  EXPECT_EQ(openreg_host_alias(nullptr, &alias), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_host_alias(block, nullptr), OPENREG_E_INVALID);
  expect_error(openreg_device_address(&local, &back), OPENREG_E_INVALID, "is not the host's alias of device memory");
  expect_error(openreg_device_address(block, &back), OPENREG_E_INVALID, "but a device address itself");
  EXPECT_EQ(openreg_device_address(alias, nullptr), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_host_alias(block, &alias), OPENREG_OK);
  EXPECT_EQ(openreg_host_alias(alias, &back), OPENREG_E_INVALID);
}

// A driver whose device addresses are the host's own: the alias is the address, and it is host memory too.
TEST_F(MemoryTest, AliasOfItself) {
  use_full_toy();
  void* block = allocate(0, 100);
  void* other = nullptr;
  ASSERT_EQ(openreg_host_alias(at(block, 5), &other), OPENREG_OK);
  EXPECT_EQ(other, at(block, 5));
  ASSERT_EQ(openreg_device_address(at(block, 5), &other), OPENREG_OK);
  EXPECT_EQ(other, at(block, 5));
  EXPECT_EQ(pointer_info(block).kind, OPENREG_POINTER_DEVICE);
  char bytes[8] = "copied";
  EXPECT_EQ(openreg_memcpy(block, OPENREG_HOST, bytes, OPENREG_HOST, sizeof bytes), OPENREG_OK) << last_message();
  EXPECT_STREQ(static_cast<char*>(block), "copied");
}

// Nobody can wait for the work of a lost device: before pinned memory is freed the runtime has each lost one drained.
TEST_F(MemoryTest, PinnedMemoryUnderALostDevice) {
  static std::string order;
  order.clear();
  use_full_toy([](openreg_driver& table) {
    hide_from_host(table);
    table.device_sync = [](openreg_instance instance, int32_t device) {
      order += "sync" + std::to_string(device) + " ";
      return toy().table()->device_sync(instance, device);
    };
    table.host_free = [](openreg_instance instance, int32_t device, void* memory) {
      order += "free ";
      return toy().table()->host_free(instance, device, memory);
    };
  });
  void* const second = make_pinned(4096);
  free_pinned(make_pinned(4096));
  EXPECT_EQ(order, "free ");
  void* block = allocate(1, 4096);  // a device that reads memory which was pinned through another one
  EXPECT_EQ(openreg_memcpy_async(1, OPENREG_STREAM_DEFAULT, block, 1, second, OPENREG_HOST, 4096), OPENREG_OK);
  toy().fail("fill", 1, OPENREG_E_DEVICE_LOST, 0);
  EXPECT_EQ(openreg_memset_async(1, OPENREG_STREAM_DEFAULT, block, 0, 16), OPENREG_E_DEVICE_LOST);
  order.clear();
  free_pinned(second);
  EXPECT_EQ(order, "sync1 free ");
}

// Memory that the host can't see has no alias; a driver that can't give one for a segment gets the segment back.
TEST_F(MemoryTest, NoAlias) {
  use_full_toy(hide_from_host);
  void* block = allocate(0, 100);
  void* alias = nullptr;
  expect_error(openreg_host_alias(block, &alias), OPENREG_E_UNSUPPORTED, "full_toy");
  EXPECT_EQ(openreg_device_address(block, &alias), OPENREG_E_INVALID);
  release(block);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  use_full_toy();
  toy().fail("host_alias", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_malloc(0, 0, 100, &block), OPENREG_E_INTERNAL);
  EXPECT_EQ(toy().live("memory"), 0);
}

// Lookups while another thread adds and removes segments: always the right answer, or none.
TEST_F(MemoryTest, LookupsRaceWithSegments) {
  void* kept = allocate(0, 3 * kMib);
  void* kept_alias = nullptr;
  ASSERT_EQ(openreg_host_alias(kept, &kept_alias), OPENREG_OK);
  std::atomic<bool> stop{false};
  std::atomic<char*> moving{nullptr};
  std::atomic<int> wrong{0};
  std::thread churn([&] {
    for (int i = 0; i < 300; ++i) {
      void* block = nullptr;
      if (openreg_malloc(i % 2, 0, static_cast<size_t>(10 + 2 * (i % 5)) * kMib, &block) != OPENREG_OK) ++wrong;
      moving = static_cast<char*>(block);
      if (openreg_free(block) != OPENREG_OK) ++wrong;
      if (openreg_memory_empty_cache(i % 2) != OPENREG_OK) ++wrong;
    }
    stop = true;
  });
  while (!stop) {
    void* alias = nullptr;
    if (openreg_host_alias(at(kept, 12345), &alias) != OPENREG_OK || alias != at(kept_alias, 12345)) ++wrong;
    if (pointer_info(at(kept, kMib)).base != kept) ++wrong;
    std::this_thread::yield();
    char* const where = moving;
    if (where == nullptr) continue;
    const auto info = pointer_info(where + kMib);
    if (info.kind == OPENREG_POINTER_DEVICE && (info.base > where + kMib || info.device > 1)) ++wrong;
    if (info.kind == OPENREG_POINTER_PINNED) ++wrong;
  }
  churn.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(MemoryTest, MemoryInfo) {
  uint64_t unused = 0, total = 0;
  EXPECT_EQ(openreg_memory_get_info(0, &unused, &total), OPENREG_OK);
  EXPECT_EQ(unused, 64 * kMib);
  EXPECT_EQ(total, 64 * kMib);
  void* block = allocate(0, 100);
  EXPECT_EQ(openreg_memory_get_info(0, &unused, &total), OPENREG_OK);
  EXPECT_EQ(unused, 62 * kMib);
  EXPECT_EQ(openreg_memory_get_info(1, &unused, &total), OPENREG_OK);
  EXPECT_EQ(unused, 64 * kMib);
  release(block);
  EXPECT_EQ(openreg_memory_get_info(2, &unused, &total), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_get_info(0, nullptr, &total), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_get_info(0, &unused, nullptr), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  use_full_toy([](openreg_driver& table) { table.mem_info = nullptr; });  // emulated, from the cache's own numbers
  block = allocate(0, 100);
  EXPECT_EQ(openreg_memory_get_info(0, &unused, &total), OPENREG_OK);
  EXPECT_EQ(total, 1024 * kMib);
  EXPECT_EQ(unused, 1022 * kMib);
}

// Where nothing is known of a device's memory, it isn't full, but without a known limit.
TEST_F(MemoryTest, InfoOfUnknownMemory) {
  use_full_toy([](openreg_driver& table) {
    table.mem_info = nullptr;
    table.device_info = nullptr;
  });
  uint64_t unused = 0, total = 0;
  allocate(0, 100);
  EXPECT_EQ(openreg_memory_get_info(0, &unused, &total), OPENREG_OK);
  EXPECT_EQ(total, OPENREG_MEMORY_UNKNOWN);
  EXPECT_EQ(unused, OPENREG_MEMORY_UNKNOWN - 2 * kMib);
}

// A driver that counts more free bytes than there are is told so.
TEST_F(MemoryTest, InfoThatCannotBe) {
  use_full_toy([](openreg_driver& table) {
    table.mem_info = [](openreg_instance, int32_t, uint64_t* free_bytes, uint64_t* total) {
      *free_bytes = 11;
      *total = 10;
      return openreg_status{OPENREG_OK};
    };
  });
  uint64_t unused = 1, total = 2;
  EXPECT_EQ(openreg_memory_get_info(0, &unused, &total), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(), "driver \"full_toy\": mem_info gave 11 free bytes, but only 10 in all");
  EXPECT_EQ(unused, 1U);
  EXPECT_EQ(total, 2U);
}

// ---------------------------------------------------------------------------------------------------------------------
// Pinned host memory

TEST_F(MemoryTest, Pinned) {
  std::vector<std::pair<void*, size_t>> blocks;
  for (size_t size : {size_t{1}, size_t{4096}, size_t{5000}, 3 * kMib}) {
    void* block = nullptr;
    ASSERT_EQ(openreg_host_alloc(0, size, &block), OPENREG_OK) << last_message();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
    std::memset(block, 7, size);
    blocks.emplace_back(block, size);
  }
  for (const auto& [block, size] : blocks) {
    for (const size_t offset : {size_t{0}, size / 2, size - 1}) {
      const auto info = pointer_info(at(block, offset));
      EXPECT_EQ(info.kind, OPENREG_POINTER_PINNED);
      EXPECT_EQ(info.base, block);
      EXPECT_EQ(info.size, size);
      EXPECT_EQ(info.device, -1);
      EXPECT_EQ(info.live, 1);
    }
    EXPECT_NE(pointer_info(at(block, size)).base, block);
  }
  EXPECT_EQ(openreg_shutdown(), OPENREG_E_BUSY);  // they pin the device table
  expect_error(openreg_host_free(at(blocks[1].first, 100)), OPENREG_E_INVALID, "openreg_host_free");
  EXPECT_CONTAINS(last_message(), "100 bytes behind its start");
  int local = 0;
  EXPECT_EQ(openreg_host_free(&local), OPENREG_E_INVALID);
  void* device = allocate(0, 100);
  EXPECT_EQ(openreg_host_free(device), OPENREG_E_INVALID);
  release(device);
  for (const auto& one : blocks) {
    EXPECT_EQ(openreg_host_free(one.first), OPENREG_OK) << last_message();
    expect_error(openreg_host_free(one.first), OPENREG_E_INVALID, "or was freed already");
  }
  EXPECT_EQ(openreg_host_free(nullptr), OPENREG_OK);
  void* out = &out;
  EXPECT_EQ(openreg_host_alloc(0, 0, &out), OPENREG_OK);
  EXPECT_EQ(out, nullptr);
  out = &out;
  EXPECT_EQ(openreg_host_alloc(2, 1, &out), OPENREG_E_INVALID);
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(openreg_host_alloc(0, 1, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_host_alloc(0, SIZE_MAX, &out), OPENREG_E_NOMEM);
  EXPECT_EQ(out, nullptr);
}

// Each of many blocks is found by the addresses in it, and no more once it is freed, in whatever order they go.
TEST_F(MemoryTest, PinnedBlocksInAnyOrder) {
  constexpr size_t kBlocks = 1000;
  std::vector<void*> blocks(kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) ASSERT_EQ(openreg_host_alloc(i % 2 == 0, 100, &blocks[i]), OPENREG_OK);
  for (size_t i = 0; i < kBlocks; ++i) {
    void* const block = blocks[i * 387 % kBlocks];
    EXPECT_EQ(pointer_info(at(block, 99)).base, block);
    ASSERT_EQ(openreg_host_free(block), OPENREG_OK) << last_message();
    EXPECT_EQ(pointer_info(at(block, 99)).kind, OPENREG_POINTER_UNKNOWN);
    if (i % 100 != 0) continue;
    for (size_t j = i + 1; j < kBlocks; ++j) {
      void* const other = blocks[j * 387 % kBlocks];
      ASSERT_EQ(pointer_info(other).base, other);
    }
  }
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
}

// A driver that fails to make or to free pinned memory: nothing changes.
TEST_F(MemoryTest, PinnedDriverFails) {
  use_full_toy();
  void* block = &block;
  toy().fail("host_alloc", 1, OPENREG_E_NOMEM, 0);
  EXPECT_EQ(openreg_host_alloc(0, 100, &block), OPENREG_E_NOMEM);
  EXPECT_EQ(block, nullptr);
  ASSERT_EQ(openreg_host_alloc(0, 100, &block), OPENREG_OK);
  toy().fail("host_free", 1, OPENREG_E_INTERNAL, 0);
  EXPECT_EQ(openreg_host_free(block), OPENREG_E_INTERNAL);
  EXPECT_EQ(pointer_info(block).kind, OPENREG_POINTER_PINNED);
  EXPECT_EQ(openreg_host_free(block), OPENREG_OK);
  EXPECT_EQ(pointer_info(block).kind, OPENREG_POINTER_UNKNOWN);
}

TEST_F(MemoryTest, PinnedThreads) {
  std::atomic<int> wrong{0};
  Threads(4, [&](int id) {
    std::vector<void*> live;
    for (int step = 0; step < 300; ++step) {
      void* block = nullptr;
      if (openreg_host_alloc(id % 2, static_cast<size_t>(1 + step * 37), &block) != OPENREG_OK) ++wrong;
      std::memset(block, id, static_cast<size_t>(1 + step * 37));
      live.push_back(block);
      if (pointer_info(block).base != block) ++wrong;
      if (step % 3 != 0) {
        if (openreg_host_free(live.front()) != OPENREG_OK) ++wrong;
        live.erase(live.begin());
      }
    }
    for (void* block : live)
      if (openreg_host_free(block) != OPENREG_OK) ++wrong;
  }).join();
  EXPECT_EQ(wrong, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// fork

// A stale pointer may be asked about at any time, also while its segment is being added again.
TEST_F(MemoryTest, QueriesWhileSegmentsComeAndGo) {
  void* const stale = allocate(0, 30 * kMib);
  release(stale);
  std::atomic<bool> stop{false};
  std::vector<std::thread> askers;
  for (int i = 0; i < 2; ++i)
    askers.emplace_back([&] {
      while (!stop) {
        const openreg_pointer_info info = pointer_info(at(stale, kMib));
        ASSERT_TRUE(info.kind == OPENREG_POINTER_UNKNOWN || info.kind == OPENREG_POINTER_DEVICE);
      }
    });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (int turn = 0; turn < 200000 && std::chrono::steady_clock::now() < end; ++turn) {
    ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
    release(allocate(0, 30 * kMib));
  }
  stop = true;
  for (auto& asker : askers) asker.join();
}

// In a forked child every function of memory refuses, at once and without a lock; the parent goes on.
TEST_F(MemoryTest, ForkedChild) {
  void* block = allocate(0, 4096);
  void* const pinned = make_pinned(100);
  std::atomic<bool> stop{false};
  std::thread busy([&] {  // so that a lock may be held at the fork
    while (!stop) release(allocate(0, 1000));
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(in_child([&] {
      void* out = &out;
      auto info = sized<openreg_pointer_info>();
      char host[8];
      return openreg_malloc(0, 0, 100, &out) == OPENREG_E_FORKED && out == nullptr &&
             ::openreg_free(block) == OPENREG_E_FORKED &&
             openreg_memory_record_stream(block, 0, 0) == OPENREG_E_FORKED &&
             openreg_memcpy(host, OPENREG_HOST, block, 0, 8) == OPENREG_E_FORKED &&
             openreg_host_alias(block, &out) == OPENREG_E_FORKED &&
             openreg_device_address(block, &out) == OPENREG_E_FORKED &&
             openreg_pointer_get_info(block, &info) == OPENREG_E_FORKED &&
             openreg_host_free(pinned) == OPENREG_E_FORKED && openreg_memory_empty_cache(-1) == OPENREG_E_FORKED &&
             openreg_host_alloc(0, 1, &out) == OPENREG_E_FORKED && last_message().find("spawn") != std::string::npos;
    }));
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace openreg_test
