/* SPDX-License-Identifier: BSD-3-Clause */
// Registration of drivers from Python: a C table, a library, or a Python function that makes one of them.
#include "csrc/base/bindings.h"
#include "csrc/base/options.h"
#include "csrc/base/python_support.h"
#include "csrc/base/torch_calls.h"

#include <openreg/driver.h>
#include <openreg/openreg.h>
#include <stdint.h>
#include <string.h>

// The address in an int, or in a capsule that is named "openreg_driver". NULL with an exception set.
static const openreg_driver* unpack_table(PyObject* object) {
  void* const address =
      PyCapsule_CheckExact(object) ? PyCapsule_GetPointer(object, "openreg_driver") : PyLong_AsVoidPtr(object);
  if (address == NULL && !PyErr_Occurred()) {
    PyErr_SetString(PyExc_ValueError, "The address of a driver's table is 0.");
  }
  return address;
}

static bool is_table(PyObject* object) {
  return PyCapsule_CheckExact(object) || (PyLong_Check(object) && !PyBool_Check(object));
}

// Copies as much as fits.
static void copy_text(char* to, size_t size, const char* from) {
  const size_t length = strnlen(from, size - 1);
  memcpy(to, from, length);
  to[length] = '\0';
}

// copy_text() of str(object). Returns -1 with an exception set.
static int copy_str(char* to, size_t size, PyObject* object) {
  PyObject* text = PyObject_Str(object);
  const char* utf8 = text == NULL ? NULL : PyUnicode_AsUTF8(text);
  if (utf8 != NULL) {
    copy_text(to, size, utf8);
  }
  Py_XDECREF(text);
  return utf8 == NULL ? -1 : 0;
}

// The attribute, NULL without an exception if there is none, or NULL with one.
static PyObject* find_attribute(PyObject* object, const char* name) {
  PyObject* attribute = PyObject_GetAttrString(object, name);
  if (attribute == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
    PyErr_Clear();
  }
  return attribute;
}

// A factory in Python. Lives, with all that it has returned, as long as the process: the runtime may keep the table.
struct factory {
  PyObject* function;
  PyObject* results; // a list
};

static void free_factory(struct factory* factory) {
  if (factory != NULL) {
    Py_XDECREF(factory->function);
    Py_XDECREF(factory->results);
    PyMem_Free(factory);
  }
}

static struct factory* new_factory(PyObject* function) {
  struct factory* factory = PyMem_Calloc(1, sizeof *factory);
  if (factory == NULL) {
    PyErr_NoMemory();
    return NULL;
  }
  factory->function = Py_NewRef(function);
  factory->results = PyList_New(0);
  if (factory->results == NULL) {
    free_factory(factory);
    return NULL;
  }
  return factory;
}

// `count` is the number of devices, or a function that returns it.
static int describe_devices(PyObject* count, openreg_factory_result* result) {
  PyObject* number = PyCallable_Check(count) ? PyObject_CallNoArgs(count) : Py_NewRef(count);
  const long devices = number == NULL ? -1 : PyLong_AsLong(number);
  Py_XDECREF(number);
  if (devices == -1 && PyErr_Occurred()) {
    return -1;
  }
  if (devices > INT32_MAX) {
    PyErr_SetString(PyExc_OverflowError, "A factory's device_count is too large.");
    return -1;
  }
  result->device_count = devices > 0 ? (int32_t)devices : -1; // 0 would mean that there is no driver
  return 0;
}

static int describe_version(PyObject* found, openreg_factory_result* result) {
  PyObject* version = find_attribute(found, "version");
  if (version == NULL) {
    return PyErr_Occurred() ? -1 : 0;
  }
  const int failed = version == Py_None ? 0 : copy_str(result->version, sizeof result->version, version);
  Py_DECREF(version);
  return failed;
}

// str, or what has __fspath__.
static int is_path(PyObject* object) {
  if (PyUnicode_Check(object)) {
    return 1;
  }
  PyObject* attribute = find_attribute(object, "__fspath__");
  if (attribute == NULL) {
    return PyErr_Occurred() ? -1 : 0;
  }
  Py_DECREF(attribute);
  return 1;
}

// Python's factories are called one at a time, with the GIL held.
static int translate_path(PyObject* path, openreg_factory_result* result) {
  static PyObject* kept; // until the next factory is called
  PyObject* bytes = NULL;
  if (!PyUnicode_FSConverter(path, &bytes)) {
    return -1;
  }
  PyObject* before = kept;
  kept = bytes;
  Py_XDECREF(before);
  result->library_path = PyBytes_AS_STRING(bytes);
  return 0;
}

static int translate_other(PyObject* found, openreg_factory_result* result) {
  const int path = is_path(found);
  if (path != 0) {
    return path < 0 ? -1 : translate_path(found, result);
  }
  PyObject* type = PyObject_GetAttrString((PyObject*)Py_TYPE(found), "__name__");
  if (type != NULL) {
    PyErr_Format(
        PyExc_TypeError,
        "A factory must return None, the address or capsule of a driver's table, the path of a library, or an object "
        "with `device_count`, but this one returned %S",
        type);
    Py_DECREF(type);
  }
  return -1;
}

static int translate(PyObject* found, openreg_factory_result* result) {
  if (found == Py_None) {
    return 0; // not available here
  }
  if (is_table(found)) {
    result->table = unpack_table(found);
    return result->table == NULL ? -1 : 0;
  }
  PyObject* count = find_attribute(found, "device_count");
  if (count == NULL) {
    return PyErr_Occurred() ? -1 : translate_other(found, result);
  }
  const int failed = describe_devices(count, result);
  Py_DECREF(count);
  return failed != 0 ? failed : describe_version(found, result);
}

// Takes the exception that is set into the result's message.
static openreg_status explain(openreg_factory_result* result) {
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    PyErr_SetInterrupt(); // the runtime takes no exceptions: the main thread's next instruction raises it
  }
  const openreg_status status = PyErr_ExceptionMatches(PyExc_MemoryError) ? OPENREG_E_NOMEM : OPENREG_E_INTERNAL;
  PyObject* error = openreg_take_error();
  PyObject* type = PyObject_GetAttrString((PyObject*)Py_TYPE(error), "__name__");
  PyObject* text = type == NULL ? NULL : PyUnicode_FromFormat("%S: %S", type, error);
  if (text == NULL || copy_str(result->message, sizeof result->message, text) != 0) {
    copy_text(result->message, sizeof result->message, Py_TYPE(error)->tp_name); // its text can't be had
    PyErr_Clear();
  }
  Py_XDECREF(text);
  Py_XDECREF(type);
  Py_DECREF(error);
  return status;
}

static openreg_status call_holding_gil(const struct factory* factory, openreg_factory_result* result) {
  PyObject* found = PyObject_CallNoArgs(factory->function);
  const bool failed = found == NULL || translate(found, result) != 0 || PyList_Append(factory->results, found) != 0;
  const openreg_status status = failed ? explain(result) : OPENREG_OK;
  Py_XDECREF(found);
  return status;
}

// Called by the runtime, from any thread, without the GIL (gil.c).
static openreg_status call_factory(void* context, openreg_factory_result* result) {
  if (!openreg_interpreter_is_alive()) {
    copy_text(result->message, sizeof result->message, "Python is ending");
    return OPENREG_E_NO_DEVICE;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* before = openreg_take_error();
  const openreg_status status = call_holding_gil(context, result);
  openreg_restore_error(before);
  PyGILState_Release(gil);
  return status;
}

struct arguments {
  const char* name;
  const char* source;
  PyObject* table;
  PyObject* library_path;
  PyObject* factory;
  PyObject* options;
  int priority;
  int required;
  int experimental;
  int keep_failed;
  int named;
};

static int unpack(PyObject* arguments, PyObject* keywords, struct arguments* to) {
  static char* names[] = {
      "name",
      "source",
      "table",
      "library_path",
      "factory",
      "options",
      "priority",
      "required",
      "experimental",
      "keep_failed",
      "named",
      NULL};
  to->table = to->library_path = to->factory = Py_None;
  to->priority = OPENREG_PRIORITY_PLUGIN;
  if (!PyArg_ParseTupleAndKeywords(
          arguments,
          keywords,
          "s|z$OOOO!ipppp:_register_driver",
          names,
          &to->name,
          &to->source,
          &to->table,
          &to->library_path,
          &to->factory,
          &PyDict_Type,
          &to->options,
          &to->priority,
          &to->required,
          &to->experimental,
          &to->keep_failed,
          &to->named)) {
    return -1;
  }
  if (to->factory != Py_None && !PyCallable_Check(to->factory)) {
    PyErr_SetString(PyExc_TypeError, "invalid argument to registerDriver");
    return -1;
  }
  return 0;
}

// A registration of `from` and what belongs to it until release().
struct request {
  openreg_registration registration;
  struct openreg_option_list options;
  PyObject* path; // bytes, or NULL
  struct factory* factory;
};

static int prepare(const struct arguments* from, struct request* to) {
  if (from->options != NULL && openreg_unpack_options(from->options, "registerDriver", &to->options) != 0) {
    return -1;
  }
  if (from->library_path != Py_None && !PyUnicode_FSConverter(from->library_path, &to->path)) {
    return -1;
  }
  if (from->factory != Py_None && (to->factory = new_factory(from->factory)) == NULL) {
    return -1;
  }
  if (from->table != Py_None && (to->registration.table = unpack_table(from->table)) == NULL) {
    return -1;
  }
  to->registration.struct_size = sizeof to->registration;
  to->registration.flags = (from->required ? OPENREG_REGISTER_REQUIRED : 0) |
      (from->experimental ? OPENREG_REGISTER_EXPERIMENTAL : 0) |
      (from->keep_failed ? OPENREG_REGISTER_KEEP_FAILED : 0) | (from->named ? OPENREG_REGISTER_NAMED : 0);
  to->registration.priority = from->priority;
  to->registration.name = from->name;
  to->registration.source = from->source;
  to->registration.options = to->options.options;
  to->registration.option_count = to->options.count;
  to->registration.library_path = to->path == NULL ? NULL : PyBytes_AS_STRING(to->path);
  to->registration.factory = to->factory == NULL ? NULL : call_factory;
  to->registration.ctx = to->factory;
  return 0;
}

static void release(struct request* request) {
  openreg_free_options(&request->options);
  Py_XDECREF(request->path);
  free_factory(request->factory);
}

static PyObject* register_driver(PyObject* self, PyObject* arguments, PyObject* keywords) {
  (void)self;
  struct arguments given = {0};
  struct request request = {{0}, {NULL, 0, NULL}, NULL, NULL};
  PyObject* result = NULL;
  if (unpack(arguments, keywords, &given) == 0 && prepare(&given, &request) == 0) {
    openreg_status status = OPENREG_OK;
    Py_BEGIN_ALLOW_THREADS
      status = openreg_driver_register(&request.registration);
    Py_END_ALLOW_THREADS
    if (status == OPENREG_OK) {
      request.factory = NULL; // the runtime's, for good
      Py_INCREF(given.table); // a capsule may own the table
      result = Py_NewRef(Py_None);
    } else {
      result = openreg_raise(status);
    }
  }
  release(&request);
  return result;
}

PyMethodDef openreg_registration_methods[] = {
    {"_register_driver",
     (PyCFunction)(void (*)(void))register_driver,
     METH_VARARGS | METH_KEYWORDS,
     "Adds a driver: a table, a library or a factory."},
    {NULL, NULL, 0, NULL},
};
