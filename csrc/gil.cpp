// SPDX-License-Identifier: BSD-3-Clause
// The GIL and waiting inside the runtime.
//
// The bindings release the GIL before they call what may wait. PyTorch's own C++ code does not always do so: it reaches
// the runtime with the GIL held, from torch.accelerator.device_count() for example. A driver's factory in Python, which
// another thread runs meanwhile, would then never get the GIL.
#include <openreg/registry.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/python_headers.h>

#include "csrc/bindings.h"

namespace torch_openreg {

bool interpreter_is_alive() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

void pass_on(pybind11::error_already_set& error, const char* where) {
  if (error.matches(PyExc_KeyboardInterrupt)) {
    PyErr_SetInterrupt();
  } else {
    error.discard_as_unraisable(where);
  }
}

namespace {

void* let_go() {
  return interpreter_is_alive() && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
}

void take_back(void* state) {
  if (state != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state));
  }
}

} // namespace

void install_wait_hooks() {
  openreg_set_blocking_hooks(&let_go, &take_back);
}

} // namespace torch_openreg
