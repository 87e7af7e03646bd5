// SPDX-License-Identifier: BSD-3-Clause
#include "shim/observe/races.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "shim/base/status.h"

namespace c10::openreg {
namespace {

openreg_stream current_stream_of(DeviceIndex device) {
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_current_stream(device, &stream));
  return stream;
}

void note_use_on(uint32_t origin, const at::Tensor& tensor, bool writes, DeviceIndex device, openreg_stream stream) {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage() || impl.layout() != c10::kStrided || impl.numel() == 0) {
    return;
  }
  const void* const base = impl.storage().data();
  if (base == nullptr) {
    return;
  }
  const size_t item = impl.dtype().itemsize();
  const char* const start = static_cast<const char*>(base) + static_cast<size_t>(impl.storage_offset()) * item;
  OPENREG_CHECK(openreg_races_use_tensor(
      origin,
      device,
      stream,
      start,
      static_cast<int32_t>(impl.dim()),
      impl.sizes().data(),
      impl.strides().data(),
      item,
      writes ? 1 : 0));
}

bool starts_with(const std::string& text, const char* start) {
  return text.compare(0, std::strlen(start), start) == 0;
}

// By the tags of PyTorch's schemas: one overload speaks for all.
bool has_results_of_unknown_size(const std::string& name) {
  static auto& known = *new std::unordered_map<std::string, bool>;
  static std::mutex lock;
  {
    const std::lock_guard<std::mutex> guard(lock);
    if (const auto found = known.find(name); found != known.end()) {
      return found->second;
    }
  }
  bool unknown = false;
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name == name) {
      const auto handle = c10::Dispatcher::singleton().findOp(op);
      unknown |= handle.has_value() &&
          (handle->hasTag(at::Tag::dynamic_output_shape) || handle->hasTag(at::Tag::data_dependent_output));
    }
  }
  const std::lock_guard<std::mutex> guard(lock);
  return known.emplace(name, unknown).first->second;
}

} // namespace

void note_race_use(RaceUses& uses, const at::Tensor& tensor, bool writes) {
  if (tensor.defined() && tensor.is_privateuseone()) {
    throw_pending_race();
    const DeviceIndex device = tensor.device().index();
    if (device != uses.device) {
      uses.stream = current_stream_of(device);
      uses.device = device;
    }
    note_use_on(uses.origin, tensor, writes, device, uses.stream);
  }
}

void note_race_copy(const at::Tensor& destination, const at::Tensor& source, bool asynchronous) {
  static const char kName[] = "aten::copy_";
  const uint32_t origin = openreg_races_origin(kName);
  const bool to_device = destination.is_privateuseone();
  const bool from_device = source.is_privateuseone();
  const DeviceIndex device = (from_device ? source : destination).device().index();
  const openreg_stream stream = current_stream_of(device);
  if (to_device && from_device) {
    const DeviceIndex other = destination.device().index();
    const openreg_stream others = current_stream_of(other);
    if (other != device) {
      openreg_races_stream_waits(device, stream, other, others);
    }
    note_use_on(origin, source, false, device, stream);
    note_use_on(origin, destination, true, device, stream);
    if (other != device) {
      openreg_races_stream_waits(other, others, device, stream);
    }
    return;
  }
  const at::Tensor& host = to_device ? source : destination;
  const bool is_pinned = host.is_pinned();
  note_use_on(origin, to_device ? destination : source, to_device, device, stream);
  if (is_pinned) { // ordinary memory is read or written before the call returns
    watch_pinned_memory(host.storage().data(), host.storage().nbytes());
    note_use_on(origin, host, !to_device, device, stream);
  }
  if (!(asynchronous && is_pinned)) {
    openreg_races_host_waits(device, stream);
  }
}

void note_race_wait(DeviceIndex device) {
  openreg_races_host_waits(device, current_stream_of(device));
}

bool uses_data(const std::string& name) {
  return !(
      starts_with(name, "aten::resize") || starts_with(name, "aten::_resize") ||
      starts_with(name, "aten::as_strided_") || name == "aten::set_" || name == "aten::set_data");
}

bool waits_for_results(const std::string& name, bool has_masks) {
  if (name == "aten::index") {
    return has_masks; // by positions it has a known size
  }
  return has_results_of_unknown_size(name);
}

void note_race_collective(const char* name, const at::Tensor& tensor, bool writes) {
  const DeviceIndex device = tensor.device().index();
  openreg_races_stream_waits(device, OPENREG_RACES_COLLECTIVES, device, current_stream_of(device));
  note_use_on(openreg_races_origin(name), tensor, writes, device, OPENREG_RACES_COLLECTIVES);
}

void note_race_collective_wait(DeviceIndex device) {
  openreg_races_stream_waits(device, current_stream_of(device), device, OPENREG_RACES_COLLECTIVES);
}

void note_race_collective_done(DeviceIndex device) {
  openreg_races_host_waits(device, OPENREG_RACES_COLLECTIVES);
}

} // namespace c10::openreg
