// SPDX-License-Identifier: BSD-3-Clause
// The older way of PyTorch's profiler to time a device: events before and behind each operator (use_kineto=False). What
// replaces it, with a row for each piece of work: shim/optional/profile.
#include <openreg/openreg.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <c10/core/DeviceGuard.h>
#include <c10/util/ApproximateClock.h>

#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/device/device.h"
#include "shim/device/profiler.h"

namespace c10::openreg {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

struct ProfilerStubs final : torch::profiler::impl::ProfilerStubs {
  // An event behind what is queued on the current stream of the current device.
  void record(DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const DeviceIndex index = current_device();
    const openreg_stream stream = current_stream(index).id();
    openreg_event created = nullptr;
    OPENREG_CHECK(openreg_event_create(index, OPENREG_EVENT_TIMING, &created));
    *event = ProfilerVoidEventStub(
        created, [](void* last) { (void)openreg_event_destroy(static_cast<openreg_event>(last)); });
    if (device != nullptr) {
      *device = index;
    }
    if (cpu_ns != nullptr) {
      *cpu_ns = c10::getTime();
    }
    OPENREG_CHECK(openreg_event_record(created, index, stream));
  }

  // In microseconds. Waits for both.
  float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
    int64_t nanoseconds = 0;
    const auto first = static_cast<openreg_event>(start->get());
    const auto last = static_cast<openreg_event>(end->get());
    const WaitScope waiting;
    OPENREG_CHECK(openreg_event_synchronize(first));
    OPENREG_CHECK(openreg_event_synchronize(last));
    OPENREG_CHECK(openreg_event_elapsed(first, last, &nanoseconds));
    return static_cast<float>(static_cast<double>(nanoseconds) * 1e-3);
  }

  // There is no tool beside PyTorch's that would show them.
  void mark(const char* /*name*/) const override {}
  void rangePush(const char* /*name*/) const override {}
  void rangePop() const override {}

  void onEachDevice(std::function<void(int)> op) const override {
    for (DeviceIndex device = 0; device < device_count(); ++device) {
      const c10::DeviceGuard each(c10::Device(c10::DeviceType::PrivateUse1, device));
      op(device);
    }
  }

  void synchronize() const override {
    const WaitScope waiting;
    OPENREG_CHECK(openreg_device_synchronize(current_device()));
  }

  bool enabled() const override {
    return true;
  }
};

} // namespace

void register_profiler_stubs() {
  torch::profiler::impl::registerPrivateUse1Methods(new ProfilerStubs); // leaked: nothing runs at exit
}

} // namespace c10::openreg
