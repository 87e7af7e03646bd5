// What the files of torch_openreg._C share. Every function here is called with the GIL held.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/python_headers.h>

namespace torch_openreg {

// A Python integer, or anything with __index__ but no bool, as a device index. Throws c10::TypeError "invalid argument
// to <function>" for other types, and the error of an index out of range where it does not fit in a DeviceIndex.
c10::DeviceIndex unpack_device_index(PyObject* argument, const char* function);

// Initialises the backend through torch.openreg._lazy_init(), once in a process; raises in a forked child.
void lazy_init();

// memory.cpp
PyObject* _memoryStats(PyObject* self, PyObject* device);
PyObject* _resetPeakMemoryStats(PyObject* self, PyObject* device);
PyObject* _resetAccumulatedMemoryStats(PyObject* self, PyObject* device);
PyObject* _emptyCache(PyObject* self, PyObject* unused);
PyObject* _memGetInfo(PyObject* self, PyObject* device);
PyObject* _memorySnapshot(PyObject* self, PyObject* device);

// records.cpp
PyObject* _getDeviceProperties(PyObject* self, PyObject* device);
PyObject* _driverRecords(PyObject* self, PyObject* unused);
PyObject* _lastError(PyObject* self, PyObject* unused);

// autograd.cpp
PyObject* _settleAutograd(PyObject* self, PyObject* unused);

// events.cpp
PyObject* _eventElapsedTime(PyObject* self, PyObject* arguments);

// operators.cpp
PyObject* _operatorStats(PyObject* self, PyObject* unused);
PyObject* _resetOperatorStats(PyObject* self, PyObject* unused);
PyObject* _setOperatorDetails(PyObject* self, PyObject* on);
PyObject* _setOperatorPolicy(PyObject* self, PyObject* arguments);
PyObject* _operatorRules(PyObject* self, PyObject* unused);
PyObject* _replaceOperatorRules(PyObject* self, PyObject* rules);

// log.cpp
PyObject* _setLogCallback(PyObject* self, PyObject* callback);

} // namespace torch_openreg
