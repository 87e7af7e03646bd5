/* SPDX-License-Identifier: BSD-3-Clause */
// Bindings of streams, beside what torch.Stream does.
#include "csrc/base/bindings.h"
#include "csrc/base/torch_calls.h"

#include <openreg/openreg.h>
#include <stdint.h>

// (least urgent, most urgent) priority of a device's streams.
static PyObject* get_priority_range(PyObject* self, PyObject* device) {
  (void)self;
  int32_t index = 0;
  if (openreg_unpack_device_index(device, "_stream_priority_range", &index) != 0 || openreg_lazy_init() != 0) {
    return NULL;
  }
  openreg_device_properties properties = {.struct_size = sizeof properties};
  const openreg_status status = openreg_device_get_properties(index, &properties);
  if (status != OPENREG_OK) {
    return openreg_raise(status);
  }
  return Py_BuildValue("ii", (int)properties.priority_low, (int)properties.priority_high);
}

static PyObject* get_priority(PyObject* self, PyObject* arguments) {
  (void)self;
  int device = 0;
  long long stream = 0;
  if (!PyArg_ParseTuple(arguments, "iL:_stream_priority", &device, &stream)) {
    return NULL;
  }
  int32_t priority = 0;
  const openreg_status status = openreg_stream_priority(device, stream, &priority);
  return status == OPENREG_OK ? PyLong_FromLong(priority) : openreg_raise(status);
}

static PyObject* find_native_stream(PyObject* self, PyObject* arguments) {
  (void)self;
  int device = 0;
  unsigned long long native = 0;
  if (!PyArg_ParseTuple(arguments, "iK:_stream_from_native", &device, &native) || openreg_lazy_init() != 0) {
    return NULL;
  }
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  const openreg_status status = openreg_stream_from_native(device, (const void*)(uintptr_t)native, &stream);
  return status == OPENREG_OK ? PyLong_FromLongLong(stream) : openreg_raise(status);
}

PyMethodDef openreg_stream_methods[] = {
    {"_stream_priority_range", get_priority_range, METH_O, "(least, most) urgent priority of a device's streams."},
    {"_stream_priority", get_priority, METH_VARARGS, "Priority of a stream; (device, stream id)."},
    {"_stream_from_native", find_native_stream, METH_VARARGS, "Id of the stream that has a vendor's handle."},
    {NULL, NULL, 0, NULL},
};
