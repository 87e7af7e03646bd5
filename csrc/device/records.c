/* SPDX-License-Identifier: BSD-3-Clause */
// Bindings of what the runtime says of devices, drivers, its choice and errors.
#include "csrc/base/bindings.h"
#include "csrc/base/options.h"
#include "csrc/base/python_support.h"
#include "csrc/base/torch_calls.h"

#include <openreg/driver.h>
#include <openreg/openreg.h>
#include <stdint.h>

static PyObject* hex_text(const char bytes[16]) {
  static const char digits[] = "0123456789abcdef";
  char text[33] = "";
  for (size_t i = 0; i < 16; ++i) {
    const unsigned char byte = (unsigned char)bytes[i];
    text[2 * i] = digits[byte >> 4];
    text[2 * i + 1] = digits[byte & 15];
  }
  return openreg_text(text);
}

static PyObject* bit(uint64_t bits, uint64_t mask) {
  return PyBool_FromLong((bits & mask) != 0);
}

static PyObject* properties_dict(const openreg_device_properties* properties) {
  const uint64_t caps = properties->caps;
  PyObject* to = PyDict_New();
  if (to == NULL || openreg_dict_put(to, "name", openreg_text(properties->name)) ||
      openreg_dict_put(to, "driver", openreg_text(properties->driver)) ||
      openreg_dict_put(to, "driver_version", openreg_text(properties->driver_version)) ||
      openreg_dict_put(to, "ordinal", PyLong_FromLong(properties->ordinal)) ||
      openreg_dict_put(to, "total_memory", PyLong_FromUnsignedLongLong(properties->total_memory)) ||
      openreg_dict_put(to, "max_allocation", PyLong_FromUnsignedLongLong(properties->max_allocation)) ||
      openreg_dict_put(to, "multi_processor_count", PyLong_FromLong(properties->multi_processor_count)) ||
      openreg_dict_put(to, "major", PyLong_FromLong(properties->capability_major)) ||
      openreg_dict_put(to, "minor", PyLong_FromLong(properties->capability_minor)) ||
      openreg_dict_put(to, "uuid", hex_text(properties->uuid)) ||
      openreg_dict_put(to, "is_simulated", bit(caps, OPENREG_CAP_SIMULATED)) ||
      openreg_dict_put(to, "is_host_visible", bit(caps, OPENREG_CAP_HOST_VISIBLE)) ||
      openreg_dict_put(to, "torch_device_type", openreg_text(properties->torch_device_type))) {
    Py_CLEAR(to);
  }
  return to;
}

static PyObject* record_dict(const openreg_driver_record* record) {
  const uint32_t flags = record->flags;
  PyObject* to = PyDict_New();
  if (to == NULL || openreg_dict_put(to, "name", openreg_text(record->name)) ||
      openreg_dict_put(to, "state", openreg_text(openreg_driver_state_name(record->state))) ||
      openreg_dict_put(to, "source", openreg_text(record->source)) ||
      openreg_dict_put(to, "priority", PyLong_FromLong(record->priority)) ||
      openreg_dict_put(to, "version", openreg_text(record->version)) ||
      openreg_dict_put(to, "path", openreg_text(record->path)) ||
      openreg_dict_put(to, "device_count", PyLong_FromLong(record->device_count)) ||
      openreg_dict_put(to, "first_device", PyLong_FromLong(record->first_device)) ||
      openreg_dict_put(to, "is_active", bit(flags, OPENREG_DRIVER_FLAG_ACTIVE)) ||
      openreg_dict_put(to, "is_gpu", bit(flags, OPENREG_DRIVER_FLAG_GPU)) ||
      openreg_dict_put(to, "is_unloadable", bit(flags, OPENREG_DRIVER_FLAG_UNLOADABLE)) ||
      openreg_dict_put(to, "is_untried", bit(flags, OPENREG_DRIVER_FLAG_UNTRIED)) ||
      openreg_dict_put(to, "is_plugin", bit(flags, OPENREG_DRIVER_FLAG_PLUGIN)) ||
      openreg_dict_put(to, "is_mock", bit(flags, OPENREG_DRIVER_FLAG_MOCK)) ||
      openreg_dict_put(to, "is_required", bit(flags, OPENREG_DRIVER_FLAG_REQUIRED)) ||
      openreg_dict_put(to, "is_experimental", bit(flags, OPENREG_DRIVER_FLAG_EXPERIMENTAL)) ||
      openreg_dict_put(to, "has_table", bit(flags, OPENREG_DRIVER_FLAG_HAS_TABLE)) ||
      openreg_dict_put(to, "is_simulated", bit(record->caps, OPENREG_CAP_SIMULATED)) ||
      openreg_dict_put(to, "is_fork_safe", bit(record->caps, OPENREG_CAP_FORK_SAFE)) ||
      openreg_dict_put(to, "abi", Py_BuildValue("II", (unsigned)OPENREG_ABI_MAJOR, (unsigned)record->abi_minor)) ||
      openreg_dict_put(to, "caps", PyLong_FromUnsignedLongLong(record->caps)) ||
      openreg_dict_put(to, "slots", PyLong_FromUnsignedLongLong(record->slots)) ||
      openreg_dict_put(to, "code", openreg_text(openreg_status_name(record->code))) ||
      openreg_dict_put(to, "message", openreg_text(record->message))) {
    Py_CLEAR(to);
  }
  return to;
}

static PyObject* get_device_properties(PyObject* self, PyObject* device) {
  (void)self;
  int32_t index = 0;
  if (openreg_unpack_device(device, "getDeviceProperties", &index) != 0 || openreg_lazy_init() != 0) {
    return NULL;
  }
  openreg_device_properties properties = {.struct_size = sizeof properties};
  const openreg_status status = openreg_device_get_properties(index, &properties);
  return status == OPENREG_OK ? properties_dict(&properties) : openreg_raise(status);
}

static PyObject* get_driver_record(int32_t i) {
  openreg_driver_record record = {.struct_size = sizeof record};
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_driver_get_record(i, &record);
  Py_END_ALLOW_THREADS
  return status == OPENREG_OK ? record_dict(&record) : openreg_raise(status);
}

static PyObject* list_drivers(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  int32_t count = 0;
  Py_BEGIN_ALLOW_THREADS
    count = openreg_driver_count(); // may run Python's discovery, and wait for it
  Py_END_ALLOW_THREADS
  PyObject* list = PyList_New(0);
  for (int32_t i = 0; list != NULL && i < count; ++i) {
    if (openreg_list_put(list, get_driver_record(i)) != 0) {
      Py_CLEAR(list);
    }
  }
  return list;
}

static PyObject* find_driver(PyObject* self, PyObject* argument) {
  (void)self;
  const char* name = openreg_unpack_text(argument, "findDriver");
  if (name == NULL) {
    return NULL;
  }
  openreg_driver_record record = {.struct_size = sizeof record};
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_driver_find(name, &record);
  Py_END_ALLOW_THREADS
  return status == OPENREG_OK ? record_dict(&record) : openreg_raise(status);
}

static PyObject* get_driver_device(PyObject* self, PyObject* arguments) {
  (void)self;
  const char* driver = NULL;
  int index = 0;
  if (!PyArg_ParseTuple(arguments, "si:_driver_device", &driver, &index)) {
    return NULL;
  }
  openreg_device_properties properties = {.struct_size = sizeof properties};
  openreg_status status = OPENREG_OK;
  Py_BEGIN_ALLOW_THREADS
    status = openreg_driver_get_device_properties(driver, index, &properties);
  Py_END_ALLOW_THREADS
  return status == OPENREG_OK ? properties_dict(&properties) : openreg_raise(status);
}

struct topology {
  openreg_device_properties devices[OPENREG_MAX_DEVICES];
  uint8_t peers[OPENREG_MAX_DEVICES][OPENREG_MAX_DEVICES];
  int32_t count; // of the machine: it may have more than fit
};

static openreg_status ask_topology(
    const char* driver, const char* name, const struct openreg_option_list* options, struct topology* to) {
  for (size_t i = 0; i < OPENREG_MAX_DEVICES; ++i) {
    to->devices[i].struct_size = sizeof to->devices[i];
  }
  const openreg_status status = openreg_driver_get_topology(
      driver, name, options->options, options->count, OPENREG_MAX_DEVICES, to->devices, &to->peers[0][0], &to->count);
  if (to->count > OPENREG_MAX_DEVICES) {
    to->count = OPENREG_MAX_DEVICES;
  }
  return status;
}

static PyObject* peers_list(const uint8_t* peers, int32_t count) {
  PyObject* row = PyList_New(0);
  for (int32_t i = 0; row != NULL && i < count; ++i) {
    if (openreg_list_put(row, PyBool_FromLong(peers[i] != 0)) != 0) {
      Py_CLEAR(row);
    }
  }
  return row;
}

// ([properties of each device], [[whether it reaches each other one]])
static PyObject* topology_tuple(const struct topology* from) {
  PyObject* result = NULL;
  PyObject* devices = PyList_New(0);
  PyObject* peers = PyList_New(0);
  if (devices == NULL || peers == NULL) {
    goto end;
  }
  for (int32_t i = 0; i < from->count; ++i) {
    if (openreg_list_put(devices, properties_dict(&from->devices[i])) ||
        openreg_list_put(peers, peers_list(from->peers[i], from->count))) {
      goto end;
    }
  }
  result = PyTuple_Pack(2, devices, peers);
end:
  Py_XDECREF(devices);
  Py_XDECREF(peers);
  return result;
}

static PyObject* get_driver_topology(PyObject* self, PyObject* arguments) {
  (void)self;
  const char* driver = NULL;
  const char* name = NULL;
  PyObject* given = NULL;
  if (!PyArg_ParseTuple(arguments, "ssO!:_driver_topology", &driver, &name, &PyDict_Type, &given)) {
    return NULL;
  }
  struct openreg_option_list options;
  if (openreg_unpack_options(given, "driverTopology", &options) != 0) {
    return NULL;
  }
  PyObject* result = NULL;
  struct topology* found = PyMem_Calloc(1, sizeof *found);
  if (found == NULL) {
    PyErr_NoMemory();
  } else {
    openreg_status status = OPENREG_OK;
    Py_BEGIN_ALLOW_THREADS
      status = ask_topology(driver, name, &options, found);
    Py_END_ALLOW_THREADS
    result = status == OPENREG_OK ? topology_tuple(found) : openreg_raise(status);
  }
  PyMem_Free(found);
  openreg_free_options(&options);
  return result;
}

static PyObject* get_selection(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  openreg_selection selection = {.struct_size = sizeof selection};
  const openreg_status status = openreg_selection_get(&selection);
  if (status != OPENREG_OK) {
    return openreg_raise(status);
  }
  PyObject* to = PyDict_New();
  if (to == NULL ||
      openreg_dict_put(to, "chosen_by", openreg_text(openreg_selection_chosen_by_name(selection.chosen_by))) ||
      openreg_dict_put(to, "live_objects", PyLong_FromLongLong(selection.live_objects)) ||
      openreg_dict_put(to, "generation", PyLong_FromUnsignedLong(selection.generation)) ||
      openreg_dict_put(to, "requests", PyLong_FromUnsignedLong(selection.requests)) ||
      openreg_dict_put(to, "default_driver", openreg_text(selection.default_driver)) ||
      openreg_dict_put(to, "preference", openreg_text(selection.preference))) {
    Py_CLEAR(to);
  }
  return to;
}

static PyObject* get_last_error(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  const openreg_error error = *openreg_last_error(); // Python may make another while the dict is filled
  if (error.code == OPENREG_OK) {
    Py_RETURN_NONE;
  }
  PyObject* to = PyDict_New();
  if (to == NULL || openreg_dict_put(to, "code", openreg_text(openreg_status_name(error.code))) ||
      openreg_dict_put(to, "vendor_code", PyLong_FromLongLong(error.vendor_code)) ||
      openreg_dict_put(to, "driver", openreg_text(error.driver)) ||
      openreg_dict_put(to, "message", openreg_text(error.message))) {
    Py_CLEAR(to);
  }
  return to;
}

static PyObject* get_version(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  return openreg_text(openreg_version());
}

PyMethodDef openreg_record_methods[] = {
    {"_get_device_properties", get_device_properties, METH_O, "What the driver says of a device, as a dict."},
    {"_driver_records", list_drivers, METH_NOARGS, "What is known of each driver, as a list of dicts."},
    {"_find_driver", find_driver, METH_O, "The record that a name means, as a dict."},
    {"_driver_device", get_driver_device, METH_VARARGS, "Device i of an open driver, as a dict."},
    {"_driver_topology", get_driver_topology, METH_VARARGS, "A driver's devices and which reach each other, unopened."},
    {"_selection", get_selection, METH_NOARGS, "Which drivers were chosen, and how, as a dict."},
    {"_last_error", get_last_error, METH_NOARGS, "This thread's last error of the runtime as a dict, or None."},
    {"_runtime_version", get_version, METH_NOARGS, "Version of libopenreg.so."},
    {NULL, NULL, 0, NULL},
};
