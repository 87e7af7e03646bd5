// SPDX-License-Identifier: BSD-3-Clause
// Bindings of collectives.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/bindings.h"
#include "shim/collectives.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

PyObject* _requireGlooCollectives(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  c10::openreg::require_gloo_collectives();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _stagedBackend(PyObject* /*self*/, PyObject* backend) {
  HANDLE_TH_ERRORS
  auto host = py::handle(backend).cast<c10::intrusive_ptr<c10d::Backend>>();
  return py::cast(c10::openreg::staged_backend(std::move(host))).release().ptr();
  END_HANDLE_TH_ERRORS
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_collective_methods[] = {
    {"_require_gloo_collectives",
     torch_openreg::_requireGlooCollectives,
     METH_NOARGS,
     "Raises unless they are switched on."},
    {"_staged_backend",
     torch_openreg::_stagedBackend,
     METH_O,
     "A c10d backend for openreg tensors, from one for CPU tensors."},
    {nullptr, nullptr, 0, nullptr},
};
