// SPDX-License-Identifier: BSD-3-Clause
// Random programs on the C API against a serial model: what each block holds is kept in host memory too, and compared.
//
//   fuzz_runtime --seconds N --seed S [--programs N: at most] [--shrink-seconds N]
//
// A program is a few threads of steps. Each thread owns its blocks, pinned and plain host memory, and streams, follows the
// rules of openreg.h (order between streams by events or waits, openreg_memory_record_stream() for blocks used elsewhere), and
// hands some blocks to other threads. A difference or an error ends the run with status 1: the program is made as small as
// possible, and printed as C.
#include <openreg/allocator.h>
#include <openreg/openreg.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Bytes = std::vector<unsigned char>;
using Clock = std::chrono::steady_clock;

constexpr int kStreams = 4;  // of a thread and device; 0 is the default stream

enum class Kind {
  malloc_device,
  malloc_host,
  free_one,
  fill,
  copy,
  copy_async,
  host_write,
  host_func,
  check,
  set_stream,
  set_device,
  pool_enter,
  pool_leave,
  empty_cache,
  give,
  take,
};

struct Step {
  Kind kind;
  unsigned id = 0;     // of the memory that it makes or writes; names are never used twice
  unsigned other = 0;  // of the memory that it reads
  size_t size = 0, offset = 0, other_offset = 0;
  int device = 0, stream = 0;
  unsigned value = 0;  // to write; how to order streams
};
using Program = std::vector<std::vector<Step>>;  // one list a thread

struct Failure {
  std::string text;
};

struct Memory {
  bool on_host = false, pinned = false;
  int device = 0;
  int stream = 0;  // whose cache it is of
  int last = 0;    // the stream of its latest use
  int last_device = 0;
  bool pending = false;  // host memory: work of `last` may still use it
  char* address = nullptr;
  Bytes model;
};

// ------------------------------------------------------------------------------------------------------ generation

class Generator {
 public:
  Generator(std::mt19937& random, int devices) : random_(random), devices_(devices) {}

  std::vector<Step> steps(unsigned first_id) {
    next_id_ = first_id;
    std::vector<Step> result;
    const int count = 10 + pick(120);
    for (int i = 0; i < count; ++i) {
      result.push_back(step());
    }
    return result;
  }

 private:
  struct Known {
    unsigned id;
    size_t size;
    bool on_host;
  };

  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  unsigned value() { return static_cast<unsigned>(random_()); }

  size_t size() {
    switch (pick(12)) {
      case 0:
        return 1;
      case 1:
        return (size_t{1} << 20) + static_cast<size_t>(pick(3)) - 1;
      case 2:
        return (size_t{4} << 20) + static_cast<size_t>(pick(70000));
      case 3:
        return pick(10) == 0 ? (size_t{17} << 20) + 5 : 4096;
      default:
        return 1 + static_cast<size_t>(pick(pick(2) == 0 ? 600 : 70000));
    }
  }

  Step make(Kind kind) {
    Step step{kind};
    step.id = next_id_++;
    step.size = size();
    step.device = pick(devices_);
    step.stream = pick(kStreams);
    step.value = value();
    known_.push_back({step.id, step.size, kind == Kind::malloc_host});
    return step;
  }

  // A part of one, mostly not all of it.
  void part(const Known& of, size_t& offset, size_t& size) {
    offset = pick(3) == 0 ? 0 : value() % of.size;
    size = pick(3) == 0 ? of.size - offset : 1 + value() % (of.size - offset);
  }

  Step step() {
    if (known_.size() < 3) {
      return make(pick(3) == 0 ? Kind::malloc_host : Kind::malloc_device);
    }
    const int kind = pick(100);
    const Known one = known_[static_cast<size_t>(pick(static_cast<int>(known_.size())))];
    const Known other = known_[static_cast<size_t>(pick(static_cast<int>(known_.size())))];
    Step step{Kind::check};
    step.id = one.id;
    step.device = pick(devices_);
    step.stream = pick(kStreams);
    step.value = value();
    if (kind < 14 && known_.size() < 24) {
      return make(pick(4) == 0 ? Kind::malloc_host : Kind::malloc_device);
    }
    if (kind < 28) {
      step.kind = kind < 24 || one.on_host ? Kind::free_one : Kind::give;
      forget(one.id);
    } else if (kind < 42) {
      step.kind = one.on_host ? (pick(2) == 0 ? Kind::host_write : Kind::host_func) : Kind::fill;
      part(one, step.offset, step.size);
    } else if (kind < 76) {
      step.kind = kind < 54 ? Kind::copy : Kind::copy_async;
      step.other = other.id;
      part(one, step.offset, step.size);
      size_t size = 0;
      part(other, step.other_offset, size);
      step.size = std::min(step.size, size);
    } else if (kind < 84) {
      step.kind = Kind::check;
    } else if (kind < 89) {
      step.kind = Kind::set_stream;
    } else if (kind < 91) {
      step.kind = Kind::set_device;
    } else if (kind < 94) {
      step.kind = Kind::pool_enter;
    } else if (kind < 97) {
      step.kind = Kind::pool_leave;
    } else if (kind < 98) {
      step.kind = Kind::empty_cache;
    } else {
      step.kind = Kind::take;
    }
    return step;
  }

  void forget(unsigned id) {
    for (size_t i = 0; i < known_.size(); ++i) {
      if (known_[i].id == id) {
        known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
    }
  }

  std::mt19937& random_;
  const int devices_;
  unsigned next_id_ = 0;
  std::vector<Known> known_;
};

// -------------------------------------------------------------------------------------------------------- execution

// Blocks on their way from one thread to another, idle.
struct Mailbox {
  std::mutex lock;
  std::vector<Memory> memory;
};

struct HostWork {
  char* address;
  size_t size;
  int value;
};

void write_bytes(void* argument) {
  const std::unique_ptr<HostWork> work(static_cast<HostWork*>(argument));
  std::memset(work->address, work->value, work->size);
}

// One thread's run. With `out` it prints each call as C as well.
class Run {
 public:
  Run(int devices, Mailbox& mailbox, std::atomic<bool>& stop, std::FILE* out)
      : devices_(devices),
        mailbox_(mailbox),
        stop_(stop),
        out_(out),
        streams_(static_cast<size_t>(devices)),
        current_(static_cast<size_t>(devices)),
        pools_(static_cast<size_t>(devices)) {}

  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  ~Run() {  // whatever happened
    for (int device = 0; device < devices_; ++device) {
      (void)openreg_device_synchronize(device);
      for (const auto& pool : pools_[static_cast<size_t>(device)]) {
        (void)openreg_memory_pool_leave(device, pool);
        (void)openreg_memory_pool_release(device, pool);
      }
      (void)openreg_set_current_stream(device, OPENREG_STREAM_DEFAULT);
    }
    for (auto& [id, memory] : memory_) {
      release(memory);
    }
  }

  // Throws Failure.
  void run(const std::vector<Step>& steps) {
    for (int device = 0; device < devices_; ++device) {
      for (int i = 1; i < kStreams; ++i) {
        say("DO(openreg_stream_from_pool(%d, %d, &s[%d][%d]));", device, -(i % 2), device, i);
        check(openreg_stream_from_pool(device, -(i % 2), &stream(device, i)));
      }
    }
    for (const Step& step : steps) {
      if (stop_) {
        return;
      }
      take_step(step);
    }
    for (auto& [id, memory] : memory_) {
      compare(id, memory);
    }
  }

 private:
  __attribute__((format(printf, 2, 3))) void say(const char* format, ...) const {
    if (out_ == nullptr) {
      return;
    }
    std::va_list arguments;
    va_start(arguments, format);
    std::fputs("    ", out_);
    std::vfprintf(out_, format, arguments);
    std::fputc('\n', out_);
    va_end(arguments);
  }

  static void check(openreg_status status) {
    if (status != OPENREG_OK) {
      throw Failure{std::string(openreg_status_name(status)) + ": " + openreg_last_error()->message};
    }
  }

  openreg_stream& stream(int device, int i) { return streams_[static_cast<size_t>(device)].at[i]; }
  int& current(int device) { return current_[static_cast<size_t>(device)]; }

  static void release(Memory& memory) {
    if (!memory.on_host) {
      (void)openreg_free(memory.address);
    } else if (memory.pinned) {
      (void)openreg_host_free(memory.address);
    } else {
      std::free(memory.address);
    }
  }

  Memory* find(unsigned id) {
    const auto found = memory_.find(id);
    return found == memory_.end() ? nullptr : &found->second;
  }

  void synchronize(int device, int i) {
    say("DO(openreg_stream_synchronize(%d, s[%d][%d]));", device, device, i);
    check(openreg_stream_synchronize(device, stream(device, i)));
  }

  // What comes next on stream i of `device` comes after what was queued on another stream.
  void order(int device, int i, int after_device, int after, unsigned how) {
    if (how % 3 == 0) {
      synchronize(after_device, after);
    } else if (how % 7 == 0) {
      say("DO(openreg_device_synchronize(%d));", after_device);
      check(openreg_device_synchronize(after_device));
    } else {
      openreg_event event = nullptr;
      say("DO(openreg_event_create(%d, 0, &event)); DO(openreg_event_record(event, %d, s[%d][%d]));", after_device,
          after_device, after_device, after);
      check(openreg_event_create(after_device, 0, &event));
      openreg_status status = openreg_event_record(event, after_device, stream(after_device, after));
      say("DO(openreg_stream_wait_event(%d, s[%d][%d], event)); DO(openreg_event_destroy(event));", device, device, i);
      if (status == OPENREG_OK) {
        status = openreg_stream_wait_event(device, stream(device, i), event);
      }
      const openreg_status destroyed = openreg_event_destroy(event);
      check(status);
      check(destroyed);
    }
  }

  // Stream i of `device` is about to use the memory.
  void use(unsigned id, Memory& memory, int device, int i, unsigned how) {
    if (memory.on_host) {
      if (memory.pending && (memory.last != i || memory.last_device != device)) {
        idle(memory);
      }
      memory.pending = true;
    } else {
      if (memory.last != i) {
        order(device, i, device, memory.last, how);
      }
      if (i != memory.stream) {
        say("DO(openreg_memory_record_stream(m%u, 0, s[%d][%d]));", id, device, i);
        check(openreg_memory_record_stream(memory.address, device, stream(device, i)));
      }
    }
    memory.last = i;
    memory.last_device = device;
  }

  // The host is about to use host memory.
  void idle(Memory& memory) {
    if (memory.on_host && memory.pending) {
      synchronize(memory.last_device, memory.last);
      memory.pending = false;
    }
  }

  void compare(unsigned id, Memory& memory) {
    Bytes found(memory.model.size());
    if (memory.on_host) {
      idle(memory);
      std::memcpy(found.data(), memory.address, found.size());
    } else {
      use(id, memory, memory.device, current(memory.device), 1);
      check(openreg_memcpy(found.data(), OPENREG_HOST, memory.address, memory.device, found.size()));
    }
    say("expect(m%u, %d, e%u, %zu);", id, memory.on_host ? OPENREG_HOST : memory.device, id, found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] != memory.model[i]) {
        char text[160];
        (void)std::snprintf(text, sizeof text, "byte %zu of %zu of m%u, on device %d, is %d, and should be %d", i,
                            found.size(), id, memory.on_host ? OPENREG_HOST : memory.device, found[i], memory.model[i]);
        throw Failure{text};
      }
    }
  }

  void make(const Step& step) {
    Memory memory;
    memory.on_host = step.kind == Kind::malloc_host;
    memory.device = memory.last_device = step.device;
    memory.stream = memory.last = memory.on_host ? 0 : step.stream;
    memory.model.resize(step.size);
    void* address = nullptr;
    say("char *m%u, *e%u = malloc(%zu);", step.id, step.id, step.size);
    if (!memory.on_host) {
      say("DO(openreg_malloc(%d, s[%d][%d], %zu, (void **)&m%u));", step.device, step.device, step.stream, step.size,
          step.id);
      check(openreg_malloc(step.device, stream(step.device, step.stream), step.size, &address));
    } else if ((memory.pinned = step.value % 2 == 0)) {
      say("DO(openreg_host_alloc(%d, %zu, (void **)&m%u));", step.device, step.size, step.id);
      check(openreg_host_alloc(step.device, step.size, &address));
    } else {
      say("m%u = malloc(%zu);", step.id, step.size);
      address = std::malloc(step.size);
    }
    memory.address = static_cast<char*>(address);
    Memory& made = memory_.emplace(step.id, std::move(memory)).first->second;
    // Known contents, none of which are those of another block.
    for (size_t i = 0; i < step.size; ++i) {
      made.model[i] = static_cast<unsigned char>(step.value + i * 7 + i / 251);
    }
    say("for (size_t i = 0; i < %zu; ++i) e%u[i] = (char)(%uu + i * 7 + i / 251);", step.size, step.id, step.value);
    if (made.on_host) {
      say("memcpy(m%u, e%u, %zu);", step.id, step.id, step.size);
      std::memcpy(made.address, made.model.data(), step.size);
    } else {
      use(step.id, made, made.device, current(made.device), step.value);
      say("DO(openreg_memcpy(m%u, %d, e%u, OPENREG_HOST, %zu));", step.id, made.device, step.id, step.size);
      check(openreg_memcpy(made.address, made.device, made.model.data(), OPENREG_HOST, step.size));
    }
  }

  void copy(const Step& step, Memory& to, Memory& from) {
    if (&to == &from) {
      return;  // ranges must not overlap
    }
    const bool async = step.kind == Kind::copy_async && !(to.on_host && from.on_host);
    const int to_device = to.on_host ? OPENREG_HOST : to.device;
    const int from_device = from.on_host ? OPENREG_HOST : from.device;
    if (async) {
      const int on = to.on_host || (!from.on_host && step.value % 2 == 0) ? from.device : to.device;
      for (auto& [id, memory] : {std::pair<unsigned, Memory*>(step.id, &to), {step.other, &from}}) {
        const bool is_other = !memory->on_host && memory->device != on;
        use(id, *memory, is_other ? memory->device : on, is_other ? current(memory->device) : step.stream, step.value);
      }
      say("DO(openreg_memcpy_async(%d, s[%d][%d], m%u + %zu, %d, m%u + %zu, %d, %zu));", on, on, step.stream, step.id,
          step.offset, to_device, step.other, step.other_offset, from_device, step.size);
      check(openreg_memcpy_async(on, stream(on, step.stream), to.address + step.offset, to_device,
                                 from.address + step.other_offset, from_device, step.size));
    } else {
      for (auto& [id, memory] : {std::pair<unsigned, Memory*>(step.id, &to), {step.other, &from}}) {
        if (memory->on_host) {
          idle(*memory);
        } else {
          use(id, *memory, memory->device, current(memory->device), step.value);
        }
      }
      say("DO(openreg_memcpy(m%u + %zu, %d, m%u + %zu, %d, %zu));", step.id, step.offset, to_device, step.other,
          step.other_offset, from_device, step.size);
      check(openreg_memcpy(to.address + step.offset, to_device, from.address + step.other_offset, from_device,
                           step.size));
    }
    say("memcpy(e%u + %zu, e%u + %zu, %zu);", step.id, step.offset, step.other, step.other_offset, step.size);
    std::memcpy(to.model.data() + step.offset, from.model.data() + step.other_offset, step.size);
  }

  void write(const Step& step, Memory& memory) {
    const int value = static_cast<int>(step.value % 256);
    if (step.kind == Kind::fill) {
      use(step.id, memory, memory.device, step.stream, step.value);
      say("DO(openreg_memset_async(%d, s[%d][%d], m%u + %zu, %d, %zu));", memory.device, memory.device, step.stream,
          step.id, step.offset, value, step.size);
      check(openreg_memset_async(memory.device, stream(memory.device, step.stream), memory.address + step.offset,
                                 static_cast<uint8_t>(value), step.size));
    } else if (step.kind == Kind::host_write) {
      idle(memory);
      say("memset(m%u + %zu, %d, %zu);", step.id, step.offset, value, step.size);
      std::memset(memory.address + step.offset, value, step.size);
    } else {
      use(step.id, memory, step.device, step.stream, step.value);
      auto work = std::make_unique<HostWork>(HostWork{memory.address + step.offset, step.size, value});
      say("static struct work w%zu; w%zu = (struct work){m%u + %zu, %zu, %d};", said_, said_, step.id, step.offset,
          step.size, value);
      say("DO(openreg_stream_launch_host_func(%d, s[%d][%d], write_bytes, &w%zu));", step.device, step.device,
          step.stream, said_++);
      check(openreg_stream_launch_host_func(step.device, stream(step.device, step.stream), write_bytes, work.get()));
      (void)work.release();
    }
    say("memset(e%u + %zu, %d, %zu);", step.id, step.offset, value, step.size);
    std::memset(memory.model.data() + step.offset, value, step.size);
  }

  void free_one(const Step& step, Memory& memory) {
    idle(memory);
    const char* const call = !memory.on_host ? "openreg_free" : memory.pinned ? "openreg_host_free" : nullptr;
    openreg_status status = OPENREG_OK;
    if (call == nullptr) {
      say("free(m%u);", step.id);
      std::free(memory.address);
    } else {
      say("DO(%s(m%u));", call, step.id);
      status = memory.on_host ? openreg_host_free(memory.address) : openreg_free(memory.address);
    }
    memory_.erase(step.id);
    check(status);
  }

  void give(const Step& step, Memory& memory) {
    order(memory.device, 0, memory.device, memory.last, 0);
    say("/* another thread frees m%u, or this one later */", step.id);
    const std::lock_guard<std::mutex> guard(mailbox_.lock);
    mailbox_.memory.push_back(std::move(memory));
    memory_.erase(step.id);
  }

  // Frees one that was given, after a look at it.
  void take() {
    Memory memory;
    {
      const std::lock_guard<std::mutex> guard(mailbox_.lock);
      if (mailbox_.memory.empty()) {
        return;
      }
      memory = std::move(mailbox_.memory.back());
      mailbox_.memory.pop_back();
    }
    Bytes found(memory.model.size());
    const openreg_status read = openreg_memcpy(found.data(), OPENREG_HOST, memory.address, memory.device, found.size());
    const openreg_status freed = openreg_free(memory.address);
    check(read);
    check(freed);
    if (found != memory.model) {
      throw Failure{"a block that another thread has given holds other bytes"};
    }
  }

  void take_step(const Step& step) {
    Memory* const memory = find(step.id);
    switch (step.kind) {
      case Kind::malloc_device:
      case Kind::malloc_host:
        make(step);
        return;
      case Kind::set_stream:
        current(step.device) = step.stream;
        say("DO(openreg_set_current_stream(%d, s[%d][%d]));", step.device, step.device, step.stream);
        check(openreg_set_current_stream(step.device, stream(step.device, step.stream)));
        return;
      case Kind::set_device:
        say("DO(openreg_set_device(%d));", step.device);
        check(openreg_set_device(step.device));
        return;
      case Kind::pool_enter: {
        static std::atomic<uint64_t> names{1};
        const openreg_memory_pool_id pool = {names++, 77};
        auto& pools = pools_[static_cast<size_t>(step.device)];
        say("DO(openreg_memory_pool_retain(%d, (openreg_memory_pool_id){%llu, 77}, 0));", step.device,
            static_cast<unsigned long long>(pool.first));
        check(openreg_memory_pool_retain(step.device, pool, 0));
        say("DO(openreg_memory_pool_enter(%d, (openreg_memory_pool_id){%llu, 77}));", step.device,
            static_cast<unsigned long long>(pool.first));
        check(openreg_memory_pool_enter(step.device, pool));
        pools.push_back(pool);
        return;
      }
      case Kind::pool_leave: {
        auto& pools = pools_[static_cast<size_t>(step.device)];
        if (pools.empty()) {
          return;
        }
        const openreg_memory_pool_id pool = pools.back();
        pools.pop_back();
        say("DO(openreg_memory_pool_leave(%d, (openreg_memory_pool_id){%llu, 77}));", step.device,
            static_cast<unsigned long long>(pool.first));
        check(openreg_memory_pool_leave(step.device, pool));
        say("DO(openreg_memory_pool_release(%d, (openreg_memory_pool_id){%llu, 77}));", step.device,
            static_cast<unsigned long long>(pool.first));
        check(openreg_memory_pool_release(step.device, pool));
        return;
      }
      case Kind::empty_cache:
        say("DO(openreg_memory_empty_cache(%d));", step.device);
        check(openreg_memory_empty_cache(step.device));
        return;
      case Kind::take:
        take();
        return;
      default:
        break;
    }
    if (memory == nullptr) {
      return;  // the step that made it was left out
    }
    if (step.kind == Kind::free_one) {
      free_one(step, *memory);
    } else if (step.kind == Kind::give) {
      give(step, *memory);
    } else if (step.kind == Kind::check) {
      compare(step.id, *memory);
    } else if (step.kind == Kind::copy || step.kind == Kind::copy_async) {
      if (Memory* const from = find(step.other)) {
        copy(step, *memory, *from);
      }
    } else {
      write(step, *memory);
    }
  }

  struct Streams {
    openreg_stream at[kStreams] = {};
  };

  const int devices_;
  Mailbox& mailbox_;
  std::atomic<bool>& stop_;
  std::FILE* const out_;
  std::vector<Streams> streams_;
  std::vector<int> current_;
  std::vector<std::vector<openreg_memory_pool_id>> pools_;
  std::map<unsigned, Memory> memory_;
  size_t said_ = 0;
};

void drain(Mailbox& mailbox) {
  for (const Memory& memory : mailbox.memory) {
    (void)openreg_free(memory.address);
  }
  mailbox.memory.clear();
}

std::string leaks_of(int devices) {
  for (int device = 0; device < devices; ++device) {
    openreg_memory_stats stats{};
    stats.struct_size = sizeof stats;
    if (openreg_memory_get_stats(device, &stats) == OPENREG_OK && stats.allocation[OPENREG_POOL_ALL].current != 0) {
      return "blocks that nobody has are allocated on device " + std::to_string(device);
    }
  }
  return "";
}

// What went wrong; "" if nothing did.
std::string run(const Program& program, int devices) {
  Mailbox mailbox;
  std::atomic<bool> stop{false};
  std::mutex lock;
  std::string failure;
  std::vector<std::thread> threads;
  for (const auto& steps : program) {
    threads.emplace_back([&] {
      Run one(devices, mailbox, stop, nullptr);
      try {
        one.run(steps);
      } catch (const Failure& found) {
        const std::lock_guard<std::mutex> guard(lock);
        failure = failure.empty() ? found.text : failure;
        stop = true;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  drain(mailbox);
  return failure.empty() ? leaks_of(devices) : failure;
}

// -------------------------------------------------------------------------------------------------------- shrinking

bool still_fails(const Program& program, int devices) {
  const int attempts = program.size() > 1 ? 4 : 2;  // what depends on time doesn't fail each time
  for (int i = 0; i < attempts; ++i) {
    if (!run(program, devices).empty()) {
      return true;
    }
  }
  return false;
}

Program shrink(Program program, int devices, Clock::time_point end) {
  for (size_t thread = program.size(); thread-- > 0 && program.size() > 1;) {
    Program smaller = program;
    smaller.erase(smaller.begin() + static_cast<std::ptrdiff_t>(thread));
    if (still_fails(smaller, devices)) {
      program = smaller;
    }
  }
  for (size_t thread = 0; thread < program.size(); ++thread) {
    for (size_t chunk = program[thread].size(); chunk > 0; chunk /= 2) {
      for (size_t at = 0; at < program[thread].size() && Clock::now() < end;) {
        Program smaller = program;
        auto& steps = smaller[thread];
        const auto first = steps.begin() + static_cast<std::ptrdiff_t>(at);
        steps.erase(first, first + static_cast<std::ptrdiff_t>(std::min(chunk, steps.size() - at)));
        if (still_fails(smaller, devices)) {
          program = smaller;
        } else {
          at += chunk;
        }
      }
    }
  }
  // Smaller blocks and parts.
  for (auto& steps : program) {
    for (Step& step : steps) {
      if (step.kind != Kind::malloc_device && step.kind != Kind::malloc_host) {
        continue;
      }
      for (size_t size = 1; size < step.size && Clock::now() < end; size *= 4) {
        const size_t before = step.size;
        step.size = size;
        bool fits = true;
        for (const Step& user : steps) {
          fits = fits && (&user == &step || user.id != step.id || user.offset + user.size <= size) &&
                 (user.other != step.id || user.other_offset + user.size <= size);
        }
        if (fits && still_fails(program, devices)) {
          break;
        }
        step.size = before;
      }
    }
  }
  return program;
}

constexpr const char* kHead = R"(#include <openreg/allocator.h>
#include <openreg/openreg.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(call)                                                      \
    do {                                                              \
        if ((call) != OPENREG_OK) {                                   \
            printf("%s: %s\n", #call, openreg_last_error()->message); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

struct work { char *address; size_t size; int value; };
static void write_bytes(void *argument) {
    const struct work *w = argument;
    memset(w->address, w->value, w->size);
}
static void expect(const char *memory, int device, const char *expected, size_t size) {
    char *found = malloc(size);
    DO(openreg_memcpy(found, OPENREG_HOST, memory, device, size));
    for (size_t i = 0; i < size; ++i)
        if (found[i] != expected[i]) {
            printf("byte %zu is %d, and should be %d\n", i, found[i] & 255, expected[i] & 255);
            exit(1);
        }
    free(found);
}
)";

void print(const Program& program, int devices) {
  std::printf("%s", kHead);
  for (size_t thread = 0; thread < program.size(); ++thread) {
    std::printf(
        "static void *thread_%zu(void *unused) {\n    openreg_stream s[%d][%d] = {{0}};\n    openreg_event event;\n",
        thread, devices, kStreams);
    Mailbox mailbox;
    std::atomic<bool> stop{false};
    try {
      Run one(devices, mailbox, stop, stdout);
      one.run(program[thread]);
    } catch (const Failure&) {
      // Printed so far.
    }
    drain(mailbox);
    std::printf("    (void)event;\n    return unused;\n}\n");
  }
  std::printf("int main(void) {\n    pthread_t t[%zu];\n", program.size());
  for (size_t thread = 0; thread < program.size(); ++thread) {
    std::printf("    pthread_create(&t[%zu], NULL, thread_%zu, NULL);\n", thread, thread);
  }
  for (size_t thread = 0; thread < program.size(); ++thread) {
    std::printf("    pthread_join(t[%zu], NULL);\n", thread);
  }
  std::printf("    return 0;\n}\n");
}

}  // namespace

int main(int count, char** arguments) {
  double seconds = 10, shrink_seconds = 30;
  uint64_t seed = std::random_device()(), most = UINT64_MAX;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    if (name == "--seconds") {
      seconds = std::atof(arguments[i + 1]);
    } else if (name == "--shrink-seconds") {
      shrink_seconds = std::atof(arguments[i + 1]);
    } else if (name == "--programs") {
      most = std::strtoull(arguments[i + 1], nullptr, 10);
    } else if (name == "--seed") {
      seed = std::strtoull(arguments[i + 1], nullptr, 10);
    } else {
      std::printf("fuzz_runtime --seconds N --seed S --programs N --shrink-seconds N\n");
      return 2;
    }
  }
  const auto after = [](double later) {
    return Clock::now() + std::chrono::microseconds(static_cast<int64_t>(later * 1e6));
  };
  if (openreg_init() != OPENREG_OK) {
    std::printf("%s\n", openreg_last_error()->message);
    return 2;
  }
  const int devices = std::min(openreg_device_count(), 2);
  const auto end = after(seconds);
  uint64_t cases = 0;
  for (; cases < most && (cases == 0 || Clock::now() < end); ++cases) {
    // Each program has a seed of its own, printed first: a crash has none of the rest.
    const uint64_t own = seed + cases;
    std::fprintf(stderr, "\rseed %llu", static_cast<unsigned long long>(own));
    std::mt19937 random(static_cast<std::mt19937::result_type>(own * 2654435761u));
    Program program(random() % 3 == 0 ? 3 : 1);
    for (size_t i = 0; i < program.size(); ++i) {
      program[i] = Generator(random, devices).steps(static_cast<unsigned>(i) * 1000);
    }
    const std::string failure = run(program, devices);
    if (!failure.empty()) {
      std::fprintf(stderr, "\n");
      std::printf("/* seed %llu: %s\n", static_cast<unsigned long long>(own), failure.c_str());
      const Program small = shrink(program, devices, after(shrink_seconds));
      size_t steps = 0;
      for (const auto& thread : small) {
        steps += thread.size();
      }
      std::printf("   shrunk to %zu steps: %s */\n", steps, run(small, devices).c_str());
      print(small, devices);
      return 1;
    }
  }
  std::fprintf(stderr, "\n");
  const openreg_status status = openreg_shutdown();
  std::printf("%llu programs from seed %llu, no failure%s%s\n", static_cast<unsigned long long>(cases),
              static_cast<unsigned long long>(seed),
              status == OPENREG_OK ? "" : "; shutdown: ", status == OPENREG_OK ? "" : openreg_last_error()->message);
  return status == OPENREG_OK ? 0 : 1;
}
