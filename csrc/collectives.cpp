// SPDX-License-Identifier: BSD-3-Clause
// Bindings of collectives.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/bindings.h"
#include "shim/collectives.h"

namespace torch_openreg {

namespace py = pybind11;

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

} // namespace torch_openreg
