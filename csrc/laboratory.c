/* SPDX-License-Identifier: BSD-3-Clause */
// Bindings of the laboratory: failures on purpose. Contracts: openreg/faults.h.
#include "csrc/bindings.h"
#include "csrc/python_support.h"
#include "csrc/torch_calls.h"

#include <openreg/faults.h>

static const char faults_name[] = "openreg_faults";

static void end_capsule(PyObject* capsule) {
  openreg_faults_end((openreg_faults)PyCapsule_GetContext(capsule));
}

static PyObject* begin_faults(PyObject* self, PyObject* argument) {
  (void)self;
  const char* plan = openreg_unpack_text(argument, "_faults_begin");
  if (plan == NULL) {
    return NULL;
  }
  openreg_faults faults = NULL;
  const openreg_status status = openreg_faults_begin(plan, &faults);
  if (status != OPENREG_OK) {
    return openreg_raise(status);
  }
  PyObject* capsule = PyCapsule_New((void*)faults_name, faults_name, end_capsule);
  if (capsule == NULL || PyCapsule_SetContext(capsule, faults) != 0) {
    openreg_faults_end(faults);
    Py_XDECREF(capsule);
    return NULL;
  }
  return capsule;
}

// -1 with an exception set for anything but what _faults_begin() gave; *faults is NULL if it has ended.
static int unpack_faults(PyObject* capsule, const char* function, openreg_faults* faults) {
  if (!PyCapsule_IsValid(capsule, faults_name)) {
    PyErr_Format(PyExc_TypeError, "invalid argument to %s", function);
    return -1;
  }
  *faults = (openreg_faults)PyCapsule_GetContext(capsule);
  return 0;
}

static PyObject* end_faults(PyObject* self, PyObject* capsule) {
  (void)self;
  openreg_faults faults = NULL;
  if (unpack_faults(capsule, "_faults_end", &faults) != 0 || PyCapsule_SetContext(capsule, NULL) != 0) {
    return NULL;
  }
  openreg_faults_end(faults);
  Py_RETURN_NONE;
}

static PyObject* count_hits(PyObject* self, PyObject* capsule) {
  (void)self;
  openreg_faults faults = NULL;
  if (unpack_faults(capsule, "_faults_hits", &faults) != 0) {
    return NULL;
  }
  return PyLong_FromUnsignedLongLong(openreg_faults_hits(faults));
}

PyMethodDef openreg_laboratory_methods[] = {
    {"_faults_begin", begin_faults, METH_O, "Adds a plan of faults; a capsule that ends it when it goes."},
    {"_faults_end", end_faults, METH_O, "Ends a plan; once more it does nothing."},
    {"_faults_hits", count_hits, METH_O, "How often the faults of a plan have hit; 0 after its end."},
    {NULL, NULL, 0, NULL},
};
