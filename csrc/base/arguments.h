/* SPDX-License-Identifier: BSD-3-Clause */
// Arguments of bindings that are more than a device index.
#pragma once

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

namespace torch_openreg {

// `argument`, which may be the tuple of a METH_VARARGS function, as a T. Throws c10::TypeError "invalid argument to
// <function>" where it is none.
template <class T>
T argument_as(PyObject* argument, const char* function) {
  try {
    return pybind11::cast<T>(pybind11::handle(argument));
  } catch (const pybind11::cast_error&) {
    C10_THROW_ERROR(TypeError, std::string("invalid argument to ") + function);
  }
}

} // namespace torch_openreg
