// SPDX-License-Identifier: BSD-3-Clause
// Bindings of events.
#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>

#include "csrc/base/bindings.h"

namespace torch_openreg {

namespace {

// torch.Event.elapsed_time() takes no subclass of torch.Event as its argument, and torch.openreg.Event is one.
PyObject* _eventElapsedTime(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject* start = nullptr;
  PyObject* end = nullptr;
  if (PyArg_ParseTuple(arguments, "OO:_event_elapsed_time", &start, &end) == 0) {
    return nullptr;
  }
  for (PyObject* event : {start, end}) {
    TORCH_CHECK_TYPE(THPEvent_Check(event), "Expected a torch.Event, but got ", Py_TYPE(event)->tp_name, ".");
  }
  return PyFloat_FromDouble(
      reinterpret_cast<THPEvent*>(start)->event.elapsedTime(reinterpret_cast<THPEvent*>(end)->event));
  END_HANDLE_TH_ERRORS
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_event_methods[] = {
    {"_event_elapsed_time",
     torch_openreg::_eventElapsedTime,
     METH_VARARGS,
     "Milliseconds between two torch.Event objects."},
    {nullptr, nullptr, 0, nullptr},
};
