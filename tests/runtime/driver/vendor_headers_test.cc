// SPDX-License-Identifier: BSD-3-Clause
// The headers for vendors unlike CUDA (openreg/handle_addresses.h, word_copies.h, software_streams.h), where openreg-check on
// drivers/handles doesn't reach: every offset and size, many buffers, work that fails.
#include <openreg/handle_addresses.h>
#include <openreg/software_streams.h>
#include <openreg/word_copies.h>

#include <cstring>
#include <random>
#include <string>

#include "runtime_test.h"

namespace {

// A vendor's buffers, which refuse anything but whole words.
struct Buffers {
  std::vector<unsigned char> bytes[2];
  uint32_t word;
  int calls_left = 1 << 30;

  bool is_allowed(uint64_t offset, uint64_t size) {
    EXPECT_EQ(offset % word, 0u);
    EXPECT_EQ(size % word, 0u);
    return calls_left-- > 0;
  }
};

unsigned char* at(void* ctx, void* handle, uint64_t offset) {
  return static_cast<Buffers*>(ctx)->bytes[reinterpret_cast<uintptr_t>(handle) - 1].data() + offset;
}

openreg_status result(bool is_allowed) { return is_allowed ? OPENREG_OK : OPENREG_E_INTERNAL; }

openreg_words words_of(Buffers& buffers) {
  openreg_words words{};
  words.word = buffers.word;
  words.ctx = &buffers;
  words.read = [](void* ctx, void* handle, uint64_t offset, void* host, uint64_t size) {
    if (!static_cast<Buffers*>(ctx)->is_allowed(offset, size)) return result(false);
    memcpy(host, at(ctx, handle, offset), size);
    return result(true);
  };
  words.write = [](void* ctx, void* handle, uint64_t offset, const void* host, uint64_t size) {
    if (!static_cast<Buffers*>(ctx)->is_allowed(offset, size)) return result(false);
    memcpy(at(ctx, handle, offset), host, size);
    return result(true);
  };
  words.move = [](void* ctx, void* dst, uint64_t to, void* src, uint64_t from, uint64_t size) {
    auto& own = *static_cast<Buffers*>(ctx);
    if (!own.is_allowed(to, size) || from % own.word != 0) return result(false);
    memcpy(at(ctx, dst, to), at(ctx, src, from), size);
    return result(true);
  };
  words.fill = [](void* ctx, void* handle, uint64_t offset, uint8_t value, uint64_t size) {
    if (!static_cast<Buffers*>(ctx)->is_allowed(offset, size)) return result(false);
    memset(at(ctx, handle, offset), value, size);
    return result(true);
  };
  return words;
}

void* const first = reinterpret_cast<void*>(uintptr_t{1});
void* const second = reinterpret_cast<void*>(uintptr_t{2});

std::vector<unsigned char> numbers(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> all(count);
  for (auto& each : all) each = static_cast<unsigned char>(random());
  return all;
}

TEST(WordCopiesTest, EveryOffsetAndSize) {
  for (const uint32_t word : {1u, 4u, 16u}) {
    const size_t room = size_t{5} * word;
    for (uint64_t offset = 0; offset < 2 * word; ++offset) {
      for (uint64_t size = 0; offset + size <= room; ++size) {
        Buffers buffers{{numbers(room, 1), numbers(room, 2)}, word};
        const openreg_words words = words_of(buffers);
        auto expected = buffers.bytes[0];
        const auto host = numbers(room, 3);

        ASSERT_EQ(openreg_words_write(&words, first, offset, host.data(), size), OPENREG_OK);
        std::copy_n(host.begin(), size, expected.begin() + static_cast<long>(offset));
        ASSERT_EQ(buffers.bytes[0], expected) << word << " " << offset << " " << size;

        std::vector<unsigned char> back(size + 1, 7);
        ASSERT_EQ(openreg_words_read(&words, first, offset, back.data(), size), OPENREG_OK);
        ASSERT_TRUE(std::equal(back.begin(), back.end() - 1, host.begin())) << word << " " << offset << " " << size;
        ASSERT_EQ(back.back(), 7);

        ASSERT_EQ(openreg_words_fill(&words, first, offset, 9, size), OPENREG_OK);
        std::fill_n(expected.begin() + static_cast<long>(offset), size, 9);
        ASSERT_EQ(buffers.bytes[0], expected) << word << " " << offset << " " << size;
      }
    }
  }
}

TEST(WordCopiesTest, MovesOfEveryPairOfOffsets) {
  constexpr uint32_t kWord = 4;
  constexpr size_t kRoom = 40000;  // more than what goes through the host at a time
  for (uint64_t to = 0; to < kWord; ++to) {
    for (uint64_t from = 0; from < kWord; ++from) {
      for (const uint64_t size : {0u, 1u, 3u, 4u, 5u, 11u, 16384u, 39990u}) {
        Buffers buffers{{numbers(kRoom, 1), numbers(kRoom, 2)}, kWord};
        const openreg_words words = words_of(buffers);
        auto expected = buffers.bytes[0];
        std::copy_n(buffers.bytes[1].begin() + static_cast<long>(from), size, expected.begin() + static_cast<long>(to));
        ASSERT_EQ(openreg_words_move(&words, first, to, second, from, size), OPENREG_OK);
        ASSERT_EQ(buffers.bytes[0], expected) << to << " " << from << " " << size;
      }
    }
  }
}

// a failure of the vendor's is the result, and nothing is called after it
TEST(WordCopiesTest, Failures) {
  for (int calls = 0; calls < 5; ++calls) {  // head: read, write; body: write; tail: read, write
    Buffers buffers{{numbers(64, 1), numbers(64, 2)}, 4, calls};
    const openreg_words words = words_of(buffers);
    const auto host = numbers(64, 3);
    EXPECT_EQ(openreg_words_write(&words, first, 1, host.data(), 10), OPENREG_E_INTERNAL);
    EXPECT_EQ(buffers.calls_left, -1) << calls;
  }
}

TEST(HandleAddressesTest, ManyBuffers) {
  openreg_handle_table table{};
  pthread_mutex_init(&table.lock, nullptr);
  std::mt19937 random(5);
  struct Made {
    char* start;
    uint64_t size;
  };
  std::vector<Made> made;
  std::vector<int> handles(600);
  for (auto& handle : handles) {
    const uint64_t size = 1 + random() % 100000;
    const uint64_t alignment = random() % 4 == 0 ? uint64_t{1} << (10 + random() % 12) : 0;
    auto* const start = static_cast<char*>(openreg_handle_reserve(&table, size, alignment, &handle));
    ASSERT_NE(start, nullptr);
    if (alignment != 0) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(start) % alignment, 0u);
    }
    made.push_back({start, size});
  }
  static int used;
  for (size_t i = 0; i < made.size(); ++i) {
    uint64_t offset = 0, left = 0;
    const uint64_t inside = random() % made[i].size;
    used = 0;
    EXPECT_EQ(openreg_handle_find(&table, made[i].start + inside, &offset, &left, [](void*) { ++used; }), &handles[i]);
    EXPECT_EQ(offset, inside);
    EXPECT_EQ(left, made[i].size - inside);
    EXPECT_EQ(used, 1);
    void* const behind = openreg_handle_find(&table, made[i].start + made[i].size, &offset, &left, nullptr);
    EXPECT_TRUE(behind == nullptr || (behind != &handles[i] && offset == 0));
  }
  openreg_handle_range range{};
  EXPECT_EQ(openreg_handle_remove(&table, made[0].start + 1, &range), nullptr);
  EXPECT_EQ(openreg_handle_remove(&table, nullptr, &range), nullptr);
  for (size_t i = 0; i < made.size(); ++i) {
    uint64_t offset = 0, left = 0;
    EXPECT_EQ(openreg_handle_remove(&table, made[i].start, &range), &handles[i]);
    EXPECT_EQ(openreg_handle_find(&table, made[i].start, &offset, &left, nullptr), nullptr);
    openreg_handle_unmap(&range);
  }
  EXPECT_EQ(openreg_handle_reserve(&table, UINT64_MAX - 10, 0, &handles), nullptr);
  EXPECT_EQ(openreg_handle_reserve(&table, UINT64_MAX - 10, 1 << 20, &handles), nullptr);
  openreg_handle_table_free(&table);
  pthread_mutex_destroy(&table.lock);
}

std::string last_text;

openreg_host host_that_keeps_texts() {
  openreg_host host{};
  host.struct_size = sizeof host;
  host.set_error = [](void*, openreg_status, int64_t, const char* text) { last_text = text; };
  return host;
}

// a failure of work is reported by the next query or wait of its stream, once, and by events behind it; later work runs
TEST(SoftwareStreamsTest, WorkThatFails) {
  const openreg_host host = host_that_keeps_texts();
  openreg_soft_streams set;
  openreg_soft_stream* stream = nullptr;
  openreg_soft_event* event = nullptr;
  ASSERT_EQ(openreg_soft_streams_open(&set, &host), OPENREG_OK);
  ASSERT_EQ(openreg_soft_stream_create(&set, 0, &stream), OPENREG_OK);
  ASSERT_EQ(openreg_soft_event_create(&set, 0, 0, &event), OPENREG_OK);
  const openreg_soft_work fails = [](void*, openreg_soft_failure* failure) -> openreg_status {
    snprintf(failure->text, sizeof failure->text, "the vendor said no");
    return OPENREG_E_NOMEM;
  };
  static int later;
  const openreg_soft_work counts = [](void*, openreg_soft_failure*) -> openreg_status { return ++later, OPENREG_OK; };
  ASSERT_EQ(openreg_soft_push(&set, stream, fails, nullptr), OPENREG_OK);
  ASSERT_EQ(openreg_soft_push(&set, stream, counts, nullptr), OPENREG_OK);
  ASSERT_EQ(openreg_soft_event_record(&set, stream, event), OPENREG_OK);
  EXPECT_EQ(openreg_soft_event_sync(&set, event), OPENREG_E_NOMEM);
  EXPECT_EQ(later, 1);
  last_text.clear();
  EXPECT_EQ(openreg_soft_stream_sync(&set, stream), OPENREG_E_NOMEM);
  EXPECT_EQ(last_text, "the vendor said no");
  EXPECT_EQ(openreg_soft_stream_sync(&set, stream), OPENREG_OK);
  ASSERT_EQ(openreg_soft_push(&set, stream, fails, nullptr), OPENREG_OK);
  EXPECT_EQ(openreg_soft_device_sync(&set, 0), OPENREG_E_NOMEM);
  EXPECT_EQ(openreg_soft_device_sync(&set, 0), OPENREG_OK);
  openreg_soft_event_destroy(&set, event);
  openreg_soft_streams_close(&set);
}

// work of a stream that was destroyed still runs, and is waited for
TEST(SoftwareStreamsTest, DestroyedStreams) {
  const openreg_host host = host_that_keeps_texts();
  openreg_soft_streams set;
  ASSERT_EQ(openreg_soft_streams_open(&set, &host), OPENREG_OK);
  static int runs;
  const openreg_soft_work work = [](void*, openreg_soft_failure*) -> openreg_status { return ++runs, OPENREG_OK; };
  for (int i = 0; i < 50; ++i) {
    openreg_soft_stream* stream = nullptr;
    ASSERT_EQ(openreg_soft_stream_create(&set, 1, &stream), OPENREG_OK);
    ASSERT_EQ(openreg_soft_push(&set, stream, work, nullptr), OPENREG_OK);
    openreg_soft_stream_destroy(&set, stream);
    ASSERT_EQ(openreg_soft_device_sync(&set, 1), OPENREG_OK);
    ASSERT_EQ(runs, i + 1);
  }
  openreg_soft_streams_close(&set);
}

}  // namespace
