// SPDX-License-Identifier: BSD-3-Clause
// Bindings of what the runtime says of devices, drivers, its choice and errors.
#include <openreg/driver.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings.h"
#include "csrc/options.h"
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

// Text that a driver wrote may not be UTF-8.
py::object text(const char* utf8) {
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(utf8, std::char_traits<char>::length(utf8), "replace"));
}

py::dict properties_dict(const openreg_device_properties& properties) {
  py::dict to;
  to["name"] = text(properties.name);
  to["driver"] = text(properties.driver);
  to["driver_version"] = text(properties.driver_version);
  to["ordinal"] = properties.ordinal;
  to["total_memory"] = properties.total_memory;
  to["multi_processor_count"] = properties.multi_processor_count;
  to["major"] = properties.capability_major;
  to["minor"] = properties.capability_minor;
  to["uuid"] = hex(properties.uuid);
  to["is_simulated"] = (properties.caps & OPENREG_CAP_SIMULATED) != 0;
  to["is_host_visible"] = (properties.caps & OPENREG_CAP_HOST_VISIBLE) != 0;
  to["torch_device_type"] = text(properties.torch_device_type);
  return to;
}

py::dict record_dict(const openreg_driver_record& record) {
  py::dict to;
  to["name"] = text(record.name);
  to["state"] = openreg_driver_state_name(record.state);
  to["source"] = text(record.source);
  to["priority"] = record.priority;
  to["version"] = text(record.version);
  to["path"] = text(record.path);
  to["device_count"] = record.device_count;
  to["first_device"] = record.first_device;
  to["is_active"] = (record.flags & OPENREG_DRIVER_IS_ACTIVE) != 0;
  to["is_gpu"] = (record.flags & OPENREG_DRIVER_IS_GPU) != 0;
  to["is_mock"] = (record.flags & OPENREG_DRIVER_IS_MOCK) != 0;
  to["is_loud"] = (record.flags & OPENREG_DRIVER_IS_LOUD) != 0;
  to["is_experimental"] = (record.flags & OPENREG_DRIVER_IS_EXPERIMENTAL) != 0;
  to["has_table"] = (record.flags & OPENREG_DRIVER_HAS_TABLE) != 0;
  to["is_simulated"] = (record.caps & OPENREG_CAP_SIMULATED) != 0;
  to["is_fork_safe"] = (record.caps & OPENREG_CAP_FORK_SAFE) != 0;
  to["abi"] = py::make_tuple(OPENREG_ABI_MAJOR, record.abi_minor);
  to["caps"] = record.caps;
  to["slots"] = record.slots;
  to["code"] = openreg_status_name(record.code);
  to["message"] = text(record.message);
  return to;
}

openreg_driver_record empty_record() {
  openreg_driver_record record{};
  record.struct_size = sizeof record;
  return record;
}

openreg_device_properties empty_properties() {
  openreg_device_properties properties{};
  properties.struct_size = sizeof properties;
  return properties;
}

// Listing the drivers may run Python's discovery, and wait for it.
std::vector<openreg_driver_record> all_records() {
  const py::gil_scoped_release no_gil;
  std::vector<openreg_driver_record> records(static_cast<size_t>(openreg_driver_count()), empty_record());
  for (size_t i = 0; i < records.size(); ++i) {
    OPENREG_CHECK(openreg_get_driver_record(static_cast<int32_t>(i), &records[i]));
  }
  return records;
}

struct Topology {
  std::vector<openreg_device_properties> devices;
  std::vector<uint8_t> peers; // a row per device, each of OPENREG_MAX_DEVICES
};

Topology topology(const char* driver, const char* name, const Options& options) {
  const py::gil_scoped_release no_gil;
  constexpr int32_t capacity = OPENREG_MAX_DEVICES;
  Topology to{
      std::vector<openreg_device_properties>(capacity, empty_properties()),
      std::vector<uint8_t>(static_cast<size_t>(capacity) * capacity)};
  int32_t count = 0;
  OPENREG_CHECK(openreg_get_driver_topology(
      driver, name, options.data(), options.size(), capacity, to.devices.data(), to.peers.data(), &count));
  to.devices.resize(static_cast<size_t>(std::min(count, capacity)));
  return to;
}

} // namespace

PyObject* _getDeviceProperties(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const c10::DeviceIndex index = c10::openreg::index_or_current(unpack_device_index(device, "getDeviceProperties"));
  openreg_device_properties properties = empty_properties();
  OPENREG_CHECK(openreg_get_device_properties(index, &properties));
  return properties_dict(properties).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _driverRecords(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  py::list records;
  for (const openreg_driver_record& record : all_records()) {
    records.append(record_dict(record));
  }
  return records.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _findDriver(PyObject* /*self*/, PyObject* name) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyUnicode_Check(name), "invalid argument to findDriver");
  const auto driver = py::cast<std::string>(py::handle(name));
  openreg_driver_record record = empty_record();
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_find_driver(driver.c_str(), &record));
  }
  return record_dict(record).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _driverDevice(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* driver = nullptr;
  int index = 0;
  if (PyArg_ParseTuple(arguments, "si:_driver_device", &driver, &index) == 0) {
    return nullptr;
  }
  openreg_device_properties properties = empty_properties();
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_get_driver_device_properties(driver, index, &properties));
  }
  return properties_dict(properties).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _driverTopology(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* driver = nullptr;
  const char* name = nullptr;
  PyObject* given = nullptr;
  if (PyArg_ParseTuple(arguments, "ssO!:_driver_topology", &driver, &name, &PyDict_Type, &given) == 0) {
    return nullptr;
  }
  const Topology found = topology(driver, name, Options(given));
  const size_t count = found.devices.size();
  py::list devices;
  py::list peers;
  for (size_t i = 0; i < count; ++i) {
    devices.append(properties_dict(found.devices[i]));
    py::list row;
    for (size_t j = 0; j < count; ++j) {
      row.append(py::bool_(found.peers[i * OPENREG_MAX_DEVICES + j] != 0));
    }
    peers.append(std::move(row));
  }
  return py::make_tuple(devices, peers).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _selection(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  openreg_selection selection{};
  selection.struct_size = sizeof selection;
  OPENREG_CHECK(openreg_get_selection(&selection));
  py::dict to;
  to["chosen_by"] = openreg_chosen_by_name(selection.chosen_by);
  to["live_objects"] = selection.live_objects;
  to["generation"] = selection.generation;
  to["default_driver"] = text(selection.default_driver);
  to["preference"] = text(selection.preference);
  return to.release().ptr();
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

PyObject* _runtimeVersion(PyObject* /*self*/, PyObject* /*unused*/) {
  return PyUnicode_FromString(openreg_version());
}

} // namespace torch_openreg
