/* SPDX-License-Identifier: BSD-3-Clause */
// The GIL and waiting inside the runtime.
//
// The bindings release the GIL before calls that may wait. PyTorch's own C++ code does not always do so: it reaches the
// runtime with the GIL held, from torch.accelerator.device_count() for example. If such a call then waited for another
// thread that runs a driver's factory in Python, that thread would never get the GIL.
#include "csrc/base/bindings.h"
#include "csrc/base/python_support.h"

#include <openreg/embedding.h>
#include <openreg/registry.h>

void* openreg_release_gil(void) {
  return openreg_interpreter_is_alive() && PyGILState_Check() ? PyEval_SaveThread() : NULL;
}

void openreg_take_gil_back(void* thread_state) {
  if (thread_state != NULL) {
    PyEval_RestoreThread(thread_state);
  }
}

void openreg_install_wait_hooks(void) {
  openreg_set_blocking_hooks(openreg_release_gil, openreg_take_gil_back);
}
