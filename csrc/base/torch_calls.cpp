// SPDX-License-Identifier: BSD-3-Clause
#include "csrc/base/torch_calls.h"

#include <ATen/core/CachingHostAllocator.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include "csrc/module.h"
#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/memory/host_allocator.h"

PyObject* openreg_raise(openreg_status status) {
  HANDLE_TH_ERRORS
  c10::openreg::throw_status(status);
  END_HANDLE_TH_ERRORS
}

PyObject* openreg_none_or_raise(openreg_status status) {
  if (status != OPENREG_OK) {
    return openreg_raise(status);
  }
  Py_RETURN_NONE;
}

int openreg_unpack_device_index(PyObject* argument, const char* function, int32_t* index) {
  HANDLE_TH_ERRORS
  *index = torch_openreg::unpack_device_index(argument, function);
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

int openreg_unpack_device(PyObject* argument, const char* function, int32_t* index) {
  HANDLE_TH_ERRORS
  *index = c10::openreg::index_or_current(torch_openreg::unpack_device_index(argument, function));
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

int openreg_lazy_init(void) {
  HANDLE_TH_ERRORS
  torch_openreg::lazy_init();
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

int openreg_release_pinned_memory(void) {
  HANDLE_TH_ERRORS
  const pybind11::gil_scoped_release no_gil;
  if (openreg_is_initialized() != 0) {
    c10::openreg::host_allocator().empty_cache();
  }
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}
