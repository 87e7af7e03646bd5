// Bindings of the operators' counters.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include "csrc/bindings.h"
#include "shim/operators/ways.h"

namespace torch_openreg {

namespace py = pybind11;

PyObject* _operatorStats(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  const auto counts = c10::openreg::operator_counts();
  py::dict staged;
  for (const auto& [name, count] : counts.staged) {
    py::dict one;
    one["calls"] = count.calls;
    one["bytes"] = count.bytes;
    staged[py::str(name)] = one;
  }
  py::dict result;
  result["aliased_calls"] = counts.aliased_calls;
  result["staged_calls"] = counts.staged_calls;
  result["staged_bytes"] = counts.staged_bytes;
  result["staged"] = staged;
  return result.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _resetOperatorStats(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  c10::openreg::reset_operator_counts();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
