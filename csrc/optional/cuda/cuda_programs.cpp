// SPDX-License-Identifier: BSD-3-Clause
// torch_openreg._C_cuda: what programs that were written for CUDA need of C++ (python/torch_openreg/contrib/cuda_to_openreg.py):
// torch.device answers "cuda" for this backend's devices, and a stream can be kept busy.
//
// PyTorch's own Python code, and this package's, still read the true name: they look up modules and kernels by it. So the
// attribute `type`, str() and repr() depend on the module whose code asks. Comparison, hash, pickle and what C++ prints
// depend on the device alone and stay as they are.
#include <openreg/openreg.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include "shim/base/status.h"
#include "shim/operators/fallback/fallback.h"

namespace torch_openreg {

namespace {

// What PyTorch has, while it is replaced; else null.
PyObject* true_type = nullptr; // the descriptor
reprfunc true_repr = nullptr;
reprfunc true_str = nullptr;

// Whether the Python code that is running belongs to neither PyTorch nor this package.
bool is_asked_from_outside() {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
  PyObject* globals = PyEval_GetGlobals(); // borrowed, as what is found in it
  PyObject* module = globals != nullptr && key != nullptr ? PyDict_GetItem(globals, key) : nullptr;
  const char* text = module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    return globals != nullptr; // else no Python code asks
  }
  const std::string_view name(text);
  const std::string_view package = name.substr(0, name.find('.'));
  return package != "torch" && package.substr(0, 13) != "torch_openreg";
}

const c10::Device& device_of(PyObject* self) {
  return reinterpret_cast<THPDevice*>(self)->device; // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
}

bool is_to_be_cuda(PyObject* self) {
  return device_of(self).type() == c10::DeviceType::PrivateUse1 && is_asked_from_outside();
}

PyObject* named_type(PyObject* self, void* /*closure*/) {
  if (is_to_be_cuda(self)) {
    return PyUnicode_InternFromString("cuda");
  }
  return Py_TYPE(true_type)->tp_descr_get(true_type, self, nullptr);
}

std::string index_after(const char* separator, const c10::Device& device) {
  return device.has_index() ? separator + std::to_string(device.index()) : std::string();
}

PyObject* named_str(PyObject* self) {
  return is_to_be_cuda(self) ? PyUnicode_FromString(("cuda" + index_after(":", device_of(self))).c_str())
                             : true_str(self);
}

PyObject* named_repr(PyObject* self) {
  return is_to_be_cuda(self)
      ? PyUnicode_FromString(("device(type='cuda'" + index_after(", index=", device_of(self)) + ")").c_str())
      : true_repr(self);
}

PyObject* _nameDevicesCuda(PyObject* /*self*/, PyObject* on) {
  HANDLE_TH_ERRORS
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0) {
    return nullptr;
  }
  PyTypeObject* type = &THPDeviceType;
  if (wanted != 0 && true_type == nullptr) {
    static PyGetSetDef getter{"type", named_type, nullptr, "The device's type.", nullptr};
    THPObjectPtr before(PyDict_GetItemString(type->tp_dict, "type"));
    TORCH_CHECK(before.get() != nullptr, "torch.device has no attribute 'type'");
    Py_INCREF(before.get()); // it was borrowed
    THPObjectPtr replaced(PyDescr_NewGetSet(type, &getter));
    if (!replaced || PyDict_SetItemString(type->tp_dict, "type", replaced.get()) != 0) {
      return nullptr;
    }
    true_type = before.release();
    true_repr = std::exchange(type->tp_repr, &named_repr);
    true_str = std::exchange(type->tp_str, &named_str);
  } else if (wanted == 0 && true_type != nullptr) {
    if (PyDict_SetItemString(type->tp_dict, "type", true_type) != 0) {
      return nullptr;
    }
    Py_CLEAR(true_type);
    type->tp_repr = true_repr;
    type->tp_str = true_str;
  }
  PyType_Modified(type);
  c10::openreg::let_cuda_kernels_run(wanted != 0);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// A driver's thread: it holds no GIL.
void sleep_for(void* nanoseconds) {
  const auto left = reinterpret_cast<uintptr_t>(nanoseconds); // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
  timespec time{static_cast<time_t>(left / 1000000000), static_cast<long>(left % 1000000000)};
  while (nanosleep(&time, &time) != 0) {
  }
}

PyObject* _sleep(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  int device = 0;
  unsigned long long nanoseconds = 0;
  if (PyArg_ParseTuple(arguments, "iK:_sleep", &device, &nanoseconds) == 0) {
    return nullptr;
  }
  const pybind11::gil_scoped_release no_gil; // a driver without host functions waits here
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_current_stream(device, &stream));
  // NOLINTNEXTLINE(performance-no-int-to-ptr, cppcoreguidelines-pro-type-reinterpret-cast)
  OPENREG_CHECK(openreg_stream_launch_host_func(device, stream, &sleep_for, reinterpret_cast<void*>(nanoseconds)));
  END_HANDLE_TH_ERRORS
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"_name_devices_cuda",
     _nameDevicesCuda,
     METH_O,
     "True: to code outside of PyTorch, this backend's devices have the type cuda. Operators may run kernels for "
     "CUDA."},
    {"_sleep", _sleep, METH_VARARGS, "Keeps the current stream of a device busy for a time in nanoseconds."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

} // namespace torch_openreg

PYBIND11_MODULE(_C_cuda, m) {
  if (PyModule_AddFunctions(m.ptr(), torch_openreg::methods) != 0) {
    throw pybind11::error_already_set();
  }
}
