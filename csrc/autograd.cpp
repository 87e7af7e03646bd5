// SPDX-License-Identifier: BSD-3-Clause
// A round trip through the device threads of the autograd engine, for the end of the process (_exit.py).
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

#include "csrc/module.h"
#include "shim/device.h"

namespace torch_openreg {

namespace {

// Runs in the thread of the tensor's device. The tensors have no Python objects: a thread that lets go of a tensor which
// Python knows takes the GIL. They are leaked, so that nobody frees them while the process ends.
void run_backward_on(c10::DeviceIndex index) {
  const auto options = at::TensorOptions().device(c10::Device(c10::DeviceType::PrivateUse1, index));
  static auto* kept = new std::vector<at::Tensor>;
  const at::Tensor leaf = at::empty({0}, options).requires_grad_();
  const at::Tensor gradient = at::empty({0}, options);
  kept->insert(kept->end(), {leaf, gradient});
  torch::autograd::backward({leaf}, {gradient});
  kept->push_back(leaf.grad());
}

PyObject* _settleAutograd(PyObject* /*self*/, PyObject* threads) {
  HANDLE_TH_ERRORS
  // Other drivers may have been chosen since the engine made its threads.
  const c10::DeviceIndex with_thread = unpack_device_index(threads, "settleAutograd");
  if (openreg_is_initialized() != 0) {
    const pybind11::gil_scoped_release no_gil;
    const c10::DeviceIndex count = std::min(with_thread, c10::openreg::device_count());
    for (c10::DeviceIndex index = 0; index < count; ++index) {
      run_backward_on(index);
    }
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_autograd_methods[] = {
    {"_settle_autograd",
     torch_openreg::_settleAutograd,
     METH_O,
     "Runs an empty task in each of the first n autograd threads."},
    {nullptr, nullptr, 0, nullptr},
};
