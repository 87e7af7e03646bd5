// SPDX-License-Identifier: BSD-3-Clause
// Runs Python's discovery of drivers before the runtime looks at its list of drivers, whoever makes it look.
#include <openreg/registry.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <utility>

#include "csrc/bindings.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

std::atomic<bool> finished{false}; // discovery has run to its end: from then on the callback costs one load
PyObject* callback = nullptr;      // guarded by the GIL

// Called by the runtime, from any thread, with or without the GIL.
void discover(void* /*context*/) {
  if (finished.load(std::memory_order_acquire) || openreg_in_bad_fork() != 0 || !interpreter_is_alive()) {
    return;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  try {
    const py::error_scope keep; // an exception may be under way in the calling thread
    if (const auto function = py::reinterpret_borrow<py::object>(callback)) {
      if (function().is(py::bool_(true))) {
        finished.store(true, std::memory_order_release);
      }
    }
  } catch (py::error_already_set& error) {
    pass_on(error, "torch_openreg's discovery of drivers");
  } catch (...) { // no memory: the next call tries again
  }
  PyGILState_Release(gil);
}

} // namespace

PyObject* _setDiscovery(PyObject* /*self*/, PyObject* function) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(function == Py_None || PyCallable_Check(function), "invalid argument to setDiscovery");
  PyObject* next = function == Py_None ? nullptr : Py_NewRef(function);
  Py_XDECREF(std::exchange(callback, next));
  finished.store(false, std::memory_order_release);
  openreg_set_discovery_callback(next == nullptr ? nullptr : &discover, nullptr);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
