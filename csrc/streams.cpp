// SPDX-License-Identifier: BSD-3-Clause
// Bindings of streams, beside what torch.Stream does.
#include <openreg/native_stream.h>
#include <torch/csrc/Exceptions.h>

#include "csrc/bindings.h"
#include "shim/status.h"

namespace torch_openreg {

// (least urgent, most urgent) priority of a device's streams.
PyObject* _streamPriorityRange(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const c10::DeviceIndex index = unpack_device_index(device, "_stream_priority_range");
  lazy_init();
  openreg_device_properties properties{};
  properties.struct_size = sizeof properties;
  OPENREG_CHECK(openreg_get_device_properties(index, &properties));
  return Py_BuildValue("ii", properties.priority_low, properties.priority_high);
  END_HANDLE_TH_ERRORS
}

PyObject* _streamPriority(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  int device = 0;
  long long stream = 0;
  if (PyArg_ParseTuple(arguments, "iL:_stream_priority", &device, &stream) == 0) {
    return nullptr;
  }
  int32_t priority = 0;
  OPENREG_CHECK(openreg_stream_priority(device, stream, &priority));
  return PyLong_FromLong(priority);
  END_HANDLE_TH_ERRORS
}

PyObject* _streamFromNative(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  int device = 0;
  unsigned long long native = 0;
  if (PyArg_ParseTuple(arguments, "iK:_stream_from_native", &device, &native) == 0) {
    return nullptr;
  }
  lazy_init();
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_stream_from_native(device, reinterpret_cast<const void*>(native), &stream));
  return PyLong_FromLongLong(stream);
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
