/* SPDX-License-Identifier: BSD-3-Clause */
// Runs Python's discovery of drivers before the runtime reads its list of drivers, in any thread and for any caller.
#include "csrc/base/bindings.h"
#include "csrc/base/python_support.h"

#include <openreg/embedding.h>
#include <openreg/openreg.h>
#include <stdatomic.h>

static atomic_bool finished; // discovery has run to its end: from then on the callback costs one load
static PyObject* callback;   // guarded by the GIL

static void call_discovery(void) {
  PyObject* function = Py_XNewRef(callback);
  if (function == NULL) {
    return;
  }
  PyObject* result = PyObject_CallNoArgs(function);
  if (result == NULL) {
    openreg_pass_on_error("torch_openreg's discovery of drivers");
  } else if (result == Py_True) {
    atomic_store_explicit(&finished, true, memory_order_release);
  }
  Py_XDECREF(result);
  Py_DECREF(function);
}

// Called by the runtime, from any thread, with or without the GIL.
static void discover(void* context) {
  (void)context;
  if (atomic_load_explicit(&finished, memory_order_acquire) || openreg_in_bad_fork() ||
      !openreg_interpreter_is_alive()) {
    return;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* before = openreg_take_error(); // an exception may be under way in the calling thread
  call_discovery();
  openreg_restore_error(before);
  PyGILState_Release(gil);
}

static PyObject* set_discovery(PyObject* self, PyObject* function) {
  (void)self;
  if (function != Py_None && !PyCallable_Check(function)) {
    PyErr_SetString(PyExc_TypeError, "invalid argument to setDiscovery");
    return NULL;
  }
  PyObject* before = callback;
  callback = function == Py_None ? NULL : Py_NewRef(function);
  atomic_store_explicit(&finished, false, memory_order_release);
  openreg_set_discovery_callback(function == Py_None ? NULL : discover, NULL);
  Py_XDECREF(before); // may run code of Python: last
  Py_RETURN_NONE;
}

PyMethodDef openreg_discovery_methods[] = {
    {"_set_discovery", set_discovery, METH_O, "Function that registers what Python finds; True: it is done."},
    {NULL, NULL, 0, NULL},
};
