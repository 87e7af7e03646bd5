// SPDX-License-Identifier: BSD-3-Clause
// Bindings of shared memory.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>

#include <cstring>

#include "csrc/base/bindings.h"
#include "csrc/base/device_index.h"
#include "shim/memory/sharing.h"

namespace torch_openreg {

namespace {

// The bytes of a handle, and what names the memory as long as somebody holds it.
PyObject* _exportStorage(PyObject* /*self*/, PyObject* storage) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(THPStorage_Check(storage), "Expected an UntypedStorage, but got ", Py_TYPE(storage)->tp_name, ".");
  const c10::Storage memory = THPStorage_Unpack(storage);
  openreg_memory_handle handle{};
  {
    const pybind11::gil_scoped_release no_gil;
    handle = c10::openreg::export_storage(memory);
  }
  return Py_BuildValue(
      "y#(KKK)",
      reinterpret_cast<const char*>(&handle),
      static_cast<Py_ssize_t>(sizeof handle),
      static_cast<unsigned long long>(handle.name[0]),
      static_cast<unsigned long long>(handle.name[1]),
      static_cast<unsigned long long>(handle.name[2]));
  END_HANDLE_TH_ERRORS
}

PyObject* _importStorage(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* bytes = nullptr;
  Py_ssize_t length = 0;
  Py_ssize_t size = 0;
  if (PyArg_ParseTuple(arguments, "y#n:_import_storage", &bytes, &length, &size) == 0) {
    return nullptr;
  }
  openreg_memory_handle handle{};
  TORCH_CHECK_VALUE(
      length == sizeof handle, "A handle of shared memory has ", sizeof handle, " bytes, not ", length, ".");
  TORCH_CHECK_VALUE(size >= 0, "A storage can't have ", size, " bytes.");
  std::memcpy(&handle, bytes, sizeof handle);
  lazy_init();
  c10::Storage storage;
  {
    const pybind11::gil_scoped_release no_gil;
    storage = c10::openreg::import_storage(handle, static_cast<size_t>(size));
  }
  return THPStorage_Wrap(std::move(storage));
  END_HANDLE_TH_ERRORS
}

PyObject* _collectExports(PyObject* /*self*/, PyObject* /*unused*/) {
  int32_t count = 0;
  Py_BEGIN_ALLOW_THREADS
    count = openreg_memory_collect_exports();
  Py_END_ALLOW_THREADS
  return PyLong_FromLong(count);
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_sharing_methods[] = {
    {"_export_storage", torch_openreg::_exportStorage, METH_O, "(handle, name) of a storage, for another process."},
    {"_import_storage",
     torch_openreg::_importStorage,
     METH_VARARGS,
     "The storage of a handle; (handle, size in bytes)."},
    {"_collect_exports",
     torch_openreg::_collectExports,
     METH_NOARGS,
     "Frees what other processes have released; how many blocks."},
    {nullptr, nullptr, 0, nullptr},
};
