/* SPDX-License-Identifier: BSD-3-Clause */
// What the files of torch_openreg._C share. Every function here is called with the GIL held.
#pragma once

#include <c10/core/Device.h>
#include <openreg/openreg.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/python_headers.h>

namespace torch_openreg {

// A Python integer, or anything with __index__ but no bool, as a device index. Throws c10::TypeError "invalid argument
// to <function>" for other types, and the error of an index out of range where it does not fit in a DeviceIndex.
c10::DeviceIndex unpack_device_index(PyObject* argument, const char* function);

// Initialises the backend through torch.openreg._lazy_init(), once in a process; raises in a forked child.
void lazy_init();

// gil.cpp
// Whether this process still has a Python to call: false before, during and after its finalisation. Without the GIL.
bool interpreter_is_alive() noexcept;
// For callbacks that no exception may leave. Ctrl-C is raised by the main thread's next instruction instead, anything
// else is printed, with `where`.
void pass_on(pybind11::error_already_set& error, const char* where);
// Lets whoever waits inside the runtime let go of the GIL. Once, when the module is loaded.
void install_wait_hooks();

// memory.cpp
PyObject* _memoryStats(PyObject* self, PyObject* device);
PyObject* _resetPeakMemoryStats(PyObject* self, PyObject* device);
PyObject* _resetAccumulatedMemoryStats(PyObject* self, PyObject* device);
PyObject* _emptyCache(PyObject* self, PyObject* unused);
PyObject* _memGetInfo(PyObject* self, PyObject* device);
// The segments of a device with their blocks, as dicts.
pybind11::list memory_segments(c10::DeviceIndex device);

// memory_history.cpp, memory_pools.cpp
extern PyMethodDef memory_history_methods[];
extern PyMethodDef memory_pool_methods[];

// records.cpp
PyObject* _getDeviceProperties(PyObject* self, PyObject* device);
PyObject* _driverRecords(PyObject* self, PyObject* unused);
PyObject* _findDriver(PyObject* self, PyObject* name);
PyObject* _driverDevice(PyObject* self, PyObject* arguments);
PyObject* _driverTopology(PyObject* self, PyObject* arguments);
PyObject* _selection(PyObject* self, PyObject* unused);
PyObject* _lastError(PyObject* self, PyObject* unused);
PyObject* _runtimeVersion(PyObject* self, PyObject* unused);

// drivers.cpp
PyObject* _canonicalDriverName(PyObject* self, PyObject* name);
PyObject* _expandDriver(PyObject* self, PyObject* name);
PyObject* _useDrivers(PyObject* self, PyObject* names);
PyObject* _preferDriver(PyObject* self, PyObject* name);
PyObject* _reselect(PyObject* self, PyObject* unused);
PyObject* _openDriver(PyObject* self, PyObject* name);
PyObject* _openAll(PyObject* self, PyObject* unused);
PyObject* _forgetFailures(PyObject* self, PyObject* unused);
PyObject* _setProcess(PyObject* self, PyObject* arguments);
// Closes the drivers. The caller forgets what it derived from them.
void shut_down();

// register.cpp
PyObject* _registerDriver(PyObject* self, PyObject* arguments, PyObject* keywords);

// discovery.cpp
PyObject* _setDiscovery(PyObject* self, PyObject* callback);

// autograd.cpp
PyObject* _settleAutograd(PyObject* self, PyObject* threads);

// events.cpp
PyObject* _eventElapsedTime(PyObject* self, PyObject* arguments);

// streams.cpp
PyObject* _streamPriorityRange(PyObject* self, PyObject* device);
PyObject* _streamPriority(PyObject* self, PyObject* arguments);
PyObject* _streamFromNative(PyObject* self, PyObject* arguments);

// sharing.cpp
PyObject* _exportStorage(PyObject* self, PyObject* storage);
PyObject* _importStorage(PyObject* self, PyObject* arguments);
PyObject* _collectExports(PyObject* self, PyObject* unused);

// operators.cpp
PyObject* _operatorStats(PyObject* self, PyObject* unused);
PyObject* _resetOperatorStats(PyObject* self, PyObject* unused);
PyObject* _hostWrappersMade(PyObject* self, PyObject* unused);
PyObject* _setOperatorDetails(PyObject* self, PyObject* on);
PyObject* _setOperatorPolicy(PyObject* self, PyObject* arguments);
PyObject* _operatorRules(PyObject* self, PyObject* unused);
PyObject* _replaceOperatorRules(PyObject* self, PyObject* rules);

// collectives.cpp
PyObject* _requireGlooCollectives(PyObject* self, PyObject* unused);
PyObject* _stagedBackend(PyObject* self, PyObject* backend);

// profiler.cpp
PyObject* _traceStart(PyObject* self, PyObject* unused);
PyObject* _traceStop(PyObject* self, PyObject* unused);

// log.cpp
PyObject* _setLogCallback(PyObject* self, PyObject* callback);

} // namespace torch_openreg
