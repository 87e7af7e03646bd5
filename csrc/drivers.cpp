// SPDX-License-Identifier: BSD-3-Clause
// Bindings that choose and open drivers. Contracts: registry.h. All of them may wait, so none holds the GIL meanwhile.
#include <ATen/core/CachingHostAllocator.h>
#include <openreg/registry.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <array>
#include <optional>
#include <string>

#include "csrc/bindings.h"
#include "shim/host_allocator.h"
#include "shim/operators/policy/execution_mode.h"
#include "shim/status.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

// A name, or nothing for None.
std::optional<std::string> unpack_name(PyObject* argument, const char* function) {
  if (argument == Py_None) {
    return std::nullopt;
  }
  TORCH_CHECK_TYPE(PyUnicode_Check(argument), "invalid argument to ", function);
  return py::cast<std::string>(py::handle(argument));
}

const char* c_text(const std::optional<std::string>& name) {
  return name ? name->c_str() : nullptr;
}

std::string unpack_required_name(PyObject* argument, const char* function) {
  TORCH_CHECK_TYPE(PyUnicode_Check(argument), "invalid argument to ", function);
  return py::cast<std::string>(py::handle(argument));
}

// Runs what may change the device table. Cached pinned memory would pin the table, and what is known of its devices
// may hold no longer.
template <typename Change>
void change_table(Change change) {
  const py::gil_scoped_release no_gil;
  if (openreg_is_initialized() != 0) {
    c10::openreg::host_allocator().empty_cache();
  }
  OPENREG_CHECK(change());
  c10::openreg::forget_execution_modes();
}

using Name = char[32];

} // namespace

void shut_down() {
  change_table(&openreg_shutdown);
}

PyObject* _canonicalDriverName(PyObject* /*self*/, PyObject* name) {
  HANDLE_TH_ERRORS
  const std::string given = unpack_required_name(name, "canonicalDriverName");
  Name canonical{};
  OPENREG_CHECK(openreg_driver_canonical_name(given.c_str(), canonical));
  return py::str(canonical).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _expandDriver(PyObject* /*self*/, PyObject* name) {
  HANDLE_TH_ERRORS
  const std::string given = unpack_required_name(name, "expandDriver");
  std::array<Name, 16> names{};
  const int32_t count = openreg_expand_driver_name(given.c_str(), names.data(), static_cast<int32_t>(names.size()));
  py::list to;
  for (int32_t i = 0; i < count; ++i) {
    to.append(py::str(names[static_cast<size_t>(i)]));
  }
  return to.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _useDrivers(PyObject* /*self*/, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto list = unpack_name(names, "useDrivers");
  change_table([&] { return openreg_use_drivers(c_text(list)); });
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _preferDriver(PyObject* /*self*/, PyObject* name) {
  HANDLE_TH_ERRORS
  const auto preference = unpack_name(name, "preferDriver");
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_prefer_driver(c_text(preference)));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _reselect(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  change_table(&openreg_reselect);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _openDriver(PyObject* /*self*/, PyObject* name) {
  HANDLE_TH_ERRORS
  const std::string driver = unpack_required_name(name, "openDriver");
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_open_driver(driver.c_str()));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _openAll(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  change_table(&openreg_open_all);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _forgetFailures(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS {
    const py::gil_scoped_release no_gil;
    openreg_forget_failures();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _setProcess(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  int index = 0;
  int count = 0;
  if (PyArg_ParseTuple(arguments, "ii:_set_process", &index, &count) == 0) {
    return nullptr;
  }
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_set_process(index, count));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
