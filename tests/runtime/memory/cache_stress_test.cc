// SPDX-License-Identifier: BSD-3-Clause
// The caching allocator under random requests: sizes, streams, recorded streams, private pools, settings, threads.
//
// After every step (with threads: whenever they pause) the blocks must tile their segments, the statistics must be the
// truth, and what is live must be what was allocated and not freed. Beside that a listener keeps a model of its own from
// the events, and each block holds a pattern that nobody else may overwrite.
//
// A few seconds; OPENREG_STRESS_SECONDS=60 gives each test that long. OPENREG_STRESS_SEED repeats a run.
#include <openreg/observer.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "cache_check.h"

namespace openreg_test {
namespace {

constexpr size_t kKib = 1024, kMib = 1024 * kKib;

double number_from(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atof(text);
}

// Read before the fixture clears the variables.
const double seconds = number_from("OPENREG_STRESS_SECONDS", 1.5);
const auto seed = static_cast<unsigned>(number_from("OPENREG_STRESS_SEED", 20260));

class Deadline {
 public:
  bool over() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::steady_clock::time_point end_ =
      std::chrono::steady_clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
};

// What the events say of one device. Used under the cache's lock only.
struct Model {
  std::map<uint64_t, uint64_t> segments, blocks;  // by address: sizes
  std::map<uint64_t, bool> freeing;               // blocks whose free was requested
  int64_t faults = 0, events = 0;

  void expect(bool truth) { faults += truth ? 0 : 1; }

  void alloc(uint64_t address, uint64_t size) {
    const auto next = blocks.upper_bound(address);
    expect(next == blocks.end() || address + size <= next->first);
    expect(next == blocks.begin() || std::prev(next)->first + std::prev(next)->second <= address);
    const auto segment = segments.upper_bound(address);
    expect(segment != segments.begin() && address + size <= std::prev(segment)->first + std::prev(segment)->second);
    blocks[address] = size;
  }

  void free_completed(uint64_t address, uint64_t size) {
    expect(freeing.erase(address) == 1);
    const auto block = blocks.find(address);
    expect(block != blocks.end() && block->second == size);
    if (block != blocks.end()) blocks.erase(block);
  }

  void segment_free(uint64_t address, uint64_t size) {
    const auto segment = segments.find(address);
    expect(segment != segments.end() && segment->second == size);
    if (segment != segments.end()) segments.erase(segment);
    const auto inside = blocks.lower_bound(address);
    expect(inside == blocks.end() || inside->first >= address + size);
  }

  // A segment grows at its end, and shrinks there by what no block lies in.
  void segment_map(uint64_t address, uint64_t size) {
    const auto segment = segments.lower_bound(address);
    const bool found = segment != segments.begin();
    expect(found && std::prev(segment)->first + std::prev(segment)->second == address);
    if (found) std::prev(segment)->second += size;
  }

  void segment_unmap(uint64_t address, uint64_t size) {
    const auto segment = segments.lower_bound(address);
    const bool found = segment != segments.begin();
    expect(found && std::prev(segment)->first + std::prev(segment)->second == address + size);
    if (found) std::prev(segment)->second -= size;
    const auto inside = blocks.lower_bound(address);
    expect(inside == blocks.end() || inside->first >= address + size);
  }
};

Model models[2];

void listen(void*, const openreg_memory_event* event) {
  Model& model = models[event->device];
  ++model.events;
  switch (event->action) {
    case OPENREG_MEMORY_EVENT_ALLOC:
      model.alloc(event->address, event->size);
      break;
    case OPENREG_MEMORY_EVENT_FREE_REQUESTED:
      model.expect(model.blocks.count(event->address) == 1);
      model.expect(model.freeing.emplace(event->address, true).second);
      break;
    case OPENREG_MEMORY_EVENT_FREE_COMPLETED:
      model.free_completed(event->address, event->size);
      break;
    case OPENREG_MEMORY_EVENT_SEGMENT_ALLOC:
      model.expect(model.segments.emplace(event->address, event->size).second);
      break;
    case OPENREG_MEMORY_EVENT_SEGMENT_FREE:
      model.segment_free(event->address, event->size);
      break;
    case OPENREG_MEMORY_EVENT_SEGMENT_MAP:
      model.segment_map(event->address, event->size);
      break;
    case OPENREG_MEMORY_EVENT_SEGMENT_UNMAP:
      model.segment_unmap(event->address, event->size);
      break;
    default:
      break;
  }
}

struct Block {
  void* address;
  size_t size;
  openreg_stream stream;
  uint64_t pattern;
};

// A block that goes from thread to thread, if there is one.
struct Exchange {
  std::mutex mutex;
  Block block{};
};

// One thread's random program.
class Player {
 public:
  Player(int32_t device, unsigned number, std::vector<openreg_stream> streams, Exchange* exchange = nullptr)
      : device_(device), random_(seed + number), streams_(std::move(streams)), number_(number), exchange_(exchange) {}

  ~Player() {
    while (!blocks_.empty()) free_one();
    for (uint64_t pool : pools_) EXPECT_EQ(openreg_memory_pool_release(device_, {7, pool}), OPENREG_OK);
  }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  void step() {
    switch (random_() % 64) {
      case 0:
        EXPECT_EQ(openreg_memory_empty_cache(device_), OPENREG_OK) << last_message();
        break;
      case 1:
      case 2:
        use_stream();
        break;
      case 3:
        if (pools_.size() < 3) make_pool();
        break;
      case 4:
        if (!pools_.empty() && random_() % 4 == 0) drop_pool();
        break;
      case 5:
        if (!pools_.empty()) {
          EXPECT_EQ(openreg_memory_pool_trim(device_, {7, any_pool()}), OPENREG_OK) << last_message();
        }
        break;
      case 6:
      case 7:
      case 8:
        allocate_in_pool();
        break;
      case 9:
        if (exchange_ != nullptr && !blocks_.empty()) swap_one();
        break;
      case 10:
        if (exchange_ != nullptr && random_() % 16 == 0) (void)snapshot(device_);  // while others go on
        (void)stats_of(device_);
        break;
      default:
        if (blocks_.empty() || (blocks_.size() < 60 && random_() % 2 == 0)) {
          allocate_one();
        } else {
          free_one();
        }
    }
  }

  const std::vector<Block>& blocks() const { return blocks_; }
  int64_t refused() const { return refused_; }

 private:
  size_t any_size() {
    switch (random_() % 8) {
      case 0:
        return 1 + random_() % (24 * kMib);
      case 1:
        return 1 + random_() % (3 * kMib);
      case 2:
        return kMib - 2 + random_() % 5;
      default:
        return 1 + random_() % (random_() % 2 == 0 ? 2 * kKib : 200 * kKib);
    }
  }

  openreg_stream any_stream() { return streams_[random_() % streams_.size()]; }
  uint64_t any_pool() { return pools_[random_() % pools_.size()]; }

  uint64_t* first_word(const Block& block) {
    void* alias = nullptr;
    EXPECT_EQ(openreg_host_alias(block.address, &alias), OPENREG_OK) << last_message();
    return static_cast<uint64_t*>(alias);
  }

  void allocate_one() {
    Block block{nullptr, any_size(), any_stream(), 0};
    const openreg_status status = openreg_malloc(device_, block.stream, block.size, &block.address);
    refused_ += status == OPENREG_E_NOMEM;
    if (status == OPENREG_E_NOMEM) return;
    ASSERT_EQ(status, OPENREG_OK) << last_message();
    block.pattern = ++patterns_ | static_cast<uint64_t>(number_) << 56;
    if (block.size >= sizeof(uint64_t)) *first_word(block) = block.pattern;
    blocks_.push_back(block);
  }

  void free_one() {
    const size_t at = random_() % blocks_.size();
    const Block block = blocks_[at];
    blocks_[at] = blocks_.back();
    blocks_.pop_back();
    if (block.size >= sizeof(uint64_t)) {
      EXPECT_EQ(*first_word(block), block.pattern);
    }
    EXPECT_EQ(openreg_free(block.address), OPENREG_OK) << last_message();
  }

  void swap_one() {
    const size_t at = random_() % blocks_.size();
    const std::lock_guard<std::mutex> guard(exchange_->mutex);
    std::swap(exchange_->block, blocks_[at]);
    if (blocks_[at].address != nullptr) return;
    blocks_[at] = blocks_.back();
    blocks_.pop_back();
  }

  // Queues work on a block on another stream, and frees it: it must wait for that stream.
  void use_stream() {
    if (blocks_.empty()) return;
    const size_t at = random_() % blocks_.size();
    Block& block = blocks_[at];
    const openreg_stream stream = any_stream();
    EXPECT_EQ(openreg_memory_record_stream(block.address, device_, stream), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_memset_async(device_, stream, block.address, 0xAB, block.size), OPENREG_OK) << last_message();
    if (stream == block.stream) {  // its next owner would be in order behind the work; the host that writes is not
      EXPECT_EQ(openreg_stream_synchronize(device_, stream), OPENREG_OK) << last_message();
    }
    EXPECT_EQ(openreg_free(block.address), OPENREG_OK) << last_message();
    blocks_[at] = blocks_.back();
    blocks_.pop_back();
  }

  void make_pool() {
    static std::atomic<uint64_t> ids{0};
    const uint64_t id = ++ids;
    const uint32_t flags = random_() % 4;
    ASSERT_EQ(openreg_memory_pool_retain(device_, {7, id}, flags), OPENREG_OK) << last_message();
    pools_.push_back(id);
  }

  void drop_pool() {
    const size_t at = random_() % pools_.size();
    EXPECT_EQ(openreg_memory_pool_release(device_, {7, pools_[at]}), OPENREG_OK) << last_message();
    pools_[at] = pools_.back();
    pools_.pop_back();
  }

  void allocate_in_pool() {
    if (pools_.empty()) return;
    const openreg_memory_pool_id id{7, any_pool()};
    ASSERT_EQ(openreg_memory_pool_enter(device_, id), OPENREG_OK) << last_message();
    for (unsigned i = 0; i < 1 + random_() % 4; ++i) allocate_one();
    ASSERT_EQ(openreg_memory_pool_leave(device_, id), OPENREG_OK) << last_message();
  }

  int32_t device_;
  std::mt19937 random_;
  std::vector<openreg_stream> streams_;
  unsigned number_;
  std::vector<Block> blocks_;
  std::vector<uint64_t> pools_;
  uint64_t patterns_ = 0;
  int64_t refused_ = 0;
  Exchange* exchange_;
};

const openreg_observer& listener() {
  static const openreg_observer observer = [] {
    auto made = sized<openreg_observer>();
    made.memory = listen;
    return made;
  }();
  return observer;
}

class CacheStressTest : public SimDevicesTest {
 protected:
  void SetUp() override {
    SimDevicesTest::SetUp();
    for (Model& model : models) model = Model{};
    ASSERT_EQ(openreg_observe(&listener(), OPENREG_OBSERVE_MEMORY), OPENREG_OK);
  }

  void TearDown() override {
    EXPECT_EQ(openreg_observe(&listener(), 0), OPENREG_OK);
    use_settings([](auto&) {});
    openreg_allocator_set_caching(1);
    SimDevicesTest::TearDown();
  }

  static std::vector<openreg_stream> streams_of(int32_t device) {
    std::vector<openreg_stream> streams{OPENREG_STREAM_DEFAULT, OPENREG_STREAM_DEFAULT};
    for (int i = 0; i < 3; ++i) streams.push_back(from_pool(device));
    return streams;
  }

  // Only while nobody allocates.
  static void check(int32_t device, const std::vector<const Player*>& players, const Block& between = {}) {
    ASSERT_NO_FATAL_FAILURE(check_cache(device));
    std::map<void*, size_t> live;
    if (between.address != nullptr) live[between.address] = between.size;
    for (const Player* player : players)
      for (const Block& block : player->blocks()) live[block.address] = block.size;
    size_t seen = 0;
    for (const auto& block : snapshot(device)) {
      if (block.state != OPENREG_BLOCK_ALLOCATED) continue;
      const auto mine = live.find(block.address);
      ASSERT_NE(mine, live.end());
      ASSERT_EQ(mine->second, block.requested);
      ++seen;
    }
    ASSERT_EQ(seen, live.size());
    ASSERT_EQ(models[device].faults, 0);
    ASSERT_EQ(models[device].segments.size(), static_cast<size_t>(stats_of(device).segment[0].current));
    ASSERT_EQ(models[device].blocks.size(), static_cast<size_t>(stats_of(device).active[0].current));
  }

  static void change_settings(std::mt19937& random) {
    auto settings = default_settings();
    if (random() % 2 == 0) settings.max_split_size = 20 * kMib;
    if (random() % 2 == 0) settings.garbage_collection_threshold = 0.4;
    if (random() % 4 == 0) settings.memory_fraction = 0.7;
    settings.expandable_segments = random() % 2 == 0;
    for (uint32_t& divisions : settings.roundup_divisions) divisions = 1u << (random() % 5);
    ASSERT_EQ(openreg_allocator_set_settings(&settings), OPENREG_OK) << last_message();
    openreg_allocator_set_caching(random() % 6 != 0);
  }
};

// One thread: every single step leaves everything in order.
TEST_F(CacheStressTest, EveryStep) {
  SCOPED_TRACE(seed);
  const Deadline deadline;
  {
    Player player(0, 0, streams_of(0));
    while (!deadline.over() && !HasFatalFailure()) {
      player.step();
      ASSERT_NO_FATAL_FAILURE(check(0, {&player}));
    }
    EXPECT_EQ(stats_of(0).num_ooms, player.refused());
  }
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(stats_of(0).reserved_bytes[0].current, 0);
  EXPECT_GT(models[0].events, 100);
}

// The same while settings change and caching goes off and on.
TEST_F(CacheStressTest, EveryStepWithChangingSettings) {
  SCOPED_TRACE(seed);
  const Deadline deadline;
  {
    std::mt19937 random(seed);
    Player player(0, 0, streams_of(0));
    for (unsigned step = 0; !deadline.over() && !HasFatalFailure(); ++step) {
      if (step % 100 == 0) {
        ASSERT_NO_FATAL_FAILURE(change_settings(random));
      }
      player.step();
      ASSERT_NO_FATAL_FAILURE(check(0, {&player}));
    }
  }
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(stats_of(0).reserved_bytes[0].current, 0);
}

// Threads on two devices, which hand blocks to each other; they pause together so that the state can be looked at.
TEST_F(CacheStressTest, Threads) {
  SCOPED_TRACE(seed);
  constexpr unsigned kThreads = 4;
  const Deadline deadline;
  Exchange exchanges[2];
  std::vector<std::unique_ptr<Player>> players;
  for (unsigned i = 0; i < kThreads; ++i) {
    const auto device = static_cast<int32_t>(i % 2);
    players.push_back(std::make_unique<Player>(device, i, streams_of(device), &exchanges[device]));
  }
  std::barrier barrier(kThreads + 1);
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&barrier, &ended, player = players[i].get()] {
      for (;;) {
        barrier.arrive_and_wait();
        if (ended) return;
        for (int step = 0; step < 300; ++step) player->step();
        barrier.arrive_and_wait();
      }
    });
  }
  std::mt19937 random(seed);
  while (!deadline.over() && !HasFailure()) {
    barrier.arrive_and_wait();
    change_settings(random);  // while they run
    barrier.arrive_and_wait();
    for (int32_t device = 0; device < 2; ++device) {
      check(device, {players[static_cast<size_t>(device)].get(), players[static_cast<size_t>(device) + 2].get()},
            exchanges[device].block);
    }
  }
  ended = true;
  barrier.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  players.clear();
  for (int32_t device = 0; device < 2; ++device) {
    EXPECT_EQ(openreg_free(exchanges[device].block.address), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_memory_empty_cache(device), OPENREG_OK);
    EXPECT_EQ(stats_of(device).reserved_bytes[0].current, 0);
    EXPECT_EQ(models[device].faults, 0);
  }
}

}  // namespace
}  // namespace openreg_test
