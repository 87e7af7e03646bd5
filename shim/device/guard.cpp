// SPDX-License-Identifier: BSD-3-Clause
#include "shim/device/guard.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <limits>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/observe/races.h"

namespace c10::openreg {

namespace {

void check_type(Device device) {
  TORCH_CHECK(device.is_privateuseone(), "Expected a PrivateUse1 device, but got ", device);
}

// The device's index, the current device's where it has none.
DeviceIndex checked_index(Device device) {
  check_type(device);
  return index_or_current(device.index());
}

Stream make_stream(DeviceIndex device, openreg_stream stream) {
  return Stream(Stream::UNSAFE, Device(OpenRegGuardImpl::static_type, device), stream);
}

Stream stream_from_pool(Device device, int32_t priority) {
  const DeviceIndex index = checked_index(device);
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_stream_from_pool(index, priority, &stream));
  return make_stream(index, stream);
}

openreg_event as_event(void* event) {
  return static_cast<openreg_event>(event);
}

// On a stream that is captured the record is the capture's.
openreg_status record_event(openreg_event event, const Stream& stream) {
  auto* const watch = capture_watch();
  return watch != nullptr && watch->record(event, stream.device_index(), stream.id())
      ? OPENREG_OK
      : openreg_event_record(event, stream.device_index(), stream.id());
}

uint32_t event_flags(EventFlag flag) {
  switch (flag) {
    case EventFlag::PYTORCH_DEFAULT:
      return 0;
    case EventFlag::BACKEND_DEFAULT:
      return OPENREG_EVENT_TIMING;
    default:
      TORCH_CHECK(false, "An event of ", device_name(), " received an unknown flag: ", static_cast<int>(flag), ".");
  }
}

} // namespace

OpenRegGuardImpl::OpenRegGuardImpl(DeviceType type) {
  check_type(Device(type));
}

// LITERALINCLUDE START: OPENREG DEVICE MGMT GUARD IMPL EXAMPLE
Device OpenRegGuardImpl::exchangeDevice(Device device) const {
  check_type(device);
  return Device(static_type, exchange_device(device.index()));
}

Device OpenRegGuardImpl::getDevice() const {
  return Device(static_type, current_device());
}

void OpenRegGuardImpl::setDevice(Device device) const {
  check_type(device);
  set_device(device.index());
}

void OpenRegGuardImpl::uncheckedSetDevice(Device device) const noexcept {
  // Runs in destructors: an index out of range, -1 too, is ignored, and no driver is called.
  openreg_restore_device(device.index());
}
// LITERALINCLUDE END: OPENREG DEVICE MGMT GUARD IMPL EXAMPLE

DeviceCapability OpenRegGuardImpl::getDeviceCapability(Device device) const {
  check_type(device);
  DeviceCapability capability; // every type; those go that no operator converts to, on the CPU neither
  auto& types = capability.capability_data.supported_scalar_types;
  types.has_Bits1x8 = types.has_Bits2x4 = types.has_Bits4x2 = types.has_Bits8 = types.has_Bits16 = 0;
  types.has_UInt1 = types.has_UInt2 = types.has_UInt3 = types.has_UInt4 = types.has_UInt5 = types.has_UInt6 = 0;
  types.has_Int1 = types.has_Int2 = types.has_Int3 = types.has_Int4 = types.has_Int5 = types.has_Int6 = 0;
  types.has_UInt7 = types.has_Int7 = types.has_Float4_e2m1fn_x2 = 0;
  return capability;
}

void OpenRegGuardImpl::synchronizeDevice(DeviceIndex device_index) const {
  const DeviceIndex index = index_or_current(device_index);
  if (auto* const watch = capture_watch()) {
    watch->check_device(index, "synchronizing the device");
  }
  OPENREG_CHECK(openreg_device_synchronize(index));
  throw_pending_race();
}

Stream OpenRegGuardImpl::getStream(Device device) const {
  return current_stream(checked_index(device));
}

Stream OpenRegGuardImpl::getDefaultStream(Device device) const {
  return make_stream(checked_index(device), OPENREG_STREAM_DEFAULT);
}

Stream OpenRegGuardImpl::getStreamFromGlobalPool(Device device, bool isHighPriority) const {
  // Lower numbers are more urgent, and the runtime clamps them into the device's range.
  return stream_from_pool(device, isHighPriority ? std::numeric_limits<int32_t>::min() : 0);
}

Stream OpenRegGuardImpl::getNewStream(Device device, int priority) const {
  return stream_from_pool(device, priority);
}

Stream OpenRegGuardImpl::exchangeStream(Stream stream) const {
  const Stream previous = getStream(stream.device());
  OPENREG_CHECK(openreg_set_current_stream(stream.device_index(), stream.id()));
  return previous;
}

void* OpenRegGuardImpl::getStreamNativeHandle(Stream stream) const {
  check_type(stream.device());
  void* handle = nullptr;
  OPENREG_CHECK(openreg_stream_native(stream.device_index(), stream.id(), &handle));
  return handle;
}

bool OpenRegGuardImpl::queryStream(const Stream& stream) const {
  check_type(stream.device());
  if (auto* const watch = capture_watch()) {
    watch->check_stream(stream.device_index(), stream.id(), "querying the stream");
  }
  int32_t done = 0;
  OPENREG_CHECK(openreg_stream_query(stream.device_index(), stream.id(), &done));
  return done != 0;
}

void OpenRegGuardImpl::synchronizeStream(const Stream& stream) const {
  check_type(stream.device());
  if (auto* const watch = capture_watch()) {
    watch->check_stream(stream.device_index(), stream.id(), "synchronizing the stream");
  }
  OPENREG_CHECK(openreg_stream_synchronize(stream.device_index(), stream.id()));
  throw_pending_race();
}

bool OpenRegGuardImpl::isStreamCapturing(const Stream& stream) const {
  const auto* const watch = capture_watch();
  return watch != nullptr && watch->is_capturing(stream.device_index(), stream.id());
}

void OpenRegGuardImpl::record(void** event, const Stream& stream, DeviceIndex device_index, EventFlag flag) const {
  check_type(stream.device());
  const DeviceIndex stream_device = stream.device_index();
  // An event stays with the device of its first record.
  TORCH_CHECK(
      device_index == -1 || device_index == stream_device,
      "Event device index ",
      static_cast<int>(device_index),
      " does not match recording stream's device index ",
      static_cast<int>(stream_device),
      ".");
  if (*event != nullptr) {
    OPENREG_CHECK(record_event(as_event(*event), stream));
    return;
  }
  openreg_event created = nullptr;
  OPENREG_CHECK(openreg_event_create(stream_device, event_flags(flag), &created));
  const openreg_status status = record_event(created, stream);
  if (status != OPENREG_OK) {
    openreg_event_destroy(created); // succeeds, and so keeps the last error
    throw_status(status);
  }
  *event = created;
}

void OpenRegGuardImpl::block(void* event, const Stream& stream) const {
  if (event == nullptr) {
    return;
  }
  check_type(stream.device());
  auto* const watch = capture_watch();
  if (watch != nullptr && watch->wait(as_event(event), stream.device_index(), stream.id())) {
    return;
  }
  OPENREG_CHECK(openreg_stream_wait_event(stream.device_index(), stream.id(), as_event(event)));
}

bool OpenRegGuardImpl::queryEvent(void* event) const {
  if (event == nullptr) {
    return true;
  }
  if (auto* const watch = capture_watch()) {
    watch->check_event(as_event(event), "querying the event");
  }
  int32_t done = 0;
  OPENREG_CHECK(openreg_event_query(as_event(event), &done));
  return done != 0;
}

void OpenRegGuardImpl::synchronizeEvent(void* event) const {
  if (event == nullptr) {
    return;
  }
  if (auto* const watch = capture_watch()) {
    watch->check_event(as_event(event), "synchronizing the event");
  }
  OPENREG_CHECK(openreg_event_synchronize(as_event(event)));
  throw_pending_race();
}

void OpenRegGuardImpl::destroyEvent(void* event, DeviceIndex /*device_index*/) const noexcept {
  if (auto* const watch = capture_watch()) {
    watch->forget(as_event(event));
  }
  // Its failures (a forked child, a runtime that was shut down) leave nothing to do.
  (void)openreg_event_destroy(as_event(event));
}

double OpenRegGuardImpl::elapsedTime(void* start, void* end, DeviceIndex /*device_index*/) const {
  TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
  int64_t nanoseconds = 0;
  OPENREG_CHECK(openreg_event_elapsed(as_event(start), as_event(end), &nanoseconds));
  return static_cast<double>(nanoseconds) * 1e-6; // milliseconds
}

void OpenRegGuardImpl::recordDataPtrOnStream(const DataPtr& data, const Stream& stream) const {
  c10::getDeviceAllocator(static_type)->recordStream(data, stream);
}

} // namespace c10::openreg
