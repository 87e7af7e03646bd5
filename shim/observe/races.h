/* SPDX-License-Identifier: BSD-3-Clause */
// What operators report to the race detector (openreg/races.h): which tensors they read and write, on which stream.
//
// An operator runs at once, on the calling thread, but counts as work of the current stream, as it would be on a GPU. The
// calls of the runtime that it makes are part of it, and are muted.
#pragma once

#include <ATen/core/Tensor.h>
#include <openreg/races.h>

#include <string>

#include "shim/base/export.h"

namespace c10::openreg {

inline bool races_are_found() noexcept {
  return C10_UNLIKELY(openreg_races_flags() != 0);
}

// Mutes the thread, if `on`.
class RaceMute {
 public:
  explicit RaceMute(bool on = true) noexcept : on_(on) {
    if (C10_UNLIKELY(on_)) {
      openreg_races_mute(1);
    }
  }
  ~RaceMute() {
    if (C10_UNLIKELY(on_)) {
      openreg_races_mute(-1);
    }
  }
  RaceMute(const RaceMute&) = delete;
  RaceMute& operator=(const RaceMute&) = delete;

 private:
  const bool on_;
};

// Whether this thread reports what it does now: detection is on, and no operator that was reported is running here.
inline bool follows_races() noexcept {
  return races_are_found() && openreg_races_is_muted() == 0;
}

// What the uses of one call have in common: where they come from, and the current stream of the device that was last used.
struct RaceUses {
  uint32_t origin = 0;
  DeviceIndex device = -1;
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
};

// The current stream of the tensor's device uses it. Tensors of other devices and layouts are left out. Throws the
// exception of a race (set_error_translator()).
TORCH_OPENREG_API void note_race_use(RaceUses& uses, const at::Tensor& tensor, bool writes);

// A copy as a GPU would do it: on the stream of the source's device where both have one, else of the only one; the host
// waits for those from and to itself that aren't `asynchronous`.
void note_race_copy(const at::Tensor& destination, const at::Tensor& source, bool asynchronous);

// The host waits for the current stream of the device.
void note_race_wait(DeviceIndex device);

// Whether an operator's tensors are used for their data, by its name: those that only look at or change sizes are not.
bool uses_data(const std::string& name);

// Whether the host learns of the results' sizes or values, and so waits on any device: nonzero, masked_select, equal.
// `has_masks`: a tensor of the call is boolean.
bool waits_for_results(const std::string& name, bool has_masks);

// Operators of the CPU on pinned memory that an asynchronous copy has used (host_uses.cpp). They can't fail: a race of
// theirs is thrown by the next use that is noted, or by throw_pending_race(). A process that would end with status 0 before
// that ends with 1.
TORCH_OPENREG_API void watch_host_uses(bool on);
void watch_pinned_memory(const void* address, size_t size);
TORCH_OPENREG_API void throw_pending_race();
TORCH_OPENREG_API void drop_pending_race() noexcept;

// Collectives are work of a stream of their own on each device: it waits for the current one when they are issued, and
// a wait for a collective is a wait for that stream.
TORCH_OPENREG_API void note_race_collective(const char* name, const at::Tensor& tensor, bool writes);
TORCH_OPENREG_API void note_race_collective_wait(DeviceIndex device);
TORCH_OPENREG_API void note_race_collective_done(DeviceIndex device);

} // namespace c10::openreg
