// SPDX-License-Identifier: BSD-3-Clause
// A round trip through the device threads of the autograd engine, for the end of the process (_integration/exit.py).
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "csrc/module.h"
#include "shim/device/device.h"

namespace torch_openreg {

namespace {

// Runs in the thread of the tensor's device. The tensors have no Python objects: a thread that lets go of a tensor which
// Python knows takes the GIL. They are leaked, so that nobody frees them while the process ends.
void run_backward_on(c10::DeviceIndex index) {
  const auto options = at::TensorOptions().device(c10::Device(c10::DeviceType::PrivateUse1, index));
  auto* kept = new std::vector<at::Tensor>;
  const at::Tensor leaf = at::empty({0}, options).requires_grad_();
  const at::Tensor gradient = at::empty({0}, options);
  kept->insert(kept->end(), {leaf, gradient});
  torch::autograd::backward({leaf}, {gradient});
  kept->push_back(leaf.grad());
}

// How many round trips are still under way. Those that never end keep it.
struct RoundTrips {
  std::mutex mutex;
  std::condition_variable changed;
  c10::DeviceIndex left = 0;

  void finish_one() {
    const std::lock_guard<std::mutex> lock(mutex);
    --left;
    changed.notify_all();
  }
  bool wait(std::chrono::duration<double> limit) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, limit, [this] { return left == 0; });
  }
};

// A thread of its own for each device: one that is in a hook of the user's may never come back, and is left where it is.
void start_round_trip(c10::DeviceIndex index, const std::shared_ptr<RoundTrips>& trips) {
  std::thread([index, trips]() noexcept {
    try {
      run_backward_on(index);
    } catch (const std::exception&) {
      // The device can't be used any more: its thread holds nothing either.
    }
    trips->finish_one();
  }).detach();
}

bool settle(c10::DeviceIndex count, std::chrono::duration<double> limit) {
  const auto trips = std::make_shared<RoundTrips>();
  trips->left = count;
  for (c10::DeviceIndex index = 0; index < count; ++index) {
    start_round_trip(index, trips);
  }
  return trips->wait(limit);
}

PyObject* _settleAutograd(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject* threads = nullptr;
  double seconds = 0;
  if (PyArg_ParseTuple(arguments, "Od:_settle_autograd", &threads, &seconds) == 0) {
    return nullptr;
  }
  // Other drivers may have been chosen since the engine made its threads.
  const c10::DeviceIndex with_thread = unpack_device_index(threads, "settleAutograd");
  bool is_settled = true;
  if (openreg_is_initialized() != 0) {
    const pybind11::gil_scoped_release no_gil;
    is_settled = settle(std::min(with_thread, c10::openreg::device_count()), std::chrono::duration<double>(seconds));
  }
  return PyBool_FromLong(is_settled ? 1 : 0);
  END_HANDLE_TH_ERRORS
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_autograd_methods[] = {
    {"_settle_autograd",
     torch_openreg::_settleAutograd,
     METH_VARARGS,
     "(n, seconds): runs an empty task in each of the first n autograd threads; whether all have done it in that "
     "time."},
    {nullptr, nullptr, 0, nullptr},
};
