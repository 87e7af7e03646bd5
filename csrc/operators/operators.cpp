// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the operators' counters and of the policy for their execution modes.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <array>

#include "csrc/base/bindings.h"
#include "shim/memory/staging_buffers.h"
#include "shim/operators/fallback/gpu_allocations.h"
#include "shim/operators/fallback/kernel_tensor_cache.h"
#include "shim/operators/fallback/staged_storage.h"
#include "shim/operators/policy/operator_counts.h"
#include "shim/operators/policy/operator_policy.h"

namespace torch_openreg {

namespace py = pybind11;
using c10::openreg::ExecutionMode;

namespace {

constexpr size_t kNative = static_cast<size_t>(ExecutionMode::native);
constexpr size_t kAliased = static_cast<size_t>(ExecutionMode::aliased);
constexpr size_t kStaged = static_cast<size_t>(ExecutionMode::staged);

constexpr char kRules[] = "operator_rules"; // a capsule's name

using CountsByOperator = std::map<std::string, c10::openreg::OperatorCount>;

py::dict by_operator(const CountsByOperator& counts, size_t mode) {
  py::dict to;
  for (const auto& [name, count] : counts) {
    py::dict one;
    one["calls"] = count.calls;
    if (mode == kNative) {
      one["refused"] = count.refused;
    } else if (mode == kStaged) {
      one["bytes"] = count.bytes;
    }
    one["seconds"] = count.seconds;
    to[py::str(name)] = one;
  }
  return to;
}

c10::openreg::OperatorCount sum_of(const CountsByOperator& counts) {
  c10::openreg::OperatorCount sum;
  for (const auto& [name, count] : counts) {
    sum.calls += count.calls;
    sum.bytes += count.bytes;
    sum.seconds += count.seconds;
  }
  return sum;
}

PyObject* _operatorStats(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  const auto counts = c10::openreg::operator_counts();
  const auto native = sum_of(counts.by_operator[kNative]);
  const auto staged = sum_of(counts.by_operator[kStaged]);
  py::dict result;
  static constexpr std::array<const char*, 3> kAllocators = {nullptr, "openreg", "torch"};
  const char* allocator = kAllocators[static_cast<size_t>(c10::openreg::gpu_allocator_in_place())];
  result["gpu_allocator"] = allocator == nullptr ? py::object(py::none()) : py::object(py::str(allocator));
  result["native_calls"] = native.calls;
  result["aliased_calls"] = counts.aliased_calls;
  result["staged_calls"] = staged.calls;
  result["staged_bytes"] = staged.bytes;
  result["staged_seconds"] = staged.seconds;
  result["native"] = by_operator(counts.by_operator[kNative], kNative);
  result["aliased"] = by_operator(counts.by_operator[kAliased], kAliased);
  result["staged"] = by_operator(counts.by_operator[kStaged], kStaged);
  return result.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _installGpuAllocator(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  c10::openreg::install_gpu_allocations();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _watchUndeclaredWrites(PyObject* /*self*/, PyObject* on) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyBool_Check(on), "invalid argument to watchUndeclaredWrites");
  c10::openreg::watch_undeclared_writes(on == Py_True);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _undeclaredWrites(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  py::set names;
  for (const std::string& name : c10::openreg::undeclared_writes()) {
    names.add(name);
  }
  return names.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _releaseStagingBuffers(PyObject* /*self*/, PyObject* /*unused*/) {
  c10::openreg::release_staging_buffers();
  Py_RETURN_NONE;
}

PyObject* _keptStagingBytes(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  return PyLong_FromSize_t(c10::openreg::kept_staging_bytes());
  END_HANDLE_TH_ERRORS
}

PyObject* _resetOperatorStats(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  c10::openreg::reset_operator_counts();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _hostWrappersMade(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  return PyLong_FromUnsignedLongLong(c10::openreg::kernel_tensors_made());
  END_HANDLE_TH_ERRORS
}

PyObject* _setOperatorDetails(PyObject* /*self*/, PyObject* on) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyBool_Check(on), "invalid argument to setOperatorDetails");
  const bool before = c10::openreg::operator_details();
  c10::openreg::set_operator_details(on == Py_True);
  return PyBool_FromLong(before);
  END_HANDLE_TH_ERRORS
}

// (policy, mode, operators): three texts of which the last is a list.
PyObject* _setOperatorPolicy(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* policy = nullptr;
  const char* mode = nullptr;
  PyObject* names = nullptr;
  if (PyArg_ParseTuple(arguments, "ssO!", &policy, &mode, &PyList_Type, &names) == 0) {
    throw python_error();
  }
  std::vector<std::string> operators;
  for (const py::handle name : py::reinterpret_borrow<py::list>(names)) {
    TORCH_CHECK_TYPE(py::isinstance<py::str>(name), "operators must be names, as 'aten::add'");
    operators.push_back(name.cast<std::string>());
  }
  c10::openreg::read_operator_variables(); // what is set here comes after them
  c10::openreg::set_operator_policy(
      c10::openreg::operator_policy_named(policy), c10::openreg::execution_mode_named(mode), operators);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _operatorRules(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  c10::openreg::read_operator_variables();
  auto* const rules = new c10::openreg::OperatorRules(c10::openreg::operator_rules());
  const auto destroy = [](void* unused) { delete static_cast<c10::openreg::OperatorRules*>(unused); };
  return py::capsule(rules, kRules, destroy).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _replaceOperatorRules(PyObject* /*self*/, PyObject* rules) {
  HANDLE_TH_ERRORS
  const auto* const kept = static_cast<c10::openreg::OperatorRules*>(PyCapsule_GetPointer(rules, kRules));
  if (kept == nullptr) {
    throw python_error();
  }
  c10::openreg::replace_operator_rules(*kept);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_operator_methods[] = {
    {"_operator_stats", torch_openreg::_operatorStats, METH_NOARGS, "How operators ran, as a dict of counts."},
    {"_watch_undeclared_writes",
     torch_openreg::_watchUndeclaredWrites,
     METH_O,
     "Watches staged operators for writes that their schemas don't declare: for tests."},
    {"_undeclared_writes",
     torch_openreg::_undeclaredWrites,
     METH_NOARGS,
     "Names of the operators that have made such writes."},
    {"_release_staging_buffers",
     torch_openreg::_releaseStagingBuffers,
     METH_NOARGS,
     "Frees the host memory that is kept for staged operators."},
    {"_kept_staging_bytes",
     torch_openreg::_keptStagingBytes,
     METH_NOARGS,
     "Bytes of host memory that are kept for staged operators."},
    {"_install_gpu_allocator",
     torch_openreg::_installGpuAllocator,
     METH_NOARGS,
     "Puts openreg's allocator in the place of PyTorch's for CUDA, where this PyTorch has one."},
    {"_reset_operator_stats", torch_openreg::_resetOperatorStats, METH_NOARGS, "Sets the operators' counts to 0."},
    {"_kernel_tensors_made",
     torch_openreg::_hostWrappersMade,
     METH_NOARGS,
     "CPU tensors made so far to show openreg tensors to kernels."},
    {"_set_operator_details",
     torch_openreg::_setOperatorDetails,
     METH_O,
     "Whether aliased calls are counted by operator; before."},
    {"_set_operator_policy",
     torch_openreg::_setOperatorPolicy,
     METH_VARARGS,
     "(policy, mode, operators): what is allowed."},
    {"_operator_rules",
     torch_openreg::_operatorRules,
     METH_NOARGS,
     "The policy as a list of (mode, operator or \"\", policy)."},
    {"_replace_operator_rules",
     torch_openreg::_replaceOperatorRules,
     METH_O,
     "Sets the whole policy from such a list."},
    {nullptr, nullptr, 0, nullptr},
};
