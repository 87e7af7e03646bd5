// SPDX-License-Identifier: BSD-3-Clause
// torch_openreg._C: what torch.openreg calls. Every name starts with "_": the public names are Python's.
// This file makes the module; its own functions are those of the current device. How bindings are written: bindings.h.
#include <ATen/Context.h>
#include <openreg/embedding.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/headeronly/version.h>

#include <mutex>

#include "csrc/base/bindings.h"
#include "csrc/base/device_index.h"
#include "csrc/base/frames.h"
#include "shim/base/parts.h"
#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/device/generator.h"
#include "shim/device/guard.h"
#include "shim/registration/registration.h"

namespace torch_openreg {

using c10::DeviceIndex;

namespace {

PyObject* _init(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS {
    const pybind11::gil_scoped_release no_gil;
    at::globalContext().lazyInitDevice(c10::DeviceType::PrivateUse1);
    OPENREG_CHECK(openreg_init()); // PyTorch initialises once; this serves after _shutdown()
  }
  // Registers the handler that marks forked children, once a process: only one that has opened a driver needs it.
  static std::once_flag once;
  std::call_once(once, [] { torch::utils::register_fork_handler_for_device_init(c10::DeviceType::PrivateUse1); });
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

void prepare_first_graph() {
  const pybind11::gil_scoped_acquire gil;
  pybind11::module_::import("torch_openreg.openreg.graphs").attr("_prepare_first_graph")();
}

PyObject* _requireInit(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  torch::utils::set_requires_device_init(c10::DeviceType::PrivateUse1, true);
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
  PyObject* closed = openreg_close_drivers();
  if (closed == nullptr) {
    return nullptr;
  }
  torch::utils::set_requires_device_init(c10::DeviceType::PrivateUse1, true);
  return closed;
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
  Py_END_ALLOW_THREADS
  return PyLong_FromLong(count);
}

PyObject* _getDevice(PyObject* /*self*/, PyObject* /*unused*/) {
  if (C10_LIKELY(openreg_generation_now() != 0)) {
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
    c10::openreg::OpenRegGuardImpl().synchronizeDevice(index);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _partIsLoaded(PyObject* /*self*/, PyObject* name) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyUnicode_Check(name), "_part_is_loaded() takes a name");
  const char* const part = PyUnicode_AsUTF8(name);
  return part == nullptr ? nullptr : PyBool_FromLong(c10::openreg::part_is_loaded(part) ? 1 : 0);
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
    {"_require_init", _requireInit, METH_NOARGS, "Lets PyTorch call _lazy_init() at the next use of a device."},
    {"_is_initialized", _isInitialized, METH_NOARGS, "Whether the device table is published."},
    {"_isInBadFork", _isInBadFork, METH_NOARGS, "Whether the process is a fork of one that had opened a driver."},
    {"_shutdown", _shutdown, METH_NOARGS, "Closes the drivers."},
    {"_get_default_generator", _getDefaultGenerator, METH_O, "The default generator of a device."},
    {"_has_primary_context", _hasPrimaryContext, METH_O, "Whether the device has a context; never makes one."},
    {"_part_is_loaded", _partIsLoaded, METH_O, "Whether a part of the shim, by its name, has been used."},
    {"_synchronize", _synchronize, METH_O, "Waits for all work of a device; -1: of the current one."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

} // namespace torch_openreg

PYBIND11_MODULE(_C, m) {
  if (const char* reason = c10::openreg::registration_error()) {
    throw pybind11::import_error(std::string("torch_openreg cannot be registered with PyTorch: ") + reason);
  }
  openreg_install_wait_hooks();
  c10::openreg::set_wait_hooks(openreg_release_gil, openreg_take_gil_back);
  openreg_tell_recorder_places();
  if (openreg_walking_takes_gil == 0) {
    c10::openreg::set_place_finder(openreg_find_place);
    c10::openreg::set_first_graph_listener(torch_openreg::prepare_first_graph);
  }
  for (PyMethodDef* methods : {
           torch_openreg::methods,
           openreg_autograd_methods,
           openreg_discovery_methods,
           openreg_driver_methods,
           openreg_event_methods,
           openreg_laboratory_methods,
           openreg_log_methods,
           openreg_memory_methods,
           openreg_memory_history_methods,
           openreg_memory_pool_methods,
           openreg_operator_methods,
           openreg_trace_methods,
           openreg_race_methods,
           openreg_record_methods,
           openreg_registration_methods,
           openreg_sharing_methods,
           openreg_stream_methods,
       }) {
    if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
      throw pybind11::error_already_set();
    }
  }
  m.attr("_torch_version") = TORCH_VERSION; // that this module was built against
}
