/* SPDX-License-Identifier: BSD-3-Clause */
// What the guard asks of captures of streams in graphs. They are a part of their own (optional/graph), which is loaded by the
// first graph: until then there is no watch, and every question costs one load.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/macros/Macros.h>
#include <openreg/openreg.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "shim/base/export.h"
#include "shim/device/device.h"

namespace c10::openreg {

// Work of a host's thread that is no operator, as a compiled kernel.
struct CapturedCall {
  std::string name;
  std::vector<at::Tensor> tensors; // that it uses
  // Asked at once for what each replay calls in its thread, with the tensors as the graph holds them.
  std::function<std::function<void()>(const std::vector<at::Tensor>&)> bind;
  bool is_local = true; // no other process takes part: it is called in the capture, too, and undone
};

// Any thread. `call` is the name of the call for the message of an error, which is a c10::Error and ends the capture.
class CaptureWatch {
 public:
  virtual bool is_capturing(DeviceIndex device, openreg_stream stream) const noexcept = 0;

  // Throw where the host would wait for, or look at, work that is captured and doesn't run.
  virtual void check_device(DeviceIndex device, const char* call) = 0;
  virtual void check_stream(DeviceIndex device, openreg_stream stream, const char* call) = 0;
  virtual void check_event(openreg_event event, const char* call) = 0;
  // Throws where the stream is captured.
  virtual void refuse(DeviceIndex device, openreg_stream stream, const char* call, const char* why) = 0;

  // Of a capturing stream: the event is part of its capture, and nothing is queued: true. Else false.
  virtual bool record(openreg_event event, DeviceIndex device, openreg_stream stream) = 0;
  // True where the event or the stream is part of a capture: the stream is then, too. Else false.
  virtual bool wait(openreg_event event, DeviceIndex device, openreg_stream stream) = 0;
  // True where the stream is captured: the call is part of that. Else false.
  virtual bool add_call(DeviceIndex device, openreg_stream stream, CapturedCall call) = 0;
  virtual void forget(openreg_event event) noexcept = 0; // it is destroyed

  // True where the device's current stream is captured, and the storage has memory of the graph, or none: it has its new size,
  // in memory of the graph. Else false.
  virtual bool resize(c10::StorageImpl& storage, size_t size) = 0;
  // The calling thread moves the storage's memory, or frees it.
  virtual void moves(const c10::StorageImpl& storage) = 0;

  // Of a generator whose device's current stream is captured: each replay notes its own state where the capture got one, and
  // goes back to that where the capture sets what it got. A state from elsewhere is refused.
  virtual void got_state(c10::GeneratorImpl& generator, const c10::TensorImpl& state) = 0;
  virtual void set_state(c10::GeneratorImpl& generator, const c10::TensorImpl& state) = 0;

 protected:
  ~CaptureWatch() = default;
};

TORCH_OPENREG_API extern std::atomic<CaptureWatch*> capture_watch_pointer;

// Null: nothing was ever captured.
inline CaptureWatch* capture_watch() noexcept {
  return capture_watch_pointer.load(std::memory_order_acquire);
}

// Whether the thread's current stream of the device is part of a capture.
inline bool is_captured(DeviceIndex device) {
  const auto* const watch = capture_watch();
  if (C10_LIKELY(watch == nullptr)) {
    return false;
  }
  return watch->is_capturing(device, current_stream(device).id());
}

// The calling thread's line of the program, " at file:line in function", where it is known; else "".
using PlaceFinder = int (*)(char* out, size_t size);
TORCH_OPENREG_API void set_place_finder(PlaceFinder finder) noexcept;
TORCH_OPENREG_API std::string place_of_caller();

// A function that the process's first graph calls, in its thread, before it is captured.
TORCH_OPENREG_API void set_first_graph_listener(void (*listener)()) noexcept;
TORCH_OPENREG_API void tell_of_first_graph();

} // namespace c10::openreg
