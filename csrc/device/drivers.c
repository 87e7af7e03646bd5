/* SPDX-License-Identifier: BSD-3-Clause */
// Bindings that choose and open drivers. Contracts: registry.h. All of them may wait, so each releases the GIL for its call.
#include "csrc/base/bindings.h"
#include "csrc/base/python_support.h"
#include "csrc/base/torch_calls.h"

#include <limits.h>
#include <openreg/embedding.h>
#include <openreg/openreg.h>
#include <string.h>

typedef char driver_name[32];

// A name, or NULL for None.
static int unpack_optional_name(PyObject* argument, const char* function, const char** name) {
  *name = NULL;
  if (argument == Py_None) {
    return 0;
  }
  *name = openreg_unpack_text(argument, function);
  return *name == NULL ? -1 : 0;
}

static PyObject* with_name(openreg_status (*call)(const char*), const char* name) {
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = call(name);
  Py_END_ALLOW_THREADS
  return openreg_none_or_raise(status);
}

// Runs what may change the device table.
static PyObject* change_table(openreg_status (*change)(void)) {
  if (openreg_release_pinned_memory() != 0) {
    return NULL;
  }
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = change();
  Py_END_ALLOW_THREADS
  return openreg_none_or_raise(status);
}

PyObject* openreg_close_drivers(void) {
  return change_table(openreg_shutdown);
}

static PyObject* open_all(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  return change_table(openreg_drivers_open_all);
}

static PyObject* select_gpu(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  if (openreg_release_pinned_memory() != 0) {
    return NULL;
  }
  int32_t found = 0;
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_select_gpu(&found);
  Py_END_ALLOW_THREADS
  return status == OPENREG_OK ? PyBool_FromLong(found) : openreg_raise(status);
}

static PyObject* reset_gpu(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  return change_table(openreg_reset_gpu);
}

static PyObject* use_drivers(PyObject* self, PyObject* argument) {
  (void)self;
  const char* names = NULL;
  if (unpack_optional_name(argument, "useDrivers", &names) != 0 || openreg_release_pinned_memory() != 0) {
    return NULL;
  }
  return with_name(openreg_drivers_use, names);
}

static PyObject* prefer_driver(PyObject* self, PyObject* argument) {
  (void)self;
  const char* name = NULL;
  if (unpack_optional_name(argument, "preferDriver", &name) != 0) {
    return NULL;
  }
  return with_name(openreg_driver_prefer, name);
}

static PyObject* open_driver(PyObject* self, PyObject* argument) {
  (void)self;
  const char* name = openreg_unpack_text(argument, "openDriver");
  return name == NULL ? NULL : with_name(openreg_driver_open, name);
}

// Name and path of each item of OPENREG_DRIVER_LIBRARIES that names a JSON file.
static PyObject* list_descriptions(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  driver_name name;
  char path[PATH_MAX];
  PyObject* list = PyList_New(0);
  for (int32_t i = 0; list != NULL && openreg_get_driver_description(i, name, path, sizeof path) == OPENREG_OK; ++i) {
    if (openreg_list_put(list, Py_BuildValue("NN", openreg_text(name), PyUnicode_DecodeFSDefault(path))) != 0) {
      Py_CLEAR(list);
    }
  }
  openreg_clear_error(); // that there is no further one
  return list;
}

static PyObject* note_plugin_failure(PyObject* self, PyObject* arguments) {
  (void)self;
  const char* plugin = NULL;
  const char* reason = NULL;
  if (!PyArg_ParseTuple(arguments, "ss:_note_plugin_failure", &plugin, &reason)) {
    return NULL;
  }
  openreg_note_plugin_failure(plugin, reason);
  Py_RETURN_NONE;
}

static PyObject* choose_plugins_alone(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  openreg_choose_plugins_alone();
  Py_RETURN_NONE;
}

// ---- torch.device(), whose error about a name of this device elsewhere gets a hint

static newfunc make_device;
static PyObject* device_hint;

static PyObject* make_device_or_hint(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  PyObject* device = make_device(type, arguments, keywords);
  if (device != NULL || !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
    return device;
  }
  PyObject* error = openreg_take_error();
  PyObject* hint = PyObject_CallFunctionObjArgs(device_hint, error, NULL);
  if (hint == NULL || hint == Py_None) {
    openreg_restore_error(error);
  } else {
    PyErr_Format((PyObject*)Py_TYPE(error), "%S\n%S", error, hint);
    Py_DECREF(error);
  }
  Py_XDECREF(hint);
  return NULL;
}

static PyObject* hint_devices(PyObject* self, PyObject* arguments) {
  (void)self;
  PyObject *type, *function;
  if (!PyArg_ParseTuple(arguments, "O!O:_hint_devices", &PyType_Type, &type, &function)) {
    return NULL;
  }
  newfunc* slot = &((PyTypeObject*)type)->tp_new;
  if (*slot != make_device_or_hint) {
    make_device = *slot;
    *slot = make_device_or_hint;
  }
  Py_INCREF(function);
  Py_XSETREF(device_hint, function);
  Py_RETURN_NONE;
}

// The "key=value" texts, each with its NUL, as a dict.
static PyObject* options_dict(const char* texts, size_t length) {
  PyObject* to = PyDict_New();
  for (size_t at = 0; to != NULL && at < length; at += strlen(texts + at) + 1) {
    const char* equals = strchr(texts + at, '=');
    PyObject* key = PyUnicode_DecodeFSDefaultAndSize(texts + at, equals - (texts + at));
    PyObject* value = PyUnicode_DecodeFSDefault(equals + 1);
    if (key == NULL || value == NULL || PyDict_SetItem(to, key, value) != 0) {
      Py_CLEAR(to);
    }
    Py_XDECREF(key);
    Py_XDECREF(value);
  }
  return to;
}

static openreg_status read_options(const char* name, char* texts, size_t size, size_t* length) {
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_driver_get_options(name, texts, size, length);
  Py_END_ALLOW_THREADS
  return status;
}

static PyObject* get_driver_options(PyObject* self, PyObject* argument) {
  (void)self;
  const char* name = openreg_unpack_text(argument, "driverOptions");
  if (name == NULL) {
    return NULL;
  }
  char* texts = NULL;
  size_t size = 0;
  size_t length = 0;
  openreg_status status = read_options(name, NULL, 0, &length);
  while (status == OPENREG_OK && length > size) { // the variables may change between two calls
    size = length;
    PyMem_Free(texts);
    texts = PyMem_Malloc(size);
    if (texts == NULL) {
      return PyErr_NoMemory();
    }
    status = read_options(name, texts, size, &length);
  }
  PyObject* result = status == OPENREG_OK ? options_dict(texts, length) : openreg_raise(status);
  PyMem_Free(texts);
  return result;
}

// A variable may hold any bytes: the text is as os.environ gives it.
static PyObject* get_variable(PyObject* self, PyObject* argument) {
  (void)self;
  const char* name = openreg_unpack_text(argument, "variable");
  if (name == NULL) {
    return NULL;
  }
  const char* value = openreg_variable(name);
  if (value == NULL) {
    Py_RETURN_NONE;
  }
  return PyUnicode_DecodeFSDefault(value);
}

static PyObject* set_process(PyObject* self, PyObject* arguments) {
  (void)self;
  int index = 0;
  int count = 0;
  if (!PyArg_ParseTuple(arguments, "ii:_set_process", &index, &count)) {
    return NULL;
  }
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_set_process(index, count);
  Py_END_ALLOW_THREADS
  return openreg_none_or_raise(status);
}

static PyObject* get_canonical_name(PyObject* self, PyObject* argument) {
  (void)self;
  const char* name = openreg_unpack_text(argument, "canonicalDriverName");
  if (name == NULL) {
    return NULL;
  }
  driver_name canonical = "";
  const openreg_status status = openreg_driver_canonical_name(name, canonical);
  return status == OPENREG_OK ? openreg_text(canonical) : openreg_raise(status);
}

static PyObject* expand_name(PyObject* self, PyObject* argument) {
  (void)self;
  enum { capacity = 16 };
  const char* name = openreg_unpack_text(argument, "expandDriver");
  if (name == NULL) {
    return NULL;
  }
  driver_name names[capacity];
  const int32_t count = openreg_driver_expand_name(name, names, capacity);
  PyObject* list = PyList_New(0);
  for (int32_t i = 0; list != NULL && i < count && i < capacity; ++i) {
    if (openreg_list_put(list, openreg_text(names[i])) != 0) {
      Py_CLEAR(list);
    }
  }
  return list;
}

PyMethodDef openreg_driver_methods[] = {
    {"_canonical_driver_name", get_canonical_name, METH_O, "A driver's name, lower-cased, synonyms resolved."},
    {"_expand_driver", expand_name, METH_O, "The drivers that a name means."},
    {"_use_drivers", use_drivers, METH_O, "Chooses the active drivers: a list of names, or None."},
    {"_prefer_driver", prefer_driver, METH_O, "The driver to choose if it works, or None."},
    {"_select_gpu", select_gpu, METH_NOARGS, "Makes a GPU active if one works; whether one is."},
    {"_reset_gpu", reset_gpu, METH_NOARGS, "Lets a GPU be chosen again."},
    {"_driver_descriptions", list_descriptions, METH_NOARGS, "(name, path) of each JSON file that describes a driver."},
    {"_note_plugin_failure", note_plugin_failure, METH_VARARGS, "(plugin, reason) of one that registered nothing."},
    {"_choose_plugins_alone",
     choose_plugins_alone,
     METH_NOARGS,
     "No driver but a plugin is chosen unless it is named."},
    {"_hint_devices", hint_devices, METH_VARARGS, "(torch.device, function): a hint behind its error, or None."},
    {"_driver_options", get_driver_options, METH_O, "What a driver would be opened with, as a dict."},
    {"_variable", get_variable, METH_O, "The value of a variable OPENREG_*, or None."},
    {"_open_driver", open_driver, METH_O, "Opens a driver without making it active."},
    {"_open_all", open_all, METH_NOARGS, "Opens every driver."},
    {"_set_process", set_process, METH_VARARGS, "(index, count) of this process in a distributed program."},
    {NULL, NULL, 0, NULL},
};
