// SPDX-License-Identifier: BSD-3-Clause
#include "csrc/base/device_index.h"

#include <openreg/embedding.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include "shim/device/device.h"

namespace torch_openreg {

using c10::DeviceIndex;

DeviceIndex unpack_device_index(PyObject* argument, const char* function) {
  TORCH_CHECK_TYPE(PyIndex_Check(argument) && !PyBool_Check(argument), "invalid argument to ", function);
  const auto number = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(argument));
  if (!number) {
    throw python_error();
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) {
    c10::openreg::throw_index_out_of_range(pybind11::str(number));
  }
  return c10::openreg::narrow_device_index(value);
}

void lazy_init() {
  if (C10_UNLIKELY(openreg_generation_now() == 0)) {
    torch::utils::device_lazy_init(c10::DeviceType::PrivateUse1); // does nothing under FakeTensorMode
  }
}

} // namespace torch_openreg
