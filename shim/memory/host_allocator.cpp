// SPDX-License-Identifier: BSD-3-Clause
#include "shim/memory/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "shim/base/status.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/observe/races.h"

namespace c10::openreg {

namespace {

// An event that PyTorch's allocator can keep in its containers.
class HostEvent {
 public:
  explicit HostEvent(const c10::Stream& stream) {
    const RaceMute mute(races_are_found()); // the allocator's own, here and below; see allocate()
    OPENREG_CHECK(openreg_event_create(stream.device_index(), 0, &event_));
    const openreg_status status = openreg_event_record(event_, stream.device_index(), stream.id());
    if (status != OPENREG_OK) {
      openreg_event_destroy(event_);
      throw_status(status);
    }
  }
  HostEvent(HostEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  HostEvent& operator=(HostEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  HostEvent(const HostEvent&) = delete;
  HostEvent& operator=(const HostEvent&) = delete;
  ~HostEvent() {
    (void)openreg_event_destroy(event_); // takes a null event
  }

  bool done() const {
    const RaceMute mute(races_are_found());
    int32_t done = 0;
    OPENREG_CHECK(openreg_event_query(event_, &done));
    return done != 0;
  }

 private:
  openreg_event event_ = nullptr;
};

// Microseconds since construction.
class StopWatch {
 public:
  int64_t elapsed() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// The caching is PyTorch's; here is what it asks of a backend.
struct HostAllocatorImpl final : at::CachingHostAllocatorImpl<c10::Stream, HostEvent> {
  using Block = at::HostBlock<c10::Stream>;

  void copy_data(void* destination, const void* source, std::size_t size) const override {
    if (size != 0) {
      std::memcpy(destination, source, size); // both are host memory
    }
  }

 private:
  void allocate_host_memory(size_t size, void** out) override {
    const StopWatch watch;
    OPENREG_CHECK(openreg_host_alloc(current_device(), size, out));
    const std::lock_guard<std::mutex> lock(stats_.timing_mutex_);
    stats_.host_alloc_time.increase(watch.elapsed());
  }

  void free_block(Block* block) override {
    const StopWatch watch;
    OPENREG_CHECK(openreg_host_free(block->ptr_));
    const std::lock_guard<std::mutex> lock(stats_.timing_mutex_);
    stats_.host_free_time.increase(watch.elapsed());
  }

  void record_stream(std::optional<std::vector<HostEvent>>& events, c10::Stream stream) override {
    events->emplace_back(stream);
  }

  bool query_event(HostEvent& event) override {
    return event.done();
  }

  c10::Stream get_current_stream() const override {
    const DeviceIndex device = current_device();
    openreg_stream stream = OPENREG_STREAM_DEFAULT;
    OPENREG_CHECK(openreg_current_stream(device, &stream));
    return c10::Stream(c10::Stream::UNSAFE, Device(DeviceType::PrivateUse1, device), stream);
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
    try {
      TORCH_WARN("A block of pinned memory could not be freed: ", error.what());
    } catch (...) { // no memory for the text
    }
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
