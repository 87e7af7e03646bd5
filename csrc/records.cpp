// Bindings of what the runtime says of devices, drivers and errors.
#include <openreg/driver.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <string>

#include "csrc/bindings.h"
#include "shim/device.h"
#include "shim/status.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

std::string hex(const char (&bytes)[16]) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += digits[value >> 4];
    text += digits[value & 15];
  }
  return text;
}

const char* driver_state(int32_t state) {
  switch (state) {
    case OPENREG_DRIVER_FOUND:
      return "found";
    case OPENREG_DRIVER_LOADED:
      return "loaded";
    case OPENREG_DRIVER_OPEN:
      return "open";
    case OPENREG_DRIVER_FAILED:
      return "failed";
    case OPENREG_DRIVER_SHADOWED:
      return "shadowed";
    default:
      return "unknown";
  }
}

// Text that a driver wrote may not be UTF-8.
py::object text(const char* utf8) {
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(utf8, std::char_traits<char>::length(utf8), "replace"));
}

} // namespace

PyObject* _getDeviceProperties(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const c10::DeviceIndex index =
      c10::openreg::index_or_current(unpack_device_index(device, "getDeviceProperties"));
  openreg_device_properties properties{};
  properties.struct_size = sizeof properties;
  OPENREG_CHECK(openreg_get_device_properties(index, &properties));
  py::dict to;
  to["name"] = text(properties.name);
  to["driver"] = text(properties.driver);
  to["driver_version"] = text(properties.driver_version);
  to["ordinal"] = properties.ordinal;
  to["total_memory"] = properties.total_memory;
  to["multi_processor_count"] = properties.multiprocessors;
  to["major"] = properties.capability_major;
  to["minor"] = properties.capability_minor;
  to["uuid"] = hex(properties.uuid);
  to["is_simulated"] = (properties.caps & OPENREG_CAP_SIMULATED) != 0;
  to["is_host_visible"] = (properties.caps & OPENREG_CAP_HOST_VISIBLE) != 0;
  to["torch_device_type"] = text(properties.torch_device_type);
  return to.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _driverRecords(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  py::list records;
  const int32_t count = openreg_driver_count();
  for (int32_t i = 0; i < count; ++i) {
    openreg_driver_record record{};
    record.struct_size = sizeof record;
    OPENREG_CHECK(openreg_driver_record_get(i, &record));
    py::dict to;
    to["name"] = text(record.name);
    to["state"] = driver_state(record.state);
    to["source"] = text(record.source);
    to["priority"] = record.priority;
    to["version"] = text(record.version);
    to["path"] = text(record.path);
    to["device_count"] = record.device_count;
    to["first_device"] = record.first_device;
    to["caps"] = record.caps;
    to["code"] = openreg_status_name(record.code);
    to["message"] = text(record.message);
    records.append(std::move(to));
  }
  return records.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _lastError(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  const openreg_error& error = *openreg_last_error();
  if (error.code == OPENREG_OK) {
    Py_RETURN_NONE;
  }
  py::dict to;
  to["code"] = openreg_status_name(error.code);
  to["vendor_code"] = error.vendor_code;
  to["driver"] = text(error.driver);
  to["message"] = text(error.message);
  return to.release().ptr();
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
