/* SPDX-License-Identifier: BSD-3-Clause */
// scenario.h: a little of everything the runtime does, for tests that make one step of it fail.
#ifndef OPENREG_TESTS_SCENARIO_H
#define OPENREG_TESTS_SCENARIO_H

#include <openreg/openreg.h>

#include <cstdint>
#include <cstring>

namespace openreg_test {

// Runs through initialisation, memory, copies, streams, events and shutdown, and stops at the first error. What was made
// is given back in any case; a second attempt is made where that fails. Needs two devices of one driver.
class Scenario {
 public:
  openreg_status run() {
    const openreg_status status = work();
    undo();
    return status;
  }
  // The bytes that went through the devices came back right. Meaningful after a run that succeeded.
  bool bytes_are_right() const { return std::memcmp(back_, source_, sizeof source_) == 0; }
  // A shutdown after the run succeeded.
  bool is_clean() const { return is_clean_; }

 private:
#define OPENREG_STEP(expression)                       \
  do {                                                 \
    const openreg_status step_status = (expression);   \
    if (step_status != OPENREG_OK) return step_status; \
  } while (0)

  openreg_status work() {
    auto properties = sized<openreg_device_properties>();
    int32_t value = 0;
    void* native = nullptr;
    int64_t ns = 0;
    uint64_t free_bytes = 0, total = 0;
    for (size_t i = 0; i < sizeof source_; ++i) source_[i] = static_cast<uint8_t>(i * 7);

    (void)openreg_device_count();  // 0 on failure, and says no more
    OPENREG_STEP(openreg_init());
    OPENREG_STEP(openreg_set_device(1));
    OPENREG_STEP(openreg_exchange_device(0, &value));
    OPENREG_STEP(openreg_device_get_properties(1, &properties));
    OPENREG_STEP(openreg_malloc(0, 0, sizeof source_, &first_));
    OPENREG_STEP(openreg_malloc(1, 0, sizeof source_, &second_));
    OPENREG_STEP(openreg_stream_from_pool(0, -1, &stream_));
    OPENREG_STEP(openreg_set_current_stream(0, stream_));
    OPENREG_STEP(openreg_event_create(0, OPENREG_EVENT_TIMING, &start_));
    OPENREG_STEP(openreg_event_create(0, OPENREG_EVENT_TIMING, &end_));
    OPENREG_STEP(openreg_event_record(start_, 0, stream_));
    OPENREG_STEP(openreg_memset_async(0, stream_, first_, 1, sizeof source_));
    OPENREG_STEP(openreg_host_alloc(0, sizeof source_, &pinned_));
    std::memcpy(pinned_, source_, sizeof source_);
    OPENREG_STEP(openreg_memcpy_async(0, stream_, first_, 0, pinned_, OPENREG_HOST, sizeof source_));
    OPENREG_STEP(openreg_stream_launch_host_func(0, stream_, ran, nullptr));
    OPENREG_STEP(openreg_event_record(end_, 0, stream_));
    OPENREG_STEP(openreg_stream_wait_event(1, 0, end_));
    OPENREG_STEP(openreg_event_synchronize(end_));
    OPENREG_STEP(openreg_event_query(start_, &value));
    OPENREG_STEP(openreg_event_elapsed(start_, end_, &ns));
    OPENREG_STEP(openreg_memcpy(second_, 1, first_, 0, sizeof source_));
    OPENREG_STEP(openreg_memcpy(back_, OPENREG_HOST, second_, 1, sizeof back_));
    OPENREG_STEP(openreg_memory_record_stream(first_, 0, OPENREG_STREAM_DEFAULT));
    OPENREG_STEP(openreg_stream_query(0, stream_, &value));
    OPENREG_STEP(openreg_stream_synchronize(0, stream_));
    OPENREG_STEP(openreg_stream_native(0, stream_, &native));
    OPENREG_STEP(openreg_device_active(0, &value));
    OPENREG_STEP(openreg_memory_get_info(0, &free_bytes, &total));
    OPENREG_STEP(openreg_device_synchronize(1));
    OPENREG_STEP(give(&first_, openreg_free));
    OPENREG_STEP(give(&second_, openreg_free));
    OPENREG_STEP(openreg_memory_empty_cache(-1));
    OPENREG_STEP(give(&pinned_, openreg_host_free));
    OPENREG_STEP(give(&start_, openreg_event_destroy));
    OPENREG_STEP(give(&end_, openreg_event_destroy));
    return openreg_shutdown();
  }
#undef OPENREG_STEP

  static void ran(void*) {}

  template <typename Handle, typename Function>
  static openreg_status give(Handle* handle, Function function) {
    const openreg_status status = function(*handle);
    if (status == OPENREG_OK) *handle = nullptr;
    return status;
  }
  template <typename Handle, typename Function>
  static void give_twice(Handle* handle, Function function) {
    for (int attempt = 0; attempt < 2 && *handle != nullptr; ++attempt) (void)give(handle, function);
  }

  void undo() {
    give_twice(&first_, openreg_free);
    give_twice(&second_, openreg_free);
    give_twice(&pinned_, openreg_host_free);
    give_twice(&start_, openreg_event_destroy);
    give_twice(&end_, openreg_event_destroy);
    is_clean_ = openreg_shutdown() == OPENREG_OK && openreg_is_initialized() == 0;
  }

  void* first_ = nullptr;
  void* second_ = nullptr;
  void* pinned_ = nullptr;
  openreg_event start_ = nullptr;
  openreg_event end_ = nullptr;
  openreg_stream stream_ = 0;
  uint8_t source_[5000]{};
  uint8_t back_[5000]{};
  bool is_clean_ = false;
};

}  // namespace openreg_test

#endif
