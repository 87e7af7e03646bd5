// SPDX-License-Identifier: BSD-3-Clause
// The simulated devices, through the driver ABI itself: options, memory, streams, events. The program contains the
// driver, because the library does not show its table.
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <openreg/driver.h>
#include <openreg/ipc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "gate.h"
#include "owned.h"
#include "runtime_test.h"
#include "sanitizer.h"

extern "C" openreg_status openreg_sim_query(const openreg_host* host, const openreg_driver** out);

using openreg_test::RuntimeTest;

namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

// The runtime's side of the border.
struct Host {
  openreg_host services{};
  std::string text;
  int errors = 0;

  Host() {
    services.struct_size = sizeof services;
    services.abi_minor = OPENREG_ABI_MINOR;
    services.ctx = this;
    services.set_error = [](void* ctx, openreg_status, int64_t, const char* utf8) {
      auto* self = static_cast<Host*>(ctx);
      self->text = utf8;
      ++self->errors;
    };
    services.log = [](void*, int32_t, const char*) {};
  }
};

std::string quoted(const char* text) {
  std::string out(1, '"');
  out.append(text);
  out.push_back('"');
  return out;
}

// The simulator's workers, by their name: a sanitizer has threads of its own, which come when they like.
int workers_of_process() {
  int count = 0;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    std::ifstream name(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string text;
    count += std::getline(name, text) && text.rfind("openreg-sim", 0) == 0;
  }
  closedir(tasks);
  return count;
}

// Lets this process map `bytes` more than it has mapped now.
bool limit_address_space(uint64_t bytes) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto most = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit limit = {most, most};
  return pages > 0 && setrlimit(RLIMIT_AS, &limit) == 0;
}

bool has_address_space(uint64_t bytes) {
  void* start = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return start != MAP_FAILED && munmap(start, bytes) == 0;
}

// A thread that was joined may be listed for a moment longer.
int workers_once_settled(int expected) {
  int count = workers_of_process();
  for (int i = 0; i < 2000 && count != expected; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    count = workers_of_process();
  }
  return count;
}

class SimTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(openreg_sim_query(&host_.services, &sim_), OPENREG_OK); }
  void TearDown() override {
    owned_.give_back();
    if (instance_ != nullptr) {
      EXPECT_EQ(sim_->close(instance_), OPENREG_OK);
    }
  }

  openreg_status open(const std::vector<openreg_option>& options) {
    return sim_->open(&host_.services, options.data(), options.size(), &instance_);
  }
  void open_default() { ASSERT_EQ(open({{"devices", "2"}, {"memory", "64M"}}), OPENREG_OK) << host_.text; }

  char* alloc(int32_t dev, uint64_t size) {
    void* out = nullptr;
    EXPECT_EQ(sim_->mem_alloc(instance_, dev, Bytes(size), &out), OPENREG_OK) << host_.text;
    return static_cast<char*>(owned_.add(out, [=, this] { free(dev, out); }));
  }
  void free(int32_t dev, void* ptr) {
    EXPECT_EQ(sim_->mem_free(instance_, dev, ptr), OPENREG_OK) << host_.text;
    owned_.remove(ptr);
  }
  char* alias(int32_t dev, void* ptr) {
    void* out = nullptr;
    EXPECT_EQ(sim_->host_alias(instance_, dev, ptr, &out), OPENREG_OK) << host_.text;
    return static_cast<char*>(out);
  }
  char* pinned(uint64_t size) {
    void* out = nullptr;
    EXPECT_EQ(sim_->host_alloc(instance_, 0, Bytes(size), &out), OPENREG_OK) << host_.text;
    return static_cast<char*>(out);
  }
  uint64_t unused(int32_t dev) {
    uint64_t bytes = 0, total = 0;
    EXPECT_EQ(sim_->mem_info(instance_, dev, &bytes, &total), OPENREG_OK);
    return bytes;
  }
  openreg_driver_stream stream(int32_t dev) {
    openreg_driver_stream out = nullptr;
    EXPECT_EQ(sim_->stream_create(instance_, dev, 0, 0, &out), OPENREG_OK) << host_.text;
    return owned_.add(out, [=, this] { destroy(dev, out); });
  }
  openreg_driver_event event(int32_t dev, uint32_t flags = 0) {
    openreg_driver_event out = nullptr;
    EXPECT_EQ(sim_->event_create(instance_, dev, flags, &out), OPENREG_OK) << host_.text;
    return owned_.add(out, [=, this] { destroy(out); });
  }
  bool done(int32_t dev, openreg_driver_stream on) {
    int32_t out = -1;
    EXPECT_EQ(sim_->stream_query(instance_, dev, on, &out), OPENREG_OK);
    return out == 1;
  }
  bool done(openreg_driver_event of) {
    int32_t out = -1;
    EXPECT_EQ(sim_->event_query(instance_, 0, of, &out), OPENREG_OK);
    return out == 1;
  }
  void sync(int32_t dev, openreg_driver_stream on) { EXPECT_EQ(sim_->stream_sync(instance_, dev, on), OPENREG_OK); }
  void record(int32_t dev, openreg_driver_event of, openreg_driver_stream on) {
    EXPECT_EQ(sim_->event_record(instance_, dev, on, of), OPENREG_OK) << host_.text;
  }
  void fill(int32_t dev, void* dst, uint8_t value, uint64_t size, openreg_driver_stream on) {
    EXPECT_EQ(sim_->fill(instance_, dev, on, dst, value, size), OPENREG_OK) << host_.text;
  }
  void destroy(int32_t dev, openreg_driver_stream one) {
    EXPECT_EQ(sim_->stream_destroy(instance_, dev, one), OPENREG_OK);
    owned_.remove(one);
  }
  void destroy(openreg_driver_event one) {
    EXPECT_EQ(sim_->event_destroy(instance_, 0, one), OPENREG_OK);
    owned_.remove(one);
  }

  Host host_;
  const openreg_driver* sim_ = nullptr;
  openreg_instance instance_ = nullptr;
  openreg_test::Owned owned_;
};

// Holds a stream back: work queued on it after construction waits until release(). Made of the ABI alone: the stream
// waits for an event on a stream that is busy with fills until told otherwise.
class Gate {
 public:
  Gate(const openreg_driver* sim, openreg_instance instance, char* scratch, uint64_t size)
      : sim_(sim), instance_(instance) {
    EXPECT_EQ(sim_->stream_create(instance_, 0, 0, 0, &stream_), OPENREG_OK);
    EXPECT_EQ(sim_->event_create(instance_, 0, 0, &event_), OPENREG_OK);
    // Enough work that the test's next steps come before its end; each step that depends on it is checked.
    for (int i = 0; i < 12; ++i) EXPECT_EQ(sim_->fill(instance_, 0, stream_, scratch, 1, size), OPENREG_OK);
    EXPECT_EQ(sim_->event_record(instance_, 0, stream_, event_), OPENREG_OK);
  }
  ~Gate() {
    EXPECT_EQ(sim_->event_destroy(instance_, 0, event_), OPENREG_OK);
    EXPECT_EQ(sim_->stream_destroy(instance_, 0, stream_), OPENREG_OK);
  }
  void hold(int32_t dev, openreg_driver_stream stream) {
    EXPECT_EQ(sim_->stream_wait(instance_, dev, stream, event_), OPENREG_OK);
  }
  bool closed() const {
    int32_t done = 0;
    EXPECT_EQ(sim_->event_query(instance_, 0, event_, &done), OPENREG_OK);
    return done == 0;
  }

 private:
  const openreg_driver* sim_;
  openreg_instance instance_;
  openreg_driver_stream stream_ = nullptr;
  openreg_driver_event event_ = nullptr;
};

// ---------------------------------------------------------------------------------------------------------------------
// Options and devices

TEST_F(SimTest, Options) {
  struct Case {
    const char *devices, *memory;
    int32_t count;
    uint64_t bytes;
  };
  for (const Case& c :
       {Case{"1", "2M", 1, 2 * kMib}, Case{"3", "4194304", 3, 4 * kMib}, Case{"2", "3000k", 2, 3000 << 10},
        Case{"127", "2m", 127, 2 * kMib}, Case{"1", "1G", 1, 1024 * kMib}}) {
    SCOPED_TRACE(c.memory);
    // Unknown options are ignored.
    ASSERT_EQ(open({{"devices", c.devices}, {"colour", "red"}, {"memory", c.memory}}), OPENREG_OK) << host_.text;
    int32_t count = 0;
    EXPECT_EQ(sim_->device_count(instance_, &count), OPENREG_OK);
    EXPECT_EQ(count, c.count);
    uint64_t free_bytes = 0, total = 0;
    EXPECT_EQ(sim_->mem_info(instance_, count - 1, &free_bytes, &total), OPENREG_OK);
    EXPECT_EQ(total, c.bytes);
    EXPECT_EQ(free_bytes, c.bytes);
    EXPECT_EQ(sim_->close(instance_), OPENREG_OK);
    instance_ = nullptr;
  }
}

TEST_F(SimTest, Defaults) {
  int32_t count = 0;
  EXPECT_EQ(sim_->describe(&host_.services, nullptr, 0, "", 0, nullptr, nullptr, &count), OPENREG_OK);
  EXPECT_EQ(count, 2);
  const openreg_option devices = {"devices", "5"};
  EXPECT_EQ(sim_->describe(&host_.services, &devices, 1, "", 0, nullptr, nullptr, &count), OPENREG_OK);
  EXPECT_EQ(count, 5);
  const auto bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (!has_address_space(8 * bytes)) GTEST_SKIP() << "no address space; a checker may have taken it";
  const int threads = workers_of_process();
  ASSERT_EQ(open({}), OPENREG_OK) << host_.text;
  EXPECT_LE(unused(0), bytes / 2);
  EXPECT_GT(unused(0), bytes / 2 - 2 * kMib);
  EXPECT_EQ(workers_of_process(), threads);  // open() starts no thread
}

// The text names the variable, the value and the range; open() and describe() agree. acceptance 4.3
TEST_F(SimTest, BadOptions) {
  for (const char* value : {"-3", "abc", "1000", "128", "", " 2", "2 ", "+2", "0x2", "1.5", "99999999999999999999"}) {
    SCOPED_TRACE(value);
    const openreg_option option = {"devices", value};
    int32_t count = 77;
    host_.errors = 0;
    EXPECT_EQ(open({option}), OPENREG_E_INVALID);
    EXPECT_EQ(instance_, nullptr);
    EXPECT_EQ(host_.errors, 1);
    EXPECT_CONTAINS(host_.text, "OPENREG_SIM_DEVICES must be an integer from 0 to 127, but is " + quoted(value));
    EXPECT_EQ(sim_->describe(&host_.services, &option, 1, "", 0, nullptr, nullptr, &count), OPENREG_E_INVALID);
    EXPECT_EQ(count, 77);
    EXPECT_EQ(host_.errors, 2);
  }
  for (const char* value : {"0", "1", "2097151", "-1", "many", "", "64MB", "64 M", "M", "17T", "16777217M",
                            "99999999999999999999", "18446744073709551615", "18446744073709551615K"}) {
    SCOPED_TRACE(value);
    EXPECT_EQ(open({{"memory", value}}), OPENREG_E_INVALID);
    EXPECT_CONTAINS(host_.text, "OPENREG_SIM_MEMORY must be a number of bytes from 2M to 16T");
    EXPECT_CONTAINS(host_.text, quoted(value));
  }
}

// No devices at all is for the runtime to refuse. acceptance 5.27
TEST_F(SimTest, NoDevices) {
  ASSERT_EQ(open({{"devices", "0"}}), OPENREG_OK) << host_.text;
  int32_t count = -1;
  EXPECT_EQ(sim_->device_count(instance_, &count), OPENREG_OK);
  EXPECT_EQ(count, 0);
}

TEST_F(SimTest, DeviceInfo) {
  open_default();
  openreg_device_info infos[2];
  for (int32_t dev = 0; dev < 2; ++dev) {
    std::memset(&infos[dev], 0, sizeof infos[dev]);
    infos[dev].struct_size = sizeof infos[dev];
    EXPECT_EQ(sim_->device_info(instance_, dev, &infos[dev]), OPENREG_OK);
    EXPECT_EQ(std::string(infos[dev].name), "OpenReg simulated device " + std::to_string(dev));
    EXPECT_EQ(infos[dev].total_bytes, 64 * kMib);
    EXPECT_GE(infos[dev].min_alignment, 512u);
    EXPECT_EQ(infos[dev].priority_low, 0);
    EXPECT_EQ(infos[dev].priority_high, -1);
    EXPECT_GT(infos[dev].multi_processor_count, 0);
    EXPECT_EQ(infos[dev].capability_major, 1);
    EXPECT_EQ(infos[dev].capability_minor, 0);
  }
  EXPECT_NE(std::memcmp(infos[0].uuid, infos[1].uuid, 16), 0);
  // An older runtime's structure is not overrun.
  openreg_device_info old;
  std::memset(&old, 0x5a, sizeof old);
  old.struct_size = offsetof(openreg_device_info, name);
  EXPECT_EQ(sim_->device_info(instance_, 0, &old), OPENREG_OK);
  EXPECT_EQ(old.total_bytes, 64 * kMib);
  EXPECT_EQ(old.name[0], 0x5a);
}

// Active from the first memory or stream on. acceptance 4.6b
TEST_F(SimTest, DeviceActive) {
  open_default();
  const auto active = [&](int32_t dev) {
    int32_t out = -1;
    EXPECT_EQ(sim_->device_active(instance_, dev, &out), OPENREG_OK);
    return out;
  };
  EXPECT_EQ(active(0), 0);
  EXPECT_EQ(active(1), 0);
  free(0, alloc(0, 1));
  EXPECT_EQ(active(0), 1);
  EXPECT_EQ(active(1), 0);
  destroy(1, stream(1));
  EXPECT_EQ(active(1), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory

// Bytes are counted in pages against the capacity; what is freed can be had again; the kernel gets the pages back.
TEST_F(SimTest, MemoryIsCounted) {
  open_default();
  char* block = alloc(0, 1);
  EXPECT_EQ(unused(0), 64 * kMib - 4096);
  EXPECT_EQ(unused(1), 64 * kMib);
  std::memset(alias(0, block), 1, 4096);
  free(0, block);
  EXPECT_EQ(unused(0), 64 * kMib);
  block = alloc(0, 64 * kMib);
  EXPECT_EQ(alias(0, block)[0], 0);
  void* out = &out;
  for (const uint64_t size : {uint64_t{1}, 64 * kMib, UINT64_MAX, UINT64_MAX - 4095}) {
    host_.errors = 0;
    EXPECT_EQ(sim_->mem_alloc(instance_, 0, Bytes(size), &out), OPENREG_E_NOMEM);
    EXPECT_EQ(host_.errors, 1);
    EXPECT_EQ(out, &out);
  }
  EXPECT_CONTAINS(host_.text, "0 of 67108864 bytes are free");
}

// Blocks don't overlap, are aligned, lie at one constant distance from their aliases, and hold what is written.
TEST_F(SimTest, BlocksAndAliases) {
  open_default();
  std::vector<std::pair<char*, uint64_t>> blocks;
  for (uint64_t i = 0; i < 60; ++i) {
    const uint64_t size = 1 + (i * i * 104729) % (2 * kMib);
    char* block = alloc(1, size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 4096, 0u);
    std::memset(alias(1, block), static_cast<int>(i), size);
    blocks.emplace_back(block, size);
    if (i % 3 == 2) {
      free(1, blocks[i / 2].first);
      blocks[i / 2] = {alloc(1, 5000), 5000};
      std::memset(alias(1, blocks[i / 2].first), static_cast<int>(i / 2), 5000);
    }
  }
  const ptrdiff_t distance = alias(1, blocks[0].first) - blocks[0].first;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [block, size] = blocks[i];
    EXPECT_EQ(alias(1, block + size - 1) - (block + size - 1), distance);
    EXPECT_EQ(alias(1, block)[0], static_cast<char>(i));
    EXPECT_EQ(alias(1, block)[size - 1], static_cast<char>(i));
  }
  for (const auto& one : blocks) free(1, one.first);
  EXPECT_EQ(unused(1), 64 * kMib);
  EXPECT_EQ(alloc(1, 64 * kMib), blocks[0].first);  // all pieces have joined
}

// Twice the addresses: memory in pieces does not use up the addresses before the capacity.
TEST_F(SimTest, FragmentationLeavesRoom) {
  open_default();
  std::vector<char*> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(alloc(0, 2 * kMib));
  for (size_t i = 0; i < blocks.size(); i += 2) free(0, blocks[i]);
  char* big = alloc(0, 32 * kMib);  // half is free, in pieces of 2 MiB
  free(0, big);
  for (size_t i = 1; i < blocks.size(); i += 2) free(0, blocks[i]);
}

TEST_F(SimTest, BadAddresses) {
  open_default();
  char* block = alloc(0, 8192);
  int local = 0;
  void* out = &out;
  EXPECT_EQ(sim_->mem_free(instance_, 0, block + 4096), OPENREG_E_INVALID);
  EXPECT_EQ(sim_->mem_free(instance_, 0, &local), OPENREG_E_INVALID);
  EXPECT_EQ(sim_->mem_free(instance_, 1, block), OPENREG_E_INVALID);
  EXPECT_EQ(sim_->host_alias(instance_, 0, &local, &out), OPENREG_E_INVALID);
  EXPECT_EQ(sim_->host_alias(instance_, 1, block, &out), OPENREG_E_INVALID);
  EXPECT_EQ(out, &out);
  free(0, block);
  EXPECT_EQ(sim_->mem_free(instance_, 0, block), OPENREG_E_INVALID);
}

// Pinned memory is freed by its start, once; too much of it is an error that changes nothing.
TEST_F(SimTest, PinnedMemory) {
  open_default();
  char* host = pinned(100);
  EXPECT_EQ(sim_->host_free(instance_, 0, host + 1), OPENREG_E_INVALID);
  EXPECT_EQ(sim_->host_free(instance_, 0, host), OPENREG_OK);
  EXPECT_EQ(sim_->host_free(instance_, 0, host), OPENREG_E_INVALID);
  void* out = &out;
  EXPECT_EQ(sim_->host_alloc(instance_, 0, Bytes(UINT64_MAX), &out), OPENREG_E_NOMEM);
  EXPECT_EQ(out, &out);
}

// No address space for twice the capacity: once is enough. Less than that: an error, and nothing left behind.
TEST_F(SimTest, LittleAddressSpace) {
  constexpr uint64_t capacity = 1024 * kMib;
  const std::vector<openreg_option> options = {{"devices", "2"}, {"memory", "1G"}};
  // A device maps what it reserves two times: 4 GiB for twice the capacity, 2 GiB for once.
  const auto open_within = [&](uint64_t bytes) {
    return limit_address_space(bytes) ? open(options) : OPENREG_E_INTERNAL;
  };
  EXPECT_TRUE(openreg_test::in_child([&] {
    if (open_within(7 * capacity) != OPENREG_OK) return false;
    char* block = alloc(1, capacity - kMib);
    alias(1, block)[capacity - kMib - 1] = 1;
    free(1, block);
    return sim_->close(instance_) == OPENREG_OK;
  }));
  EXPECT_TRUE(openreg_test::in_child([&] {
    return open_within(5 * capacity) == OPENREG_E_NOMEM && instance_ == nullptr &&
           host_.text.find("OPENREG_SIM_MEMORY") != std::string::npos;
  }));
}

// The child of a fork() does not inherit the mappings.
TEST_F(SimTest, NotForkedInto) {
  open_default();
  char* block = alloc(0, 4096);
  char* seen = alias(0, block);
  *seen = 1;
  EXPECT_TRUE(openreg_test::in_child([&] {
    unsigned char resident = 0;  // mincore() fails for what is not mapped
    return mincore(seen, 4096, &resident) != 0 && mincore(block, 4096, &resident) != 0;
  }));
  EXPECT_EQ(*seen, 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Streams

// A queue of 100,000 pieces of work is done in order, and gives its memory back when it is.
TEST_F(SimTest, LongQueue) {
  open_default();
  openreg_driver_stream on = stream(0);
  struct State {
    std::atomic<bool> open{false};
    int next = 0, wrong = 0;
  } state;
  static State* shared;
  shared = &state;
  const auto run = [](void* number) {
    while (!shared->open) std::this_thread::yield();
    shared->wrong += shared->next++ != static_cast<int>(reinterpret_cast<intptr_t>(number));
  };
  constexpr intptr_t kTasks = 100000;
#if !OPENREG_TEST_SANITIZER
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
#endif
  for (intptr_t i = 0; i < kTasks; ++i)
    ASSERT_EQ(sim_->host_func(instance_, 0, on, run, reinterpret_cast<void*>(i)), OPENREG_OK);
  state.open = true;
  sync(0, on);
  EXPECT_EQ(state.next, kTasks);
  EXPECT_EQ(state.wrong, 0);
#if !OPENREG_TEST_SANITIZER  // whose allocators tell nothing here
  EXPECT_LE(mallinfo2().uordblks + mallinfo2().hblkhd, before + 64 * 1024);
#endif
}

// A thread comes with the first task, not with the stream, and goes with the stream.
TEST_F(SimTest, WorkersAreLazy) {
  const int before = workers_of_process();
  open_default();
  char* block = alloc(0, 4096);
  std::vector<openreg_driver_stream> streams;
  for (int i = 0; i < 10; ++i) streams.push_back(stream(0));
  openreg_driver_event timed = event(0, OPENREG_EVENT_TIMING);
  for (openreg_driver_stream on : streams) {
    record(0, timed, on);
    EXPECT_EQ(sim_->stream_wait(instance_, 0, on, timed), OPENREG_OK);
    sync(0, on);
  }
  char pageable[100] = {};
  EXPECT_EQ(sim_->copy(instance_, 0, nullptr, block, 0, pageable, -1, sizeof pageable), OPENREG_OK);
  EXPECT_EQ(workers_of_process(), before);  // an idle stream needs none for any of this
  fill(0, block, 1, 4096, streams[3]);
  EXPECT_EQ(workers_of_process(), before + 1);
  sync(0, streams[3]);
  for (openreg_driver_stream on : streams) destroy(0, on);
  EXPECT_EQ(workers_once_settled(before), before);
  fill(0, block, 1, 4096, nullptr);
  EXPECT_EQ(workers_of_process(), before + 1);
  destroy(timed);
  free(0, block);
  EXPECT_EQ(sim_->close(instance_), OPENREG_OK);
  instance_ = nullptr;
  EXPECT_EQ(workers_once_settled(before), before);
}

// A stream that only waits has no thread: who waits for it, or asks, ends its waits. What nobody asks for is kept in bounds.
TEST_F(SimTest, StreamsThatOnlyWaitHaveNoWorker) {
  const int before = workers_of_process();
  open_default();
  static std::atomic<bool> is_open;
  const auto hold = [this](openreg_driver_stream on) {
    is_open = false;
    const auto until_open = [](void*) {
      while (!is_open) std::this_thread::yield();
    };
    ASSERT_EQ(sim_->host_func(instance_, 0, on, until_open, nullptr), OPENREG_OK);
  };
  openreg_driver_stream busy = stream(0), idle = stream(1), behind = stream(0);
  openreg_driver_event ended = event(0), passed = event(1);
  hold(busy);
  record(0, ended, busy);
  EXPECT_EQ(sim_->stream_wait(instance_, 1, idle, ended), OPENREG_OK);
  record(1, passed, idle);
  EXPECT_EQ(sim_->stream_wait(instance_, 0, behind, passed), OPENREG_OK);
  EXPECT_FALSE(done(1, idle));
  EXPECT_FALSE(done(passed));
  EXPECT_FALSE(done(0, behind));
  is_open = true;
  sync(0, busy);
  EXPECT_TRUE(done(passed));
  EXPECT_TRUE(done(0, behind));
  EXPECT_TRUE(done(1, idle));
  hold(busy);
  record(0, ended, busy);
  EXPECT_EQ(sim_->stream_wait(instance_, 1, idle, ended), OPENREG_OK);
  {
    const openreg_test::OnceThisThreadWaits opens([] { is_open = true; });
    std::thread other([&] { sync(1, idle); });
    EXPECT_EQ(sim_->device_sync(instance_, 1), OPENREG_OK);
    EXPECT_TRUE(is_open);
    other.join();
  }
  EXPECT_EQ(workers_of_process(), before + 1);  // that of `busy`
  hold(busy);
  for (int i = 0; i < 40; ++i) {
    record(0, ended, busy);
    EXPECT_EQ(sim_->stream_wait(instance_, 1, idle, ended), OPENREG_OK);
  }
  EXPECT_EQ(workers_of_process(), before + 2);
  is_open = true;
  sync(1, idle);
  hold(busy);
  record(0, ended, busy);
  EXPECT_EQ(sim_->stream_wait(instance_, 0, behind, ended), OPENREG_OK);
  {
    const openreg_test::OnceThisThreadWaits opens([] { is_open = true; });
    destroy(0, behind);  // ends its queue, as with a worker
    EXPECT_TRUE(is_open);
  }
}

// Host memory that is not pinned may be freed when the call returns: the copy is done then, in its place in the stream.
TEST_F(SimTest, PageableCopiesAreInOrder) {
  ASSERT_EQ(open({{"memory", "256M"}}), OPENREG_OK);
  char* scratch = alloc(0, 64 * kMib);
  char* block = alloc(0, kMib);
  std::vector<char> bytes(kMib, 7);
  Gate gate(sim_, instance_, scratch, 64 * kMib);
  openreg_driver_stream on = stream(0);
  gate.hold(0, on);
  fill(0, block, 9, kMib, on);
  EXPECT_EQ(sim_->copy(instance_, 0, on, bytes.data(), -1, block, 0, kMib), OPENREG_OK);
  EXPECT_FALSE(gate.closed());
  EXPECT_EQ(bytes, std::vector<char>(kMib, 9));
  EXPECT_TRUE(done(0, on));
  EXPECT_EQ(sim_->copy(instance_, 0, on, nullptr, -1, nullptr, 0, 0), OPENREG_OK);  // 0 bytes
  EXPECT_EQ(sim_->fill(instance_, 0, on, nullptr, 0, 0), OPENREG_OK);
}

// ---------------------------------------------------------------------------------------------------------------------
// Events

// Query and sync mean the latest record. A record that is passed does not complete a later one that is pending, nor a
// pending one a later one that is passed.
TEST_F(SimTest, EventGenerations) {
  ASSERT_EQ(open({{"memory", "256M"}}), OPENREG_OK);
  char* scratch = alloc(0, 64 * kMib);
  char* block = alloc(0, 4096);
  openreg_driver_stream slow = stream(0), fast = stream(0), waiter = stream(1);
  openreg_driver_event one = event(0);
  for (const bool timed : {false, true}) {
    if (timed) {
      destroy(one);
      one = event(0, OPENREG_EVENT_TIMING);
    }
    Gate gate(sim_, instance_, scratch, 64 * kMib);
    std::memset(alias(0, block), 0, 4096);
    record(0, one, fast);
    EXPECT_TRUE(done(one));
    gate.hold(0, slow);
    fill(0, block, 5, 4096, slow);
    record(0, one, slow);  // replaces the first, which was complete
    if (gate.closed()) {
      EXPECT_FALSE(done(one));
    }
    EXPECT_EQ(sim_->stream_wait(instance_, 1, waiter, one), OPENREG_OK);  // means the record on `slow`, for good
    fill(0, block, 6, 2048, waiter);
    record(0, one, fast);  // complete at once
    EXPECT_TRUE(done(one));
    EXPECT_EQ(sim_->event_sync(instance_, 0, one), OPENREG_OK);
    if (gate.closed()) {
      EXPECT_FALSE(done(1, waiter));
    }
    sync(1, waiter);
    EXPECT_FALSE(gate.closed());
    EXPECT_EQ(alias(0, block)[0], 6);
    EXPECT_EQ(alias(0, block)[4095], 5);
    record(0, one, slow);
    EXPECT_EQ(sim_->event_sync(instance_, 0, one), OPENREG_OK);
    EXPECT_TRUE(done(0, slow));
  }
}

// An event may be destroyed while its record is pending, and its stream before the event.
TEST_F(SimTest, EventOutlivesAndIsOutlived) {
  ASSERT_EQ(open({{"memory", "256M"}}), OPENREG_OK);
  char* scratch = alloc(0, 64 * kMib);
  char* block = alloc(0, 4096);
  openreg_driver_stream held = stream(0), waiter = stream(0), gone = stream(0);
  openreg_driver_event kept = event(0, OPENREG_EVENT_TIMING), dropped = event(0, OPENREG_EVENT_TIMING);
  {
    Gate gate(sim_, instance_, scratch, 64 * kMib);
    gate.hold(0, held);
    record(0, dropped, held);
    EXPECT_EQ(sim_->stream_wait(instance_, 0, waiter, dropped), OPENREG_OK);
    destroy(dropped);
    fill(0, block, 1, 4096, gone);
    record(0, kept, gone);
    destroy(0, gone);
    EXPECT_TRUE(done(kept));
    EXPECT_EQ(sim_->event_sync(instance_, 0, kept), OPENREG_OK);
    EXPECT_EQ(sim_->stream_wait(instance_, 0, waiter, kept), OPENREG_OK);
    sync(0, waiter);
    EXPECT_TRUE(done(0, held));
  }
}

// A stream that waits for its own event waits for nothing; streams that wait for each other in turn get through.
TEST_F(SimTest, WaitsDoNotDeadlock) {
  open_default();
  char* block = alloc(0, 4 * kMib);
  openreg_driver_stream a = stream(0), b = stream(1);
  openreg_driver_event of_a = event(0), of_b = event(1);
  for (int round = 0; round < 200; ++round) {
    fill(0, block, 1, 4096, a);
    record(0, of_a, a);
    EXPECT_EQ(sim_->stream_wait(instance_, 0, a, of_a), OPENREG_OK);
    EXPECT_EQ(sim_->stream_wait(instance_, 1, b, of_a), OPENREG_OK);
    fill(0, block + 4096, 1, 4096, b);
    record(1, of_b, b);
    EXPECT_EQ(sim_->stream_wait(instance_, 0, a, of_b), OPENREG_OK);
  }
  EXPECT_EQ(sim_->device_sync(instance_, 0), OPENREG_OK);
  EXPECT_TRUE(done(of_a));
  EXPECT_TRUE(done(of_b));
}

// All at once, on shared streams and events. (For the thread sanitizer; the bytes are checked too.)
TEST_F(SimTest, ThreadsShareStreams) {
  open_default();
  constexpr int kThreads = 4;
  openreg_driver_stream shared[2] = {stream(0), stream(1)};
  openreg_driver_event events[2] = {event(0), event(1, OPENREG_EVENT_TIMING)};
  std::atomic<int> wrong{0};
  openreg_test::Threads(kThreads, [&](int id) {
    for (int step = 0; step < 60; ++step) {
      const int32_t dev = (id + step) % 2;
      void *block = nullptr, *view = nullptr;
      openreg_driver_stream own = nullptr;
      int32_t finished = 0;
      char pageable[64];
      if (sim_->mem_alloc(instance_, dev, Bytes(8192), &block) != OPENREG_OK) ++wrong;
      if (sim_->stream_create(instance_, dev, 0, 0, &own) != OPENREG_OK) ++wrong;
      if (sim_->fill(instance_, dev, shared[dev], block, static_cast<uint8_t>(id), 8192) != OPENREG_OK) ++wrong;
      if (sim_->event_record(instance_, dev, shared[dev], events[dev]) != OPENREG_OK) ++wrong;
      if (sim_->stream_wait(instance_, dev, own, events[dev]) != OPENREG_OK) ++wrong;
      if (sim_->fill(instance_, dev, own, block, static_cast<uint8_t>(id + 1), 100) != OPENREG_OK) ++wrong;
      if (sim_->copy(instance_, dev, own, pageable, -1, block, dev, 64) != OPENREG_OK) ++wrong;
      if (pageable[63] != static_cast<char>(id + 1)) ++wrong;
      if (sim_->event_query(instance_, 0, events[1 - dev], &finished) != OPENREG_OK) ++wrong;
      if (step % 16 == 0 && sim_->device_sync(instance_, dev) != OPENREG_OK) ++wrong;
      if (sim_->event_sync(instance_, 0, events[dev]) != OPENREG_OK) ++wrong;
      if (sim_->stream_sync(instance_, dev, shared[dev]) != OPENREG_OK) ++wrong;
      if (sim_->host_alias(instance_, dev, block, &view) != OPENREG_OK) ++wrong;
      if (static_cast<char*>(view)[8191] != id) ++wrong;
      if (sim_->stream_destroy(instance_, dev, own) != OPENREG_OK) ++wrong;
      if (sim_->mem_free(instance_, dev, block) != OPENREG_OK) ++wrong;
    }
  }).join();
  EXPECT_EQ(wrong, 0);
  for (int dev = 0; dev < 2; ++dev) {
    destroy(events[dev]);
    destroy(dev, shared[dev]);
    EXPECT_EQ(unused(dev), 64 * kMib);
  }
}

// close() ends the workers of streams that were left behind, so that nothing runs on memory that has gone.
TEST_F(SimTest, CloseWithStreamsLeft) {
  const int before = workers_of_process();
  open_default();
  char* block = alloc(0, 16 * kMib);
  for (uint64_t i = 0; i < 4; ++i) fill(0, block + i * 4 * kMib, 1, 4 * kMib, stream(0));
  EXPECT_EQ(sim_->close(instance_), OPENREG_OK);
  instance_ = nullptr;
  owned_.forget();
  EXPECT_EQ(workers_once_settled(before), before);
}

// A handle that lies about what it names is refused, and costs neither memory nor addresses. The exporter is a process of
// its own; sim_ipc.c has the layout of its handle.
TEST_F(SimTest, ForkedHandlesThatLie) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    open_default();
    const auto* ipc = static_cast<const openreg_ipc*>(sim_->extension(instance_, OPENREG_IPC_NAME, 1));
    openreg_ipc_handle handle{};
    if (ipc->memory_export(instance_, 1, alloc(1, kMib), nullptr, 0, &handle) != OPENREG_OK) _exit(1);
    if (write(pipe_ends[1], &handle, sizeof handle) != static_cast<ssize_t>(sizeof handle)) _exit(1);
    pause();
  }
  open_default();
  const auto* ipc = static_cast<const openreg_ipc*>(sim_->extension(instance_, OPENREG_IPC_NAME, 1));
  openreg_ipc_handle handle{};
  ASSERT_EQ(read(pipe_ends[0], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  const uint64_t before = unused(1);
  void* out = nullptr;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), huge = uint64_t{1} << 62, none = UINT64_MAX;
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 0}, {huge, page}, {0, huge}, {none - page + 1, page}, {0, none - page + 1}, {1, page}, {0, page - 1}}) {
    openreg_ipc_handle lie = handle;
    std::memcpy(lie.bytes + 32, &offset, sizeof offset);
    std::memcpy(lie.bytes + 40, &size, sizeof size);
    EXPECT_EQ(ipc->memory_open(instance_, 1, &lie, &out), OPENREG_E_INVALID) << offset << ' ' << size;
    EXPECT_CONTAINS(host_.text, "the handle was altered");
  }
  // Nor is a file opened that isn't one in memory, of this user, sealed: each here has the size that the handle says.
  const unsigned seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  for (const std::string kind : {"on disk", "to be shrunk", "a FIFO", "another user's"}) {
    SCOPED_TRACE(kind);
    if (kind == "another user's" && geteuid() != 0) continue;
    char path[] = "/tmp/openreg-sim-XXXXXX";
    int file = kind == "on disk" || kind == "a FIFO" ? mkstemp(path) : memfd_create("other", MFD_ALLOW_SEALING);
    ASSERT_EQ(ftruncate(file, kMib), 0);
    if (kind == "a FIFO") {  // without a writer, for which opening it would wait
      ASSERT_EQ(close(file) | unlink(path) | mkfifo(path, 0600), 0);
      file = ::open(path, O_RDONLY | O_NONBLOCK);
    }
    unlink(path);
    if (kind == "another user's") {
      ASSERT_EQ(fcntl(file, F_ADD_SEALS, seals) | fchown(file, 12345, 12345), 0);
    }
    struct stat status{};
    ASSERT_EQ(fstat(file, &status), 0);
    openreg_ipc_handle lie = handle;
    const int32_t place[] = {getpid(), file};
    const uint64_t numbers[] = {status.st_dev, status.st_ino, 0, kMib};
    std::memcpy(lie.bytes + 4, place, sizeof place);
    std::memcpy(lie.bytes + 16, numbers, sizeof numbers);
    EXPECT_EQ(ipc->memory_open(instance_, 1, &lie, &out), OPENREG_E_INVALID);
    EXPECT_CONTAINS(host_.text, "which made the handle, has ended");
    close(file);
  }
  EXPECT_EQ(unused(1), before);
  free(1, alloc(1, before));
  ASSERT_EQ(ipc->memory_open(instance_, 1, &handle, &out), OPENREG_OK) << host_.text;
  EXPECT_EQ(ipc->memory_close(instance_, 1, out), OPENREG_OK) << host_.text;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

// Two instances stand for two processes, but a process may not open its own memory: each refusal names its reason, and
// costs neither memory nor addresses. What other processes do is in sharing_test.cc.
TEST_F(SimTest, SharingRefuses) {
  open_default();
  const auto* ipc = static_cast<const openreg_ipc*>(sim_->extension(instance_, OPENREG_IPC_NAME, OPENREG_IPC_VERSION));
  ASSERT_NE(ipc, nullptr);
  EXPECT_EQ(ipc->struct_size, sizeof(openreg_ipc));
  EXPECT_EQ(sim_->extension(instance_, OPENREG_IPC_NAME, OPENREG_IPC_VERSION + 1), nullptr);
  EXPECT_EQ(sim_->extension(instance_, "openreg.graph", 1), nullptr);
  char* block = alloc(1, kMib);
  const uint64_t before = unused(1);
  openreg_ipc_handle handle{};
  void* out = nullptr;
  EXPECT_EQ(ipc->memory_export(instance_, 1, block + 4096, nullptr, 0, &handle), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_.text, "is not an allocation of device 1");
  EXPECT_EQ(ipc->memory_export(instance_, 0, block, nullptr, 0, &handle), OPENREG_E_INVALID);  // of the other device
  EXPECT_EQ(ipc->memory_open(instance_, 1, &handle, &out), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_.text, "invalid handle for simulated devices");
  ASSERT_EQ(ipc->memory_export(instance_, 1, block, nullptr, 0, &handle), OPENREG_OK) << host_.text;
  EXPECT_EQ(ipc->memory_open(instance_, 1, &handle, &out), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_.text, "the handle was made by this process");
  EXPECT_EQ(ipc->memory_close(instance_, 1, block), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_.text, "is not memory of another process on device 1");
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(unused(1), before);
}

// ---------------------------------------------------------------------------------------------------------------------
// Through the runtime

class SimRuntimeTest : public RuntimeTest {};

TEST_F(SimRuntimeTest, BadVariables) {
  for (const char* value : {"-3", "abc", "1000"}) {
    set("OPENREG_SIM_DEVICES", value);
    EXPECT_EQ(openreg_device_count(), 0);
    EXPECT_EQ(openreg_init(), OPENREG_E_INVALID);
    EXPECT_CONTAINS(openreg_test::last_message(), "OPENREG_SIM_DEVICES must be an integer from 0 to 127, but is \"");
  }
  set("OPENREG_SIM_DEVICES", "3");
  EXPECT_EQ(openreg_device_count(), 3);
}

}  // namespace
