// SPDX-License-Identifier: BSD-3-Clause
// torch_openreg._C: what torch.openreg calls. Every name starts with "_": the public names are Python's.
//
// Plain functions of the C API, without argument parsing by pybind11: current_device() and its like are called in the
// inner loops of user code. Functions that may wait for a device release the GIL.
#include <ATen/Context.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pycfunction_helpers.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <mutex>

#include "csrc/bindings.h"
#include "shim/device.h"
#include "shim/generator.h"
#include "shim/registration.h"
#include "shim/status.h"

namespace torch_openreg {

using c10::DeviceIndex;

namespace {

// torch.openreg._lazy_init() has run to its end in this process or in the one that it was forked from.
std::atomic<bool> lazily_initialized{false};

bool is_ready() {
  return C10_LIKELY(lazily_initialized.load(std::memory_order_relaxed)) && openreg_in_bad_fork() == 0;
}

} // namespace

DeviceIndex unpack_device_index(PyObject* argument, const char* function) {
  TORCH_CHECK_TYPE(PyIndex_Check(argument) && !PyBool_Check(argument), "invalid argument to ", function);
  const auto number = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(argument));
  if (!number) {
    throw python_error();
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  TORCH_CHECK(
      overflow == 0,
      "The device index is out of range. It must be in [0, ",
      static_cast<int>(c10::openreg::device_count()),
      "), but got ",
      std::string(pybind11::str(number)),
      ".");
  return c10::openreg::narrow_device_index(value);
}

void lazy_init() {
  if (is_ready()) {
    return;
  }
  torch::utils::device_lazy_init(c10::DeviceType::PrivateUse1);
  // It does nothing under FakeTensorMode.
  lazily_initialized.store(openreg_is_initialized() != 0, std::memory_order_relaxed);
}

namespace {

PyObject* _init(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(
      openreg_in_bad_fork() == 0,
      "Cannot re-initialize OpenReg in forked subprocess. To use OpenReg with multiprocessing, you must use the "
      "'spawn' start method");
  {
    const pybind11::gil_scoped_release no_gil;
    at::globalContext().lazyInitDevice(c10::DeviceType::PrivateUse1);
    OPENREG_CHECK(openreg_init()); // PyTorch initialises once; this serves after _shutdown()
  }
  // Only a process that has opened a driver has children that must be told; the call is a process's once.
  static std::once_flag once;
  std::call_once(once, [] { torch::utils::register_fork_handler_for_device_init(c10::DeviceType::PrivateUse1); });
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _isInitialized(PyObject* /*self*/, PyObject* /*unused*/) {
  return PyBool_FromLong(openreg_is_initialized());
}

PyObject* _isInBadFork(PyObject* /*self*/, PyObject* /*unused*/) {
  return PyBool_FromLong(openreg_in_bad_fork());
}

// Frees the caches and closes the drivers, so that the next use reads the environment again.
PyObject* _shutdown(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  shut_down();
  lazily_initialized.store(false, std::memory_order_relaxed);
  torch::utils::set_requires_device_init(c10::DeviceType::PrivateUse1, true);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _getDefaultGenerator(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  return THPGenerator_Wrap(c10::openreg::default_generator(unpack_device_index(device, "getDefaultGenerator")));
  END_HANDLE_TH_ERRORS
}

PyObject* _getDeviceCount(PyObject* /*self*/, PyObject* /*unused*/) {
  if (openreg_is_initialized() != 0) {
    return PyLong_FromLong(c10::openreg::device_count());
  }
  DeviceIndex count = 0;
  Py_BEGIN_ALLOW_THREADS // may load a driver
      count = c10::openreg::device_count();
  Py_END_ALLOW_THREADS return PyLong_FromLong(count);
}

PyObject* _getDevice(PyObject* /*self*/, PyObject* /*unused*/) {
  if (is_ready()) {
    return PyLong_FromLong(c10::openreg::current_device());
  }
  HANDLE_TH_ERRORS
  lazy_init();
  return PyLong_FromLong(c10::openreg::current_device());
  END_HANDLE_TH_ERRORS
}

// LITERALINCLUDE START: MODULE SET DEVICE HELPER
PyObject* _setDevice(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const DeviceIndex index = unpack_device_index(device, "setDevice");
  lazy_init();
  c10::openreg::set_device(index);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
// LITERALINCLUDE END: MODULE SET DEVICE HELPER

PyObject* _exchangeDevice(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const DeviceIndex index = unpack_device_index(device, "exchangeDevice");
  lazy_init();
  return PyLong_FromLong(c10::openreg::exchange_device(index));
  END_HANDLE_TH_ERRORS
}

PyObject* _maybeExchangeDevice(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const DeviceIndex index = unpack_device_index(device, "maybeExchangeDevice");
  if (index == -1) {
    return PyLong_FromLong(-1);
  }
  lazy_init();
  return PyLong_FromLong(c10::openreg::maybe_exchange_device(index));
  END_HANDLE_TH_ERRORS
}

PyObject* _hasPrimaryContext(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(
      at::detail::getPrivateUse1Hooks().hasPrimaryContext(unpack_device_index(device, "hasPrimaryContext")));
  END_HANDLE_TH_ERRORS
}

PyObject* _synchronize(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const DeviceIndex index = c10::openreg::index_or_current(unpack_device_index(device, "synchronize"));
  lazy_init();
  {
    const pybind11::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_device_synchronize(index));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// LITERALINCLUDE START: OPENREG MODULE METHODS
PyMethodDef methods[] = {
    {"_init", _init, METH_NOARGS, "Opens the driver and its devices; repeating it changes nothing."},
    {"_get_device_count", _getDeviceCount, METH_NOARGS, "Number of devices, 0 if no driver works."},
    {"_get_device", _getDevice, METH_NOARGS, "Index of this thread's current device."},
    {"_set_device", _setDevice, METH_O, "Makes a device current in this thread."},
    {"_exchange_device", _exchangeDevice, METH_O, "_set_device() that returns the index before."},
    {"_exchangeDevice", _exchangeDevice, METH_O, "Another name of _exchange_device()."},
    {"_maybe_exchange_device", _maybeExchangeDevice, METH_O, "_exchange_device() that ignores -1."},
    // LITERALINCLUDE END: OPENREG MODULE METHODS
    {"_is_initialized", _isInitialized, METH_NOARGS, "Whether the device table is published."},
    {"_isInBadFork", _isInBadFork, METH_NOARGS, "Whether the process is a fork of one that had opened a driver."},
    {"_shutdown", _shutdown, METH_NOARGS, "Closes the drivers."},
    {"_get_default_generator", _getDefaultGenerator, METH_O, "The default generator of a device."},
    {"_has_primary_context", _hasPrimaryContext, METH_O, "Whether the device has a context; never makes one."},
    {"_synchronize", _synchronize, METH_O, "Waits for all work of a device; -1: of the current one."},
    {"_settle_autograd", _settleAutograd, METH_O, "Runs an empty task in each of the first n autograd threads."},
    {"_stream_priority_range", _streamPriorityRange, METH_O, "(least, most) urgent priority of a device's streams."},
    {"_stream_priority", _streamPriority, METH_VARARGS, "Priority of a stream; (device, stream id)."},
    {"_stream_from_native", _streamFromNative, METH_VARARGS, "Id of the stream that a vendor's handle is of."},
    {"_export_storage", _exportStorage, METH_O, "(handle, name) of a storage, for another process."},
    {"_import_storage", _importStorage, METH_VARARGS, "The storage of a handle; (handle, size in bytes)."},
    {"_collect_exports", _collectExports, METH_NOARGS, "Frees what other processes have released; how many blocks."},
    {"_event_elapsed_time", _eventElapsedTime, METH_VARARGS, "Milliseconds between two torch.Event objects."},
    {"_get_device_properties", _getDeviceProperties, METH_O, "What the driver says of a device, as a dict."},
    {"_driver_records", _driverRecords, METH_NOARGS, "What is known of each driver, as a list of dicts."},
    {"_find_driver", _findDriver, METH_O, "The record that a name means, as a dict."},
    {"_driver_device", _driverDevice, METH_VARARGS, "Device i of an open driver, as a dict."},
    {"_driver_topology", _driverTopology, METH_VARARGS, "A driver's devices and which reach each other, unopened."},
    {"_selection", _selection, METH_NOARGS, "Which drivers were chosen, and how, as a dict."},
    {"_runtime_version", _runtimeVersion, METH_NOARGS, "Version of libopenreg.so."},
    {"_canonical_driver_name", _canonicalDriverName, METH_O, "A driver's name, lower-cased, synonyms resolved."},
    {"_expand_driver", _expandDriver, METH_O, "The drivers that a name means."},
    {"_register_driver",
     castPyCFunctionWithKeywords(_registerDriver),
     METH_VARARGS | METH_KEYWORDS,
     "Adds a driver: a table, a library or a factory."},
    {"_use_drivers", _useDrivers, METH_O, "Chooses the active drivers: a list of names, or None."},
    {"_prefer_driver", _preferDriver, METH_O, "The driver to choose if it works, or None."},
    {"_reselect", _reselect, METH_NOARGS, "Chooses the active drivers again."},
    {"_open_driver", _openDriver, METH_O, "Opens a driver without making it active."},
    {"_open_all", _openAll, METH_NOARGS, "Opens every driver."},
    {"_forget_failures", _forgetFailures, METH_NOARGS, "Lets failed drivers be tried again."},
    {"_set_process", _setProcess, METH_VARARGS, "(index, count) of this process in a distributed program."},
    {"_set_discovery", _setDiscovery, METH_O, "Function that registers what Python finds; True: it is done."},
    {"_last_error", _lastError, METH_NOARGS, "This thread's last error of the runtime as a dict, or None."},
    {"_memory_stats", _memoryStats, METH_O, "Statistics of a device, by the keys of torch.cuda's, nested."},
    {"_reset_peak_memory_stats", _resetPeakMemoryStats, METH_O, "peak = current."},
    {"_reset_accumulated_memory_stats", _resetAccumulatedMemoryStats, METH_O, "allocated = freed = counts = 0."},
    {"_empty_cache", _emptyCache, METH_NOARGS, "Gives cached memory of every device back to its driver."},
    {"_mem_get_info", _memGetInfo, METH_O, "(free, total) bytes of a device."},
    {"_operator_stats", _operatorStats, METH_NOARGS, "How operators ran, as a dict of counts."},
    {"_reset_operator_stats", _resetOperatorStats, METH_NOARGS, "Sets the operators' counts to 0."},
    {"_kernel_tensors_made",
     _hostWrappersMade,
     METH_NOARGS,
     "CPU tensors made so far to show openreg tensors to kernels."},
    {"_require_gloo_collectives", _requireGlooCollectives, METH_NOARGS, "Raises unless they are switched on."},
    {"_staged_backend", _stagedBackend, METH_O, "A c10d backend for openreg tensors, from one for CPU tensors."},
    {"_set_operator_details", _setOperatorDetails, METH_O, "Whether aliased calls are counted by operator; before."},
    {"_set_operator_policy", _setOperatorPolicy, METH_VARARGS, "(policy, mode, operators): what is allowed."},
    {"_operator_rules", _operatorRules, METH_NOARGS, "The policy as a list of (mode, operator or \"\", policy)."},
    {"_replace_operator_rules", _replaceOperatorRules, METH_O, "Sets the whole policy from such a list."},
    {"_trace_start", _traceStart, METH_NOARGS, "Begins to note what devices do."},
    {"_trace_stop", _traceStop, METH_NOARGS, "Ends that; the ranges as a list of dicts."},
    {"_set_log_callback", _setLogCallback, METH_O, "Function of (level, text) for log lines; None: stderr."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

} // namespace torch_openreg

PYBIND11_MODULE(_C, m) {
  if (const char* reason = c10::openreg::registration_error()) {
    throw pybind11::import_error(std::string("torch_openreg cannot be registered with PyTorch: ") + reason);
  }
  torch_openreg::install_wait_hooks();
  for (PyMethodDef* methods :
       {torch_openreg::methods, torch_openreg::memory_history_methods, torch_openreg::memory_pool_methods}) {
    if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
      throw pybind11::error_already_set();
    }
  }
  m.attr("_torch_version") = TORCH_VERSION; // that this module was built against
}
