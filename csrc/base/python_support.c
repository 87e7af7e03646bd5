/* SPDX-License-Identifier: BSD-3-Clause */
#include "csrc/base/python_support.h"

#include <string.h>

int openreg_dict_put(PyObject* to, const char* key, PyObject* value) {
  const int failed = value == NULL || PyDict_SetItemString(to, key, value) != 0;
  Py_XDECREF(value);
  return failed ? -1 : 0;
}

int openreg_list_put(PyObject* to, PyObject* value) {
  const int failed = value == NULL || PyList_Append(to, value) != 0;
  Py_XDECREF(value);
  return failed ? -1 : 0;
}

PyObject* openreg_text(const char* utf8) {
  return PyUnicode_DecodeUTF8(utf8, (Py_ssize_t)strlen(utf8), "replace");
}

const char* openreg_unpack_text(PyObject* argument, const char* function) {
  if (!PyUnicode_Check(argument)) {
    PyErr_Format(PyExc_TypeError, "invalid argument to %s", function);
    return NULL;
  }
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(argument, &size);
  if (utf8 != NULL && strlen(utf8) != (size_t)size) {
    PyErr_SetString(PyExc_ValueError, "embedded null character");
    return NULL;
  }
  return utf8;
}

PyObject* openreg_take_error(void) {
#if PY_VERSION_HEX >= 0x030C0000
  return PyErr_GetRaisedException();
#else
  PyObject* type = NULL;
  PyObject* error = NULL;
  PyObject* traceback = NULL;
  PyErr_Fetch(&type, &error, &traceback);
  if (type == NULL) {
    return NULL;
  }
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback != NULL) {
    (void)PyException_SetTraceback(error, traceback);
  }
  Py_DECREF(type);
  Py_XDECREF(traceback);
  return error;
#endif
}

void openreg_restore_error(PyObject* error) {
#if PY_VERSION_HEX >= 0x030C0000
  PyErr_SetRaisedException(error);
#else
  if (error == NULL) {
    PyErr_Clear();
    return;
  }
  PyErr_Restore(Py_NewRef((PyObject*)Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

void openreg_pass_on_error(const char* where) {
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    PyErr_Clear();
    PyErr_SetInterrupt();
    return;
  }
  PyObject* error = openreg_take_error();
  PyObject* place = PyUnicode_FromString(where);
  PyErr_Clear();
  openreg_restore_error(error);
  PyErr_WriteUnraisable(place);
  Py_XDECREF(place);
}

bool openreg_interpreter_is_alive(void) {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing(); // public since 3.13
#endif
}
