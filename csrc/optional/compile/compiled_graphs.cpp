// SPDX-License-Identifier: BSD-3-Clause
// torch_openreg._C_compile: what code that torch.compile has generated calls (python/torch_openreg/_compile): allocation, waiting, addresses.
//
// Its kernels are C++ for the CPU. They run on the calling thread, on the host's view of the device's memory. Where the
// host has none, the whole graph runs on copies (_compile/staging.py): then the thread is "staging", and the same
// generated code is given tensors of the CPU.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StorageImpl.h>
#include <openreg/openreg.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pycfunction_helpers.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shim/base/status.h"
#include "shim/device/capture_watch.h"
#include "shim/device/device.h"
#include "shim/memory/device_allocator.h"
#include "shim/observe/races.h"
#include "shim/operators/fallback/route.h"
#include "shim/operators/policy/operator_counts.h"
#include "shim/optional/compile/compiled_graphs.h"

namespace torch_openreg {

namespace {

using c10::DeviceIndex;
using c10::openreg::is_captured;
using Dimensions = c10::SmallVector<int64_t, 5>;

thread_local bool is_staging = false;

// A graph that was compiled for a device without an index (-1) runs on the current one.
DeviceIndex index_argument(PyObject* argument) {
  const long long given = PyLong_AsLongLong(argument);
  if (given == -1 && PyErr_Occurred() != nullptr) {
    throw python_error();
  }
  return c10::openreg::index_or_current(c10::openreg::narrow_device_index(given));
}

openreg_stream current_stream(DeviceIndex device) {
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_current_stream(device, &stream));
  return stream;
}

// The Python error that is set, as an exception, where there is no object.
void throw_unless(PyObject* object) {
  if (object == nullptr) {
    python_error error;
    error.persist();
    throw error;
  }
}

void check_count(Py_ssize_t count, Py_ssize_t expected, const char* function) {
  TORCH_CHECK_TYPE(count == expected, function, "() takes ", expected, " arguments, but got ", count);
}

Dimensions dimensions(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_CheckExact(tuple), "expected a tuple of sizes or strides");
  Dimensions result;
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long long value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (value == -1 && PyErr_Occurred() != nullptr) {
      throw python_error();
    }
    result.push_back(value);
  }
  return result;
}

at::Tensor new_tensor(const Dimensions& sizes, const Dimensions& strides, at::ScalarType type, DeviceIndex device) {
  const auto dtype = c10::scalarTypeToTypeMeta(type);
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize());
  auto& allocator = c10::openreg::device_allocator();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, allocator.allocate_on(device, bytes), &allocator, /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

// (sizes, strides, dtype, device index) -> an uninitialised tensor; of the CPU while the thread is staging.
PyObject* _compiledEmptyStrided(PyObject* /*self*/, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 4, "empty_strided_device");
  const Dimensions sizes = dimensions(arguments[0]);
  const Dimensions strides = dimensions(arguments[1]);
  TORCH_CHECK_TYPE(THPDtype_Check(arguments[2]), "expected a torch.dtype");
  const at::ScalarType type = reinterpret_cast<THPDtype*>(arguments[2])->scalar_type;
  if (C10_UNLIKELY(is_staging)) {
    return THPVariable_Wrap(at::detail::empty_strided_cpu(sizes, strides, type));
  }
  const DeviceIndex device = index_argument(arguments[3]);
  if (C10_UNLIKELY(is_captured(device))) { // the operator's is memory of the graph
    return THPVariable_Wrap(at::empty_strided(
        sizes, strides, at::TensorOptions(type).device(c10::Device(c10::DeviceType::PrivateUse1, device))));
  }
  at::Tensor tensor = new_tensor(sizes, strides, type, device);
  if (c10::openreg::follows_races()) { // by the kernel that it is made for, next on this stream
    c10::openreg::RaceUses uses{.origin = openreg_races_origin("compiled kernel")};
    c10::openreg::note_race_use(uses, tensor, /*writes=*/true);
  }
  return THPVariable_Wrap(std::move(tensor));
  END_HANDLE_TH_ERRORS
}

// Waits for the current stream of a device: a kernel on the host comes after what is queued there. The caller has the GIL.
void wait_for_stream(DeviceIndex index) {
  const c10::openreg::RaceMute mute(c10::openreg::races_are_found()); // no wait of the program's
  const openreg_stream stream = current_stream(index);
  int32_t done = 0;
  OPENREG_CHECK(openreg_stream_query(index, stream, &done));
  if (done == 0) {
    const pybind11::gil_scoped_release no_gil;
    OPENREG_CHECK(openreg_stream_synchronize(index, stream));
  }
}

// A kernel that was called in a capture, for calls of it in replays.
class CapturedKernel {
 public:
  // `places`: of the tensors among the arguments.
  CapturedKernel(DeviceIndex device, PyObject* kernel, THPObjectPtr arguments, std::vector<Py_ssize_t> places)
      : device_(device),
        kernel_(Py_NewRef(kernel)),
        arguments_(std::move(arguments)),
        places_(std::move(places)) {}

  ~CapturedKernel() {
    if (Py_IsInitialized() == 0) { // the objects are gone with the interpreter
      (void)kernel_.release();
      (void)arguments_.release();
      return;
    }
    const pybind11::gil_scoped_acquire gil;
    kernel_ = nullptr;
    arguments_ = nullptr;
  }

  CapturedKernel(const CapturedKernel&) = delete;
  CapturedKernel& operator=(const CapturedKernel&) = delete;

  void call(const std::vector<at::Tensor>& tensors) {
    const pybind11::gil_scoped_acquire gil;
    wait_for_stream(device_);
    std::vector<at::Tensor> shown = tensors;
    std::vector<Copy> copies;
    if (c10::openreg::execution_mode(device_) == c10::openreg::ExecutionMode::staged) {
      for (at::Tensor& tensor : shown) {
        tensor = on_the_host(tensor, copies);
      }
    }
    THPObjectPtr list(PySequence_List(arguments_));
    throw_unless(list);
    for (size_t i = 0; i < places_.size(); ++i) {
      PyObject* const tensor = THPVariable_Wrap(std::move(shown[i]));
      throw_unless(tensor);
      PyList_SetItem(list.get(), places_[i], tensor); // takes it
    }
    THPObjectPtr all(PyList_AsTuple(list));
    throw_unless(all);
    THPObjectPtr result(PyObject_CallObject(kernel_, all));
    throw_unless(result);
    for (const Copy& copy : copies) {
      copy.on_device.copy_(copy.on_host);
    }
  }

 private:
  // Of a storage's bytes.
  struct Copy {
    c10::StorageImpl* storage;
    at::Tensor on_device, on_host;
  };

  // The tensor's copy. What the kernel writes is not known, so all is copied back behind it.
  static at::Tensor on_the_host(const at::Tensor& tensor, std::vector<Copy>& copies) {
    if (!tensor.is_privateuseone()) {
      return tensor;
    }
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    const auto is_of = [storage](const Copy& copy) { return copy.storage == storage; };
    auto found = std::find_if(copies.begin(), copies.end(), is_of);
    if (found == copies.end()) {
      const auto bytes = static_cast<int64_t>(storage->nbytes());
      const at::Tensor all = at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage(), 0, {bytes}, {1});
      found = copies.insert(copies.end(), {storage, all, all.cpu()});
    }
    return at::empty({0}, tensor.options().device(at::kCPU))
        .set_(found->on_host.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  }

  const DeviceIndex device_;
  THPObjectPtr kernel_;
  THPObjectPtr arguments_;
  const std::vector<Py_ssize_t> places_;
};

// Whether the device's current stream is captured: the call is then a part of the graph.
bool capture_kernel(DeviceIndex device, PyObject* kernel, PyObject* const* arguments, Py_ssize_t count) {
  auto* const watch = c10::openreg::capture_watch();
  if (C10_LIKELY(watch == nullptr) || !is_captured(device)) {
    return false;
  }
  THPObjectPtr kept(PyTuple_New(count));
  throw_unless(kept);
  std::vector<Py_ssize_t> places;
  c10::openreg::CapturedCall call{"compiled kernel", {}, {}};
  for (Py_ssize_t i = 0; i < count; ++i) {
    const bool is_tensor = THPVariable_Check(arguments[i]);
    if (is_tensor) {
      places.push_back(i);
      call.tensors.push_back(THPVariable_Unpack(arguments[i]));
    }
    PyTuple_SET_ITEM(kept.get(), i, Py_NewRef(is_tensor ? Py_None : arguments[i]));
  }
  const auto captured = std::make_shared<CapturedKernel>(device, kernel, std::move(kept), std::move(places));
  call.bind = [captured](const std::vector<at::Tensor>& tensors) {
    return [captured, tensors] { captured->call(tensors); };
  };
  return watch->add_call(device, current_stream(device), std::move(call));
}

// (device index, kernel, arguments...): calls the kernel after what is queued on the device's current stream.
PyObject* _compiledRunKernel(PyObject* /*self*/, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count >= 2, "run_kernel() takes a device and a kernel");
  if (C10_LIKELY(!is_staging)) {
    const DeviceIndex index = index_argument(arguments[0]);
    if (C10_UNLIKELY(capture_kernel(index, arguments[1], arguments + 2, count - 2))) {
      Py_RETURN_NONE;
    }
    wait_for_stream(index);
  }
  return PyObject_Vectorcall(arguments[1], arguments + 2, static_cast<size_t>(count - 2), nullptr);
  END_HANDLE_TH_ERRORS
}

// The current stream of a device, as an openreg_stream.
PyObject* _compiledRawStream(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  return PyLong_FromLongLong(current_stream(index_argument(device)));
  END_HANDLE_TH_ERRORS
}

// Whether a graph for the device must run on copies, which it doesn't yet. Opens the driver.
PyObject* _compiledNeedsStaging(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  if (is_staging) {
    Py_RETURN_FALSE;
  }
  const DeviceIndex index = index_argument(device);
  if (is_captured(index)) { // its kernels are part of a graph, and each runs on copies in a replay
    Py_RETURN_FALSE;
  }
  return PyBool_FromLong(c10::openreg::execution_mode(index) == c10::openreg::ExecutionMode::staged);
  END_HANDLE_TH_ERRORS
}

// Whether the calling thread runs a graph on copies from now on; returns whether it did so before.
PyObject* _compiledSetStaging(PyObject* /*self*/, PyObject* on) {
  if (!PyBool_Check(on)) {
    PyErr_SetString(PyExc_TypeError, "_compiled_set_staging() takes a bool");
    return nullptr;
  }
  const bool before = is_staging;
  is_staging = on == Py_True;
  return PyBool_FromLong(before);
}

// The index of the GPU of PyTorch's that a device is, whose kernels its operators run; -1: it is none.
PyObject* _compiledGpuOf(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  return PyLong_FromLong(c10::openreg::gpu_for_graphs(index_argument(device)));
  END_HANDLE_TH_ERRORS
}

// Where the host finds a tensor's first element. Called by kernels, inside of a try block; other tensors than openreg's
// are left as they are.
void* host_address(PyObject* object) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  void* address = tensor.data_ptr();
  if (address != nullptr && tensor.is_privateuseone()) {
    if (c10::openreg::follows_races()) { // whether the kernel writes it is not known here; it uses it
      c10::openreg::RaceUses uses{.origin = openreg_races_origin("compiled kernel")};
      c10::openreg::note_race_use(uses, tensor, /*writes=*/false);
    }
    void* host = nullptr;
    if (openreg_host_alias(address, &host) != OPENREG_OK) {
      throw std::runtime_error(
          "torch.compile: the host can't reach the memory of " + tensor.device().str() +
          ", on which a compiled kernel would run. Use torch.compile(..., backend=\"aot_eager\") for it.");
    }
    return host;
  }
  return address;
}

PyObject* _compiledAddressFunction(PyObject* /*self*/, PyObject* /*unused*/) {
  return PyLong_FromVoidPtr(reinterpret_cast<void*>(&host_address));
}

// (name, device index, bytes, seconds): a graph has run on copies. Counted as one staged call of that name.
PyObject* _compiledCountStaged(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* name = nullptr;
  unsigned long long bytes = 0;
  double seconds = 0;
  if (PyArg_ParseTuple(arguments, "sKd", &name, &bytes, &seconds) == 0) {
    return nullptr;
  }
  c10::openreg::operator_counter(c10::openreg::ExecutionMode::staged, name)
      .add_call(
          bytes,
          std::chrono::duration_cast<c10::openreg::OperatorClock::duration>(std::chrono::duration<double>(seconds)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// The devices of outputs: a tuple of indices, None for the host.
std::vector<DeviceIndex> places_argument(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_CheckExact(tuple), "expected a tuple of device indices");
  std::vector<DeviceIndex> places;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject* const place = PyTuple_GET_ITEM(tuple, i);
    const long long index = place == Py_None ? c10::openreg::kOnHost : PyLong_AsLongLong(place);
    if (index == -1 && PyErr_Occurred() != nullptr) {
      throw python_error();
    }
    places.push_back(place == Py_None ? c10::openreg::kOnHost : c10::openreg::narrow_device_index(index));
  }
  return places;
}

// (graph, inputs, writes, device index, devices of outputs, is for GPUs) -> the outputs, a list. A graph in C++ for the CPU, or one for the GPU
// that the device is, run by run_compiled_graph(): `graph` is a function of a list of tensors of the CPU, or of the GPU, and
// numbers, and returns a sequence of such.
PyObject* _compiledRunWhole(PyObject* /*self*/, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 6, "_compiled_run_whole");
  TORCH_CHECK_TYPE(PyCallable_Check(arguments[0]) == 1, "expected a function");
  TORCH_CHECK_TYPE(PyList_CheckExact(arguments[1]), "expected a list of inputs");
  TORCH_CHECK_TYPE(PyBool_Check(arguments[2]) && PyBool_Check(arguments[5]), "expected a bool");
  const auto kernels = arguments[5] == Py_True ? c10::openreg::Kernels::gpu : c10::openreg::Kernels::cpu;
  PyObject* const function = arguments[0];
  PyObject* const values = arguments[1];
  const DeviceIndex device = index_argument(arguments[3]);
  const std::vector<DeviceIndex> places = places_argument(arguments[4]);

  // What is no tensor goes around the operator: numbers among the inputs and the outputs.
  std::vector<at::Tensor> inputs;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); ++i) {
    PyObject* const value = PyList_GET_ITEM(values, i);
    inputs.push_back(THPVariable_Check(value) ? THPVariable_Unpack(value) : at::Tensor());
  }
  THPObjectPtr outputs;
  const auto graph = [&](std::vector<at::Tensor> shown) {
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr host(PyList_New(static_cast<Py_ssize_t>(shown.size())));
    throw_unless(host);
    for (size_t i = 0; i < shown.size(); ++i) {
      const auto at = static_cast<Py_ssize_t>(i);
      PyObject* const value =
          shown[i].defined() ? THPVariable_Wrap(std::move(shown[i])) : Py_NewRef(PyList_GET_ITEM(values, at));
      throw_unless(value);
      PyList_SET_ITEM(host.get(), at, value);
    }
    THPObjectPtr returned(PyObject_CallFunctionObjArgs(function, host.get(), nullptr));
    throw_unless(returned);
    outputs = PySequence_List(returned);
    throw_unless(outputs);
    std::vector<at::Tensor> results;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs.get()); ++i) {
      PyObject* const output = PyList_GET_ITEM(outputs.get(), i);
      results.push_back(THPVariable_Check(output) ? THPVariable_Unpack(output) : at::Tensor());
    }
    return results;
  };
  std::vector<at::Tensor> results;
  {
    const pybind11::gil_scoped_release no_gil;
    results =
        c10::openreg::run_compiled_graph(std::move(inputs), arguments[2] == Py_True, device, places, graph, kernels);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined()) {
      PyObject* const output = THPVariable_Wrap(std::move(results[i]));
      throw_unless(output);
      PyList_SetItem(outputs.get(), static_cast<Py_ssize_t>(i), output); // takes it, and lets the host's tensor go
    }
  }
  return outputs.release();
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"_compiled_empty_strided",
     castPyCFunctionFast(_compiledEmptyStrided),
     METH_FASTCALL,
     "A tensor of (sizes, strides, dtype, device index), uninitialised."},
    {"_compiled_run_kernel",
     castPyCFunctionFast(_compiledRunKernel),
     METH_FASTCALL,
     "(device index, kernel, arguments...): calls a kernel after what is queued on the device's current stream."},
    {"_compiled_raw_stream", _compiledRawStream, METH_O, "The id of a device's current stream."},
    {"_compiled_needs_staging", _compiledNeedsStaging, METH_O, "Whether a graph for a device must run on copies."},
    {"_compiled_set_staging", _compiledSetStaging, METH_O, "Whether the thread runs a graph on copies; before."},
    {"_compiled_address_function", _compiledAddressFunction, METH_NOARGS, "Address of void *(PyObject *tensor)."},
    {"_compiled_count_staged", _compiledCountStaged, METH_VARARGS, "(name, bytes, seconds): a graph ran on copies."},
    {"_compiled_run_whole",
     castPyCFunctionFast(_compiledRunWhole),
     METH_FASTCALL,
     "(graph, inputs, writes, device index, devices of outputs, is for GPUs): runs a graph for the CPU or the GPU on "
     "openreg tensors."},
    {"_compiled_gpu_of", _compiledGpuOf, METH_O, "The index of the GPU that a device is, or -1."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

} // namespace torch_openreg

PYBIND11_MODULE(_C_compile, m) {
  if (PyModule_AddFunctions(m.ptr(), torch_openreg::methods) != 0) {
    throw pybind11::error_already_set();
  }
}
