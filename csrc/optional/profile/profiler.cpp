// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the shim's traces, for programs that want the ranges without PyTorch's profiler.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include "csrc/base/bindings.h"
#include "shim/observe/trace.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

py::dict range_of(const c10::openreg::TraceEvent& event) {
  const auto& record = event.record;
  py::dict range;
  range["kind"] = record.kind;
  range["timing"] = record.timing;
  range["name"] = event.name;
  range["device"] = record.device;
  range["stream"] = record.stream;
  range["source"] = record.source;
  range["destination"] = record.destination;
  range["bytes"] = record.bytes;
  range["device_begin"] = record.device_begin;
  range["device_end"] = record.device_end;
  range["host_begin"] = record.host_begin;
  range["host_end"] = record.host_end;
  range["call"] = record.call != nullptr ? record.call : "";
  range["thread"] = event.thread;
  return range;
}

PyObject* _traceStart(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  c10::openreg::start_trace();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _traceStop(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  std::vector<c10::openreg::TraceEvent> events;
  {
    const py::gil_scoped_release no_gil; // waits for what devices still do
    events = c10::openreg::stop_trace();
  }
  py::list ranges;
  for (const auto& event : events) {
    ranges.append(range_of(event));
  }
  return ranges.release().ptr();
  END_HANDLE_TH_ERRORS
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_profiler_methods[] = {
    {"_trace_start", torch_openreg::_traceStart, METH_NOARGS, "Begins to note what devices do."},
    {"_trace_stop", torch_openreg::_traceStop, METH_NOARGS, "Ends that; the ranges as a list of dicts."},
    {nullptr, nullptr, 0, nullptr},
};
