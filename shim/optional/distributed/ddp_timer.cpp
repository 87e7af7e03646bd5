// SPDX-License-Identifier: BSD-3-Clause
// The times that DistributedDataParallel collects, taken on the device by events of its current stream. Registered with
// PyTorch, which has such timers for the CPU and for CUDA (torch/csrc/distributed/c10d/reducer_cuda.cpp).
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <cstdint>
#include <optional>

namespace c10::openreg {
namespace {

class DdpTimer final : public c10d::Timer {
 public:
  explicit DdpTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    Timer::record(event); // the host's time
    const c10::DeviceGuard guard(device_);
    at(event).record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  // Nothing where one of them was not recorded: backward() was not called, or without a reduction.
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto& first = at(start);
    auto& last = at(end);
    if (!first.was_marked_for_recording() || !last.was_marked_for_recording()) {
      return std::nullopt;
    }
    const c10::DeviceGuard guard(device_);
    first.synchronize(); // called at the start of an iteration: the one before has ended, or nearly so
    last.synchronize();
    const double milliseconds = first.elapsedTime(last);
    if (milliseconds < 0) {
      return std::nullopt; // the end is that of an earlier iteration
    }
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  c10::Event& at(Event event) {
    return events_.at(static_cast<size_t>(event));
  }

  static c10::Event timed() {
    return {c10::DeviceType::PrivateUse1, c10::EventFlag::BACKEND_DEFAULT};
  }

  const c10::Device device_;
  std::array<c10::Event, 5> events_{timed(), timed(), timed(), timed(), timed()}; // by Event
};

} // namespace
} // namespace c10::openreg

namespace c10d {
namespace {

using c10::openreg::DdpTimer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, DdpTimer)

} // namespace
} // namespace c10d
