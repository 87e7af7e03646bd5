/* SPDX-License-Identifier: BSD-3-Clause */
// Bindings of the lab: injected faults and the flight recorder. Contracts: openreg/faults.h, flight_recorder.h.
#include "csrc/base/bindings.h"
#include "csrc/base/python_support.h"
#include "csrc/base/torch_calls.h"

#include <openreg/faults.h>
#include <openreg/flight_recorder.h>

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

static PyObject* start_recorder(PyObject* self, PyObject* argument) {
  (void)self;
  if (!PyLong_Check(argument) || PyBool_Check(argument)) {
    PyErr_SetString(PyExc_TypeError, "invalid argument to _flight_recorder_start");
    return NULL;
  }
  const unsigned long calls = PyLong_AsUnsignedLong(argument);
  if (calls == (unsigned long)-1 && PyErr_Occurred() != NULL) {
    return NULL;
  }
  return openreg_none_or_raise(openreg_flight_recorder_start(calls > UINT32_MAX ? UINT32_MAX : (uint32_t)calls));
}

static PyObject* write_recorder(PyObject* self, PyObject* argument) {
  (void)self;
  const char* path = NULL;
  if (argument != Py_None && (path = openreg_unpack_text(argument, "_flight_recorder_write")) == NULL) {
    return NULL;
  }
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_flight_recorder_write(path);
  Py_END_ALLOW_THREADS
  return openreg_none_or_raise(status);
}

PyMethodDef openreg_laboratory_methods[] = {
    {"_faults_begin", begin_faults, METH_O, "Adds a plan of faults; returns a capsule that ends it when it is freed."},
    {"_faults_end", end_faults, METH_O, "Ends a plan; once more it does nothing."},
    {"_faults_hits", count_hits, METH_O, "How often the faults of a plan have hit; 0 after its end."},
    {"_flight_recorder_start", start_recorder, METH_O, "Keeps this number of calls from now on; 0: none."},
    {"_flight_recorder_write", write_recorder, METH_O, "Writes them to a path; None: to the one for errors."},
    {NULL, NULL, 0, NULL},
};
