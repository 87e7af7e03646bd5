// SPDX-License-Identifier: BSD-3-Clause
// torch_openreg._C_distributed: bindings of collectives.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_numbers.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "shim/optional/distributed/collective_results.h"
#include "shim/optional/distributed/collectives.h"
#include "shim/optional/distributed/driver_collectives.h"
#include "shim/optional/distributed/host_backend.h"
#include "shim/optional/distributed/staged_backend.h"

namespace torch_openreg {

namespace py = pybind11;
using c10::openreg::DriverBackend;
using c10::openreg::HostBackend;
using c10::openreg::StagedBackend;

namespace {

// The object of PyTorch that a Python one is; throws TypeError for anything else.
template <class Class>
c10::intrusive_ptr<Class> held_by(PyObject* object, const char* what) {
  const py::handle handle(object);
  TORCH_CHECK_TYPE(
      !handle.is_none() && py::isinstance<Class>(handle), "expected ", what, ", but got ", Py_TYPE(object)->tp_name);
  return handle.cast<c10::intrusive_ptr<Class>>();
}

// A backend of torch.distributed, or a gloo that is made at its first use.
HostBackend host_backend(PyObject* object) {
  const py::handle handle(object);
  if (py::isinstance<HostBackend>(handle)) {
    return handle.cast<HostBackend>();
  }
  return held_by<c10d::Backend>(object, "a backend of torch.distributed");
}

// `make(timeout)` is a function of Python. A group that is left to the end of the process may outlive the interpreter.
HostBackend late_gloo(int rank, int size, std::chrono::milliseconds timeout, py::function make) {
  const std::shared_ptr<py::function> kept(new py::function(std::move(make)), [](py::function* function) {
    if (Py_IsInitialized() != 0) {
      const py::gil_scoped_acquire gil;
      delete function;
    }
  });
  return {rank, size, timeout, [kept](std::chrono::milliseconds current) {
            const py::gil_scoped_acquire gil;
            return (*kept)(current).cast<c10::intrusive_ptr<c10d::Backend>>();
          }};
}

PyObject* _serveProcessGroup(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject* object = nullptr;
  PyObject* backend = Py_None;
  if (PyArg_ParseTuple(arguments, "O|O", &object, &backend) == 0) {
    return nullptr;
  }
  std::optional<HostBackend> own;
  if (backend != Py_None) {
    own = host_backend(backend);
  }
  auto group = held_by<c10d::ProcessGroup>(object, "a torch.distributed.ProcessGroup");
  {
    const py::gil_scoped_release released; // another thread may hold the lock inside and want the GIL
    c10::openreg::serve_process_group(*group, own);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _stagedBackend(PyObject* /*self*/, PyObject* object) {
  HANDLE_TH_ERRORS
  return py::cast(c10::make_intrusive<StagedBackend>(host_backend(object))).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _settleCollectives(PyObject* /*self*/, PyObject* object) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(THPUtils_checkDouble(object), "expected a number of seconds, but got ", Py_TYPE(object)->tp_name);
  const std::chrono::duration<double> longest(THPUtils_unpackDouble(object));
  bool are_settled = false;
  {
    const py::gil_scoped_release released; // they may want it
    are_settled = c10::openreg::settle_results_in_flight(longest);
  }
  return PyBool_FromLong(are_settled ? 1 : 0);
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"_serve_process_group",
     _serveProcessGroup,
     METH_VARARGS,
     "Gives a group with gloo a backend for openreg tensors: over the second argument, or that gloo where it is None."},
    {"_staged_backend", _stagedBackend, METH_O, "A c10d backend for openreg tensors, from one for CPU tensors."},
    {"_settle_collectives",
     _settleCollectives,
     METH_O,
     "Waits until no other thread uses tensors of collectives, at most this many seconds; whether none does."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

} // namespace torch_openreg

// Imported after torch.distributed has its own classes. These use pybind11, as PyTorch's own backends do, and have the
// methods that PyTorch calls on a backend that can be split. perform_nocolor_split() is for ranks outside a new group: NCCL
// requires a call from them, gloo does not.
PYBIND11_MODULE(_C_distributed, m) {
  namespace py = pybind11;
  using torch_openreg::DriverBackend;
  using torch_openreg::HostBackend;
  using torch_openreg::StagedBackend;
  py::class_<StagedBackend, c10d::Backend, c10::intrusive_ptr<StagedBackend>>(m, "_StagedBackend")
      .def_property_readonly("options", &StagedBackend::getBackendOptions)
      .def("_set_default_timeout", &StagedBackend::setTimeout, py::arg("timeout"))
      .def("perform_nocolor_split", [](StagedBackend& /*self*/, const py::object& /*device*/) {});
  py::class_<HostBackend>(m, "_LateGloo")
      .def(py::init(&torch_openreg::late_gloo))
      .def("connect", &HostBackend::connect);
  py::class_<DriverBackend, StagedBackend, c10::intrusive_ptr<DriverBackend>>(m, "_DriverBackend");
  if (PyModule_AddFunctions(m.ptr(), torch_openreg::methods) != 0) {
    throw pybind11::error_already_set();
  }
}
