/* SPDX-License-Identifier: BSD-3-Clause */
// What the guard asks of captures of streams in graphs. They are a part of their own (optional/graph), which is loaded by the
// first graph: until then there is no watch, and every question costs one load.
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>
#include <openreg/openreg.h>

#include <atomic>
#include <string>

#include "shim/base/export.h"

namespace c10::openreg {

// Any thread. `call` is the name of the call for the message of an error, which is a c10::Error and ends the capture.
class CaptureWatch {
 public:
  virtual bool is_capturing(DeviceIndex device, openreg_stream stream) const noexcept = 0;

  // Throw where the host would wait for, or look at, work that is captured and doesn't run.
  virtual void check_device(DeviceIndex device, const char* call) = 0;
  virtual void check_stream(DeviceIndex device, openreg_stream stream, const char* call) = 0;
  virtual void check_event(openreg_event event, const char* call) = 0;

  // Of a capturing stream: the event is part of its capture, and nothing is queued: true. Else false.
  virtual bool record(openreg_event event, DeviceIndex device, openreg_stream stream) = 0;
  // True where the event or the stream is part of a capture: the stream is then, too. Else false.
  virtual bool wait(openreg_event event, DeviceIndex device, openreg_stream stream) = 0;
  virtual void forget(openreg_event event) noexcept = 0; // it is destroyed

 protected:
  ~CaptureWatch() = default;
};

TORCH_OPENREG_API extern std::atomic<CaptureWatch*> capture_watch_pointer;

// Null: nothing was ever captured.
inline CaptureWatch* capture_watch() noexcept {
  return capture_watch_pointer.load(std::memory_order_acquire);
}

// The calling thread's line of the program, " at file:line in function", where it is known; else "".
using PlaceFinder = int (*)(void* context, char* out, size_t size);
TORCH_OPENREG_API void set_place_finder(PlaceFinder finder) noexcept;
TORCH_OPENREG_API std::string place_of_caller();

} // namespace c10::openreg
