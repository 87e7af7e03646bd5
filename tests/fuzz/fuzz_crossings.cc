// SPDX-License-Identifier: BSD-3-Clause
// Random programs in which features meet: settings of the allocator x threads x private pools x streams recorded x memory
// that runs out x a driver whose segments grow slowly; and, with --forks, forks while the threads are at it. After each step
// the cache's own invariants are checked (cache_check.h).
//
//   fuzz_crossings --seconds N --seed S [--programs N: at most] [--forks 1]
//
// A broken invariant, an error that is none of running out of memory, a child that fails or a crash end the run; the seed of
// the program is on the last line of stderr.
#include <openreg/allocator.h>
#include <openreg/driver.h>
#include <openreg/openreg.h>
#include <openreg/registry.h>
#include <openreg/vmm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../drivers/full_toy_driver.h"
#include "cache_check.h"

extern "C" const openreg_host openreg_host_services;
extern "C" openreg_status openreg_sim_query(const openreg_host* host, const openreg_driver** out);

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMib = 1 << 20;

// ------------------------------------------------------------------------------------------------------------------ failures

std::mutex failure_lock;
std::string failure;
std::atomic<bool> has_failed{false};

void fail(const std::string& text) {
  const std::lock_guard<std::mutex> guard(failure_lock);
  if (!has_failed.exchange(true)) failure = text;
}

void check_cache() {
  char text[256];
  if (openreg_cache_check(0, text, sizeof text) == 0) fail(text);
}

void expect(openreg_status status) {
  if (status != OPENREG_OK && status != OPENREG_E_NOMEM) fail(openreg_last_error()->message);
}

// ---------------------------------------------------------------------------------------- the simulated devices, slow to grow

const openreg_driver* sim;
openreg_vmm slow_vmm;
const openreg_vmm* sims_vmm;
uint64_t granularity = 1;
std::atomic<unsigned> microseconds{0};  // at most

void dawdle() {
  static thread_local std::minstd_rand random(static_cast<unsigned>(gettid()));
  if (const unsigned most = microseconds) usleep(static_cast<useconds_t>(random() % most));
}

// What vmm.h promises to drivers: a piece of no bytes is a step that was decided on what is no longer so.
void check_piece(const char* what, uint64_t offset, uint64_t size) {
  if (size == 0 || (offset | size) % granularity != 0)
    fail(std::string(what) + "() of " + std::to_string(size) + " bytes at " + std::to_string(offset));
}

openreg_status slow_map(openreg_instance instance, int32_t device, void* memory, uint64_t offset, uint64_t size) {
  check_piece("map", offset, size);
  dawdle();
  return sims_vmm->map(instance, device, memory, offset, size);
}

openreg_status slow_unmap(openreg_instance instance, int32_t device, void* memory, uint64_t offset, uint64_t size) {
  check_piece("unmap", offset, size);
  dawdle();
  return sims_vmm->unmap(instance, device, memory, offset, size);
}

// Before any thread: the extension is asked for by all of them.
openreg_status slow_open(const openreg_host* host, const openreg_option* options, uint32_t n, openreg_instance* out) {
  const openreg_status status = sim->open(host, options, n, out);
  if (status != OPENREG_OK) return status;
  sims_vmm = static_cast<const openreg_vmm*>(sim->extension(*out, OPENREG_VMM_NAME, OPENREG_VMM_VERSION));
  slow_vmm = *sims_vmm;
  slow_vmm.map = slow_map;
  slow_vmm.unmap = slow_unmap;
  return sims_vmm->granularity(*out, 0, &granularity);
}

const void* slow_extension(openreg_instance instance, const char* name, uint32_t version) {
  const void* const table = sim->extension(instance, name, version);
  return table == sims_vmm ? &slow_vmm : table;
}

// ------------------------------------------------------------------------------------------------------------------- a thread

// Programs ask for a few sizes again and again: what one thread leaves fits another.
size_t usual_sizes[4];

size_t draw_size(std::mt19937& random) {
  const size_t below[] = {600, 9000, kMib, 22 * kMib, 22 * kMib, 64 * kMib};
  return 1 + random() % below[random() % 6];
}

void change_settings(std::mt19937& random) {
  openreg_allocator_settings settings{};
  settings.struct_size = sizeof settings;
  expect(openreg_allocator_default_settings(&settings));
  const size_t limits[] = {20 * kMib, 24 * kMib, 32 * kMib, SIZE_MAX};
  const size_t roundings[] = {0, kMib, 20 * kMib};
  settings.expandable_segments = random() % 4 != 0;
  settings.max_split_size = limits[random() % 4];
  settings.max_non_split_rounding = roundings[random() % 3];
  settings.large_segment_size = random() % 4 == 0 ? 32 * kMib : 20 * kMib;
  settings.garbage_collection_threshold = random() % 4 == 0 ? 0.4 : 0;
  settings.memory_fraction = random() % 6 == 0 ? 0.7 : 1;
  for (uint32_t& divisions : settings.roundup_divisions) divisions = random() % 3 == 0 ? 1u << (random() % 5) : 0;
  expect(openreg_allocator_set_settings(&settings));
  (void)openreg_allocator_set_caching(random() % 8 != 0);
}

class Player {
 public:
  // Checks after one step of so many.
  explicit Player(unsigned seed, unsigned every = 1) : random_(seed), every_(every) {
    for (openreg_stream& stream : streams_) expect(openreg_stream_from_pool(0, 0, &stream));
    streams_[0] = OPENREG_STREAM_DEFAULT;  // whose memory the threads share
  }
  ~Player() {
    while (!blocks_.empty()) free_one();
    leave();
  }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  void step() {
    const unsigned what = static_cast<unsigned>(random_() % 100);
    if (what < 45) {
      allocate();
    } else if (what < 75) {
      if (!blocks_.empty()) free_one();
    } else if (what < 85) {
      if (!blocks_.empty()) expect(openreg_memory_record_stream(blocks_[random_() % blocks_.size()], 0, stream()));
    } else if (what < 88) {
      expect(openreg_memory_empty_cache(0));
    } else if (what < 90) {
      enter();
    } else if (what < 96) {
      leave();
    } else if (what < 97 && is_in_pool_) {
      expect(openreg_memory_pool_trim(0, pool_));
    } else if (what < 98 && random_() % 4 == 0) {
      change_settings(random_);
    } else if (what < 99) {
      openreg_event event = nullptr;
      expect(openreg_event_create(0, 0, &event));
      expect(openreg_event_record(event, 0, stream()));
      expect(openreg_event_destroy(event));
    } else {
      void* pinned = nullptr;
      expect(openreg_host_alloc(0, 1 + random_() % 5000, &pinned));
      expect(openreg_host_free(pinned));
    }
    if (++steps_ % every_ == 0) check_cache();
  }

 private:
  openreg_stream stream() { return streams_[random_() % 4 == 0 ? 1 + random_() % 2 : 0]; }

  void allocate() {
    void* block = nullptr;
    if (blocks_.size() >= 24) free_one();
    const size_t size = random_() % 2 == 0 ? usual_sizes[random_() % 4] : draw_size(random_);
    const openreg_status status = openreg_malloc(0, stream(), size, &block);
    expect(status);
    if (status == OPENREG_OK) {
      blocks_.push_back(block);
    } else if (!blocks_.empty()) {
      free_one();
    }
  }
  void free_one() {
    std::swap(blocks_[random_() % blocks_.size()], blocks_.back());
    expect(openreg_free(blocks_.back()));
    blocks_.pop_back();
  }
  void enter() {
    static std::atomic<uint64_t> names{1};
    if (is_in_pool_) return;
    pool_ = random_() % 2 == 0 ? openreg_memory_pool_id{names++, 7}
                               : openreg_memory_pool_id{1, 8};  // its own, or all threads'
    const uint32_t flags[] = {0, OPENREG_MEMORY_POOL_USE_ON_OOM, OPENREG_MEMORY_POOL_NO_SPLIT};
    expect(openreg_memory_pool_retain(0, pool_, flags[random_() % 3]));
    expect(openreg_memory_pool_enter(0, pool_));
    is_in_pool_ = true;
  }
  void leave() {
    if (!is_in_pool_) return;
    is_in_pool_ = false;
    expect(openreg_memory_pool_leave(0, pool_));
    expect(openreg_memory_pool_release(0, pool_));
  }

  std::mt19937 random_;
  const unsigned every_;
  unsigned steps_ = 0;
  openreg_stream streams_[3] = {};
  std::vector<void*> blocks_;
  openreg_memory_pool_id pool_{};
  bool is_in_pool_ = false;
};

// -------------------------------------------------------------------------------------------------------------------- programs

// A child looks at what it has inherited, and uses it.
void fork_one(unsigned seed) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // its steps take milliseconds: it hangs
    check_cache();
    {
      Player player(seed);
      for (int i = 0; i < 10 && !has_failed; ++i) player.step();
    }
    expect(openreg_memory_empty_cache(0));
    check_cache();
    if (has_failed) std::fprintf(stderr, "\nchild: %s\n", failure.c_str());
    _exit(has_failed ? 1 : 0);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
    fail("a child ended with status " + std::to_string(status));
}

void run(unsigned seed, bool forks) {
  std::mt19937 random(seed);
  const unsigned count = random() % 4 == 0 ? 1 : 2 + static_cast<unsigned>(random() % 3);
  const int steps = 50 + static_cast<int>(random() % 300);
  microseconds = random() % 3 == 0 ? 0 : 1 + static_cast<unsigned>(random() % 1000);
  for (size_t& size : usual_sizes) size = draw_size(random);
  change_settings(random);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      Player player(seed * 8 + i, forks ? 64 : 1);  // who looks at the cache changes nothing in it
      for (int step = 0; (forks ? !stop : step < steps) && !has_failed; ++step) player.step();
    });
  }
  for (unsigned i = 0; forks && i < 25 && !has_failed; ++i) fork_one(seed * 1000 + i);
  stop = true;
  for (auto& thread : threads) thread.join();
  check_cache();
  expect(openreg_memory_empty_cache(0));
  check_cache();
  openreg_memory_stats stats{};
  stats.struct_size = sizeof stats;
  expect(openreg_memory_get_stats(0, &stats));
  if (stats.allocation[0].current != 0 || stats.reserved_bytes[0].current != 0) fail("memory is left");
}

}  // namespace

int main(int count, char** arguments) {
  double seconds = 10;
  unsigned seed = std::random_device()();
  unsigned most = UINT_MAX;
  bool forks = false;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    if (name == "--seconds") seconds = std::atof(arguments[i + 1]);
    if (name == "--seed") seed = static_cast<unsigned>(std::strtoul(arguments[i + 1], nullptr, 10));
    if (name == "--programs") most = static_cast<unsigned>(std::strtoul(arguments[i + 1], nullptr, 10));
    if (name == "--forks") forks = std::atoi(arguments[i + 1]) != 0;
  }
  static openreg_driver table;
  if (forks) {
    table = *full_toy_test_hooks()->table();
    table.caps |= OPENREG_CAP_FORK_SAFE;
  } else {
    if (openreg_sim_query(&openreg_host_services, &sim) != OPENREG_OK) return 2;
    table = *sim;
    table.open = slow_open;
    table.extension = slow_extension;
  }
  table.name = "crossed";
  setenv("OPENREG_CROSSED_MEMORY", "134217728", 1);
  setenv("OPENREG_CROSSED_DEVICES", "1", 1);
  setenv("OPENREG_DRIVERS", table.name, 1);
  setenv("OPENREG_LOG_LEVEL", "error", 1);
  if (openreg_driver_register_table(&table) != OPENREG_OK || openreg_init() != OPENREG_OK) {
    std::printf("%s\n", openreg_last_error()->message);
    return 2;
  }
  const auto end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  unsigned programs = 0;
  for (; programs < most && (programs == 0 || Clock::now() < end); ++programs) {
    std::fprintf(stderr, "\rseed %u", seed + programs);
    run(seed + programs, forks);
    if (has_failed) {
      std::printf("\nseed %u: %s\n", seed + programs, failure.c_str());
      return 1;
    }
  }
  std::printf("\n%u programs from seed %u, no failure\n", programs, seed);
  return openreg_shutdown() == OPENREG_OK ? 0 : 1;
}
