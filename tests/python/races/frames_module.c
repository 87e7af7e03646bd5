/* SPDX-License-Identifier: BSD-3-Clause */
// A module of what csrc/base/frames.c sees, built by test_frames.py for each Python that there is.
#include "csrc/base/frames.h"

#include "csrc/base/python_support.h"

#include <stdbool.h>

enum { MOST = 64 };

struct seen {
  int count;
  openreg_frame frames[MOST];
};

bool openreg_interpreter_is_alive(void) { return Py_IsInitialized() != 0; }

static int keep(void* context, const openreg_frame* frame) {
  struct seen* const seen = context;
  seen->frames[seen->count++] = *frame;
  return seen->count == MOST;
}

// () -> [(function, line)], the innermost first, as they are seen without the GIL.
static PyObject* walk(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  struct seen seen = {0};
  // clang-format off
  Py_BEGIN_ALLOW_THREADS
  openreg_walk_frames(keep, &seen);
  Py_END_ALLOW_THREADS
      // clang-format on
      PyObject* list = PyList_New(0);
  for (int i = 0; list != NULL && i < seen.count; ++i) {
    const openreg_frame* const at = &seen.frames[i];
    PyObject* const item = Py_BuildValue("(Oi)", at->code->co_name, PyCode_Addr2Line(at->code, at->offset));
    if (item == NULL || PyList_Append(list, item) != 0) {
      Py_CLEAR(list);
    }
    Py_XDECREF(item);
  }
  return list;
}

static PyMethodDef methods[] = {{"walk", walk, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "frames_module",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_frames_module(void) {
  PyObject* const module = PyModule_Create(&definition);
  if (module != NULL && PyModule_AddIntConstant(module, "takes_gil", openreg_walking_takes_gil) != 0) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
