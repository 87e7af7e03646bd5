/* SPDX-License-Identifier: BSD-3-Clause */
// An event of the runtime that was recorded on a stream, for as long as someone wants to wait for it.
#pragma once

#include <c10/core/Device.h>
#include <openreg/openreg.h>

#include <utility>

#include "shim/base/status.h"

namespace c10::openreg {

class StreamEvent {
 public:
  // Behind what is on the stream now. Throws c10::Error.
  StreamEvent(c10::DeviceIndex device, openreg_stream stream) {
    OPENREG_CHECK(openreg_event_create(device, 0, &event_));
    try {
      OPENREG_CHECK(openreg_event_record(event_, device, stream));
    } catch (...) {
      (void)openreg_event_destroy(event_);
      throw;
    }
  }

  ~StreamEvent() {
    if (event_ != nullptr) {
      (void)openreg_event_destroy(event_);
    }
  }

  StreamEvent(StreamEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;
  StreamEvent& operator=(StreamEvent&&) = delete;

  // Throws c10::Error.
  void make_wait(c10::DeviceIndex device, openreg_stream stream) const {
    OPENREG_CHECK(openreg_stream_wait_event(device, stream, event_));
  }

  // Whether the event is complete. Errors: those of openreg_event_query(), as where the device has failed.
  openreg_status query(bool* has_passed) const {
    int32_t done = 0;
    const openreg_status status = openreg_event_query(event_, &done);
    *has_passed = done != 0;
    return status;
  }

 private:
  openreg_event event_ = nullptr;
};

} // namespace c10::openreg
