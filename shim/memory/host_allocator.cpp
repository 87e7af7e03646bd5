// SPDX-License-Identifier: BSD-3-Clause
#include "shim/memory/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <type_traits>

#include "shim/base/status.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/observe/races.h"

namespace c10::openreg {

namespace {

struct DestroyEvent {
  void operator()(openreg_event event) const noexcept {
    (void)openreg_event_destroy(event);
  }
};

// An event that PyTorch's allocator can keep in its containers.
using HostEvent = std::unique_ptr<std::remove_pointer_t<openreg_event>, DestroyEvent>;

// The caching is PyTorch's; here is what it asks of a backend.
struct HostAllocatorImpl final : at::CachingHostAllocatorImpl<c10::Stream, HostEvent> {
  using Block = at::HostBlock<c10::Stream>;

  void copy_data(void* destination, const void* source, std::size_t size) const override {
    if (size != 0) {
      std::memcpy(destination, source, size); // both are host memory
    }
  }

 private:
  // Makes a call of the runtime, and adds the microseconds that it took to one of PyTorch's statistics.
  template <class Statistic, class Call>
  void timed(Statistic& statistic, Call call) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    OPENREG_CHECK(call());
    const auto time = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    const std::lock_guard<std::mutex> lock(stats_.timing_mutex_);
    statistic.increase(time.count());
  }

  void allocate_host_memory(size_t size, void** out) override {
    timed(stats_.host_alloc_time, [&] { return openreg_host_alloc(current_device(), size, out); });
  }

  void free_block(Block* block) override {
    timed(stats_.host_free_time, [&] { return openreg_host_free(block->ptr_); });
  }

  void record_stream(std::optional<std::vector<HostEvent>>& events, c10::Stream stream) override {
    const RaceMute mute(races_are_found()); // the allocator's own, here and below; see allocate()
    openreg_event event = nullptr;
    OPENREG_CHECK(openreg_event_create(stream.device_index(), 0, &event));
    events->emplace_back(event);
    OPENREG_CHECK(openreg_event_record(event, stream.device_index(), stream.id()));
  }

  bool query_event(HostEvent& event) override {
    const RaceMute mute(races_are_found());
    int32_t done = 0;
    OPENREG_CHECK(openreg_event_query(event.get(), &done));
    return done != 0;
  }

  c10::Stream get_current_stream() const override {
    return current_stream(current_device());
  }

  bool stream_is_capturing(c10::Stream stream) const override {
    const auto* const watch = capture_watch();
    return watch != nullptr && watch->is_capturing(stream.device_index(), stream.id());
  }
};

void delete_host_block(void* block) noexcept;

c10::DeviceType translated_type = c10::DeviceType::PrivateUse1;
StreamTranslation translation = nullptr;

struct HostAllocator final : at::CachingHostAllocatorInterface<HostAllocatorImpl, &delete_host_block> {
  at::DataPtr allocate(size_t size) override {
    at::DataPtr block = at::CachingHostAllocatorInterface<HostAllocatorImpl, &delete_host_block>::allocate(size);
    if (races_are_found()) {
      openreg_races_forget(block.get(), size); // nobody uses what is given out
    }
    return block;
  }
  bool record_event(void* block, void* context, c10::Stream stream) override {
    const bool is_foreign = stream.device_type() == translated_type && translation != nullptr;
    return at::CachingHostAllocatorInterface<HostAllocatorImpl, &delete_host_block>::record_event(
        block, context, is_foreign ? translation(stream) : stream);
  }
  at::DeleterFnPtr raw_deleter() const override {
    return nullptr; // the deleter takes PyTorch's block, not the address
  }
};

HostAllocator& instance() {
  // Never destroyed: tensors may outlive every static object, and its events would be destroyed at exit.
  static auto& allocator = *new HostAllocator;
  return allocator;
}

void delete_host_block(void* block) noexcept {
  if (openreg_in_bad_fork() != 0) {
    return; // the parent's memory; recording events on the parent's streams would fail
  }
  try {
    instance().free(block);
  } catch (const std::exception& error) {
    warn_of_failure("A block of pinned memory could not be freed: ", error.what());
  }
}

} // namespace

void set_stream_translation(c10::DeviceType type, StreamTranslation translate) noexcept {
  translated_type = type;
  translation = translate;
}

at::HostAllocator& host_allocator() {
  return instance();
}

} // namespace c10::openreg
