// SPDX-License-Identifier: BSD-3-Clause
// Registration of drivers from Python: a C table, a library, or a Python function that makes one of them.
#include <openreg/driver.h>
#include <openreg/registry.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/bindings.h"
#include "csrc/options.h"
#include "shim/status.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

constexpr char capsule_name[] = "openreg_driver";

// The address in an int, or in a capsule that is named "openreg_driver".
const openreg_driver* unpack_table(py::handle object) {
  void* const address = PyCapsule_CheckExact(object.ptr()) ? PyCapsule_GetPointer(object.ptr(), capsule_name)
                                                           : PyLong_AsVoidPtr(object.ptr());
  if (address == nullptr && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  if (address == nullptr) {
    throw py::value_error("The address of a driver's table is 0.");
  }
  return static_cast<const openreg_driver*>(address);
}

bool is_table(py::handle object) {
  return PyCapsule_CheckExact(object.ptr()) || (PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr()));
}

// Copies as much as fits.
template <size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  to[from.copy(to, N - 1)] = '\0';
}

std::string path_text(py::handle path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::bytes>(bytes);
}

// A factory in Python. Lives, with all that it has returned, as long as the process: the runtime may keep the table.
struct Factory {
  py::object function;
  std::vector<py::object> results;
};

void describe(const py::object& found, openreg_factory_result& result) {
  py::object count = found.attr("device_count");
  if (PyCallable_Check(count.ptr()) != 0) {
    count = count();
  }
  const auto devices = py::cast<int32_t>(count);
  result.device_count = devices > 0 ? devices : -1; // 0 would mean that there is no driver
  if (py::hasattr(found, "version") && !found.attr("version").is_none()) {
    copy_text(result.version, py::str(found.attr("version")));
  }
}

void translate(const py::object& found, openreg_factory_result& result) {
  if (found.is_none()) {
    return; // not available here
  }
  if (is_table(found)) {
    result.table = unpack_table(found);
  } else if (py::hasattr(found, "device_count")) {
    describe(found, result);
  } else if (py::isinstance<py::str>(found) || py::hasattr(found, "__fspath__")) {
    const std::string path = path_text(found);
    if (path.size() >= sizeof result.library_path) {
      throw py::value_error("The path of the driver's library is too long: " + path);
    }
    copy_text(result.library_path, path);
  } else {
    throw py::type_error(
        "A factory must return None, the address or capsule of a driver's table, the path of a library, or an object "
        "with `device_count`, but this one returned " +
        std::string(py::str(py::type::of(found).attr("__name__"))));
  }
}

openreg_status explain(py::error_already_set& error, openreg_factory_result& result) {
  if (error.matches(PyExc_KeyboardInterrupt)) {
    PyErr_SetInterrupt(); // the runtime takes no exceptions: the main thread's next instruction raises it
  }
  copy_text(
      result.message, std::string(py::str(error.type().attr("__name__"))) + ": " + std::string(py::str(error.value())));
  return error.matches(PyExc_MemoryError) ? OPENREG_E_NOMEM : OPENREG_E_NO_DEVICE;
}

openreg_status call_holding_gil(Factory& factory, openreg_factory_result& result) {
  try {
    py::object found = factory.function();
    translate(found, result);
    factory.results.push_back(std::move(found));
    return OPENREG_OK;
  } catch (py::error_already_set& error) {
    return explain(error, result);
  } catch (const py::builtin_exception& error) {
    error.set_error();
    py::error_already_set raised;
    return explain(raised, result);
  }
}

// Called by the runtime, from any thread, without the GIL (gil.cpp).
openreg_status call_factory(void* context, openreg_factory_result* result) {
  if (!interpreter_is_alive()) {
    copy_text(result->message, "Python is ending");
    return OPENREG_E_NO_DEVICE;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  openreg_status status = OPENREG_E_INTERNAL;
  try {
    const py::error_scope keep;
    status = call_holding_gil(*static_cast<Factory*>(context), *result);
  } catch (const std::exception& error) {
    copy_text(result->message, error.what());
  }
  PyGILState_Release(gil);
  return status;
}

} // namespace

PyObject* _registerDriver(PyObject* /*self*/, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* const names[] = {
      "name", "source", "table", "library_path", "factory", "options", "priority", "loud", "experimental", nullptr};
  const char* name = nullptr;
  const char* source = nullptr;
  PyObject* table = Py_None;
  PyObject* library_path = Py_None;
  PyObject* function = Py_None;
  PyObject* given_options = nullptr;
  int priority = OPENREG_PRIORITY_PLUGIN;
  int loud = 0;
  int experimental = 0;
  if (PyArg_ParseTupleAndKeywords(
          arguments,
          keywords,
          "s|z$OOOO!ipp:_register_driver",
          const_cast<char**>(names),
          &name,
          &source,
          &table,
          &library_path,
          &function,
          &PyDict_Type,
          &given_options,
          &priority,
          &loud,
          &experimental) == 0) {
    return nullptr;
  }
  const Options options(given_options != nullptr ? py::reinterpret_borrow<py::dict>(given_options) : py::dict());
  const std::string path = library_path == Py_None ? "" : path_text(library_path);

  openreg_registration registration{};
  registration.struct_size = sizeof registration;
  registration.flags =
      (loud != 0 ? OPENREG_REGISTER_LOUD : 0) | (experimental != 0 ? OPENREG_REGISTER_EXPERIMENTAL : 0);
  registration.priority = priority;
  registration.name = name;
  registration.source = source;
  registration.options = options.data();
  registration.option_count = options.size();
  registration.table = table == Py_None ? nullptr : unpack_table(table);
  registration.library_path = library_path == Py_None ? nullptr : path.c_str();
  std::unique_ptr<Factory> factory;
  if (function != Py_None) {
    TORCH_CHECK_TYPE(PyCallable_Check(function), "invalid argument to registerDriver");
    factory = std::make_unique<Factory>(Factory{py::reinterpret_borrow<py::object>(function), {}});
    registration.factory = &call_factory;
    registration.ctx = factory.get();
  }
  {
    const py::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_register(&registration));
  }
  (void)factory.release(); // the runtime's, for good
  if (table != Py_None) {
    Py_INCREF(table); // a capsule may own the table
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
